/* SPDX-License-Identifier: Apache-2.0 */
/** @file message_kit.h  For tests: messages of the side channel from golden files and from hex. */
#ifndef KVFI_VLLM_MESSAGE_KIT_H
#define KVFI_VLLM_MESSAGE_KIT_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "vllm/message.h"

struct message_bytes {
    unsigned char data[4096];
    size_t count;
};

/** Appends bytes written as hex; white space is skipped. */
void message_add_hex(struct message_bytes *out, const char *hex);

/** Reads a golden file; `out` holds nothing else after it. */
void message_load(const char *folder, const char *name, struct message_bytes *out);

/** A pull with all required keys but `without` (may be NULL), then `extra`: hex of `extra_count` whole members. */
void message_make_pull(struct message_bytes *out, const char *without, const char *extra, size_t extra_count);

/** The layout of the golden pulls pull_consumer, pull_all_keys, pull_release_only: who asks. */
struct kvf_vllm_peer message_peer_consumer(void);
struct kvf_vllm_peer message_peer_all(void);
struct kvf_vllm_peer message_peer_shared(void);

#endif
