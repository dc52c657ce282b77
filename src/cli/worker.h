/* SPDX-License-Identifier: Apache-2.0 */
/** @file worker.h  One rank as a process: layout, memory, engine. Shared by prefill, decode and the demo. */
#ifndef KVFERRY_CLI_WORKER_H
#define KVFERRY_CLI_WORKER_H

#include "cli/cache_file.h"

/** What the command line says about a worker. */
struct worker_options {
    const char *layout_path, *instance, *directory, *directory_listen, *host, *transports, *transfer, *fault_policy;
    struct kvf_rank rank;
    int64_t attempt, timeout_ns, streams, tokens;
    int64_t seed;
    int64_t *ids; /* NULL = shuffled from the seed; owned */
    size_t id_count;
    bool json, verbose, checksum;
};

/** Ids of the options that prefill and decode share. */
enum worker_option_id {
    OPT_INSTANCE = 'i',
    OPT_RANK = 'r',
    OPT_DIRECTORY = 'd',
    OPT_TRANSFER = 't',
    OPT_TIMEOUT = 'T',
    OPT_VERBOSE = 'v',
    OPT_TOKENS = 'n',
    OPT_ATTEMPT = 300,
    OPT_HOST,
    OPT_TRANSPORTS,
    OPT_STREAMS,
    OPT_CHECKSUM,
    OPT_SEED,
    OPT_IDS,
    OPT_JSON,
    OPT_FAULT,
    OPT_LISTEN,
    OPT_OWN /* first free number */
};

#define WORKER_OPTIONS_COMMON \
    {OPT_RANK, "rank", "PP,CP,TP", "this rank (default 0,0,0)"}, \
        {OPT_ATTEMPT, "attempt", "N", "attempt at this transfer; a higher one supersedes a lower\none (default 0)"}, \
        {OPT_TIMEOUT, "timeout", "SECONDS", "give up after so long (default 60)"}, \
        {OPT_TRANSPORTS, "transports", "LIST", "transports to use, best first (default shm,tcp)"}, \
        {OPT_HOST, "host", "ADDRESS", \
         "address to listen on and to publish (default 127.0.0.1);\nother hosts need one they can reach"}, \
        {OPT_STREAMS, "streams", "N", "tcp connections for each peer (default 2)"}, \
        {OPT_CHECKSUM, "checksum", NULL, "check a checksum of what comes over tcp"}, \
        {OPT_IDS, "block-ids", "LIST", "the blocks to use, for layouts with one group\n(default: shuffled)"}, \
        {OPT_SEED, "seed", "N", "of the shuffled block ids (default 1)"}, \
        {OPT_JSON, "json", NULL, "print the result as JSON"}, \
        {OPT_VERBOSE, "verbose", NULL, "tell what happens on standard error"}, \
    { \
        OPT_FAULT, "fault-policy", "POLICY", "" \
    }

void worker_options_init(struct worker_options *options);
void worker_options_fini(struct worker_options *options);

/** Takes one of the shared options. Returns false when its value is wrong, having said so. */
bool worker_take_option(const struct cli_parser *parser, int id, struct worker_options *options);

/** Checks that what is required was given; prints what is missing. */
int worker_check_options(const struct cli_command *command, const struct worker_options *options);

struct worker {
    const struct cli_command *command;
    char name[KVF_INSTANCE_NAME_BYTES + 96]; /* "p/pp0.cp0.tp2" */
    kvf_instance *instance;
    const kvf_layout *layout; /* of this rank; borrowed from the instance */
    kvf_memory **memories;
    void **bases;
    size_t memory_count;
    struct block_lists lists;
    kvf_engine *engine;
    int signal_fd; /* readable when the user wants to stop */
};

/** Reads the layout, blocks the signals that stop a worker, and allocates this rank's memory. */
int worker_open_memory(const struct cli_command *command, const struct worker_options *options, struct worker *out);

/** The same for an instance that is parsed already (taken, also on failure) and without the signals. */
int worker_open_instance(const struct cli_command *command, const struct worker_options *options,
                         kvf_instance *instance, struct worker *out);

/** Chooses the blocks of a request of so many tokens. */
int worker_choose_blocks(struct worker *worker, const struct worker_options *options, int64_t tokens);

/** Opens the engine, registers the memory and announces it. */
int worker_announce(struct worker *worker, const struct worker_options *options);

/** Waits for the terminal event of an offer or a pull, and until its blocks are reusable. SIGINT and SIGTERM cancel.
 *  Writes the terminal event. Returns CLI_OK when it went well; else an exit code, having printed why. */
int worker_wait(struct worker *worker, const struct worker_options *options, bool is_offer, struct kvf_event *out);

/** Stays in the directory until the ranks that sent the `pieces` leave: ranks of this instance that are not done yet
 *  need all of its ranks to be registered. Ends at once for a signal, and in any case after the transfer's timeout. */
void worker_linger(struct worker *worker, const struct worker_options *options, int64_t pieces);

/** Prints the outcome as JSON: one line on standard output. `out_path` may be NULL. */
void worker_print_json(const struct worker_options *options, const struct kvf_event *event, const char *out_path);

/** Names of the transports in an event's bit set, such as "shm". `text` has at least 24 bytes. */
const char *worker_transport_names(int32_t bits, char *text);

/** Lets what runs end, closes the engine, frees. */
void worker_close(struct worker *worker);

#endif
