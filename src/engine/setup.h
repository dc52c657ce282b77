/* SPDX-License-Identifier: Apache-2.0 */
/** @file setup.h  Bringing an engine up, step by step. */
#ifndef KVFI_ENGINE_SETUP_H
#define KVFI_ENGINE_SETUP_H

#include "engine/engine.h"

/** Fills a zeroed engine whose settings and log stand: layout, tables, directory, channel, transports. On failure
 *  whatever
 *  was made is left for the caller to free. */
enum kvf_status kvfi_engine_setup(kvf_engine *engine, const kvf_layout *layout, struct kvf_error *error);

/** The log sink of the caller's options, whatever their size. */
const struct kvf_log_sink *kvfi_options_log(const struct kvf_engine_options *options);

/** Opens the transports that the settings name. */
enum kvf_status kvfi_carriers_open(kvf_engine *engine, struct kvf_error *error);
void kvfi_carriers_close(kvf_engine *engine);

#endif
