/* SPDX-License-Identifier: Apache-2.0 */
#include "samples.h"

#include <stdio.h>
#include <string.h>

#define DIGEST_OWN "00112233445566778899aabbccddeeff"
#define DIGEST_PEER "ffeeddccbbaa99887766554433221100"
#define PLAN "0123456789abcdef0123456789abcdef"

kvf_layout *sample_layout(void)
{
    static const int64_t memories[] = {307200, -1};
    static const struct kvf_pool pools[] = {{0, 0, 3072, 100}, {1, 64, 192, 8}};
    static const struct kvf_group groups[] = {{16, 0, 1, 0, 0}, {0, 0, 1, 0, 0}};
    static const struct kvf_place k[] = {{0, 0, 0}, {1, 0, 512}, {2, 0, 1024}, {3, 0, 1536}, {4, 0, 2048},
                                         {5, 0, 2560}};
    static const struct kvf_place v[] = {{0, 0, 256}, {1, 0, 768}, {2, 0, 1280}, {3, 0, 1792}, {4, 0, 2304},
                                         {5, 0, 2816}};
    static const struct kvf_place ssm[] = {{6, 1, 128}, {7, 1, 0}};
    static const struct kvf_view views[] = {
        {"k", "f16", 0, 8, 0, 8, 4, 2, 2, 128, 8, 16, 1, 0, 0, k, 6},
        {"v", "f16", 0, 8, 0, 8, 4, 2, 2, 128, 8, 16, 1, 0, 0, v, 6},
        {"ssm", "f32", 1, 32, 0, 32, 4, 2, 2, 32, 64, 1, 1, KVF_VIEW_OPTIONAL, 0, ssm, 2},
    };
    struct kvf_layout_spec spec;
    struct kvf_error error;
    kvf_layout *layout = NULL;

    kvf_layout_spec_init(&spec, sizeof spec);
    spec.memory_bytes = memories;
    spec.memory_count = 2;
    spec.pools = pools;
    spec.pool_count = 2;
    spec.groups = groups;
    spec.group_count = 2;
    spec.views = views;
    spec.view_count = 3;
    if (kvf_layout_create(&spec, &layout, &error) != KVF_OK) fprintf(stderr, "sample layout: %s\n", error.text);
    return layout;
}

static void fill_hello(struct kvfi_msg_hello *hello, kvf_layout *layout)
{
    *hello = (struct kvfi_msg_hello){
        .planner_version = 1, .instance = "decode-0", .incarnation = 0xfedcba9876543210u, .rank = {0, 1, 0, 3, 300},
        .host = "6a0b1c2d-0000-4000-8000-123456789abc net:4026531840", .model = "llama/\xc3\xbc",
        .peer_instance = "prefill-0",
        .peer_incarnation = 17, .epoch_own = 1700000000123, .epoch_peer = 1700000000456, .layout = layout};
    snprintf(hello->digest_own, sizeof hello->digest_own, "%s", DIGEST_OWN);
    snprintf(hello->digest_peer, sizeof hello->digest_peer, "%s", DIGEST_PEER);
    snprintf(hello->plan, sizeof hello->plan, "%s", PLAN);
}

static void fill_pull(struct kvfi_msg_pull *pull)
{
    static const int64_t blocks[] = {70000, 70001, 70002, 5, -1, 4294967296, 0};
    static const int64_t state[] = {7};
    static const struct kvf_id_list groups[] = {{blocks, 7, 3}, {state, 1, 0}};
    static const struct kvfi_wire_transport transports[] = {{"shm", "@kvferry-1-2"}, {"tcp", "127.0.0.1:40001"}};

    *pull = (struct kvfi_msg_pull){
        .transfer = "request-42", .attempt = 2, .from = "prefill-0", .token_begin = 48, .token_end = 160,
        .request_tokens = 160, .groups = groups, .group_count = 2, .grant = 0x8000000000000001u, .timeout_ms = 60000,
        .transports = transports, .transport_count = 2};
    snprintf(pull->plan, sizeof pull->plan, "%s", PLAN);
}

void sample_message(enum kvfi_message_type type, kvf_layout *layout, struct kvfi_message *message)
{
    *message = (struct kvfi_message){.type = type};
    switch (type) {
    case KVFI_MSG_HELLO:
        fill_hello(&message->hello, layout);
        break;
    case KVFI_MSG_HELLO_ACK:
        fill_hello(&message->hello, NULL);
        message->hello.status = KVF_ERR_INCOMPATIBLE;
        message->hello.text = "k layer 0: row has 128 bytes here, 256 there";
        break;
    case KVFI_MSG_PULL:
        fill_pull(&message->pull);
        break;
    case KVFI_MSG_STARTED:
        message->started = (struct kvfi_msg_started){"request-42", 2, 4, "shm", 1048576};
        break;
    case KVFI_MSG_PROGRESS:
        message->progress = (struct kvfi_msg_progress){"request-42", 2, 4, 0, 3, 96, 524288};
        break;
    case KVFI_MSG_DONE:
        message->end = (struct kvfi_msg_end){"request-42", 2, 4, 1048576, 4096, 3, KVF_OK, ""};
        break;
    case KVFI_MSG_FAILED:
        message->end = (struct kvfi_msg_end){"request-42", 2, 4, 65536, 256, 1, KVF_ERR_EXPIRED,
                                              "offer expired after 60 s"};
        break;
    case KVFI_MSG_IN_DOUBT:
        message->end = (struct kvfi_msg_end){"request-42", 2, 4, 0, 0, 0, KVF_ERR_IN_DOUBT, "a copy has not come back"};
        break;
    case KVFI_MSG_CANCEL:
        message->note = (struct kvfi_msg_note){"request-42", 2, -1, KVF_ERR_CANCELLED, "cancelled"};
        break;
    case KVFI_MSG_QUIESCED:
        message->note = (struct kvfi_msg_note){"request-42", 2, 4, KVF_OK, ""};
        break;
    case KVFI_MSG_RELEASE:
        message->note = (struct kvfi_msg_note){"request-42", 2, -1, KVF_OK, ""};
        break;
    case KVFI_MSG_NACK:
        message->nack = (struct kvfi_msg_nack){"pull", "request-42", 2, KVF_ERR_PLAN_MISMATCH, "plans differ"};
        break;
    default:
        message->ping.sequence = 123456789012345;
        message->ping.incarnation = 17;
        break;
    }
}
