/* SPDX-License-Identifier: Apache-2.0 */
#include "trtllm/native.h"
#include "trtllm/write.h"
#include "base/error.h"
enum kvf_status kvfi_trt_native_create(const kvf_trtllm_rank *self, const kvf_trtllm_rank *peer,
                                       kvf_trtllm_pair **out, struct kvf_error *error)
{ (void)self; (void)peer; (void)out; return kvfi_fail(error, KVF_ERR_NOT_SUPPORTED, "native"); }
enum kvf_status kvfi_trt_bind_native(struct kvf_trtllm_write *write, const struct kvfi_trt_asked *asked,
                                     struct kvf_error *error)
{ (void)write; (void)asked; return kvfi_fail(error, KVF_ERR_NOT_SUPPORTED, "native"); }
