/* SPDX-License-Identifier: Apache-2.0 */
#include "vllm/message_kit.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void message_add_hex(struct message_bytes *out, const char *hex)
{
    unsigned byte;

    while (*hex) {
        if (isspace((unsigned char)*hex)) {
            hex++;
            continue;
        }
        if (sscanf(hex, "%2x", &byte) != 1 || out->count == sizeof out->data) abort();
        out->data[out->count++] = (unsigned char)byte;
        hex += 2;
    }
}

void message_load(const char *folder, const char *name, struct message_bytes *out)
{
    char path[1024], text[2 * sizeof out->data];
    FILE *file;
    size_t count;

    (void)snprintf(path, sizeof path, "%s/%s.hex", folder, name);
    file = fopen(path, "r");
    if (file == NULL) {
        perror(path);
        exit(1);
    }
    count = fread(text, 1, sizeof text - 1, file);
    (void)fclose(file);
    text[count] = '\0';
    out->count = 0;
    message_add_hex(out, text);
}

static void add_text(struct message_bytes *out, const char *text)
{
    out->data[out->count++] = (unsigned char)(0xa0 | strlen(text));
    memcpy(out->data + out->count, text, strlen(text));
    out->count += strlen(text);
}

void message_make_pull(struct message_bytes *out, const char *without, const char *extra, size_t extra_count)
{
    static const char *const members[][2] = {
        {"remote_hostname", "a168"}, {"remote_port", "01"}, {"remote_tp_size", "01"}, {"remote_tp_rank", "00"},
        {"req_blocks", "81a16192a174919107"}, {"kv_caches_base_addr", "9101"}, {"block_lens", "9102"},
        {"kv_block_lens", "9102"}};

    out->count = 1;
    out->data[0] = (unsigned char)(0x80 | extra_count);
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        if (without != NULL && strcmp(members[i][0], without) == 0) continue;
        add_text(out, members[i][0]);
        message_add_hex(out, members[i][1]);
        out->data[0]++;
    }
    message_add_hex(out, extra);
}

struct kvf_vllm_peer message_peer_consumer(void)
{
    static const uint64_t base = 0x1000;
    static const int64_t length = 4096, index = 0;
    static const char *const name = "model.layers.0.self_attn";
    struct kvf_vllm_peer peer;

    kvf_vllm_peer_init(&peer, sizeof peer);
    peer.hostname = "127.0.0.1";
    peer.port = 54321;
    peer.regions = (struct kvf_vllm_arrays){
        .base_addrs = &base, .base_addr_count = 1, .block_lens = &length, .block_len_count = 1,
        .kv_block_lens = &length, .kv_block_len_count = 1, .layer_names = &name, .layer_name_count = 1,
        .layer_indices = &index, .layer_index_count = 1};
    return peer;
}

struct kvf_vllm_peer message_peer_all(void)
{
    static const uint64_t bases[] = {0x7f5a40000000, 0x7f5a40004000};
    static const int64_t lengths[] = {32768, 32768}, kv[] = {16384, 16384}, indices[] = {0, 1}, offsets[] = {-1, 16384};
    static const char *const names[] = {"model.layers.0.self_attn", "model.layers.1.self_attn"};
    static const struct kvf_vllm_ids shared[] = {{&indices[0], 1}, {&indices[1], 1}};
    struct kvf_vllm_peer peer;

    kvf_vllm_peer_init(&peer, sizeof peer);
    peer.hostname = "10.0.0.7";
    peer.port = 15002;
    peer.tp_size = 2;
    peer.tp_rank = 1;
    peer.pp_size = 2;
    peer.regions = (struct kvf_vllm_arrays){
        .base_addrs = bases, .base_addr_count = 2, .block_lens = lengths, .block_len_count = 2, .kv_block_lens = kv,
        .kv_block_len_count = 2, .layer_names = names, .layer_name_count = 2, .layer_indices = indices,
        .layer_index_count = 2, .group_indices = indices, .group_index_count = 2, .shared_groups = shared,
        .shared_group_count = 2, .row_offsets = offsets, .row_offset_count = 2};
    return peer;
}

struct kvf_vllm_peer message_peer_shared(void)
{
    static const uint64_t base = 0x7f0000001000;
    static const int64_t length = 256, zero = 0, group = KVF_VLLM_SHARED_GROUP, both[] = {0, 1};
    static const char *const name = "model.layers.0.mla_attn";
    static const struct kvf_vllm_ids shared = {both, 2};
    struct kvf_vllm_peer peer = message_peer_consumer();

    peer.regions = (struct kvf_vllm_arrays){
        .base_addrs = &base, .base_addr_count = 1, .block_lens = &length, .block_len_count = 1,
        .kv_block_lens = &length, .kv_block_len_count = 1, .layer_names = &name, .layer_name_count = 1,
        .layer_indices = &zero, .layer_index_count = 1, .group_indices = &group, .group_index_count = 1,
        .shared_groups = &shared, .shared_group_count = 1, .row_offsets = &zero, .row_offset_count = 1};
    return peer;
}
