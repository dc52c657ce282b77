/* SPDX-License-Identifier: Apache-2.0 */
/** @file demo.h  The demo: a coordinator, one process for each rank, and checks that do not use the planner. */
#ifndef KVFERRY_CLI_DEMO_H
#define KVFERRY_CLI_DEMO_H

#include <jansson.h>
#include <sys/types.h>

#include "cli/worker.h"

#define DEMO_UNTOUCHED 0xA5           /* what destination memory holds before anything moves */
#define DEMO_SOURCE_FILL 0x5A         /* what source memory holds where the cache does not reach */
#define DEMO_GATHER_FD 3              /* descriptor of the gathering file in a worker */
#define DEMO_BATCH 8                  /* requests gathered and hashed at a time */
#define DEMO_PARTS 2                  /* K and V */
#define DEMO_FAULT_POLICY "corrupt=1" /* one byte of what a source sends is flipped */

/* ---- demo_data.c: the real cache, and what is known about it ------------------------------------------------ */

struct demo_data {
    struct cache_file file;
    char path[4096];
    int64_t tokens, layers, heads, row_bytes; /* row: one head of one token */
    int64_t tensor_bytes;
    const char **tensors; /* K and V of each layer, in the file's map */
    char (*sha256)[65];   /* the stored hashes, in the same order */
};

/** Opens the cache and its hashes from a folder, or from where they are looked for when that is NULL, and checks that
 *  they belong together. */
int demo_data_open(const struct cli_command *command, const char *folder, struct demo_data *out);
void demo_data_close(struct demo_data *data);

/** "layers.7.v" into `text` of at least 32 bytes. Returns `text`. */
const char *demo_tensor_name(int64_t tensor, char *text);

/** Writes the SHA-256 of some bytes as 64 hex digits. */
bool demo_sha256(const void *bytes, size_t count, char text[65]);

/* ---- demo_case.c: the shapes ---------------------------------------------------------------------------------- */

struct demo_case {
    const char *name, *title;
    struct kvf_instance_recipe src, dst; /* sizes of pools are set for the number of requests */
};

#define DEMO_CASES 3

/** Fills case number `index` for so many requests (all that pools must have room for). */
void demo_case_make(const struct demo_data *data, int index, int64_t requests, struct demo_case *out);
const char *demo_case_name(int index);

/** Layout text of one side. `*out` is for kvf_text_free(). */
int demo_case_layout(const struct cli_command *command, const struct kvf_instance_recipe *recipe, char **out);

/** Tokens that really move for one request: whole grains of both block sizes. */
int64_t demo_written_tokens(const struct demo_case *shape, int64_t tokens);

/** The block ids of every request on one rank: shuffled, from the high end, some left out. */
struct demo_ids {
    int64_t *ids;
    int64_t per_request;
};
bool demo_ids_init(const struct kvf_layout_spec *spec, int64_t requests, int64_t tokens, uint64_t seed,
                   struct demo_ids *out);

/** Seed of a rank's ids. */
uint64_t demo_seed(bool source, size_t rank_index);

/* ---- demo_spawn.c: worker processes ------------------------------------------------------------------------------ */

struct demo_process {
    pid_t pid;
    int in, out; /* its standard input and output */
    char *line;
    size_t used, room;
    bool answered;
    char name[160];
};

/** Starts a worker: this program again, with a hidden command. `gather_fd` becomes DEMO_GATHER_FD there. */
int demo_process_start(const struct cli_command *command, const char *name, int gather_fd, struct demo_process *out);

/** Sends one message, taken. */
int demo_process_send(const struct cli_command *command, struct demo_process *process, json_t *message);

/** Called with each message that is not the awaited one (progress). */
typedef void (*demo_message_fn)(void *context, size_t process, const json_t *message);

/** Waits until each process has sent a message whose "event" is `event`; `answers[i]` gets it (owned by the caller).
 *  A worker that dies, and the deadline, end it with an exit code; what happened is printed. */
int demo_processes_collect(const struct cli_command *command, struct demo_process *processes, size_t count,
                           const char *event, int64_t timeout_ns, json_t **answers, demo_message_fn other,
                           void *context);

/** Closes the pipes and waits for the end; kills what does not end within a moment, or at once when `kill_now`. */
void demo_processes_end(struct demo_process *processes, size_t count, bool kill_now);

/* ---- demo_reader.c: reads a cache by the address formula alone ----------------------------------------------- */

struct demo_reader {
    const struct kvf_layout_spec *spec;
    void *const *bases;
    const struct demo_ids *ids;
    int64_t tokens, written_tokens; /* rows in [tokens, written_tokens) came along with the grain */
    int64_t layers, heads, row_bytes;
};

/** Copies what this rank holds of one request to its places in `out`: [layer][K, V][token][head][row]. Each row read is
 * then set to DEMO_UNTOUCHED, so that in the end everything must be. Writes what is wrong with the rows behind the
 * tokens. */
void demo_reader_gather(const struct demo_reader *reader, int64_t request, char *out, char *fault, size_t fault_bytes);

/** Looks for bytes that are not DEMO_UNTOUCHED in all memories; says where the first one is. Returns whether there are
 * none. */
bool demo_reader_scan(const struct demo_reader *reader, const int64_t *memory_bytes, char *fault, size_t fault_bytes);

/* ---- demo_bare.c: the yardstick ---------------------------------------------------------------------------------- */

/** Does all moves of a case by a plain loop around memcpy, in this process, with memory touched before. */
int demo_bare(const struct cli_command *command, const struct demo_case *shape, int64_t requests, int64_t tokens,
              double *gb_per_s);

/* ---- demo_run.c: one case over one transport ----------------------------------------------------------------------
 */

struct demo_settings {
    int64_t requests, timeout_ns;
    bool corrupt, json, progress;
    const char *keep;
};

struct demo_result {
    const char *shape, *transport;
    bool right;
    char verdict[512];
    int64_t bytes, pieces, runs, requests;
    double wall_ns, first_contact_ns, gb_per_s, bare_gb_per_s;
};

struct demo_run {
    const struct cli_command *command;
    const struct demo_settings *settings;
    const struct demo_data *data;
    const struct demo_case *shape;
    const char *transport;
    bool is_first; /* its moved cache is kept under the plain name too */
    int gather_fd;
    char *gather; /* its map: DEMO_BATCH requests */
};

/** Runs one case over one transport and checks every byte. CLI_OK also when bytes are wrong (see the result); an exit
 * code when it could not be run. */
int demo_run(struct demo_run *run, struct demo_result *out);

/* ---- demo_check.c ---------------------------------------------------------------------------------------------------
 */

/** Compares `count` gathered requests, the first of which is number `first`, with the stored hashes. Returns whether
 * all are right; else writes the first difference: request, layer, part, token, head, byte. */
bool demo_check(const struct demo_data *data, const char *gathered, int64_t first, int64_t count, char *fault,
                size_t fault_bytes);

/** Writes one gathered request as a safetensors file. */
int demo_keep(const struct cli_command *command, const struct demo_data *data, const char *gathered, const char *folder,
              const char *name);

/* ---- demo_report.c --------------------------------------------------------------------------------------------------
 */

void demo_print_table(const struct demo_result *results, size_t count);
void demo_print_json(const struct demo_settings *settings, const struct demo_data *data,
                     const struct demo_result *results, size_t count);

#endif
