/* SPDX-License-Identifier: Apache-2.0 */
/** @file messages.h  The messages of `kvferry/1`, the native control protocol, and their bytes.
 *
 *  A message is one MessagePack map with text keys: "v" (protocol version) first, "t" (type name) second, then the
 *  fields of its type. `docs/wire.md` lists them all. Decoding trusts nothing: bytes are scanned for depth, counts and
 *  lengths before anything is allocated; unknown keys are skipped; wrong types and values out of bounds are refused
 *  with a sentence that names message and key.
 *
 *  Who says what: the decode side connects, says hello, gets hello_ack, and then sends pull, cancel and release; the
 *  prefill side answers on the same connection with started, progress, done / failed / in_doubt and quiesced. Either
 *  side may send nack, ping and pong.
 */
#ifndef KVFI_WIRE_MESSAGES_H
#define KVFI_WIRE_MESSAGES_H

#include <stdbool.h>

#include "kvferry/layout.h"
#include "kvferry/plan.h"

/** Bounds of what is sent and accepted. */
enum kvfi_wire_limit {
    KVFI_WIRE_MAX_BYTES = 1048576,  /* one message */
    KVFI_WIRE_MAX_DEPTH = 8,        /* nested maps and arrays */
    KVFI_WIRE_MAX_NAME = 127,       /* transfer ids, instance names: bytes without the closing zero */
    KVFI_WIRE_MAX_TEXT = 495,       /* sentences, host identity, model fingerprint */
    KVFI_WIRE_MAX_ENDPOINT = 511,
    KVFI_WIRE_MAX_TRANSPORTS = 16,
    KVFI_WIRE_MAX_PLACES = 131072   /* places of a layout after its runs are spelled out */
};

enum kvfi_message_type {
    KVFI_MSG_NONE = 0,
    KVFI_MSG_HELLO,     /* "hello": body hello */
    KVFI_MSG_HELLO_ACK, /* "hello_ack": body hello */
    KVFI_MSG_PULL,      /* "pull": body pull */
    KVFI_MSG_STARTED,   /* "started": body started */
    KVFI_MSG_PROGRESS,  /* "progress": body progress */
    KVFI_MSG_DONE,      /* "done": body end */
    KVFI_MSG_FAILED,    /* "failed": body end */
    KVFI_MSG_IN_DOUBT,  /* "in_doubt": body end; quiesced follows when the writer is known to be quiet */
    KVFI_MSG_CANCEL,    /* "cancel": body note; answered with quiesced */
    KVFI_MSG_QUIESCED,  /* "quiesced": body note; the writer touches the destination no more */
    KVFI_MSG_RELEASE,   /* "release": body note; this destination rank needs the source blocks no more */
    KVFI_MSG_NACK,      /* "nack": body nack; a message was refused */
    KVFI_MSG_PING,      /* "ping": body ping */
    KVFI_MSG_PONG,      /* "pong": body ping, the same sequence */
    KVFI_MSG_TYPES
};

/** Texts are never NULL after unpacking ("" when absent). For packing NULL means "". */
struct kvfi_msg_hello {
    int64_t planner_version;
    const char *instance;      /* name of the sender's instance, 1 to 127 bytes */
    uint64_t incarnation;      /* of the sender, not 0 */
    struct kvf_rank rank;      /* of the sender */
    const char *host;          /* boot id and network namespace of the sender, compared only */
    const char *model;         /* model fingerprint, "" = not stated */
    const char *peer_instance; /* whom the sender means to talk to */
    uint64_t peer_incarnation; /* as the sender knows it, 0 = not known */
    int64_t epoch_own;         /* directory's epoch of the sender's instance, as the sender saw it */
    int64_t epoch_peer;        /* of the receiver's instance, as the sender saw it */
    char digest_own[KVF_FINGERPRINT_TEXT_BYTES];  /* digest of the holdings of the sender's instance, or "" */
    char digest_peer[KVF_FINGERPRINT_TEXT_BYTES]; /* of the receiver's instance, or "" */
    char plan[KVF_FINGERPRINT_TEXT_BYTES];        /* plan fingerprint of this pair, or "" (no share, not yet known) */
    kvf_layout *layout;        /* of the sender; NULL in a refusal */
    int64_t status;            /* hello_ack: enum kvf_status; not KVF_OK = refused */
    const char *text;          /* hello_ack: why refused */
};

struct kvfi_wire_transport {
    const char *name;     /* "shm", "tcp", ...; 1 to 127 bytes */
    const char *endpoint; /* 0 to 511 bytes */
};

struct kvfi_msg_pull {
    const char *transfer; /* 1 to 127 bytes */
    int64_t attempt;
    const char *from;     /* source instance, 1 to 127 bytes */
    char plan[KVF_FINGERPRINT_TEXT_BYTES];
    int64_t token_begin, token_end, request_tokens;
    const struct kvf_id_list *groups; /* destination ids, one list per group of the destination layout */
    size_t group_count;
    uint64_t grant;       /* not 0 */
    int64_t timeout_ms;   /* 1 ms to 24 h */
    const struct kvfi_wire_transport *transports; /* in order of wish, at least one */
    size_t transport_count;
};

struct kvfi_msg_started {
    const char *transfer;
    int64_t attempt;
    int64_t writer;          /* rank number of the writer in its instance */
    const char *transport;   /* name of the one chosen */
    int64_t expected_bytes;
};

struct kvfi_msg_progress {
    const char *transfer;
    int64_t attempt;
    int64_t writer;
    int64_t layer_first, layer_end; /* layers placed up to token_end */
    int64_t token_end;
    int64_t bytes;                  /* placed so far, of all layers */
};

/** done, failed, in_doubt. */
struct kvfi_msg_end {
    const char *transfer;
    int64_t attempt;
    int64_t writer;
    int64_t bytes;  /* placed */
    int64_t runs;   /* contiguous runs they were */
    int64_t chunks;
    int64_t status; /* enum kvf_status */
    const char *text;
};

/** cancel, quiesced, release. */
struct kvfi_msg_note {
    const char *transfer;
    int64_t attempt;
    int64_t writer; /* quiesced: rank number of the writer; -1 elsewhere */
    int64_t status; /* why; KVF_OK for a release after success or without a share */
    const char *text;
};

struct kvfi_msg_nack {
    const char *of;       /* type name of the message refused, "" when it could not be read */
    const char *transfer; /* "" when the message names none */
    int64_t attempt;
    int64_t status;
    const char *text;
};

struct kvfi_msg_ping {
    uint64_t sequence;
    uint64_t incarnation; /* of the sender */
};

/** A message. For packing: zero it, set `type` and the body; all pointers are borrowed for the call. After unpacking it
 *  owns everything it points to; kvfi_message_fini frees it. */
struct kvfi_message {
    enum kvfi_message_type type;
    union {
        struct kvfi_msg_hello hello;
        struct kvfi_msg_pull pull;
        struct kvfi_msg_started started;
        struct kvfi_msg_progress progress;
        struct kvfi_msg_end end;
        struct kvfi_msg_note note;
        struct kvfi_msg_nack nack;
        struct kvfi_msg_ping ping;
    };
    void *owned; /* NULL unless made by kvfi_wire_unpack */
};

/** Bytes to send; grows as needed. Zeroed is empty. */
struct kvfi_buffer {
    unsigned char *bytes;
    size_t count;
    size_t capacity;
};

void kvfi_buffer_fini(struct kvfi_buffer *buffer);

/** Packs `message` into `buffer`, replacing what it held; its memory is used again. Keys come in a fixed order,
 *  integers in their shortest form, so equal messages give equal bytes. Control characters and bad UTF-8 in `text`
 *  become "?", a longer text is cut.
 *  @return KVF_OK; KVF_ERR_INVALID_ARGUMENT naming message and key; KVF_ERR_LIMIT (too long a message);
 *          KVF_ERR_NO_MEMORY. On failure the buffer is empty. */
enum kvf_status kvfi_wire_pack(const struct kvfi_message *message, struct kvfi_buffer *buffer,
                               struct kvf_error *error);

/** Unpacks one message; the bytes are borrowed for the call and may be hostile.
 *  @param out  written on success only; free with kvfi_message_fini
 *  @return KVF_OK; KVF_ERR_PROTOCOL (error->position where known) for bytes that are no such message; KVF_ERR_VERSION
 *          naming both protocol versions; KVF_ERR_LAYOUT and the like for a layout that is refused; KVF_ERR_LIMIT;
 *          KVF_ERR_NO_MEMORY */
enum kvf_status kvfi_wire_unpack(const void *bytes, size_t byte_count, struct kvfi_message *out,
                                 struct kvf_error *error);

/** Frees what an unpacked message owns; does nothing to one filled by hand. NULL is fine. Afterwards `type` is NONE. */
void kvfi_message_fini(struct kvfi_message *message);

/** True when the bytes begin like a message of this protocol, of whatever version: a map whose first key is "v". */
bool kvfi_wire_recognise(const void *bytes, size_t byte_count);

/** Type name ("hello", ...): a constant string, never NULL. */
const char *kvfi_message_name(enum kvfi_message_type type);

#endif
