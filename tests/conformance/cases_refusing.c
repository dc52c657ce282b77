/* SPDX-License-Identifier: Apache-2.0 */
/* What must not arrive. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <string.h>

#include "cases.h"

static const struct kit_shape shape = {.layers = 2, .heads = 2, .row_bytes = 128, .tokens = 100,
                                       .src_block_tokens = 16, .dst_block_tokens = 64};

static void assert_says(const struct kvfi_transport_event *event, const char *text)
{
    if (!strstr(event->text, text)) fail_msg("\"%s\" does not say \"%s\"", event->text, text);
}

void case_unarmed(void **state)
{
    struct kit kit;
    struct rig rig;
    struct kvfi_chunk chunk;
    struct kvfi_transport_event event;

    (void)state;
    rig_begin(&rig, &kit, &shape);
    chunk = rig_whole_chunk(&rig, 0xabc);
    event = rig_post_and_await(&rig, &chunk, KVF_ERR_REFUSED);
    assert_says(&event, "grant 0000000000000abc is not armed for p/pp0.cp0.tp0");
    assert_true(kit_is_untouched(&kit));
    /* The connection lives, and others go on. */
    rig_arm(&rig, 2);
    chunk = rig_whole_chunk(&rig, 2);
    rig_post_and_await(&rig, &chunk, KVF_OK);
    assert_int_equal(rig_await_complete(&rig, 2), kit.bytes);
    kit_check(&kit, 0, 2, 100);
    rig_end(&rig, &kit);
}

void case_another_writer(void **state)
{
    struct kvfi_peer_identity other = {.name = "p/pp0.cp0.tp0", .incarnation = 5};
    struct kit kit;
    struct rig rig;
    struct kvfi_chunk chunk;
    struct kvfi_transport_event event;

    (void)state;
    rig_begin(&rig, &kit, &shape);
    rig_arm_as(&rig, 9, &other, kit.bytes);
    chunk = rig_whole_chunk(&rig, 9);
    event = rig_post_and_await(&rig, &chunk, KVF_ERR_REFUSED);
    assert_says(&event, "grant 0000000000000009 is not armed for p/pp0.cp0.tp0");
    assert_true(kit_is_untouched(&kit));
    rig_end(&rig, &kit);
}

/* Posts a chunk that breaks the grant: both sides learn why. */
static void expect_violation(struct rig *rig, struct kvfi_chunk *chunk, const char *text)
{
    struct kvfi_transport_event event = rig_post_and_await(rig, chunk, KVF_ERR_REFUSED);

    assert_says(&event, text);
    event = rig_await_dst(rig, KVFI_TEV_GRANT_FAILED, chunk->grant);
    assert_says(&event, text);
    if (!rig->ops->disarm(rig->dst, chunk->grant)) rig_await_dst(rig, KVFI_TEV_QUIET, chunk->grant);
}

void case_wrong_bytes(void **state)
{
    struct kit kit;
    struct rig rig;
    struct kvfi_chunk chunk;

    (void)state;
    rig_begin(&rig, &kit, &shape);
    rig_arm(&rig, 4);
    chunk = rig_chunk(&rig, 4, 0, false, 0, 1, 0, 100);
    chunk.bytes -= 128;
    expect_violation(&rig, &chunk, "its writer says");
    rig_end(&rig, &kit);
}

void case_covered_twice(void **state)
{
    struct kit kit;
    struct rig rig;
    struct kvfi_chunk chunk;

    (void)state;
    rig_begin(&rig, &kit, &shape);
    rig_arm(&rig, 4);
    chunk = rig_chunk(&rig, 4, 0, false, 0, 1, 0, 48);
    rig_post_and_await(&rig, &chunk, KVF_OK);
    chunk = rig_chunk(&rig, 4, 1, true, 0, 2, 32, 100);
    expect_violation(&rig, &chunk, "chunk 1 covers layers [0,2) tokens [32,100) a second time");
    kit_check(&kit, 0, 1, 48);
    rig_end(&rig, &kit);
}

void case_outside_of_the_grant(void **state)
{
    static const struct {
        const char *name;
        int64_t layer_first, layer_end, begin, end;
        uint32_t index;
        const char *text;
    } rows[] = {
        {"tokens", 0, 1, 16, 200, 0, "tokens [16,200) leave the granted [0,100)"},
        {"backwards", 0, 1, 48, 16, 0, "tokens [48,16) leave"},
        {"no layer", 1, 1, 0, 16, 0, "layers [1,1) are none"},
        {"negative layer", -3, 1, 0, 16, 0, "layers [-3,1) are none"},
        {"index", 0, 1, 0, 16, KVFI_CHUNK_LIMIT, "chunk 1048576 (last: 0) of a grant of 1048576 chunks"},
        {"off the grain", 0, 1, 7, 16, 0, ""},
    };
    struct kit kit;
    struct rig rig;

    (void)state;
    rig_begin(&rig, &kit, &shape);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct kvfi_chunk chunk = rig_chunk(&rig, 10 + i, 0, false, 0, 1, 0, 16);

        rig_arm(&rig, 10 + i);
        chunk.layer_first = rows[i].layer_first;
        chunk.layer_end = rows[i].layer_end;
        chunk.token_begin = rows[i].begin;
        chunk.token_end = rows[i].end;
        chunk.index = rows[i].index;
        chunk.cookie = 777 + i;
        expect_violation(&rig, &chunk, rows[i].text);
    }
    rig_end(&rig, &kit);
}

void case_last_too_early(void **state)
{
    struct kit kit;
    struct rig rig;
    struct kvfi_chunk chunk;

    (void)state;
    rig_begin(&rig, &kit, &shape);
    rig_arm(&rig, 4);
    chunk = rig_chunk(&rig, 4, 0, true, 0, 1, 0, 100);
    expect_violation(&rig, &chunk, "the last chunk is placed, ");
    rig_end(&rig, &kit);
}

void case_armed_twice(void **state)
{
    struct kit kit;
    struct rig rig;
    struct kvf_bind_request request;
    struct kvfi_arm arm;
    struct kvf_error error;

    (void)state;
    kit_init(&kit, &shape, subject->with_fd);
    rig_init(&rig, &kit);
    rig_arm(&rig, 4);
    request = kit_dst_request(&kit);
    arm = (struct kvfi_arm){
        .grant = 4, .writer = rig.src_who, .plan = kit.plan, .request = &request, .bytes = kit.bytes};
    assert_int_equal(rig.ops->arm(rig.dst, &arm, &error), KVF_ERR_EXISTS);
    assert_string_equal(error.text, "grant 0000000000000004 is armed already");
    assert_true(rig.ops->disarm(rig.dst, 4));
    rig_arm(&rig, 4);
    rig_end(&rig, &kit);
}

void case_disarmed_before(void **state)
{
    struct kit kit;
    struct rig rig;
    struct kvfi_chunk chunk;

    (void)state;
    rig_begin(&rig, &kit, &shape);
    rig_arm(&rig, 4);
    assert_true(rig.ops->disarm(rig.dst, 4));
    chunk = rig_whole_chunk(&rig, 4);
    rig_post_and_await(&rig, &chunk, KVF_ERR_REFUSED);
    assert_true(kit_is_untouched(&kit));
    rig_end(&rig, &kit);
}

void case_disarmed_after(void **state)
{
    struct kit kit;
    struct rig rig;
    struct kvfi_chunk chunk;

    (void)state;
    rig_begin(&rig, &kit, &shape);
    rig_arm(&rig, 4);
    chunk = rig_chunk(&rig, 4, 0, false, 0, 1, 0, 100);
    rig_post_and_await(&rig, &chunk, KVF_OK);
    rig_await_dst(&rig, KVFI_TEV_RECEIVED, 4);
    assert_true(rig.ops->disarm(rig.dst, 4));
    chunk = rig_chunk(&rig, 4, 1, true, 1, 2, 0, 100);
    rig_post_and_await(&rig, &chunk, KVF_ERR_REFUSED);
    kit_check(&kit, 0, 1, 100);
    rig_end(&rig, &kit);
}
