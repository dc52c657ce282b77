/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <microhttpd.h>

#include "base/array.h"
#include "base/bounds.h"
#include "base/error.h"
#include "base/struct_size.h"
#include "directory/crowd.h"
#include "directory/listen.h"
#include "directory/service.h"
#include "kvferry/directory.h"
#include "sys/clock.h"
#include "sys/log.h"

#define MAX_CONNECTIONS 1024
#define CROWD_LIMIT 896 /* the rest is room for newcomers while those dismissed leave */
#define CONNECTION_TIMEOUT_S 10
#define CONNECTION_MEMORY_BYTES 32768
#define MAX_BODIES_BYTES INT64_C(268435456) /* of all requests and answers under way */
#define PATIENCE_NS (5 * KVFI_SECOND)        /* with one that holds memory while others want it */
#define MAX_DISCARDED_BYTES (4 * (size_t)KVFI_DIRECTORY_MAX_BODY_BYTES)

struct kvf_directory {
    struct MHD_Daemon *daemon;
    struct kvfi_service service; /* of the daemon's one thread while it runs */
    struct kvfi_crowd crowd;      /* likewise */
    int64_t bodies_bytes;
    struct kvfi_log log;
    char url[KVFI_LISTEN_URL_BYTES];
};

/** One request under way. */
struct exchange {
    struct kvfi_guest *guest;
    struct kvfi_text body;
    size_t discarded_bytes; /* of a body that is too long */
    unsigned refused;       /* 413 or 503 once the body cannot be taken */
    int64_t answer_bytes;   /* of an answer that the client has yet to read */
    bool closes;            /* the connection ends with the answer: as stock servers do with HTTP/1.0 */
};

void kvf_directory_options_init(struct kvf_directory_options *options, size_t size)
{
    const struct kvf_directory_options defaults = {
        .listen = "127.0.0.1:0", .lease_ns = 10 * KVFI_SECOND, .max_ranks = 65536};

    kvfi_struct_init(options, size, &defaults, sizeof defaults);
}

/* ---- clients ---- */

static void on_connection(void *context, struct MHD_Connection *connection, void **guest,
                          enum MHD_ConnectionNotificationCode code)
{
    struct kvf_directory *directory = context;
    const union MHD_ConnectionInfo *info;

    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
        kvfi_crowd_leave(&directory->crowd, *guest);
        *guest = NULL;
        return;
    }
    info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (info) *guest = kvfi_crowd_enter(&directory->crowd, info->connect_fd, kvfi_now_ns());
}

static struct kvfi_guest *guest_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);

    return info ? info->socket_context : NULL;
}

/** Counts memory that a client makes the directory hold. */
static void hold(struct kvf_directory *directory, struct exchange *exchange, int64_t bytes)
{
    directory->bodies_bytes += bytes;
    if (exchange->guest) exchange->guest->held_bytes += bytes;
}

/** Is there room for so many bytes more? If not, one that has held some for too long goes, so that there will be. */
static bool has_room(struct kvf_directory *directory, int64_t bytes)
{
    if (directory->bodies_bytes + bytes <= MAX_BODIES_BYTES) return true;
    kvfi_crowd_free_memory(&directory->crowd, kvfi_now_ns() - PATIENCE_NS);
    return false;
}

/* ---- requests ---- */

static enum MHD_Result queue_answer(struct MHD_Connection *connection, const struct exchange *exchange,
                                    struct kvfi_service_answer *answer)
{
    static const char out_of_memory[] = "{\"error\":\"out of memory for an answer\"}";
    struct MHD_Response *response;
    enum MHD_Result result;

    if (answer->body.failed) {
        kvfi_text_fini(&answer->body);
        answer->code = 503;
        response = MHD_create_response_from_buffer(sizeof out_of_memory - 1, (void *)out_of_memory,
                                                   MHD_RESPMEM_PERSISTENT);
    } else if (answer->body.count == 0) {
        kvfi_text_fini(&answer->body);
        response = MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
    } else {
        response = MHD_create_response_from_buffer(answer->body.count, answer->body.bytes, MHD_RESPMEM_MUST_FREE);
        if (!response) kvfi_text_fini(&answer->body);
    }
    if (!response) return MHD_NO;
    if (answer->content_type) MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, answer->content_type);
    if (answer->location) MHD_add_response_header(response, MHD_HTTP_HEADER_LOCATION, answer->location);
    if (answer->allow) MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, answer->allow);
    if (exchange->closes) MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    result = MHD_queue_response(connection, answer->code, response);
    MHD_destroy_response(response);
    return result;
}

static enum MHD_Result refuse(struct kvf_directory *directory, struct MHD_Connection *connection,
                              const struct exchange *exchange, unsigned code)
{
    struct kvfi_service_answer answer;
    struct kvf_error error;

    if (code == 413)
        kvfi_fail(&error, KVF_ERR_LIMIT, "request body has more than %d bytes", KVFI_DIRECTORY_MAX_BODY_BYTES);
    else
        kvfi_fail(&error, KVF_ERR_LIMIT, "directory is busy with %" PRId64 " bytes of requests and answers",
                  directory->bodies_bytes);
    kvfi_service_refuse(&directory->service, code, error.text, &answer);
    return queue_answer(connection, exchange, &answer);
}

static void take_body(struct kvf_directory *directory, struct exchange *exchange, const char *bytes, size_t byte_count)
{
    size_t before = exchange->body.capacity;

    if (!exchange->refused && exchange->body.count + byte_count > KVFI_DIRECTORY_MAX_BODY_BYTES)
        exchange->refused = 413;
    else if (!exchange->refused && exchange->body.count + byte_count >= before &&
             !has_room(directory, (int64_t)byte_count))
        exchange->refused = 503;
    if (exchange->refused) {
        hold(directory, exchange, -(int64_t)before);
        kvfi_text_fini(&exchange->body);
        exchange->discarded_bytes += byte_count;
        return;
    }
    kvfi_text_append_bytes(&exchange->body, bytes, byte_count);
    hold(directory, exchange, (int64_t)exchange->body.capacity - (int64_t)before);
    if (exchange->body.failed) exchange->refused = 503;
}

/** The path of a request's target, which may be a whole URL. */
static const char *path_of(const char *url)
{
    const char *slash = strncmp(url, "http://", 7) == 0 ? strchr(url + 7, '/') : url;

    return slash ? slash : "/";
}

static enum MHD_Result finish(struct kvf_directory *directory, struct MHD_Connection *connection, const char *url,
                              const char *method, struct exchange *exchange)
{
    struct kvfi_service_answer answer;
    struct kvfi_service_request request = {
        .method = method, .path = path_of(url), .body = exchange->body.bytes, .body_bytes = exchange->body.count,
        .instance = MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, "instance"),
        .content_type = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_TYPE),
        .now_ns = kvfi_now_ns()};

    if (exchange->refused) return refuse(directory, connection, exchange, exchange->refused);
    kvfi_service_answer(&directory->service, &request, &answer);
    if (!has_room(directory, (int64_t)answer.body.capacity)) {
        kvfi_text_fini(&answer.body);
        return refuse(directory, connection, exchange, 503);
    }
    exchange->answer_bytes = (int64_t)answer.body.capacity;
    hold(directory, exchange, exchange->answer_bytes);
    return queue_answer(connection, exchange, &answer);
}

/** A declared length far above the bound is not worth reading to its end. */
static bool is_hopeless(struct MHD_Connection *connection)
{
    const char *length = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);

    return length && strtoull(length, NULL, 10) > MAX_DISCARDED_BYTES;
}

static enum MHD_Result on_request(void *context, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *upload_data,
                                  size_t *upload_data_bytes, void **request_context)
{
    struct kvf_directory *directory = context;
    struct exchange *exchange = *request_context;

    if (!exchange) {
        exchange = calloc(1, sizeof *exchange);
        *request_context = exchange;
        if (!exchange) return MHD_NO;
        exchange->guest = guest_of(connection);
        exchange->closes = strcmp(version, MHD_HTTP_VERSION_1_0) == 0;
        kvfi_crowd_renew(&directory->crowd, exchange->guest, kvfi_now_ns());
        return is_hopeless(connection) ? refuse(directory, connection, exchange, 413) : MHD_YES;
    }
    if (*upload_data_bytes == 0) return finish(directory, connection, url, method, exchange);
    take_body(directory, exchange, upload_data, *upload_data_bytes);
    *upload_data_bytes = 0;
    return exchange->discarded_bytes > MAX_DISCARDED_BYTES ? MHD_NO : MHD_YES;
}

static void on_completed(void *context, struct MHD_Connection *connection, void **request_context,
                         enum MHD_RequestTerminationCode code)
{
    struct kvf_directory *directory = context;
    struct exchange *exchange = *request_context;

    (void)connection;
    (void)code;
    if (!exchange) return;
    hold(directory, exchange, -((int64_t)exchange->body.capacity + exchange->answer_bytes));
    kvfi_crowd_renew(&directory->crowd, exchange->guest, kvfi_now_ns());
    kvfi_text_fini(&exchange->body);
    free(exchange);
    *request_context = NULL;
}

/* ---- open and close ---- */

/** Epochs count from here, so that they rise across restarts too. */
static int64_t wall_clock_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/** At most half of the process's descriptors: it may have other work. */
static size_t crowd_limit(void)
{
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur / 2 >= CROWD_LIMIT) return CROWD_LIMIT;
    return (size_t)files.rlim_cur / 2;
}

static enum kvf_status check_options(const struct kvf_directory_options *options, struct kvf_error *error)
{
    const struct kvfi_bounds rows[] = {{"lease_ns", options->lease_ns, KVFI_SECOND, 3600 * KVFI_SECOND},
                                      {"max_ranks", options->max_ranks, 1, 16777216}};
    enum kvf_status status = kvfi_check_bounds("directory:", rows, sizeof rows / sizeof rows[0], error);

    if (status != KVF_OK) return status;
    if (options->flags & ~(uint64_t)(KVF_DIRECTORY_VLLM_BOOTSTRAP | KVF_DIRECTORY_VLLM_REPLACE))
        return kvfi_fail(error, KVF_ERR_NEWER_OPTION, "directory: flags are %#" PRIx64 ", this library knows 0x3",
                         options->flags);
    if (options->flags == KVF_DIRECTORY_VLLM_REPLACE)
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT,
                         "directory: flags are 0x2, expected 0x1 with it: nothing is served that it applies to");
    return KVF_OK;
}

static enum kvf_status start(struct kvf_directory *directory, const struct kvf_directory_options *options,
                             struct kvf_error *error)
{
    const unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_USE_ITC;
    int fd;
    enum kvf_status status = kvfi_listen(options->listen, &fd, directory->url, error);

    if (status != KVF_OK) return status;
    directory->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, on_request, directory, MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)MAX_CONNECTIONS, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)CONNECTION_TIMEOUT_S,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_MEMORY_BYTES, MHD_OPTION_NOTIFY_COMPLETED, on_completed,
        directory, MHD_OPTION_NOTIFY_CONNECTION, on_connection, directory, MHD_OPTION_END);
    if (directory->daemon) return KVF_OK;
    close(fd);
    return kvfi_fail(error, KVF_ERR_SYSTEM, "directory: cannot start serving on %s", directory->url);
}

enum kvf_status kvf_directory_open(const struct kvf_directory_options *options, kvf_directory **out,
                                   struct kvf_error *error)
{
    struct kvf_directory_options own;
    struct kvf_directory *directory = NULL;
    enum kvf_status status;

    kvf_directory_options_init(&own, sizeof own);
    status = kvfi_options_copy(&own, sizeof own, options, "directory options", error);
    if (status != KVF_OK) goto done;
    if (!own.listen) own.listen = "127.0.0.1:0";
    if (own.lease_ns == 0) own.lease_ns = 10 * KVFI_SECOND;
    if (own.max_ranks == 0) own.max_ranks = 65536;
    status = check_options(&own, error);
    if (status != KVF_OK) goto done;
    directory = calloc(1, sizeof *directory);
    if (!directory) {
        status = kvfi_fail_memory(error, "a directory");
        goto done;
    }
    kvfi_log_init(&directory->log, &own.log);
    kvfi_registry_init(&directory->service.registry, own.lease_ns, own.max_ranks, wall_clock_us());
    kvfi_bootstrap_init(&directory->service.bootstrap, own.max_ranks);
    directory->service.with_bootstrap = own.flags & KVF_DIRECTORY_VLLM_BOOTSTRAP;
    directory->service.bootstrap.replaces = own.flags & KVF_DIRECTORY_VLLM_REPLACE;
    directory->service.opened_ns = kvfi_now_ns();
    directory->crowd.limit = crowd_limit();
    status = start(directory, &own, error);
    if (status != KVF_OK) goto done;
    kvfi_logf(&directory->log, KVF_LOG_INFO, "directory serves at %s", directory->url);
    *out = directory;
    directory = NULL;
done:
    kvf_directory_close(directory);
    return status;
}

const char *kvf_directory_url(const kvf_directory *directory)
{
    return directory->url;
}

void kvf_directory_close(kvf_directory *directory)
{
    if (!directory) return;
    if (directory->daemon) MHD_stop_daemon(directory->daemon);
    kvfi_registry_fini(&directory->service.registry);
    kvfi_bootstrap_fini(&directory->service.bootstrap);
    kvfi_log_fini(&directory->log);
    free(directory);
}
