/* SPDX-License-Identifier: Apache-2.0 */
/** @file consumer_kit.h  For tests of vLLM consumers: a worker in a few words, a registry, and producers that say what
 *  the test has them say. Every wait has a deadline and fails the test when it passes.
 */
#ifndef TESTS_VLLM_CONSUMER_KIT_H
#define TESTS_VLLM_CONSUMER_KIT_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdbool.h>
#include <setjmp.h>
#include <cmocka.h>

#include "kvferry/directory.h"
#include "kvferry/mooncake.h"
#include "kvferry/vllm_worker.h"
#include "sys/clock.h"
#include "vllm/message.h"

enum { DEC_BLOCK_BYTES = 256, DEC_BLOCKS = 4096, DEC_MOST_IDS = 64 };

/* ---- registries ------------------------------------------------------------------------------------------------- */

struct reg {
    kvf_directory *directory;
    const char *url;
};

void reg_open(struct reg *reg);
/** One where another one was. */
void reg_open_at(struct reg *reg, const char *url);
void reg_close(struct reg *reg);
/** Registers a worker. */
void reg_add(struct reg *reg, const char *engine_id, int dp, int tp, int pp, const char *address);

/* ---- a consumer ------------------------------------------------------------------------------------------------- */

struct dec {
    kvf_vllm_worker *worker;
    struct kvf_vllm_worker_options options; /* changed before dec_open */
    unsigned char *memory;                  /* of the one layer: DEC_BLOCKS blocks */
    const char *engine_id, *bootstrap;      /* of dec_pull's requests */
};

/** TP 1, PP 1, one layer, one group; waits 20 s for an answer, never gives memory back unproven, and believes producers
 *  who say that they have written. */
void dec_init(struct dec *dec, const struct reg *reg);
void dec_open(struct dec *dec);
/** Registers the memory (anew). */
void dec_register(struct dec *dec);
void dec_close(struct dec *dec);

/** A step of requests; fails the test unless it is taken. */
void dec_step(struct dec *dec, const struct kvf_vllm_recv *recvs, size_t count);
/** One request "ID", transfer "x-ID", with `count` blocks from `first` on; in a step of its own. */
void dec_pull(struct dec *dec, const char *id, int64_t first, size_t count);
/** The same with `dec->engine_id` replaced. */
void dec_pull_from(struct dec *dec, const char *engine_id, const char *id, int64_t first, size_t count);
/** Requests "PREFIX0" to "PREFIXn", of one block each (block = number), in one step. */
void dec_pull_many(struct dec *dec, const char *prefix, size_t count);

/** The next event: fails the test unless it is of this kind, and of this request (NULL = any). */
struct kvf_vllm_event dec_event(struct dec *dec, int kind, const char *id);
/** Fails the test when any event is queued. */
void dec_no_event(struct dec *dec);
/** Waits a little for an event, and drops it. */
void dec_skip_event(struct dec *dec);
struct kvf_vllm_worker_stats dec_stats(struct dec *dec);

/** Collects, and fails the test unless it is just this: finished ids, failed ids, invalid blocks, each as one text with
 *  blanks between. Ids are compared in any order. */
void dec_collect(struct dec *dec, const char *finished, const char *failed, const char *blocks);

/* ---- a producer that says what it is told to -------------------------------------------------------------------- */

struct prod {
    void *context, *router;
    char address[128];
};

/** A pull that came, with whom to answer. */
struct ask {
    unsigned char id[32];
    size_t id_bytes;
    unsigned char *bytes;
    size_t byte_count;
    struct kvfi_vllm_pull pull;
};

/** `port` 0 = any free one. */
void prod_open(struct prod *prod, int port);
void prod_open_ipv6(struct prod *prod);
int prod_port(const struct prod *prod);
void prod_close(struct prod *prod);
/** The next pull. */
void prod_ask(struct prod *prod, struct ask *ask);
/** The same if one comes within a millisecond; the one before is closed then. */
bool prod_try_ask(struct prod *prod, struct ask *ask);
/** Fails the test when a pull comes within some milliseconds. */
void prod_no_ask(struct prod *prod);
void ask_close(struct ask *ask);
/** True when the pull asks for this d_req_id. */
bool ask_has(const struct ask *ask, const char *id);

/** Answers: lists of ids as one text with blanks between, "" or NULL = none. */
void prod_say(struct prod *prod, const struct ask *ask, int verdict, const char *ok, const char *err,
              const char *message, uint64_t layout_id);
/** The usual: FINISH with these ids. */
void prod_finish(struct prod *prod, const struct ask *ask, const char *ok);
void prod_say_bytes(struct prod *prod, const struct ask *ask, const void *bytes, size_t byte_count);
/** Several frames. */
void prod_say_frames(struct prod *prod, const struct ask *ask, size_t frames);

/* ---- the usual three -------------------------------------------------------------------------------------------- */

struct scene {
    struct reg reg;
    struct prod prod;
    struct dec dec;
};

/** A registry with one producer, TP 1 and PP 1, and a consumer that is not open yet. */
void scene_init(struct scene *scene);
/** The same, with the consumer open. */
void scene_open(struct scene *scene);
void scene_close(struct scene *scene);
/** A request of dec_pull, up to its pull: that has come, and the consumer has said so. */
void scene_ask(struct scene *scene, const char *id, int64_t first, size_t count, struct ask *ask);
/** The producer says that it has written the one request of a pull, and the consumer has received it. */
void scene_finish(struct scene *scene, const struct ask *ask, const char *id);

/** The same into bytes [first, first + bytes) of one block. */
enum kvf_status ask_write_part(const struct ask *ask, int64_t block, size_t first, size_t bytes, unsigned char value);
/** Reads a block. */
enum kvf_status ask_read(const struct ask *ask, int64_t block);

/** Writes `value` into blocks of the consumer that asked, by the transfer engine's protocol. Returns its status. */
enum kvf_status ask_write(const struct ask *ask, const int64_t *blocks, size_t count, unsigned char value);

#endif
