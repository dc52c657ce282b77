/* SPDX-License-Identifier: Apache-2.0 */
/** @file links.h  Data connections to destination ranks. */
#ifndef KVFI_ENGINE_LINKS_H
#define KVFI_ENGINE_LINKS_H

#include "engine/peers.h"

/** Wants a connection: begins one where there is none. Returns its state; FAILED with `error` when it cannot be. */
int kvfi_link_want(kvf_engine *engine, struct kvfi_peer *peer, size_t carrier, const char *endpoint,
                   struct kvf_error *error);
/** Forgets that connections failed, so that the next wish tries them again. */
void kvfi_links_retry(kvf_engine *engine, struct kvfi_peer *peer);
/** Closes all; posts that are out come back first. */
void kvfi_links_close(kvf_engine *engine, struct kvfi_peer *peer);
void kvfi_links_on_event(kvf_engine *engine, size_t carrier, const struct kvfi_transport_event *event);

#endif
