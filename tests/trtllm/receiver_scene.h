/* SPDX-License-Identifier: Apache-2.0 */
/** @file receiver_scene.h  For tests: a generation rank and one context, and what both should have come to. */
#ifndef TESTS_TRTLLM_RECEIVER_SCENE_H
#define TESTS_TRTLLM_RECEIVER_SCENE_H

#include "worker_kit.h"

#include <string.h>

#define OK KVFI_TRTLLM_SUCCESS
#define FAILED KVFI_TRTLLM_WRITE_FAILED
#define DOUBT KVFI_TRTLLM_IN_DOUBT
#define QUIESCED KVFI_TRTLLM_FAILED_QUIESCED

struct scene {
    struct gen gen;
    struct script ctx;
};

static inline void begin_tp(struct scene *scene, int64_t tp)
{
    gen_init(&scene->gen, "gen");
    gen_open(&scene->gen);
    script_init(&scene->ctx, "ctx", tp);
    script_open(&scene->ctx, &scene->gen);
}

static inline void begin_dp(struct scene *scene, int64_t dp, int64_t pp)
{
    gen_init(&scene->gen, "gen");
    gen_open(&scene->gen);
    script_init_dp(&scene->ctx, "ctx", dp, pp);
    script_open(&scene->ctx, &scene->gen);
}

static inline void end(struct scene *scene)
{
    gen_close(&scene->gen);
    script_close(&scene->ctx);
}

/* A receive of rid 1 that every writer was asked for. */
static inline void begin_asked(struct scene *scene, int64_t tp)
{
    begin_tp(scene, tp);
    gen_receive(&scene->gen, 1, scene->ctx.endpoint);
    script_requested(&scene->ctx, (size_t)tp, 1);
}

static inline void begin_asked_aux(struct scene *scene, int64_t tp)
{
    begin_tp(scene, tp);
    gen_receive_aux(&scene->gen, 1, scene->ctx.endpoint, 0);
    script_requested(&scene->ctx, (size_t)tp, 1);
}

static inline void has_text(const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        fail_msg("\"%s\" does not contain \"%s\"", text, part);
}

static inline void ended(struct scene *scene, int64_t rid, int state, int status, const char *part)
{
    struct kvf_trtllm_event event = gen_event(&scene->gen, KVF_TRTLLM_EVENT_ENDED, rid);

    if (event.state != state || event.status != status)
        fail_msg("rid %d ended as %s, status %d (%s)", (int)rid, kvf_trtllm_state_text(event.state), event.status,
                 event.text);
    has_text(event.text, part);
}

/* It has ended, and its memory is not settled after all that was said was heard. */
static inline void is_kept(struct scene *scene, int64_t rid)
{
    script_sync(&scene->ctx);
    gen_no_event(&scene->gen);
    assert_int_equal(gen_status(&scene->gen, rid).is_settled, 0);
    assert_int_equal(gen_close_session(&scene->gen, rid), KVF_ERR_AGAIN);
}

static inline void settled(struct scene *scene, int64_t rid)
{
    gen_event(&scene->gen, KVF_TRTLLM_EVENT_SETTLED, rid);
    assert_int_equal(gen_status(&scene->gen, rid).is_settled, 1);
    assert_int_equal(gen_close_session(&scene->gen, rid), KVF_OK);
}

#endif
