/* SPDX-License-Identifier: Apache-2.0 */
/** @file listen.h  A listening TCP socket from "HOST:PORT" or "[ADDRESS]:PORT". */
#ifndef KVFI_DIRECTORY_LISTEN_H
#define KVFI_DIRECTORY_LISTEN_H

#include "kvferry/status.h"

/** Longest "http://[...]:65535" with its closing zero. */
#define KVFI_LISTEN_URL_BYTES 300

/** Binds and listens.
 *  @param fd   returned to the caller (close)
 *  @param url  "http://HOST:PORT" with the port that was bound
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT; KVF_ERR_ADDRESS_IN_USE naming the address; KVF_ERR_TIMEOUT: the
 *          system's resolver does not answer; KVF_ERR_NO_MEMORY; KVF_ERR_SYSTEM */
enum kvf_status kvfi_listen(const char *listen, int *fd, char url[KVFI_LISTEN_URL_BYTES], struct kvf_error *error);

#endif
