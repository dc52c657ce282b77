/* SPDX-License-Identifier: Apache-2.0 */
/** @file http_kit.h  For tests: an HTTP server that behaves as badly as a test wants. One thread per connection. */
#ifndef KVFI_DIRECTORY_HTTP_KIT_H
#define KVFI_DIRECTORY_HTTP_KIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct http_kit;

/** Serves one request, the `number`-th from 1; the connection is closed afterwards. Several run at a time. */
typedef void http_kit_serve(struct http_kit *kit, void *context, int fd, int number, const char *request,
                            size_t request_bytes);

struct http_kit *http_kit_open(http_kit_serve *serve, void *context);
/** Ends stalls, waits for what is being served, frees. */
void http_kit_close(struct http_kit *kit);
/** "http://127.0.0.1:PORT" */
const char *http_kit_url(const struct http_kit *kit);
/** Requests that were read whole. */
int http_kit_requests(struct http_kit *kit);

/** Sends; false when the peer is gone. */
bool http_kit_send(int fd, const void *bytes, size_t byte_count);
/** Answers with a code and a body. */
void http_kit_answer(int fd, int code, const char *body);
/** Waits until `ms` passed, or the kit closes. */
void http_kit_stall(struct http_kit *kit, int ms);
/** Asks another server with the same bytes. Returns the answer, free with free(). */
char *http_kit_relay(const char *url, const char *request, size_t request_bytes, size_t *answer_bytes);

#endif
