/* SPDX-License-Identifier: Apache-2.0 */
/** @file instances.h  What the directory says, and who therefore sends what: views, matches, and waiting for them. */
#ifndef KVFI_ENGINE_INSTANCES_H
#define KVFI_ENGINE_INSTANCES_H

#include "engine/engine.h"

#define KVFI_ASK_AGAIN_NS (50 * KVFI_MS) /* between two questions about one instance that still lacks an answer */

/** One answer of the directory. Counted. */
struct kvfi_view {
    int references;
    struct kvfi_directory_result answer;
    struct kvf_member *members; /* as many as ranks */
    char digest[KVF_FINGERPRINT_TEXT_BYTES];
};

/** An instance that was asked for. */
struct kvfi_instance {
    struct kvfi_instance *next;
    char name[KVF_INSTANCE_NAME_BYTES];
    struct kvfi_view *view;       /* the newest answer that was one, or NULL */
    bool asking;
    uint64_t cookie;
    int64_t asked_ns;             /* of the query under way */
    int64_t answered_ns;          /* when the query was made whose answer is the newest; INT64_MIN = none */
    struct kvf_error last;        /* of that answer */
};

/** Two instances and one destination rank: who sends what to it. Counted, immutable. */
struct kvfi_match {
    int references;
    struct kvfi_match *next; /* in the cache */
    struct kvfi_view *source, *destination;
    size_t destination_index;
    kvf_election *election;
};

/** A wish for a match, inside its owner. `done` is called once, from the loop: with a match (borrowed; acquire it to
 *  keep
 *  it), or with NULL and the error. */
struct kvfi_resolve {
    struct kvfi_resolve *previous, *next;
    bool pending;
    bool again; /* waits for something incomplete: ask once more when the timer fires */
    char source[KVF_INSTANCE_NAME_BYTES], destination[KVF_INSTANCE_NAME_BYTES];
    struct kvf_rank rank;      /* of the destination */
    uint64_t incarnation;      /* of the destination rank */
    bool check_places;         /* the destination is this rank: check its places too */
    bool await_source;         /* a source that the directory does not know may still come */
    bool told;                 /* ... and the log has it that it is waited for */
    int64_t fresh_ns;          /* answers to queries made earlier do not count */
    int64_t began_ns, deadline_ns;
    struct kvfi_instance *from, *to; /* the two, once looked up: they stay while the wish is pending */
    uint64_t round;                  /* in which it was looked at last */
    void (*done)(kvf_engine *engine, struct kvfi_resolve *resolve, struct kvfi_match *match,
                 const struct kvf_error *error);
};

/** Begins; the fields above `fresh_ns` and `done` are filled by the owner. `force` asks the directory whatever is
 *  known. */
void kvfi_resolve_begin(kvf_engine *engine, struct kvfi_resolve *resolve, bool force, int64_t deadline_ns);
/** Ends a wish without an answer; one that is not pending is fine. */
void kvfi_resolve_cancel(kvf_engine *engine, struct kvfi_resolve *resolve);
/** Looks whether pending wishes can be answered. Called from the loop. */
void kvfi_resolves_run(kvf_engine *engine);

/** Takes what the directory client has. */
void kvfi_directory_dispatch(kvf_engine *engine);

struct kvfi_instance *kvfi_instance_get(kvf_engine *engine, const char *name);
/** Makes sure that a query is under way. */
void kvfi_instance_ask(kvf_engine *engine, struct kvfi_instance *instance);
void kvfi_instances_fini(kvf_engine *engine);

void kvfi_view_release(struct kvfi_view *view);
/** Index of a rank, or the rank count when it is not there. */
size_t kvfi_view_find(const struct kvfi_view *view, const struct kvf_rank *rank);
static inline size_t kvfi_view_ranks(const struct kvfi_view *view) { return view->answer.instance->rank_count; }
static inline const struct kvfi_directory_rank *kvfi_view_rank(const struct kvfi_view *view, size_t index)
{
    return &view->answer.instance->ranks[index];
}

struct kvfi_match *kvfi_match_acquire(struct kvfi_match *match);
void kvfi_match_release(struct kvfi_match *match);
/** Drops cached matches that use `view` (NULL: all). */
void kvfi_matches_drop(kvf_engine *engine, const struct kvfi_view *view);

#endif
