/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation of this tree's own code is refused in turn while messages are packed and read and a directory is
 * asked: each time the answer is "out of memory", nothing is left behind, and the next try works. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/no_memory_kit.h"
#include "channel/channel.h"
#include "directory/claim.h"
#include "directory/client_state.h"
#include "directory/service.h"
#include "samples.h"

/** Runs `try` with the 1st, 2nd, 3rd ... allocation and all after it refused, until one run meets no refusal. */
static void refuse_each(const char *name, bool (*try)(void *context), void *context)
{
    for (long allowed = 0; allowed < 1000; allowed++) {
        bool ok;

        no_memory_from(allowed);
        ok = try(context);
        no_memory_end();
        if (!ok) fail_msg("%s: wrong answer with %ld allocations allowed", name, allowed);
        if (!no_memory_refused()) return;
    }
    fail_msg("%s: never ends", name);
}

struct bytes {
    struct kvfi_buffer buffer;
    kvf_layout *layout;
    enum kvfi_message_type type;
};

static bool try_unpack(void *context)
{
    struct bytes *bytes = context;
    struct kvfi_message message = {.type = KVFI_MSG_NONE};
    struct kvf_error error;
    enum kvf_status status = kvfi_wire_unpack(bytes->buffer.bytes, bytes->buffer.count, &message, &error);
    bool ok = no_memory_refused() ? status == KVF_ERR_NO_MEMORY && message.type == KVFI_MSG_NONE : status == KVF_OK;

    kvfi_message_fini(&message);
    return ok;
}

static bool try_pack(void *context)
{
    struct bytes *bytes = context;
    struct kvfi_buffer buffer = {0};
    struct kvfi_message message;
    struct kvf_error error;
    enum kvf_status status;
    bool ok;

    sample_message(bytes->type, bytes->layout, &message);
    status = kvfi_wire_pack(&message, &buffer, &error);
    ok = no_memory_refused() ? status == KVF_ERR_NO_MEMORY && buffer.count == 0 : status == KVF_OK;
    kvfi_buffer_fini(&buffer);
    return ok;
}

static void messages(void **state)
{
    struct bytes bytes = {.layout = sample_layout()};

    (void)state;
    for (int type = KVFI_MSG_HELLO; type < KVFI_MSG_TYPES; type++) {
        struct kvfi_message message;

        bytes.type = (enum kvfi_message_type)type;
        sample_message(bytes.type, bytes.layout, &message);
        assert_int_equal(kvfi_wire_pack(&message, &bytes.buffer, NULL), KVF_OK);
        refuse_each("pack", try_pack, &bytes);
        refuse_each("unpack", try_unpack, &bytes);
    }
    kvfi_buffer_fini(&bytes.buffer);
    kvf_layout_release(bytes.layout);
}

static const char claim[] =
    "{\"instance\":\"p\",\"incarnation\":\"00000000000000aa\",\"rank\":{\"tp\":1},\"ranks_expected\":2,"
    "\"endpoints\":{\"channel\":\"tcp://127.0.0.1:1\"},\"holdings\":[{\"role\":\"k\",\"tag\":\"f16\","
    "\"row\":[128,0,128],\"units\":[3,0,1],\"layers\":[[0,15]]}]}";

static unsigned ask(struct kvfi_service *service, const char *method, const char *path, struct kvfi_text *out)
{
    struct kvfi_service_request request = {.method = method, .path = path, .instance = "p", .body = claim,
                                           .body_bytes = sizeof claim - 1};
    struct kvfi_service_answer answer;

    kvfi_service_answer(service, &request, &answer);
    if (answer.body.failed) answer.code = 503;
    if (out) *out = answer.body;
    else kvfi_text_fini(&answer.body);
    return answer.code;
}

/** Registers at an empty directory, with and without memory: a refusal leaves it empty. */
static bool try_register(void *context)
{
    struct kvfi_service service = {.opened_ns = 0};
    unsigned code;
    bool ok;

    (void)context;
    kvfi_registry_init(&service.registry, 1000, 10, 1);
    code = ask(&service, "POST", "/v1/register", NULL);
    ok = no_memory_refused() ? code == 503 : code == 200 && service.registry.rank_count == 1;
    ok = ok && service.registry.instance_count == (size_t)service.registry.rank_count;
    kvfi_registry_fini(&service.registry);
    return ok;
}

static bool try_query(void *context)
{
    unsigned code = ask(context, "GET", "/v1/query", NULL);

    return no_memory_refused() ? code == 503 : code == 200;
}

static bool try_read(void *context)
{
    struct kvfi_directory_instance *instance = NULL;
    struct kvf_error error;
    enum kvf_status status = kvfi_instance_read(context, &instance, &error);
    bool ok = no_memory_refused() ? status == KVF_ERR_NO_MEMORY && !instance : status == KVF_OK;

    kvfi_directory_instance_destroy(instance);
    return ok;
}

static void directory(void **state)
{
    struct kvfi_service service = {.opened_ns = 0};
    struct kvfi_text answer;

    (void)state;
    kvfi_registry_init(&service.registry, 1000, 10, 1);
    refuse_each("register", try_register, NULL);
    assert_int_equal(ask(&service, "POST", "/v1/register", NULL), 200);
    refuse_each("query", try_query, &service);
    assert_int_equal(ask(&service, "GET", "/v1/query", &answer), 200);
    refuse_each("reading an answer", try_read, &answer);
    kvfi_text_fini(&answer);
    kvfi_registry_fini(&service.registry);
}

static bool try_channel(void *context)
{
    struct kvfi_channel *channel = NULL;
    struct kvfi_route route = {0};
    struct kvf_error error;
    enum kvf_status status = kvfi_channel_open(NULL, &channel, &error);

    (void)context;
    if (status == KVF_OK) status = kvfi_channel_connect(channel, "tcp://127.0.0.1:1", &route, &error);
    kvfi_channel_close(channel, 0);
    return no_memory_refused() ? status == KVF_ERR_NO_MEMORY && route.peer == 0 : status == KVF_OK;
}

static void channel(void **state)
{
    (void)state;
    refuse_each("channel", try_channel, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(messages), cmocka_unit_test(directory),
                                       cmocka_unit_test(channel)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
