/* SPDX-License-Identifier: Apache-2.0 */
/** @file check.h  What check.c (one destination rank and all its senders) and pair.c (one of them) share. */
#ifndef PROPERTY_CHECK_H
#define PROPERTY_CHECK_H

#include "case.h"

/* One case being checked. */
struct check {
    struct prop_case *c;
    struct rank *dst;
    struct kvf_member src_members[MOST_RANKS], dst_members[MOST_RANKS];
    struct kvf_member src_turned[MOST_RANKS], dst_turned[MOST_RANKS]; /* in reverse order, as a peer may have them */
    kvf_election *election, *turned;
    int32_t *expected;     /* by byte of the destination */
    unsigned char *whole;  /* bytes written by plans of everything */
    unsigned char *pieces; /* bytes written by plans of some layers and tokens each */
    int64_t moved_bytes;
    bool limited;
};

/** Prints a line on stderr. Returns false. */
bool complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

/** Plans one pair, on both sides; binds and expands everything, with both lists and with one; seeks; moves it in
 *  pieces. Layers are cut at `layer_cut` (-1: not), tokens at `middle`. */
bool check_pair(struct check *check, size_t source, int64_t layer_cut, int64_t middle);

#endif
