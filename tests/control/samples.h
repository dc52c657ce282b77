/* SPDX-License-Identifier: Apache-2.0 */
/** @file samples.h  One full message of each type, for the golden files and the tests that speak to other programs. */
#ifndef KVFERRY_TESTS_CONTROL_SAMPLES_H
#define KVFERRY_TESTS_CONTROL_SAMPLES_H

#include "wire/messages.h"

/** A small layout with runs of places, single places, a state group and two memories. */
kvf_layout *sample_layout(void);

/** Fills `message` with the sample of its type; `layout` is borrowed by it. */
void sample_message(enum kvfi_message_type type, kvf_layout *layout, struct kvfi_message *message);

#endif
