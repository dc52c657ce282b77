/* SPDX-License-Identifier: Apache-2.0 */
/* Words of context ranks in any order that honest ranks could use, with cancels and doubled words in between: after
 * each of them outcome and memory are what a few lines of bookkeeping say. At the end a lie, and the memory is kept. */
#include "receiver_scene.h"

#include <inttypes.h>
#include <stdio.h>

enum { SCENES = 300, STEPS = 24, MAX_WRITERS = 4 };

enum said { NOTHING, SAID_DONE, SAID_FAILED, SAID_DOUBT, SAID_NEVER };

struct model {
    int writers, groups;        /* writer w is of group w % groups */
    bool has_aux;
    enum said said[MAX_WRITERS][2];
    bool quiet[MAX_WRITERS][2];
    int writing;                /* group, or -1 */
    int state;
    bool settled;
};

static uint64_t next(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed * UINT64_C(0x2545F4914F6CDD1D) >> 33;
}

static bool has_ended(const struct model *model) { return model->state != KVF_TRTLLM_STATE_TRANSFERRING; }

/* All that one group owes is said well, or is over. */
static bool group_is(const struct model *model, int group, bool done)
{
    for (int w = 0; w < model->writers; w++)
        for (int kind = 0; kind < 1 + model->has_aux; kind++)
            if ((group < 0 || w % model->groups == group) &&
                !(done ? model->said[w][kind] == SAID_DONE : model->quiet[w][kind]))
                return false;
    return true;
}

static void update(struct model *model)
{
    if (!has_ended(model) && model->writing >= 0 && group_is(model, model->writing, true))
        model->state = KVF_TRTLLM_STATE_TRANSFERRED;
    if (model->state == KVF_TRTLLM_STATE_TRANSFERRED)
        model->settled = true;
    if (has_ended(model) &&
        (group_is(model, -1, false) || (model->writing >= 0 && group_is(model, model->writing, false))))
        model->settled = true;
}

static void note_word(struct model *model, int w, int kind, int word)
{
    enum said *said = &model->said[w][kind];

    if (word == OK || word == DOUBT)
        model->writing = w % model->groups;
    if (model->quiet[w][kind])
        return;
    if (word == DOUBT) {
        *said = SAID_DOUBT;
    } else if (word == QUIESCED || *said != SAID_DOUBT) {
        *said = word == OK ? SAID_DONE : SAID_FAILED;
        model->quiet[w][kind] = true;
    }
    if (word != OK && !has_ended(model))
        model->state = KVF_TRTLLM_STATE_ERROR;
}

static void note_never(struct model *model, int w)
{
    if (!has_ended(model))
        return;
    for (int kind = 0; kind < 1 + model->has_aux; kind++)
        if (!model->quiet[w][kind] && model->said[w][kind] != SAID_DOUBT) {
            model->said[w][kind] = SAID_NEVER;
            model->quiet[w][kind] = true;
        }
}

/* What an honest rank may say next. */
static bool may_say(const struct model *model, int w, int kind, int word)
{
    enum said said = model->said[w][kind];
    bool other = model->writing >= 0 && w % model->groups != model->writing;

    if (other || said == SAID_NEVER)
        return word == FAILED;
    if (said == SAID_DONE)
        return word == OK;
    if (said == SAID_FAILED)
        return word == FAILED || word == QUIESCED;
    if (said == SAID_DOUBT)
        return word != OK;
    return true;
}

static void say(struct script *ctx, int w, int kind, int word)
{
    if (kind == 1)
        script_aux(ctx, w, 1, word);
    else
        script_result(ctx, w, 1, true, word);
}

static void step(struct scene *scene, struct model *model, uint64_t *seed)
{
    static const int words[] = {OK, OK, OK, OK, OK, OK, FAILED, DOUBT, QUIESCED, QUIESCED};
    int w = (int)(next(seed) % (uint64_t)model->writers), kind = (int)(next(seed) % (1 + model->has_aux));
    uint64_t pick = next(seed) % 24;
    int word = words[next(seed) % 10];

    if (pick == 0 || pick == 1) {
        if (pick == 0)
            kvf_trtllm_worker_cancel(scene->gen.worker, KVF_TRTLLM_RECEIVE, 1, NULL);
        else
            script_cancel(&scene->ctx, 1);
        if (!has_ended(model))
            model->state = KVF_TRTLLM_STATE_CANCELLED;
    } else if (pick < 6) {
        script_quiesced(&scene->ctx, w, 1);
        note_never(model, w);
    } else if (may_say(model, w, kind, word)) {
        say(&scene->ctx, w, kind, word);
        note_word(model, w, kind, word);
    }
    update(model);
    script_sync(&scene->ctx);
}

static void compare(struct scene *scene, const struct model *model, uint64_t number, int steps)
{
    struct kvf_trtllm_status status = gen_status(&scene->gen, 1);

    if (status.state != model->state || status.is_settled != model->settled || status.is_quarantined)
        fail_msg("scene %" PRIu64 " after step %d: %s, settled %d (quarantined %d), expected %s, settled %d", number,
                 steps, kvf_trtllm_state_text(status.state), status.is_settled, status.is_quarantined,
                 kvf_trtllm_state_text(model->state), model->settled);
}

/* One word too many of one that has said the other one; says whether there was any to be said. */
static bool lie(struct script *ctx, const struct model *model)
{
    for (int w = 0; w < model->writers; w++) {
        if (model->said[w][0] != NOTHING) {
            say(ctx, w, 0, model->said[w][0] == SAID_DONE ? FAILED : OK);
            return true;
        }
    }
    return false;
}

static void check_events(struct scene *scene, const struct model *model)
{
    struct kvf_trtllm_event event;
    int expected = has_ended(model) + model->settled;

    if (has_ended(model))
        assert_int_equal(gen_event(&scene->gen, KVF_TRTLLM_EVENT_ENDED, 1).state, model->state);
    if (model->settled)
        gen_event(&scene->gen, KVF_TRTLLM_EVENT_SETTLED, 1);
    else if (expected > 0)
        gen_event(&scene->gen, KVF_TRTLLM_EVENT_QUARANTINED, 1);
    assert_int_equal(kvf_trtllm_worker_poll(scene->gen.worker, &event, 1), 0);
}

static int play(uint64_t number)
{
    uint64_t seed = (number + 1) * UINT64_C(0x9E3779B97F4A7C15);
    struct model model = {.writing = -1, .state = KVF_TRTLLM_STATE_TRANSFERRING};
    struct scene scene;
    bool lied;

    model.groups = 1 + (int)(number % 2);
    model.writers = model.groups == 1 ? 1 + (int)(number / 2 % 2) : 2 * (1 + (int)(number / 2 % 2));
    model.has_aux = number / 4 % 2;
    gen_init(&scene.gen, "gen");
    scene.gen.options.log.level = KVF_LOG_OFF;
    gen_open(&scene.gen);
    if (model.groups == 1)
        script_init(&scene.ctx, "ctx", model.writers);
    else
        script_init_dp(&scene.ctx, "ctx", 2, model.writers / 2);
    script_open(&scene.ctx, &scene.gen);
    if (model.has_aux) {
        gen_receive_aux(&scene.gen, 1, scene.ctx.endpoint, model.groups == 1 ? 0 : KVF_TRTLLM_NONE);
    } else {
        struct gen_receive one;
        gen_receive_init(&one, 1, scene.ctx.endpoint);
        one.receive.ctx_dp_rank = model.groups == 1 ? 0 : KVF_TRTLLM_NONE;
        assert_int_equal(kvf_trtllm_worker_receive(scene.gen.worker, &one.receive, NULL), KVF_OK);
    }
    script_requested(&scene.ctx, (size_t)model.writers, 1);
    for (int i = 0; i < STEPS; i++) {
        step(&scene, &model, &seed);
        compare(&scene, &model, number, i);
    }
    lied = lie(&scene.ctx, &model);
    if (lied) {
        struct gen_receive one;
        if (!has_ended(&model))
            model.state = KVF_TRTLLM_STATE_ERROR;
        script_sync(&scene.ctx);
        assert_int_equal(gen_status(&scene.gen, 1).is_quarantined, !model.settled);
        gen_receive_init(&one, 2, scene.ctx.endpoint);
        assert_int_equal(kvf_trtllm_worker_receive(scene.gen.worker, &one.receive, NULL), KVF_ERR_IN_DOUBT);
        check_events(&scene, &model);
    }
    end(&scene);
    return model.state;
}

static void test_words_in_any_order(void **unused)
{
    int states[8] = {0};
    (void)unused;
    for (uint64_t number = 0; number < SCENES; number++)
        states[play(number)]++;
    assert_true(states[KVF_TRTLLM_STATE_TRANSFERRED] > SCENES / 20);
    assert_true(states[KVF_TRTLLM_STATE_ERROR] > SCENES / 20);
    assert_true(states[KVF_TRTLLM_STATE_CANCELLED] > SCENES / 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_words_in_any_order)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
