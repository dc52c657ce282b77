/* SPDX-License-Identifier: Apache-2.0 */
/** @file key.h  What a peer is remembered under: everything of it that a preparation depends on, as bytes. */
#ifndef KVFI_VLLM_KEY_H
#define KVFI_VLLM_KEY_H

#include <stdbool.h>

#include "kvferry/vllm.h"

/** A peer's key, not written out: read from the peer itself as often as needed. */
struct kvfi_vllm_key {
    const struct kvf_vllm_peer *peer;
    bool by_id;   /**< the layout id stands for the arrays */
    uint64_t hash;
    size_t bytes;
};

/** Reads the peer once, for hash and size. @param by_id  the layout id stands for the arrays */
void kvfi_vllm_key_init(struct kvfi_vllm_key *key, const struct kvf_vllm_peer *peer, bool by_id);

/** Writes the key out: key->bytes of them. */
void kvfi_vllm_key_write(const struct kvfi_vllm_key *key, unsigned char *out);

/** Whether the key's bytes are these, key->bytes of them. */
bool kvfi_vllm_key_equal(const struct kvfi_vllm_key *key, const unsigned char *bytes);

#endif
