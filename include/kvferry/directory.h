/* SPDX-License-Identifier: Apache-2.0 */
/** @file directory.h  Who serves which instance and rank, and where: the HTTP registry, as a server.
 *
 *  An engine talks to it by itself; `docs/wire.md` has the endpoints. Run one beside the workers (`kvferry
 *  directory`), or let rank 0's engine embed it.
 */
#ifndef KVFERRY_DIRECTORY_H
#define KVFERRY_DIRECTORY_H

#include "kvferry/log.h"
#include "kvferry/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A running directory server. Any thread; kvf_directory_close must be the last call. */
typedef struct kvf_directory kvf_directory;

/** Flags of a directory. */
enum kvf_directory_flag {
    /** Also answer `POST /register` and `GET /query` as the bootstrap server of vLLM's Mooncake connector does. Its
     *  peers neither authenticate nor withdraw, and their entries stay until close: off unless asked for. */
    KVF_DIRECTORY_VLLM_BOOTSTRAP = 1,
    /** With the former: an engine that was restarted, and so has another engine id, is not refused, as that server
     *  would, but takes the place of the one its dp rank is known by, once it has registered every slot (TP and PP
     *  rank) that one has. Until then queries tell of the known one, so nobody sees half an engine. An engine of
     *  another shape that lacks one of the slots never takes over. */
    KVF_DIRECTORY_VLLM_REPLACE = 2
};

/** How a directory serves. */
struct kvf_directory_options {
    size_t struct_size;   /**< set by kvf_directory_options_init */
    const char *listen;   /**< "HOST:PORT"; port 0 = any free one; default "127.0.0.1:0". IPv6 as "[::1]:8700" */
    int64_t lease_ns;     /**< a registration not renewed for so long expires; default 10 s, 1 s to 1 h */
    int64_t max_ranks;    /**< registrations held at most; default 65536, 1 to 16777216 */
    struct kvf_log_sink log;
    uint64_t flags;       /**< enum kvf_directory_flag; default 0 */
};

/** Fills `options` with the defaults. `size` is sizeof(struct kvf_directory_options) as the caller compiled it. */
KVF_API void kvf_directory_options_init(struct kvf_directory_options *options, size_t size);

/** Starts serving in threads of its own. @param options  NULL = defaults
 *  @param out  returned to the caller (free with kvf_directory_close)
 *  @return KVF_OK; KVF_ERR_ADDRESS_IN_USE naming the address; KVF_ERR_INVALID_ARGUMENT; KVF_ERR_NEWER_OPTION;
 *          KVF_ERR_SYSTEM; KVF_ERR_NO_MEMORY */
KVF_API enum kvf_status kvf_directory_open(const struct kvf_directory_options *options, kvf_directory **out,
                                           struct kvf_error *error);

/** The URL to give to engines, such as "http://127.0.0.1:41337": borrowed until close. */
KVF_API const char *kvf_directory_url(const kvf_directory *directory);

/** Stops serving and frees. NULL is fine. Blocks until running requests ended (under a second). */
KVF_API void kvf_directory_close(kvf_directory *directory);

#ifdef __cplusplus
}
#endif

#endif
