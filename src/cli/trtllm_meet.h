/* SPDX-License-Identifier: Apache-2.0 */
/** @file trtllm_meet.h  How the ranks of an instance on one host find each other: files in a folder. */
#ifndef KVFERRY_CLI_TRTLLM_MEET_H
#define KVFERRY_CLI_TRTLLM_MEET_H

#include "cli/cli.h"
#include "kvferry/trtllm_worker.h"

/** This rank's place in a folder. A file counts while the process that wrote it lives. */
struct trtllm_meet {
    const char *folder;   /* NULL = there is none, and nothing is done */
    const char *instance; /* borrowed */
    int64_t rank, size;
};

/** Writes this rank's file. Returns an exit code, having printed what is wrong. */
int trtllm_meet_write(const struct cli_command *command, const struct trtllm_meet *meet,
                      const struct kvf_trtllm_endpoints *endpoints, bool is_done);

/** Takes away this rank's file. */
void trtllm_meet_leave(const struct trtllm_meet *meet);

/** Collects the sender endpoints of all ranks: `size` texts, each for free(). False while some are missing. */
bool trtllm_meet_gather(const struct trtllm_meet *meet, char **senders);

/** Finds the info endpoint of another instance: for free(); NULL while it is not there. */
char *trtllm_meet_info(const struct trtllm_meet *meet, const char *instance);

/** Whether all other ranks of this instance are done or gone. */
bool trtllm_meet_all_done(const struct trtllm_meet *meet);

#endif
