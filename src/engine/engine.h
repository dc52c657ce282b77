/* SPDX-License-Identifier: Apache-2.0 */
/** @file engine/engine.h  Inside of an engine: what its files share. See README.md for who does what.
 *
 *  Two kinds of state: what the loop's lock protects (commands, events, ledger, counters), which any thread touches;
 *  and all the rest, which the progress thread alone touches once the engine is open (announce and close hand it over
 *  in order).
 */
#ifndef KVFI_ENGINE_ENGINE_H
#define KVFI_ENGINE_ENGINE_H

#include <stdbool.h>

#include "channel/channel.h"
#include "directory/client.h"
#include "engine/ledger.h"
#include "kvferry/directory.h"
#include "kvferry/engine.h"
#include "loop/events.h"
#include "loop/loop.h"
#include "sys/clock.h"
#include "sys/log.h"
#include "sys/table.h"
#include "transport/transport.h"
#include "wire/messages.h"

enum kvfi_engine_limit {
    KVFI_MAX_TRANSPORTS = 4,
    KVFI_PEER_NAME_BYTES = 160,    /* "instance/ppX.cpY.tpZ" */
    KVFI_MAX_SINK_PEERS = 4096,    /* ranks that may pull from one engine */
    KVFI_MAX_REQUESTS = 16384,     /* pulls and releases that wait for their offer */
    KVFI_MAX_REQUEST_BYTES = 268435456, /* memory of those */
    KVFI_MAX_POSTS_OUT = 4,        /* chunks posted per sink */
    KVFI_MAX_UNSENT = 4096,        /* messages to one peer that wait for the channel, */
    KVFI_MAX_UNSENT_BYTES = 8388608, /* bytes of those, */
    KVFI_MAX_ALL_UNSENT_BYTES = 268435456, /* and bytes of those to all peers */
    KVFI_MAX_RESTRICTED = 256,     /* layer sets kept per plan */
    KVFI_EVENT_BATCH = 64
};

#define KVFI_CHUNK_BYTES INT64_C(67108864) /* a whole offer goes in chunks of about so many bytes, to show progress */
#define KVFI_VIEW_FRESH_NS (200 * KVFI_MS) /* a directory answer is used so long without asking again */
#define KVFI_RELEASE_WAIT_NS (60 * KVFI_SECOND) /* a release waits so long for its offer */

struct kvfi_pull_job;
struct kvfi_offer_job;
struct kvfi_peer;
struct kvfi_instance;
struct kvfi_match;
struct kvfi_resolve;
struct kvfi_outbox;

/** The options, checked and owned. */
struct kvfi_settings {
    uint64_t flags;
    char *instance, *model, *directory_url, *directory_listen, *host, *transports, *fault_policy;
    struct kvf_rank rank;
    int64_t ranks_expected, tcp_streams, peer_timeout_ns, connect_timeout_ns, directory_timeout_ns;
    int64_t incomplete_timeout_ns, event_capacity;
};

/** One transport of this engine, in order of wish. */
struct kvfi_carrier {
    const char *name; /* as in the wish, also when a wrapper carries it out */
    const struct kvfi_transport_ops *ops;
    struct kvfi_transport *transport;
    char endpoint[KVFI_ENDPOINT_BYTES];
    struct kvfi_watch watch;
};

enum kvfi_command_kind {
    KVFI_COMMAND_PULL = 1,
    KVFI_COMMAND_OFFER,
    KVFI_COMMAND_READY,
    KVFI_COMMAND_CANCEL,
    KVFI_COMMAND_ANNOUNCE,
    KVFI_COMMAND_END /* close: end all that runs */
};

struct kvfi_command {
    struct kvfi_loop_command base;
    enum kvfi_command_kind kind;
    struct kvfi_pull_job *pull;   /* PULL: taken */
    struct kvfi_offer_job *offer; /* OFFER: taken */
    char transfer[KVF_TRANSFER_ID_BYTES]; /* READY, CANCEL */
    int64_t attempt;
    int64_t layer_first, layer_end, ready_tokens;
};

/** Counters, under the lock. */
struct kvfi_counters {
    int64_t bytes_received, bytes_sent;
    int64_t pulls_active, pulls_done, pulls_failed;
    int64_t offers_active, offers_done, offers_failed;
    int64_t blocks_held; /* accepted, not reusable yet */
    int64_t peers, plans_cached;
};

struct kvf_engine {
    struct kvfi_settings settings;
    struct kvfi_log log;
    uint64_t incarnation;
    char self[KVFI_PEER_NAME_BYTES];
    char host_identity[KVF_ERROR_TEXT_BYTES];
    kvf_layout *layout;
    kvf_holdings *holdings;
    int64_t *layers; /* distinct layers of the layout, ascending */
    size_t layer_count;
    bool layout_aliases; /* two layers share one place: then layers do not flow one by one */
    struct kvfi_memory_region *memories;
    bool *memory_registered;
    size_t memory_count;
    kvf_directory *directory; /* embedded, or NULL */
    const char *directory_url;
    struct kvfi_directory_client *client;
    struct kvfi_channel *channel;
    struct kvfi_carrier carriers[KVFI_MAX_TRANSPORTS];
    size_t carrier_count;
    struct kvfi_watch channel_watch, directory_watch;
    struct kvfi_loop loop; /* `changed` tells: announced, an event, blocks reusable, ended */

    /* under the loop's lock */
    struct kvfi_events events; /* struct kvf_event */
    struct kvfi_ledger ledger;
    struct kvfi_counters counters;
    bool draining, announcing, announced, withdrawn;
    struct kvf_error announce_error; /* status KVF_OK = it went well */

    /* the progress thread's */
    struct kvfi_table pulls, offers, grants; /* by id, by id, by grant */
    struct kvfi_table requests;              /* pulls and releases without an offer, by id */
    int64_t request_bytes;
    struct kvfi_instance *instance_list;     /* what the directory said */
    struct kvfi_resolve *resolves;
    uint64_t resolve_round;
    struct kvfi_match *matches;              /* newest first */
    size_t match_count;
    struct kvfi_peer *peers;
    size_t peer_count, sink_peer_count;
    struct kvfi_pull_job *dead_pulls;   /* freed at the end of the turn */
    struct kvfi_offer_job *dead_offers;
    struct kvfi_timer resolve_timer;
    struct kvfi_buffer buffer; /* for packing */
    struct kvfi_outbox *outboxes; /* messages that the channel could not take yet, by peer */
    int64_t unsent_bytes;
    struct kvfi_timer unsent_timer;
    struct kvfi_transport_event batch[KVFI_EVENT_BATCH];
    uint64_t next_cookie, ping_sequence;
};

/* ---- small things ------------------------------------------------------------------------------------------ */

/** "instance/ppX.cpY.tpZ". */
void kvfi_peer_name(char name[KVFI_PEER_NAME_BYTES], const char *instance, const struct kvf_rank *rank);

/** Boot id and network namespace of this process. */
void kvfi_host_identity(char *text, size_t text_bytes);

/** Checks and copies the options. On failure the settings are empty. */
enum kvf_status kvfi_settings_init(struct kvfi_settings *settings, const struct kvf_engine_options *options,
                                   struct kvf_error *error);
void kvfi_settings_fini(struct kvfi_settings *settings);

/** Own copies of id lists; `lists` is one allocation. NULL without memory. */
struct kvf_id_list *kvfi_block_ids_copy(const struct kvf_id_list *lists, size_t count);

/** Checks a caller's lists against the layout: one per group, ids in bounds, none twice, and, for groups that are
 *  neither
 *  striped nor a ring, none missing for tokens [token_begin, token_end). @return KVF_OK or KVF_ERR_IDS,
 *  KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_block_ids_check(const kvf_layout *layout, const struct kvf_id_list *lists, size_t count,
                               int64_t token_begin, int64_t token_end, struct kvf_error *error);

/* ---- commands, events, counters (take the lock) ------------------------------------------------------------ */

/** Posts a command (taken) and wakes the progress thread. The caller holds the lock. */
void kvfi_command_post(kvf_engine *engine, struct kvfi_command *command);

/** The event that a node of the engine's queue holds; NULL for NULL. */
struct kvf_event *kvfi_event_of(struct kvfi_event_node *node);

/** Reports a peer lost, if there is room for the event. */
void kvfi_report_peer_lost(kvf_engine *engine, const struct kvfi_peer *peer);

/* ---- the loop ---------------------------------------------------------------------------------------------- */

/** Prepares the loop, and has it watch what the engine opened. */
enum kvf_status kvfi_progress_init(kvf_engine *engine, struct kvf_error *error);
enum kvf_status kvfi_progress_watch(kvf_engine *engine, struct kvf_error *error);

/** Takes what arrived on the channel. */
size_t kvfi_inbox_dispatch(kvf_engine *engine);
/** Handles what the transports have to tell; not from within that. */
void kvfi_carriers_dispatch(kvf_engine *engine);

/** Sends a message to a peer; a failure is logged, counted on by deadlines, and returned. */
enum kvf_status kvfi_send(kvf_engine *engine, const struct kvfi_route *to, const struct kvfi_message *message,
                          struct kvf_error *error);
void kvfi_unsent_fini(kvf_engine *engine);
void kvfi_send_nack(kvf_engine *engine, const struct kvfi_route *to, const char *of, const char *transfer,
                    int64_t attempt, enum kvf_status status, const char *text);

#endif
