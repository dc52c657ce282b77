/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces and auxiliary data, as the user hands them over. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/checked.h"
#include "base/error.h"
#include "trtllm_worker/send.h"

static const struct kvf_trtllm_page_table *own_table(const struct kvfi_send_session *session)
{
    return kvf_trtllm_rank_get_spec(session->worker->self)->page_table;
}

/* Groups whose blocks are not final before the prompt's end (state, rings), or leave the window before it: they go with
 * the last piece, whatever piece they come with. */
static bool is_deferred(const struct kvfi_send_session *session, const struct kvf_trtllm_group *group)
{
    bool deferred = group->cache == KVF_TRTLLM_STATE || (group->sliding_window_size != KVF_TRTLLM_NONE &&
                                                         group->sliding_window_size < session->prompt_tokens);

    for (size_t v = 0; v < group->view_count && !deferred; v++)
        deferred = group->views[v].ring_slot_bytes != KVF_TRTLLM_NONE;
    return deferred;
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

static int64_t slots_of(const struct kvf_trtllm_page_table *table, const struct kvf_trtllm_group *group)
{
    int64_t slots = INT64_MAX;

    for (size_t v = 0; v < group->view_count; v++) {
        const struct kvf_trtllm_pool *pool = &table->pool_groups[group->pool_group].pools[group->views[v].pool];
        if (pool->num_slots < slots)
            slots = pool->num_slots;
    }
    return slots;
}

static enum kvf_status check_groups(const struct kvfi_send_session *session, const struct kvf_trtllm_piece *piece,
                                    struct kvf_error *error)
{
    const struct kvf_trtllm_page_table *table = own_table(session);

    if (piece->group_count != table->group_count)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "piece has %zu groups, this rank has %zu layer groups",
                         piece->group_count, table->group_count);
    for (size_t g = 0; g < piece->group_count; g++) {
        const struct kvf_trtllm_blocks *blocks = &piece->groups[g];
        int64_t slots = slots_of(table, &table->groups[g]);
        if (table->groups[g].cache == KVF_TRTLLM_STATE && blocks->count > 1)
            return kvfi_fail(error, KVF_ERR_IDS, "group %zu has %zu state slots, expected at most 1", g, blocks->count);
        if (blocks->count > KVFI_TRTLLM_MAX_REQUEST_BYTES / 8)
            return kvfi_fail(error, KVF_ERR_LIMIT, "group %zu has %zu block ids, at most %d are taken", g,
                             blocks->count, KVFI_TRTLLM_MAX_REQUEST_BYTES / 8);
        for (size_t i = 0; i < blocks->count; i++)
            if (blocks->ids[i] < -1 || blocks->ids[i] >= slots)
                return kvfi_fail(error, KVF_ERR_IDS, "group %zu: block id %zu is %" PRId64 ", expected -1 to %" PRId64,
                                 g, i, blocks->ids[i], slots - 1);
    }
    return KVF_OK;
}

static enum kvf_status check_tokens(const struct kvfi_send_session *session, const struct kvf_trtllm_piece *piece,
                                    int64_t token_end, struct kvf_error *error)
{
    if (session->last_handed)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "request %" PRId64 " has its last piece already",
                         session->rid);
    if (session->piece_count == KVFI_SEND_MAX_PIECES)
        return kvfi_fail(error, KVF_ERR_LIMIT, "request %" PRId64 " has %d pieces, more are not taken", session->rid,
                         KVFI_SEND_MAX_PIECES);
    if (piece->token_begin != session->tokens)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "piece %zu begins at token %" PRId64 ", expected %" PRId64,
                         session->piece_count, piece->token_begin, session->tokens);
    if (token_end < piece->token_begin || token_end > session->prompt_tokens)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "piece %zu ends at token %" PRId64 ", expected %" PRId64
                         " to %" PRId64, session->piece_count, token_end, piece->token_begin, session->prompt_tokens);
    if (piece->is_last && token_end != session->prompt_tokens)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "the last piece ends at token %" PRId64 " of %" PRId64,
                         token_end, session->prompt_tokens);
    return KVF_OK;
}

static enum kvf_status find_open(struct kvfi_senders *senders, int64_t rid, struct kvfi_send_session **out,
                                 struct kvf_error *error)
{
    struct kvfi_send_session *session = kvfi_send_session_find(senders, rid);

    if (session == NULL)
        return kvfi_fail(error, KVF_ERR_NOT_FOUND, "request %" PRId64 " has no send session: it was never opened, or "
                         "send session already retired; failing the request", rid);
    if (session->life.state == KVFI_OFFER_FAILED)
        return kvfi_fail(error, session->life.reason, "%s", session->text);
    *out = session;
    return KVF_OK;
}

/* ---- copying ----------------------------------------------------------------------------------------------------- */

static void free_piece(struct kvfi_send_piece *piece)
{
    for (size_t g = 0; piece->groups != NULL && g < piece->group_count; g++)
        free((void *)(uintptr_t)piece->groups[g].ids);
    free(piece->groups);
    free(piece->excluded);
}

static enum kvf_status copy_piece(const struct kvf_trtllm_piece *from, struct kvfi_send_piece *out,
                                  struct kvf_error *error)
{
    out->groups = kvfi_alloc_zeroed(from->group_count, sizeof *out->groups);
    out->excluded = kvfi_alloc_array(from->excluded_count, sizeof *out->excluded);
    if (out->groups == NULL || out->excluded == NULL)
        return kvfi_fail_memory(error, "a piece");
    out->group_count = from->group_count;
    out->excluded_count = from->excluded_count;
    if (from->excluded_count > 0)
        memcpy(out->excluded, from->excluded, from->excluded_count * sizeof *out->excluded);
    for (size_t g = 0; g < from->group_count; g++) {
        int64_t *ids = kvfi_alloc_array(from->groups[g].count, sizeof *ids);
        if (ids == NULL)
            return kvfi_fail_memory(error, "a piece");
        if (from->groups[g].count > 0)
            memcpy(ids, from->groups[g].ids, from->groups[g].count * sizeof *ids);
        out->groups[g] = (struct kvf_trtllm_blocks){.ids = ids, .count = from->groups[g].count};
    }
    return KVF_OK;
}

/* The ids of a deferred group: kept from earlier pieces, taken up by the last one. */
static enum kvf_status defer_group(struct kvfi_send_session *session, struct kvfi_send_piece *piece, size_t g,
                                   struct kvf_error *error)
{
    struct kvf_trtllm_blocks *kept = &session->deferred[g], *own = &piece->groups[g];
    int64_t *kept_ids = (int64_t *)(uintptr_t)kept->ids, *own_ids = (int64_t *)(uintptr_t)own->ids;

    if (kept->count == 0 && own->count > 0 && !piece->is_last) {
        kept_ids = kvfi_alloc_array(own->count, sizeof *kept_ids);
        if (kept_ids == NULL)
            return kvfi_fail_memory(error, "the blocks for the last piece");
        for (size_t i = 0; i < own->count; i++)
            kept_ids[i] = -1;
        free((void *)(uintptr_t)kept->ids);
        *kept = (struct kvf_trtllm_blocks){.ids = kept_ids, .count = own->count};
    }
    if (piece->is_last && own->count == 0 && kept->count > 0) {
        struct kvf_trtllm_blocks empty = *own;
        *own = *kept;
        *kept = empty;
        return KVF_OK;
    }
    if (kept->count != 0 && own->count != 0 && kept->count != own->count)
        return kvfi_fail(error, KVF_ERR_IDS, "group %zu has %zu block ids, earlier pieces had %zu", g, own->count,
                         kept->count);
    for (size_t i = 0; i < own->count && i < kept->count; i++) {
        if (piece->is_last && own_ids[i] < 0)
            own_ids[i] = kept_ids[i];
        if (!piece->is_last && own_ids[i] >= 0)
            kept_ids[i] = own_ids[i];
        if (!piece->is_last)
            own_ids[i] = -1;
    }
    return KVF_OK;
}

/* A state slot is no position: an earlier piece has none. */
static enum kvf_status defer(struct kvfi_send_session *session, struct kvfi_send_piece *piece, struct kvf_error *error)
{
    const struct kvf_trtllm_page_table *table = own_table(session);
    enum kvf_status status = KVF_OK;

    if (session->deferred == NULL)
        session->deferred = kvfi_alloc_zeroed(table->group_count, sizeof *session->deferred);
    if (session->deferred == NULL)
        return kvfi_fail_memory(error, "a piece");
    for (size_t g = 0; g < piece->group_count && status == KVF_OK; g++) {
        if (!is_deferred(session, &table->groups[g]))
            continue;
        status = defer_group(session, piece, g, error);
        if (!piece->is_last && table->groups[g].cache == KVF_TRTLLM_STATE)
            piece->groups[g].count = 0;
    }
    return status;
}

/* Leaves of each other group the blocks that this piece completes, after those of earlier pieces; the last one has all
 * that are left. So no block goes twice, whatever the tables hold beside. */
static void keep_own_blocks(struct kvfi_send_session *session, struct kvfi_send_piece *piece)
{
    const struct kvf_trtllm_page_table *table = own_table(session);
    int64_t block = table->tokens_per_block > 0 ? table->tokens_per_block : 1;
    int64_t end = piece->is_last ? INT64_MAX : piece->token_end / block;

    for (size_t g = 0; g < piece->group_count; g++) {
        int64_t *ids = (int64_t *)(uintptr_t)piece->groups[g].ids;
        if (is_deferred(session, &table->groups[g]))
            continue;
        for (size_t i = 0; i < piece->groups[g].count; i++)
            if ((int64_t)i < session->blocks || (int64_t)i >= end)
                ids[i] = -1;
    }
    session->blocks = end;
}

/* ---- handing over ------------------------------------------------------------------------------------------------ */

static void pump_all(struct kvfi_send_session *session)
{
    for (size_t i = 0; i < session->sink_count; i++)
        kvfi_send_pump(&session->sinks[i]);
}

static enum kvf_status add_piece(struct kvfi_send_session *session, const struct kvf_trtllm_piece *given,
                                 int64_t token_end, struct kvf_error *error)
{
    struct kvfi_send_piece piece = {.token_begin = given->token_begin, .token_end = token_end,
                                    .is_last = given->is_last != 0};
    enum kvf_status status = KVF_OK;

    if (session->piece_count == session->piece_capacity &&
        !kvfi_array_grow((void **)&session->pieces, session->piece_count, &session->piece_capacity,
                         sizeof *session->pieces))
        status = kvfi_fail_memory(error, "a piece");
    if (status == KVF_OK)
        status = copy_piece(given, &piece, error);
    if (status == KVF_OK) {
        piece.event = kvfi_worker_event_reserve(session->worker);
        if (piece.event == NULL)
            status = kvfi_fail(error, KVF_ERR_AGAIN, "no room for the event of a piece: take events first");
    }
    if (status == KVF_OK)
        status = defer(session, &piece, error);
    if (status != KVF_OK) {
        kvfi_worker_event_cancel(session->worker, piece.event);
        free_piece(&piece);
        return status;
    }
    keep_own_blocks(session, &piece);
    session->pieces[session->piece_count++] = piece;
    session->tokens = token_end;
    session->last_handed = piece.is_last;
    return KVF_OK;
}

enum kvf_status kvfi_senders_piece(kvf_trtllm_worker *worker, const struct kvf_trtllm_piece *piece,
                                   struct kvf_error *error)
{
    struct kvfi_send_session *session = NULL;
    int64_t token_end = piece->token_end;
    enum kvf_status status = find_open(worker->senders, piece->rid, &session, error);

    if (status != KVF_OK)
        return status;
    if (token_end == KVF_TRTLLM_NONE)
        token_end = session->prompt_tokens;
    status = check_tokens(session, piece, token_end, error);
    if (status == KVF_OK)
        status = check_groups(session, piece, error);
    if (status == KVF_OK)
        status = add_piece(session, piece, token_end, error);
    if (status != KVF_OK)
        return status;
    if (session->piece_count == 1)
        kvfi_timer_arm(&worker->loop.timers, &session->deadline, kvfi_deadline_after(session->timeout_ns));
    pump_all(session);
    return KVF_OK;
}

static enum kvf_status check_aux(const struct kvfi_send_session *session, int64_t slot, struct kvf_error *error)
{
    const struct kvf_trtllm_aux *aux = kvf_trtllm_rank_get_spec(session->worker->self)->aux;

    if (!session->has_aux)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "request %" PRId64 " is context-first: it moves no auxiliary "
                         "data", session->rid);
    if (!session->last_handed)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "request %" PRId64 ": auxiliary data comes after the last "
                         "piece", session->rid);
    if (session->aux_slot != KVF_TRTLLM_NONE)
        return kvfi_fail(error, KVF_ERR_EXISTS, "request %" PRId64 " has its auxiliary data already", session->rid);
    if (aux == NULL || slot < 0)
        return kvfi_fail(error, KVF_ERR_OUT_OF_RANGE, "auxiliary slot %" PRId64 " of %s", slot,
                         aux == NULL ? "a rank that has none" : "0 and up");
    for (size_t i = 0; i < aux->item_count && i < aux->size_count; i++) {
        int64_t end;
        if (aux->item_sizes[i] > 0 &&
            (!kvfi_mad_i64(aux->item_sizes[i], slot, aux->item_sizes[i], &end) || end > aux->size[i]))
            return kvfi_fail(error, KVF_ERR_OUT_OF_RANGE, "auxiliary slot %" PRId64 " of buffer %zu, which has %"
                             PRId64, slot, i, aux->size[i] / aux->item_sizes[i]);
    }
    return KVF_OK;
}

enum kvf_status kvfi_senders_aux(kvf_trtllm_worker *worker, int64_t rid, int64_t slot, struct kvf_error *error)
{
    struct kvfi_send_session *session = NULL;
    enum kvf_status status = find_open(worker->senders, rid, &session, error);

    if (status == KVF_OK)
        status = check_aux(session, slot, error);
    if (status != KVF_OK)
        return status;
    session->aux_slot = slot;
    pump_all(session);
    return KVF_OK;
}

void kvfi_send_pieces_fini(struct kvfi_send_session *session)
{
    for (size_t i = 0; i < session->piece_count; i++) {
        kvfi_worker_event_cancel(session->worker, session->pieces[i].event);
        free_piece(&session->pieces[i]);
    }
    free(session->pieces);
    for (size_t g = 0; session->deferred != NULL && g < own_table(session)->group_count; g++)
        free((void *)(uintptr_t)session->deferred[g].ids);
    free(session->deferred);
}
