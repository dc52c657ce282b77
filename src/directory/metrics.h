/* SPDX-License-Identifier: Apache-2.0 */
/** @file metrics.h  A directory's counters as Prometheus text. */
#ifndef KVFI_DIRECTORY_METRICS_H
#define KVFI_DIRECTORY_METRICS_H

#include "directory/service.h"

void kvfi_metrics_write(const struct kvfi_service *service, struct kvfi_text *out);

#endif
