/* SPDX-License-Identifier: Apache-2.0 */
/* The yardstick: the moves of a case by a plain loop around memcpy, in one process, in memory that was touched before.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cli/demo.h"
#include "cli/plan_set.h"

#define ROUNDS 3

/** One side's memory: all ranks in one process. */
struct bare_side {
    kvf_instance *instance;
    void ***bases; /* by rank, by memory */
    struct demo_ids *ids;
    size_t ranks;
};

/** All moves, with addresses instead of offsets. */
struct bare_move {
    char *src, *dst;
    struct kvf_move move;
};

struct bare_moves {
    struct bare_move *moves;
    size_t count, room;
    int64_t bytes;
};

static int side_init(const struct cli_command *command, const struct kvf_instance_recipe *recipe, bool source,
                     int64_t requests, int64_t tokens, struct bare_side *out)
{
    char *text = NULL;
    struct kvf_error error = {.position = -1};
    int code = demo_case_layout(command, recipe, &text);
    if (code == CLI_OK && kvf_instance_parse(text, strlen(text), &out->instance, &error) != KVF_OK)
        code = cli_library_error(command, "layout of the demo", &error);
    kvf_text_free(text);
    if (code != CLI_OK)
        return code;
    size_t ranks = kvf_instance_rank_count(out->instance);
    out->bases = calloc(ranks, sizeof(*out->bases));
    out->ids = calloc(ranks, sizeof(*out->ids));
    bool good = out->bases != NULL && out->ids != NULL;
    for (size_t r = 0; good && r < ranks; r++) {
        const struct kvf_layout_spec *spec = kvf_layout_get_spec(kvf_instance_layout(out->instance, r));
        out->bases[r] = calloc(spec->memory_count + 1, sizeof(void *));
        out->ranks = r + 1;
        good = out->bases[r] != NULL && demo_ids_init(spec, requests, tokens, demo_seed(source, r), &out->ids[r]);
        for (size_t m = 0; good && m < spec->memory_count; m++) {
            void *memory =
                mmap(NULL, (size_t)spec->memory_bytes[m], PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            good = memory != MAP_FAILED;
            out->bases[r][m] = good ? memset(memory, DEMO_SOURCE_FILL, (size_t)spec->memory_bytes[m]) : NULL;
        }
    }
    if (good)
        return CLI_OK;
    cli_error(command, "no memory for the bare loop");
    return CLI_FAILED;
}

static void side_fini(struct bare_side *side)
{
    for (size_t r = 0; r < side->ranks; r++) {
        const struct kvf_layout_spec *spec = kvf_layout_get_spec(kvf_instance_layout(side->instance, r));
        for (size_t m = 0; side->bases[r] != NULL && m < spec->memory_count; m++) {
            if (side->bases[r][m] != NULL)
                munmap(side->bases[r][m], (size_t)spec->memory_bytes[m]);
        }
        free(side->bases[r]);
        free(side->ids[r].ids);
    }
    free(side->bases);
    free(side->ids);
    kvf_instance_destroy(side->instance);
}

static bool add_move(struct bare_moves *moves, const struct kvf_move *move, char *src, char *dst)
{
    if (moves->count == moves->room) {
        size_t room = moves->room == 0 ? 1024 : moves->room * 2;
        struct bare_move *larger = realloc(moves->moves, room * sizeof(*larger));
        if (larger == NULL)
            return false;
        moves->moves = larger;
        moves->room = room;
    }
    moves->moves[moves->count++] =
        (struct bare_move){src + move->src_offset_bytes, dst + move->dst_offset_bytes, *move};
    return true;
}

/** Lists what one rank pair moves for one request. */
static enum kvf_status list_moves(const struct plan_pair *pair, const struct bare_side *src,
                                  const struct bare_side *dst, int64_t request, int64_t tokens,
                                  struct bare_moves *moves, struct kvf_error *error)
{
    const struct demo_ids *from = &src->ids[pair->src], *to = &dst->ids[pair->dst];
    struct kvf_id_list src_list = {.ids = from->ids + request * from->per_request, .count = (size_t)from->per_request};
    struct kvf_id_list dst_list = {.ids = to->ids + request * to->per_request, .count = (size_t)to->per_request};
    struct kvf_bind_request bind;
    struct kvf_binding_info info;
    struct kvf_move move;
    kvf_binding *binding = NULL;
    kvf_cursor *cursor = NULL;
    kvf_bind_request_init(&bind, sizeof(bind));
    bind.token_end = tokens;
    bind.request_tokens = tokens;
    bind.src = &src_list;
    bind.src_count = 1;
    bind.dst = &dst_list;
    bind.dst_count = 1;
    enum kvf_status status = kvf_bind(pair->plan, &bind, &binding, error);
    if (status == KVF_OK)
        status = kvf_cursor_create(binding, &cursor, error);
    while (status == KVF_OK && kvf_cursor_next(cursor, &move) == KVF_OK) {
        if (!add_move(moves, &move, src->bases[pair->src][move.src_memory], dst->bases[pair->dst][move.dst_memory])) {
            *error = (struct kvf_error){.status = KVF_ERR_NO_MEMORY, .position = -1};
            status = KVF_ERR_NO_MEMORY;
        }
    }
    if (status == KVF_OK) {
        kvf_binding_get_info(binding, &info);
        moves->bytes += info.bytes;
    }
    kvf_cursor_destroy(cursor);
    kvf_binding_destroy(binding);
    return status;
}

static void copy_nest(const struct kvf_move *move, int64_t depth, const char *src, char *dst)
{
    if (depth == move->loop_count || depth == (int64_t)(sizeof move->loops / sizeof *move->loops)) {
        memcpy(dst, src, (size_t)move->run_bytes);
        return;
    }
    const struct kvf_loop *loop = &move->loops[depth];
    if (depth + 1 == move->loop_count) {
        for (int64_t i = 0; i < loop->count; i++)
            memcpy(dst + i * loop->dst_stride_bytes, src + i * loop->src_stride_bytes, (size_t)move->run_bytes);
        return;
    }
    for (int64_t i = 0; i < loop->count; i++)
        copy_nest(move, depth + 1, src + i * loop->src_stride_bytes, dst + i * loop->dst_stride_bytes);
}

/** The best of a few rounds, after one to warm up. */
static double time_moves(const struct bare_moves *moves)
{
    double best = 0;
    for (int round = 0; round <= ROUNDS; round++) {
        int64_t started = cli_now_ns();
        for (size_t i = 0; i < moves->count; i++)
            copy_nest(&moves->moves[i].move, 0, moves->moves[i].src, moves->moves[i].dst);
        double ns = (double)(cli_now_ns() - started);
        if (round > 0 && (best == 0 || ns < best))
            best = ns;
    }
    return best > 0 ? (double)moves->bytes / best : 0;
}

int demo_bare(const struct cli_command *command, const struct demo_case *shape, int64_t requests, int64_t tokens,
              double *gb_per_s)
{
    struct bare_side src = {0}, dst = {0};
    struct bare_moves moves = {0};
    struct plan_set set = {0};
    struct kvf_error error = {.position = -1};
    int code = side_init(command, &shape->src, true, requests, tokens, &src);
    if (code == CLI_OK)
        code = side_init(command, &shape->dst, false, requests, tokens, &dst);
    if (code == CLI_OK)
        code = plan_set_init(command, src.instance, dst.instance, -1, tokens, &set);
    for (int64_t r = 0; code == CLI_OK && r < requests; r++) {
        for (size_t p = 0; code == CLI_OK && p < set.pair_count; p++) {
            if (list_moves(&set.pairs[p], &src, &dst, r, tokens, &moves, &error) != KVF_OK)
                code = cli_library_error(command, "bare loop", &error);
        }
    }
    if (code == CLI_OK)
        *gb_per_s = time_moves(&moves);
    free(moves.moves);
    plan_set_fini(&set);
    side_fini(&dst);
    side_fini(&src);
    return code;
}
