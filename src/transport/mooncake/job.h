/* SPDX-License-Identifier: Apache-2.0 */
/** @file job.h  One transfer of ranges, made by one thread: where its ranges come from, what became of them. */
#ifndef KVFI_TRANSPORT_MOONCAKE_JOB_H
#define KVFI_TRANSPORT_MOONCAKE_JOB_H

#include <sys/types.h>

#include "transport/mooncake/engine.h"

enum { KVFI_MOON_FETCHED = 256 };

struct kvfi_moon_item {
    uint64_t index;          /* of the range in the transfer */
    uint64_t local, remote, bytes;
    bool begun;              /* bytes of it may have arrived, though nobody answered */
};

struct kvfi_moon_job {
    /* Filled by whoever runs it. */
    kvf_mooncake *engine;
    struct kvfi_moon_segment *segment;
    bool is_write, stop_at_failure;
    struct kvfi_moon_limit limit;
    struct kvfi_wire_fault *wire; /* faults of tests; NULL: none */
    /** Gives up to `capacity` next ranges (their index is filled in here), 0 at the end; -1: it failed. */
    ssize_t (*next)(void *context, struct kvfi_moon_item *out, size_t capacity, struct kvf_error *error);
    /** A range has ended; NULL: nobody wants to know. It never comes for some of those that failed. */
    void (*ended)(void *context, uint64_t index, enum kvf_mooncake_outcome outcome);
    void *context;

    /* What became of it. */
    int64_t done, in_doubt, bytes_done;
    enum kvf_status status;  /* KVF_OK: all ranges are done */
    uint64_t failed_index;   /* of the first range that failed; UINT64_MAX: none in particular */
    struct kvf_error error;

    /* Inside. */
    struct kvfi_moon_item fetched[KVFI_MOON_FETCHED];
    size_t fetched_at, fetched_count;
    bool admitted;           /* the one at fetched_at may be moved */
    uint64_t next_index;
    bool over;               /* the source has no more */
    struct kvfi_moon_item *again; /* to be sent once more */
    size_t again_count, again_capacity;
    bool halted;             /* nothing new begins */
    int64_t ending_ns;       /* halted: what is under way is waited for until then */
};

/** Runs it. Afterwards no local memory of it is touched. @return job->status */
enum kvf_status kvfi_moon_run(struct kvfi_moon_job *job);

/* ---- job.c -------------------------------------------------------------------------------------------------- */
/** True when a range is there to be begun. Those of no bytes and those that may not be are dealt with on the way. */
bool kvfi_moon_job_more(struct kvfi_moon_job *job);
/** Takes it; after kvfi_moon_job_more said true. */
struct kvfi_moon_item kvfi_moon_job_take(struct kvfi_moon_job *job);
/** Takes a range back, to be begun (again). Where that never happens it has failed; is in doubt, if it is `begun`. */
void kvfi_moon_job_again(struct kvfi_moon_job *job, const struct kvfi_moon_item *item);
void kvfi_moon_job_done(struct kvfi_moon_job *job, const struct kvfi_moon_item *item);
/** A range has failed, or is in doubt. */
void kvfi_moon_job_failed(struct kvfi_moon_job *job, const struct kvfi_moon_item *item, bool in_doubt,
                          enum kvf_status status, const char *format, ...) __attribute__((format(printf, 5, 6)));
/** Nothing new begins, and what did not begin has failed with this. */
void kvfi_moon_job_halt(struct kvfi_moon_job *job, enum kvf_status status, const char *text);
/** Halts where the deadline has passed or it was stopped. */
void kvfi_moon_job_look(struct kvfi_moon_job *job, int64_t now_ns);

/* ---- transfer.c, transfer_v1.c ------------------------------------------------------------------------------ */
void kvfi_moon_run_v2(struct kvfi_moon_job *job);
void kvfi_moon_run_v1(struct kvfi_moon_job *job);

#endif
