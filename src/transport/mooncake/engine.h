/* SPDX-License-Identifier: Apache-2.0 */
/** @file engine.h  What the files of an engine share: engine.c (opening, answers at the desk), segments.c (descriptors
 *  of peers), lanes.c (data connections to them), transfer.c and pipe.c (protocol 2), transfer_v1.c (protocol 1),
 *  listed.c and batches.c (transfers of lists), api.c (the other public calls), ops.c and posts.c (the transport
 *  table).
 */
#ifndef KVFI_TRANSPORT_MOONCAKE_ENGINE_H
#define KVFI_TRANSPORT_MOONCAKE_ENGINE_H

#include <pthread.h>

#include "sys/log.h"
#include "sys/table.h"
#include "transport/mooncake/address.h"
#include "transport/mooncake/batches.h"
#include "transport/mooncake/descriptor.h"
#include "transport/mooncake/desk.h"
#include "transport/mooncake/regions.h"
#include "transport/mooncake/server.h"

enum {
    KVFI_MOON_TEXT_BYTES = 1048576,
    KVFI_MOON_MAX_SEGMENTS = 65536, /* in use or open */
    KVFI_MOON_KEPT = 1024           /* besides: known, but used by nobody */
};

struct kvfi_moon_pipe;

/** A data connection to a peer. */
struct kvfi_moon_lane {
    struct kvfi_moon_lane *next;
    int fd;
    bool reused;                 /* it served a transfer before: its peer may have closed it since */
    struct kvfi_moon_pipe *pipe; /* what protocol 2 keeps beside it; NULL until it is used so */
};

/** A peer. All but number, name and address is guarded by the engine's lock. */
struct kvfi_moon_segment {
    struct kvfi_moon_segment *next, *previous;           /* of all */
    struct kvfi_moon_segment *next_kept, *previous_kept; /* of those that nobody uses */
    struct kvfi_link by_name, by_number;
    int64_t number;
    int64_t opens;           /* by number: kvf_mooncake_open_segment */
    int64_t uses;            /* calls, batches and peers that hold it */
    struct kvfi_crew_lane batches; /* theirs */
    char asked[KVF_MOONCAKE_NAME_BYTES];
    struct kvfi_moon_address address;
    struct kvfi_moon_descriptor descriptor;
    int64_t fetches;         /* 0: not usable yet */
    bool fetching;           /* one thread asks, others wait for it */
    bool suspect;            /* a connection of protocol 2 broke: its ports may be another process's by now */
    struct kvfi_moon_lane *idle;
    int64_t lane_count;      /* idle ones and those in use */
    int run;                 /* protocol 1: writes that one connection takes, 0 = not known yet */
};

/** Those of an engine. */
struct kvfi_moon_segments {
    struct kvfi_table by_name, by_number;
    struct kvfi_moon_segment *first;
    struct kvfi_moon_segment *first_kept, *last_kept; /* the one that was used last is the last */
    struct kvfi_moon_segment *reaped;                 /* whose idle lanes were looked at last */
    int64_t count, kept_count, kept_bytes;
    int64_t last_number;
};

struct kvfi_moon_note {
    struct kvfi_moon_note *next;
    struct kvf_mooncake_notification notification;
};

struct kvf_mooncake {
    struct kvf_mooncake_options options; /* its texts point to the next two */
    char *host, *publish_host;
    struct kvfi_log own_log;
    bool own_log_made;
    struct kvfi_log *log;
    char name[KVF_MOONCAKE_NAME_BYTES];
    char timestamp[KVFI_MOON_TIME_BYTES];
    int32_t rpc_port, data_port;
    struct kvfi_moon_regions regions;
    bool regions_made;
    struct kvfi_moon_server *server;
    struct kvfi_moon_desk *desk;
    bool told_too_long;
    struct kvfi_resolver *resolver;
    pthread_mutex_t lock;    /* segments, lanes, notes */
    pthread_cond_t changed;  /* a lane is free, a fetch has ended, a note came */
    bool lock_made;
    struct kvfi_moon_batches batches; /* with the lock */
    struct kvfi_moon_segments segments;
    bool segments_made;
    struct kvfi_moon_note *first_note, *last_note;
    int64_t note_count;
    int64_t note_bytes;
};

/* ---- engine.c ----------------------------------------------------------------------------------------------- */
/** As kvf_mooncake_open; `log` in place of the options' sink where it is not NULL. */
enum kvf_status kvfi_moon_open(const struct kvf_mooncake_options *options, struct kvfi_log *log, kvf_mooncake **out,
                               struct kvf_error *error);
/** What a notify counts as. */
int64_t kvfi_moon_note_bytes(const struct kvfi_moon_note *note);
/** Waits on `changed` until the limit, or 100 ms where it can be stopped. The lock is held. False: the limit passed,
 *  or it was stopped. */
bool kvfi_moon_pause(kvf_mooncake *engine, const struct kvfi_moon_limit *limit);

/* ---- segments.c --------------------------------------------------------------------------------------------- */
/** The segment that was opened by this number, to be given back with kvfi_moon_release_segment: until then neither it
 *  nor its connections go, whoever closes it. NULL with KVF_ERR_NOT_FOUND. */
struct kvfi_moon_segment *kvfi_moon_acquire_segment(kvf_mooncake *engine, int64_t number, struct kvf_error *error);
/** The same by a peer's name, with or without a number. A descriptor is fetched where none is known.
 *  @return as kvf_mooncake_open_segment, and KVF_ERR_CANCELLED */
enum kvf_status kvfi_moon_acquire_named(kvf_mooncake *engine, const char *name, const struct kvfi_moon_limit *limit,
                                        struct kvfi_moon_segment **out, struct kvf_error *error);
/** Gives one back. It goes with its last use if it was closed. One that was never opened by number is kept for who asks
 *  for its name again, up to KVFI_MOON_KEPT such, the longest unused going first. NULL is fine. */
void kvfi_moon_release_segment(kvf_mooncake *engine, struct kvfi_moon_segment *segment);
/** Opens by number: see kvf_mooncake_open_segment. */
enum kvf_status kvfi_moon_open_segment(kvf_mooncake *engine, const char *name, const struct kvfi_moon_limit *limit,
                                       int64_t *number, struct kvf_error *error);
/** Fetches the descriptor again. */
enum kvf_status kvfi_moon_refresh(kvf_mooncake *engine, struct kvfi_moon_segment *segment,
                                  const struct kvfi_moon_limit *limit, struct kvf_error *error);
/** Asks the engine at an address a question, with the engine's limits. */
enum kvf_status kvfi_moon_engine_ask(kvf_mooncake *engine, const struct kvfi_moon_address *address, uint8_t type,
                                     const char *text, size_t bytes, const struct kvfi_moon_limit *limit, char **reply,
                                     size_t *reply_bytes, struct kvf_error *error);
/** @return KVF_OK or KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_moon_segments_init(kvf_mooncake *engine, struct kvf_error *error);
void kvfi_moon_segments_fini(kvf_mooncake *engine);

/* ---- api.c --------------------------------------------------------------------------------------------------- */
/** Sends a peer a notify, printed already. @return as kvf_mooncake_notify, and KVF_ERR_CANCELLED */
enum kvf_status kvfi_moon_send_notify(kvf_mooncake *engine, const struct kvfi_moon_segment *segment, const char *text,
                                      size_t bytes, const struct kvfi_moon_limit *limit, struct kvf_error *error);

/* ---- lanes.c ------------------------------------------------------------------------------------------------ */
/** A connection to the peer: an idle one that is still open, or a new one while there may be more, or (`wait`) the
 *  next one that gets free. `fresh`: a new one, even where some are idle.
 *  @param out  NULL where none is free and `wait` is false; else give it back with put or drop
 *  @return KVF_OK, or as a connect and a handshake */
enum kvf_status kvfi_moon_lane_take(kvf_mooncake *engine, struct kvfi_moon_segment *segment, bool fresh, bool wait,
                                    const struct kvfi_moon_limit *limit, struct kvfi_moon_lane **out,
                                    struct kvf_error *error);
/** Gives back one on which nothing is under way; and one that is of no use any more: closes it. */
void kvfi_moon_lane_put(kvf_mooncake *engine, struct kvfi_moon_segment *segment, struct kvfi_moon_lane *lane);
void kvfi_moon_lane_drop(kvf_mooncake *engine, struct kvfi_moon_segment *segment, struct kvfi_moon_lane *lane);
/** Closes and frees one that nobody counts any more. */
void kvfi_moon_lane_free(struct kvfi_moon_lane *lane);

#endif
