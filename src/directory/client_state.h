/* SPDX-License-Identifier: Apache-2.0 */
/** @file client_state.h  The inside of a directory client: what its thread and its callers share. */
#ifndef KVFI_DIRECTORY_CLIENT_STATE_H
#define KVFI_DIRECTORY_CLIENT_STATE_H

#include <pthread.h>

#include "directory/client.h"
#include "directory/exchange.h"

enum kvfi_request_kind {
    KVFI_REQUEST_REGISTER,
    KVFI_REQUEST_WITHDRAW,
    KVFI_REQUEST_QUERY,
    KVFI_REQUEST_RENEW,   /* of the client's own making: no result */
    KVFI_REQUEST_REGISTER_ANEW /* likewise, after the directory forgot the registration */
};

/** A request, from posting to its result. Texts are its own. */
struct kvfi_directory_request {
    struct kvfi_directory_request *next;
    enum kvfi_request_kind kind;
    uint64_t cookie;
    int64_t deadline_ns;
    struct kvfi_text path;     /* with the query; empty for a withdraw of what is registered */
    struct kvfi_text body;
    struct kvfi_text key_body; /* register: body for renew and withdraw */
    uint64_t generation;       /* of the registration that it belongs to */
    int64_t next_try_ns;
    int64_t tries;
    char said[KVF_ERROR_TEXT_BYTES]; /* by the last answer that asked for another try */
    bool in_flight;
    struct kvfi_exchange exchange;
};

struct kvfi_result_node {
    struct kvfi_result_node *next;
    struct kvfi_directory_result result;
};

/** What the thread keeps alive at the directory. */
struct kvfi_kept_registration {
    bool wanted;         /* renew it */
    uint64_t generation; /* rises with every register and withdraw; answers to older ones are ignored */
    uint64_t cookie;
    struct kvfi_text body, key_body;
    int64_t lease_ns;
    int64_t next_renew_ns;
    bool in_trouble;     /* a renewal failed, and that was logged */
};

struct kvfi_directory_client {
    char *url;
    struct kvfi_log *log;
    int event_fd;
    CURLM *multi;
    pthread_t thread;

    pthread_mutex_t lock; /* for the next group */
    bool stop;
    struct kvfi_directory_request *posted, **posted_end;
    struct kvfi_result_node *results, **results_end;

    struct kvfi_directory_request *active; /* the thread's own, as all below */
    struct kvfi_kept_registration kept;
};

/** The thread. */
void *kvfi_directory_client_run(void *client);

/** Handles a finished exchange: retries, a result, or the next step of a registration. Returns true when the request is
 *  over and to be freed. */
bool kvfi_directory_client_settle(struct kvfi_directory_client *client, struct kvfi_directory_request *request,
                                  CURLcode result, int64_t now_ns);

/** Takes a posted request into the thread's keeping. Returns false when it was answered at once and is to be freed. */
bool kvfi_directory_client_adopt(struct kvfi_directory_client *client, struct kvfi_directory_request *request,
                                 int64_t now_ns);

/** Ends a request with a failure. */
void kvfi_directory_client_fail(struct kvfi_directory_client *client, const struct kvfi_directory_request *request,
                                enum kvf_status status, const char *text);

/** Makes a renewal when one is due; NULL when none is. */
struct kvfi_directory_request *kvfi_directory_client_renewal(struct kvfi_directory_client *client, int64_t now_ns);

struct kvfi_directory_request *kvfi_directory_request_create(enum kvfi_request_kind kind, const char *path,
                                                             uint64_t cookie, int64_t deadline_ns);
void kvfi_directory_request_destroy(struct kvfi_directory_request *request);

/** Reads the answer to register and renew, and to query (`out` is returned to the caller: free with
 *  kvfi_directory_instance_destroy). */
enum kvf_status kvfi_registered_read(const struct kvfi_text *answer, int64_t *epoch, int64_t *lease_ns,
                                     struct kvf_error *error);
enum kvf_status kvfi_instance_read(const struct kvfi_text *answer, struct kvfi_directory_instance **out,
                                   struct kvf_error *error);
void kvfi_directory_instance_destroy(struct kvfi_directory_instance *instance);

#endif
