/* SPDX-License-Identifier: Apache-2.0 */
/* What must arrive. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdlib.h>

#include "cases.h"

static const struct kit_shape small_shape = {.layers = 4, .heads = 3, .row_bytes = 128, .tokens = 150,
                                             .src_block_tokens = 16, .dst_block_tokens = 64};

void case_whole(void **state)
{
    struct kit kit;
    struct rig rig;
    struct kvfi_chunk chunk;

    (void)state;
    rig_begin(&rig, &kit, &small_shape);
    rig_arm(&rig, 1);
    chunk = rig_whole_chunk(&rig, 1);
    assert_int_equal(rig_post_and_await(&rig, &chunk, KVF_OK).bytes, kit.bytes);
    assert_int_equal(rig_await_complete(&rig, 1), kit.bytes);
    kit_check(&kit, 0, 4, 150);
    assert_true(rig.ops->disarm(rig.dst, 1));
    assert_true(rig.ops->disarm(rig.dst, 1));
    rig_end(&rig, &kit);
}

/* Runs of every size: elements, rows of a few bytes, rows over a page. */
void case_shapes(void **state)
{
    static const struct kit_shape shapes[] = {
        {.layers = 1, .heads = 1, .row_bytes = 2, .tokens = 1, .src_block_tokens = 1, .dst_block_tokens = 1},
        {.layers = 2, .heads = 3, .row_bytes = 2, .tokens = 33, .src_block_tokens = 8, .dst_block_tokens = 16},
        {.layers = 3, .heads = 2, .row_bytes = 24, .tokens = 65, .src_block_tokens = 64, .dst_block_tokens = 16},
        {.layers = 1, .heads = 5, .row_bytes = 100, .tokens = 40, .src_block_tokens = 16, .dst_block_tokens = 16},
        {.layers = 2, .heads = 1, .row_bytes = 5000, .tokens = 70, .src_block_tokens = 16, .dst_block_tokens = 64},
        {.layers = 2, .heads = 2, .row_bytes = 1024, .tokens = 96, .src_block_tokens = 48, .dst_block_tokens = 32},
        {.layers = 1, .heads = 1, .row_bytes = 40000, .tokens = 12, .src_block_tokens = 4, .dst_block_tokens = 4},
    };

    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct kit kit;
        struct rig rig;
        struct kvfi_chunk chunk;

        rig_begin(&rig, &kit, &shapes[i]);
        rig_arm(&rig, 7);
        chunk = rig_whole_chunk(&rig, 7);
        rig_post_and_await(&rig, &chunk, KVF_OK);
        assert_int_equal(rig_await_complete(&rig, 7), kit.bytes);
        rig_fini(&rig);
        if (shapes[i].dst_block_tokens != 32) kit_check(&kit, 0, shapes[i].layers, shapes[i].tokens);
        kit_fini(&kit);
    }
}

static void move_in_chunks(int64_t layer_step, int64_t token_step)
{
    struct kvfi_chunk chunks[64];
    struct kit kit;
    struct rig rig;
    uint32_t count = 0;

    rig_begin(&rig, &kit, &small_shape);
    rig_arm(&rig, 5);
    for (int64_t layer = 0; layer < 4; layer += layer_step) {
        for (int64_t token = 0; token < 150; token += token_step) {
            int64_t end = token + token_step < 150 ? token + token_step : 150;
            bool last = layer + layer_step >= 4 && end == 150;

            chunks[count] = rig_chunk(&rig, 5, count, last, layer, layer + layer_step, token, end);
            rig_post(&rig, &chunks[count]);
            count++;
        }
    }
    assert_int_equal(rig_await_complete(&rig, 5), kit.bytes);
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(rig_await_src(&rig, KVFI_TEV_POSTED, chunks[i].cookie).status, KVF_OK);
        kvf_binding_destroy((kvf_binding *)chunks[i].binding);
    }
    kit_check(&kit, 0, 4, 150);
    assert_true(rig.ops->disarm(rig.dst, 5));
    rig_end(&rig, &kit);
}

void case_layer_by_layer(void **state)
{
    (void)state;
    move_in_chunks(1, 150);
}

void case_token_chunks(void **state)
{
    (void)state;
    move_in_chunks(4, 48);
}

void case_layers_and_tokens(void **state)
{
    (void)state;
    move_in_chunks(2, 16);
}

/* Each grant moves a block of its own, since several threads may copy at once. */
void case_many_grants(void **state)
{
    enum { GRANTS = 100, BLOCK = 16 };
    static const struct kit_shape shape = {.layers = 1, .heads = 2, .row_bytes = 64, .tokens = GRANTS * BLOCK,
                                           .src_block_tokens = BLOCK, .dst_block_tokens = BLOCK};
    struct kvfi_chunk chunks[GRANTS];
    struct kvf_error error;
    struct kit kit;
    struct rig rig;

    (void)state;
    rig_begin(&rig, &kit, &shape);
    for (uint64_t i = 0; i < GRANTS; i++) {
        struct kvf_bind_request request = kit_dst_request(&kit);
        struct kvfi_arm arm = {.grant = 1000 + i, .writer = rig.src_who, .plan = kit.plan, .request = &request,
                               .bytes = kit.bytes / GRANTS};

        request.token_begin = (int64_t)i * BLOCK;
        request.token_end = request.token_begin + BLOCK;
        assert_int_equal(rig.ops->arm(rig.dst, &arm, &error), KVF_OK);
    }
    for (uint64_t i = 0; i < GRANTS; i++) {
        chunks[i] = rig_chunk(&rig, 1000 + i, 0, true, 0, 1, (int64_t)i * BLOCK, (int64_t)(i + 1) * BLOCK);
        rig_post(&rig, &chunks[i]);
    }
    for (uint64_t i = 0; i < GRANTS; i++) {
        assert_int_equal(rig_await_complete(&rig, 1000 + i), kit.bytes / GRANTS);
        assert_int_equal(rig_await_src(&rig, KVFI_TEV_POSTED, chunks[i].cookie).status, KVF_OK);
        kvf_binding_destroy((kvf_binding *)chunks[i].binding);
        assert_true(rig.ops->disarm(rig.dst, 1000 + i));
    }
    kit_check(&kit, 0, 1, GRANTS * BLOCK);
    rig_end(&rig, &kit);
}

/* A writer whose share turns out empty still says that it is done. */
void case_nothing_to_move(void **state)
{
    struct kit kit;
    struct rig rig;
    struct kvfi_chunk chunk;
    struct kvf_bind_request request;
    struct kvfi_arm arm;
    struct kvf_error error;

    (void)state;
    rig_begin(&rig, &kit, &small_shape);
    request = kit_dst_request(&kit);
    request.token_begin = request.token_end = 16;
    arm = (struct kvfi_arm){.grant = 3, .writer = rig.src_who, .plan = kit.plan, .request = &request};
    assert_int_equal(rig.ops->arm(rig.dst, &arm, &error), KVF_OK);
    chunk = rig_chunk(&rig, 3, 0, true, 0, 4, 16, 16);
    assert_int_equal(chunk.bytes, 0);
    rig_post_and_await(&rig, &chunk, KVF_OK);
    assert_int_equal(rig_await_complete(&rig, 3), 0);
    assert_true(kit_is_untouched(&kit));
    rig_end(&rig, &kit);
}

void case_big(void **state)
{
    static const struct kit_shape shape = {.layers = 8, .heads = 8, .row_bytes = 256, .tokens = 2000,
                                           .src_block_tokens = 16, .dst_block_tokens = 64};
    struct kit kit;
    struct rig rig;
    struct kvfi_chunk chunk;

    (void)state;
    kit_init(&kit, &shape, subject->with_fd);
    assert_true(kit.bytes >= 64000000);
    rig_init_connected(&rig, &kit);
    rig_arm(&rig, 2);
    chunk = rig_whole_chunk(&rig, 2);
    rig_post_and_await(&rig, &chunk, KVF_OK);
    assert_int_equal(rig_await_complete(&rig, 2), kit.bytes);
    kit_check(&kit, 0, 8, 2000);
    rig_end(&rig, &kit);
}
