/* SPDX-License-Identifier: Apache-2.0 */
/** @file fields.h  The fields of every message, as tables that packing and unpacking both walk. */
#ifndef KVFI_WIRE_FIELDS_H
#define KVFI_WIRE_FIELDS_H

#include "wire/messages.h"

enum kvfi_field_kind {
    KVFI_FIELD_INTEGER,    /* int64_t within [min, max] */
    KVFI_FIELD_NUMBER,     /* uint64_t, at least min */
    KVFI_FIELD_NAME,       /* const char *, min to max bytes, clean text, sent as it is */
    KVFI_FIELD_SENTENCE,   /* const char *, up to max bytes, cleaned and cut when sent */
    KVFI_FIELD_HEX,        /* char[33]: 32 lower-case hex digits or "" */
    KVFI_FIELD_RANK,       /* struct kvf_rank: array of dp, pp, cp, tp, salt */
    KVFI_FIELD_LAYOUT,     /* kvf_layout * */
    KVFI_FIELD_IDS,        /* const struct kvf_id_list *, its count at `count_offset` */
    KVFI_FIELD_TRANSPORTS  /* const struct kvfi_wire_transport *, its count at `count_offset` */
};

struct kvfi_field {
    const char *key;
    enum kvfi_field_kind kind;
    bool optional;         /* may be missing: zero or "" then. Sent always, except a layout that is NULL */
    size_t offset;         /* in struct kvfi_message */
    size_t count_offset;
    int64_t min, max;
};

/** The fields of a type in the order they are packed; NULL with count 0 for a number that is no type. */
const struct kvfi_field *kvfi_message_fields(enum kvfi_message_type type, size_t *count);

/** Finds a type by its name (not zero terminated); KVFI_MSG_NONE when there is none. */
enum kvfi_message_type kvfi_message_find(const char *name, size_t name_bytes);

/** Rules between the fields of one message: ranges the right way round, a layout in an accepting answer.
 *  @param status  what to return when one is broken */
enum kvf_status kvfi_message_check(const struct kvfi_message *message, enum kvf_status status,
                                   struct kvf_error *error);

#endif
