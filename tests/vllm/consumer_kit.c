/* SPDX-License-Identifier: Apache-2.0 */
#include "consumer_kit.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zmq.h>

#include "directory/http_kit.h"

#define WAIT_NS (20 * KVFI_SECOND)
#define QUIET_MS 30
#define LAYER "model.layers.0.self_attn"

/* ---- registries ------------------------------------------------------------------------------------------------- */

static void open_directory(struct reg *reg, const char *listen)
{
    struct kvf_directory_options options;
    struct kvf_error error;

    kvf_directory_options_init(&options, sizeof options);
    options.flags = KVF_DIRECTORY_VLLM_BOOTSTRAP;
    options.listen = listen;
    if (kvf_directory_open(&options, &reg->directory, &error) != KVF_OK)
        fail_msg("%s", error.text);
    reg->url = kvf_directory_url(reg->directory);
}

void reg_open(struct reg *reg) { open_directory(reg, "127.0.0.1:0"); }

void reg_open_at(struct reg *reg, const char *url) { open_directory(reg, url + strlen("http://")); }

void reg_close(struct reg *reg)
{
    kvf_directory_close(reg->directory);
    *reg = (struct reg){0};
}

void reg_add(struct reg *reg, const char *engine_id, int dp, int tp, int pp, const char *address)
{
    char body[1024], request[2048];
    size_t bytes;
    char *answer;

    snprintf(body, sizeof body, "{\"engine_id\":\"%s\",\"dp_rank\":%d,\"tp_rank\":%d,\"pp_rank\":%d,\"addr\":\"%s\"}",
             engine_id, dp, tp, pp, address);
    snprintf(request, sizeof request, "POST /register HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
             "content-length: %zu\r\nconnection: close\r\n\r\n%s", strlen(body), body);
    answer = http_kit_relay(reg->url, request, strlen(request), &bytes);
    assert_non_null(answer);
    if (bytes < 12 || memcmp(answer, "HTTP/1.1 200", 12) != 0)
        fail_msg("the registry says %.*s", (int)bytes, answer);
    free(answer);
}

/* ---- a consumer ------------------------------------------------------------------------------------------------- */

void dec_init(struct dec *dec, const struct reg *reg)
{
    *dec = (struct dec){.engine_id = "p-engine", .bootstrap = reg == NULL ? NULL : reg->url};
    kvf_vllm_worker_options_init(&dec->options, sizeof dec->options);
    dec->options.role = KVF_VLLM_CONSUMER;
    dec->options.engine_id = "d-engine";
    dec->options.abort_request_timeout_ns = 19 * KVFI_SECOND;
    dec->options.receive_slack_ns = KVFI_SECOND;
    dec->options.connector_timeout_ns = 10 * KVFI_SECOND;
    dec->options.check_arrivals = 0;
}

void dec_register(struct dec *dec)
{
    int64_t group = 0;
    struct kvf_vllm_region region = {.layer_name = LAYER, .base_addr = (uint64_t)(uintptr_t)dec->memory,
                                     .block_len = DEC_BLOCK_BYTES, .kv_block_len = DEC_BLOCK_BYTES,
                                     .shared_groups = {.ids = &group, .count = 1}, .row_offset = KVF_VLLM_NO_ROW};
    struct kvf_vllm_storage storage = {.base_addr = region.base_addr,
                                       .bytes = (int64_t)DEC_BLOCK_BYTES * DEC_BLOCKS};
    kvf_vllm_regions *regions = NULL;
    struct kvf_error error;

    assert_int_equal(kvf_vllm_regions_create(&region, 1, &regions, &error), KVF_OK);
    if (kvf_vllm_worker_register(dec->worker, &storage, 1, regions, 0, &error) != KVF_OK)
        fail_msg("%s", error.text);
    kvf_vllm_regions_release(regions);
}

void dec_open(struct dec *dec)
{
    struct kvf_error error;

    dec->memory = calloc(DEC_BLOCKS, DEC_BLOCK_BYTES);
    assert_non_null(dec->memory);
    if (kvf_vllm_worker_open(&dec->options, &dec->worker, &error) != KVF_OK)
        fail_msg("%s", error.text);
    dec_register(dec);
}

void dec_close(struct dec *dec)
{
    kvf_vllm_worker_close(dec->worker);
    free(dec->memory);
}

void dec_step(struct dec *dec, const struct kvf_vllm_recv *recvs, size_t count)
{
    struct kvf_vllm_step step = {.struct_size = sizeof step, .recvs = recvs, .recv_count = count};
    struct kvf_error error;

    if (kvf_vllm_worker_step(dec->worker, &step, &error) != KVF_OK)
        fail_msg("%s", error.text);
}

void dec_pull_from(struct dec *dec, const char *engine_id, const char *id, int64_t first, size_t count)
{
    int64_t ids[DEC_MOST_IDS];
    char transfer[128];
    struct kvf_vllm_ids group = {.ids = ids, .count = count};
    struct kvf_vllm_recv recv = {.d_req_id = id, .transfer_id = transfer, .remote_engine_id = engine_id,
                                 .remote_bootstrap_addr = dec->bootstrap, .groups = &group, .group_count = 1};

    assert_true(count <= DEC_MOST_IDS);
    for (size_t i = 0; i < count; i++)
        ids[i] = first + (int64_t)i;
    snprintf(transfer, sizeof transfer, "x-%s", id);
    dec_step(dec, &recv, 1);
}

void dec_pull(struct dec *dec, const char *id, int64_t first, size_t count)
{
    dec_pull_from(dec, dec->engine_id, id, first, count);
}

void dec_pull_many(struct dec *dec, const char *prefix, size_t count)
{
    struct kvf_vllm_recv *recvs = calloc(count, sizeof *recvs);
    struct kvf_vllm_ids *groups = calloc(count, sizeof *groups);
    int64_t *ids = calloc(count, sizeof *ids);
    char (*names)[64] = calloc(count, sizeof *names);

    assert_non_null(recvs);
    assert_non_null(groups);
    assert_non_null(ids);
    assert_non_null(names);
    for (size_t i = 0; i < count; i++) {
        snprintf(names[i], sizeof names[i], "%s%zu", prefix, i);
        ids[i] = (int64_t)i;
        groups[i] = (struct kvf_vllm_ids){.ids = &ids[i], .count = 1};
        recvs[i] = (struct kvf_vllm_recv){.d_req_id = names[i], .transfer_id = names[i],
                                          .remote_engine_id = dec->engine_id,
                                          .remote_bootstrap_addr = dec->bootstrap, .groups = &groups[i],
                                          .group_count = 1};
    }
    dec_step(dec, recvs, count);
    free(recvs);
    free(groups);
    free(ids);
    free(names);
}

struct kvf_vllm_event dec_event(struct dec *dec, int kind, const char *id)
{
    struct kvf_vllm_event event;

    if (kvf_vllm_worker_wait(dec->worker, &event, 1, WAIT_NS) == 0)
        fail_msg("no event, expected kind %d of %s", kind, id == NULL ? "any" : id);
    if (event.kind != kind || (id != NULL && strcmp(event.req_id, id) != 0))
        fail_msg("event %d of %s (%s), expected %d of %s", event.kind, event.req_id, event.text, kind,
                 id == NULL ? "any" : id);
    return event;
}

void dec_no_event(struct dec *dec)
{
    struct kvf_vllm_event event;

    if (kvf_vllm_worker_wait(dec->worker, &event, 1, QUIET_MS * KVFI_MS) != 0)
        fail_msg("event %d of %s: %s", event.kind, event.req_id, event.text);
}

void dec_skip_event(struct dec *dec)
{
    struct kvf_vllm_event event;

    kvf_vllm_worker_wait(dec->worker, &event, 1, QUIET_MS * KVFI_MS);
}

struct kvf_vllm_worker_stats dec_stats(struct dec *dec)
{
    struct kvf_vllm_worker_stats stats = {.struct_size = sizeof stats};

    assert_int_equal(kvf_vllm_worker_get_stats(dec->worker, &stats, NULL), KVF_OK);
    return stats;
}

/* Whether one of the words is this; `*words` counts them. */
static bool has_word(const char *text, const char *word, size_t *words)
{
    size_t bytes = strlen(word);
    bool found = false;

    *words = 0;
    while (*text != '\0') {
        size_t length = strcspn(text, " ");

        found = found || (length == bytes && memcmp(text, word, bytes) == 0);
        *words += length > 0;
        text += length + (text[length] == ' ');
    }
    return found;
}

static void check_words(const char *what, const char *expected, const char *const *found, size_t count)
{
    size_t words = 0;

    has_word(expected, "", &words);
    for (size_t i = 0; i < count; i++)
        if (!has_word(expected, found[i], &words))
            fail_msg("%s: found %s, expected \"%s\"", what, found[i], expected);
    if (words != count)
        fail_msg("%s: %zu, expected \"%s\"", what, count, expected);
}

void dec_collect(struct dec *dec, const char *finished, const char *failed, const char *blocks)
{
    struct kvf_vllm_done done = {.struct_size = sizeof done};
    char text[4096] = "";
    size_t length = 0;
    struct kvf_error error;

    if (kvf_vllm_worker_collect(dec->worker, &done, &error) != KVF_OK)
        fail_msg("%s", error.text);
    check_words("finished", finished, done.finished_recving, done.finished_recving_count);
    check_words("failed", failed, done.failed_recving, done.failed_recving_count);
    assert_int_equal(done.finished_sending_count, 0);
    for (size_t i = 0; i < done.invalid_block_count && length < sizeof text - 32; i++)
        length += (size_t)snprintf(text + length, sizeof text - length, "%s%" PRId64, i == 0 ? "" : " ",
                                   done.invalid_blocks[i]);
    assert_string_equal(text, blocks);
    kvf_vllm_done_release(&done);
}

/* ---- a producer ------------------------------------------------------------------------------------------------- */

static void open_at(struct prod *prod, const char *endpoint, int ipv6)
{
    size_t bytes = sizeof prod->address;
    int linger = 0;

    prod->context = zmq_ctx_new();
    prod->router = zmq_socket(prod->context, ZMQ_ROUTER);
    assert_non_null(prod->router);
    zmq_setsockopt(prod->router, ZMQ_LINGER, &linger, sizeof linger);
    zmq_setsockopt(prod->router, ZMQ_IPV6, &ipv6, sizeof ipv6);
    if (zmq_bind(prod->router, endpoint) != 0)
        fail_msg("%s: %s", endpoint, zmq_strerror(zmq_errno()));
    assert_int_equal(zmq_getsockopt(prod->router, ZMQ_LAST_ENDPOINT, prod->address, &bytes), 0);
}

void prod_open(struct prod *prod, int port)
{
    char endpoint[64];

    snprintf(endpoint, sizeof endpoint, port == 0 ? "tcp://127.0.0.1:*" : "tcp://127.0.0.1:%d", port);
    open_at(prod, endpoint, 0);
}

void prod_open_ipv6(struct prod *prod) { open_at(prod, "tcp://[::1]:*", 1); }

int prod_port(const struct prod *prod) { return (int)strtol(strrchr(prod->address, ':') + 1, NULL, 10); }

void prod_close(struct prod *prod)
{
    zmq_close(prod->router);
    zmq_ctx_term(prod->context);
    *prod = (struct prod){0};
}

static bool wait_for(struct prod *prod, long ms)
{
    zmq_pollitem_t item = {.socket = prod->router, .events = ZMQ_POLLIN};

    return zmq_poll(&item, 1, ms) > 0;
}

void prod_ask(struct prod *prod, struct ask *ask)
{
    struct kvf_error error;
    zmq_msg_t body;
    int id_bytes;

    memset(ask, 0, sizeof *ask);
    if (!wait_for(prod, WAIT_NS / KVFI_MS))
        fail_msg("no pull came");
    id_bytes = zmq_recv(prod->router, ask->id, sizeof ask->id, 0);
    assert_in_range(id_bytes, 1, sizeof ask->id);
    ask->id_bytes = (size_t)id_bytes;
    zmq_msg_init(&body);
    assert_true(zmq_msg_recv(&body, prod->router, 0) >= 0);
    assert_false(zmq_msg_more(&body)); /* one frame: no delimiter */
    ask->byte_count = zmq_msg_size(&body);
    ask->bytes = malloc(ask->byte_count + 1);
    assert_non_null(ask->bytes);
    memcpy(ask->bytes, zmq_msg_data(&body), ask->byte_count);
    zmq_msg_close(&body);
    if (kvfi_vllm_pull_decode(ask->bytes, ask->byte_count, &ask->pull, &error) != KVF_OK)
        fail_msg("%s", error.text);
}

bool prod_try_ask(struct prod *prod, struct ask *ask)
{
    if (!wait_for(prod, 1))
        return false;
    ask_close(ask);
    prod_ask(prod, ask);
    return true;
}

void prod_no_ask(struct prod *prod) { assert_false(wait_for(prod, QUIET_MS)); }

void ask_close(struct ask *ask)
{
    kvfi_vllm_pull_fini(&ask->pull);
    free(ask->bytes);
    memset(ask, 0, sizeof *ask);
}

bool ask_has(const struct ask *ask, const char *id)
{
    for (size_t i = 0; i < ask->pull.request_count; i++)
        if (strcmp(ask->pull.requests[i].d_req_id, id) == 0)
            return true;
    return false;
}

void prod_say_bytes(struct prod *prod, const struct ask *ask, const void *bytes, size_t byte_count)
{
    assert_true(zmq_send(prod->router, ask->id, ask->id_bytes, ZMQ_SNDMORE) >= 0);
    assert_true(zmq_send(prod->router, bytes, byte_count, 0) >= 0);
}

void prod_say_frames(struct prod *prod, const struct ask *ask, size_t frames)
{
    assert_true(zmq_send(prod->router, ask->id, ask->id_bytes, ZMQ_SNDMORE) >= 0);
    for (size_t i = 0; i < frames; i++)
        assert_true(zmq_send(prod->router, "\x81\xa6status\x00", 9, i + 1 < frames ? ZMQ_SNDMORE : 0) >= 0);
}

/* Cuts a copy of the text into its words. */
static size_t cut(char *text, const char **words, size_t most)
{
    size_t count = 0;
    char *rest = NULL;

    for (char *word = strtok_r(text, " ", &rest); word != NULL && count < most; word = strtok_r(NULL, " ", &rest))
        words[count++] = word;
    return count;
}

void prod_say(struct prod *prod, const struct ask *ask, int verdict, const char *ok, const char *err,
              const char *message, uint64_t layout_id)
{
    enum { MOST = 4096 };
    char *texts[2] = {strdup(ok == NULL ? "" : ok), strdup(err == NULL ? "" : err)};
    const char **words[2] = {calloc(MOST, sizeof(char *)), calloc(MOST, sizeof(char *))};
    struct kvfi_vllm_reply reply = {.verdict = verdict, .ok_reqs = words[0], .err_reqs = words[1],
                                    .err_msg = message, .layout_id = layout_id};
    unsigned char *bytes = NULL;
    size_t byte_count = 0;
    struct kvf_error error;

    assert_non_null(words[0]);
    assert_non_null(words[1]);
    reply.ok_count = cut(texts[0], words[0], MOST);
    reply.err_count = cut(texts[1], words[1], MOST);
    if (kvfi_vllm_reply_encode(&reply, &bytes, &byte_count, &error) != KVF_OK)
        fail_msg("%s", error.text);
    prod_say_bytes(prod, ask, bytes, byte_count);
    free(bytes);
    for (int i = 0; i < 2; i++) {
        free(texts[i]);
        free(words[i]);
    }
}

void prod_finish(struct prod *prod, const struct ask *ask, const char *ok)
{
    prod_say(prod, ask, KVFI_VLLM_FINISH, ok, NULL, NULL, ask->pull.peer.layout_id);
}

/* ---- the usual three -------------------------------------------------------------------------------------------- */

void scene_init(struct scene *scene)
{
    reg_open(&scene->reg);
    prod_open(&scene->prod, 0);
    reg_add(&scene->reg, "p-engine", 0, 0, 0, scene->prod.address);
    dec_init(&scene->dec, &scene->reg);
}

void scene_open(struct scene *scene)
{
    scene_init(scene);
    dec_open(&scene->dec);
}

void scene_close(struct scene *scene)
{
    dec_close(&scene->dec);
    if (scene->prod.context != NULL)
        prod_close(&scene->prod);
    reg_close(&scene->reg);
}

void scene_ask(struct scene *scene, const char *id, int64_t first, size_t count, struct ask *ask)
{
    dec_pull(&scene->dec, id, first, count);
    prod_ask(&scene->prod, ask);
    dec_event(&scene->dec, KVF_VLLM_EVENT_ASKED, NULL);
}

void scene_finish(struct scene *scene, const struct ask *ask, const char *id)
{
    prod_finish(&scene->prod, ask, id);
    dec_event(&scene->dec, KVF_VLLM_EVENT_RECEIVED, id);
}

/* ---- bytes ------------------------------------------------------------------------------------------------------ */

/* An engine that has one block's bytes, and the consumer's segment. */
struct reach {
    kvf_mooncake *engine;
    unsigned char *memory;
    uint64_t remote;
    int64_t segment;
};

static void reach_open(struct reach *reach, const struct ask *ask, unsigned char value)
{
    struct kvf_mooncake_options options;
    struct kvf_mooncake_buffer buffer = {.bytes = DEC_BLOCK_BYTES};
    char name[KVF_MOONCAKE_NAME_BYTES];
    struct kvf_error error;

    *reach = (struct reach){.memory = malloc(DEC_BLOCK_BYTES), .remote = ask->pull.peer.regions.base_addrs[0]};
    assert_non_null(reach->memory);
    memset(reach->memory, value, DEC_BLOCK_BYTES);
    buffer.address = (uint64_t)(uintptr_t)reach->memory;
    kvf_mooncake_options_init(&options, sizeof options);
    options.initiator_only = 1;
    assert_int_equal(kvf_mooncake_open(&options, &reach->engine, &error), KVF_OK);
    assert_int_equal(kvf_mooncake_register(reach->engine, &buffer, 1, &error), KVF_OK);
    snprintf(name, sizeof name, "%.200s:%" PRId64, ask->pull.peer.hostname, ask->pull.peer.port);
    if (kvf_mooncake_open_segment(reach->engine, name, WAIT_NS, &reach->segment, &error) != KVF_OK)
        fail_msg("%s", error.text);
}

static void reach_close(struct reach *reach)
{
    kvf_mooncake_close(reach->engine);
    free(reach->memory);
}

static struct kvf_mooncake_range range_of(const struct reach *reach, int64_t block, size_t first, size_t bytes)
{
    return (struct kvf_mooncake_range){.local = (uint64_t)(uintptr_t)reach->memory + first, .bytes = bytes,
                                       .remote = reach->remote + (uint64_t)block * DEC_BLOCK_BYTES + first};
}

enum kvf_status ask_write_part(const struct ask *ask, int64_t block, size_t first, size_t bytes, unsigned char value)
{
    struct kvf_mooncake_range range;
    struct kvf_error error;
    enum kvf_status status;
    struct reach reach;

    reach_open(&reach, ask, value);
    range = range_of(&reach, block, first, bytes);
    status = kvf_mooncake_write(reach.engine, reach.segment, &range, 1, 0, WAIT_NS, NULL, &error);
    reach_close(&reach);
    return status;
}

enum kvf_status ask_read(const struct ask *ask, int64_t block)
{
    struct kvf_mooncake_range range;
    struct kvf_error error;
    enum kvf_status status;
    struct reach reach;

    reach_open(&reach, ask, 0);
    range = range_of(&reach, block, 0, DEC_BLOCK_BYTES);
    status = kvf_mooncake_read(reach.engine, reach.segment, &range, 1, 0, WAIT_NS, NULL, &error);
    reach_close(&reach);
    return status;
}

enum kvf_status ask_write(const struct ask *ask, const int64_t *blocks, size_t count, unsigned char value)
{
    enum kvf_status status = KVF_OK;
    struct kvf_error error;
    struct reach reach;

    reach_open(&reach, ask, value);
    for (size_t i = 0; status == KVF_OK && i < count; i++) {
        struct kvf_mooncake_range range = range_of(&reach, blocks[i], 0, DEC_BLOCK_BYTES);

        status = kvf_mooncake_write(reach.engine, reach.segment, &range, 1, 0, WAIT_NS, NULL, &error);
    }
    reach_close(&reach);
    return status;
}
