/* SPDX-License-Identifier: Apache-2.0 */
/* kvferry trtllm info: asks a context server's info endpoint who it is, as a generation rank would. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "cli/cmd_trtllm.h"
#include "kvferry/trtllm.h"

enum option_id { OPT_OUT = 'o', OPT_RAW = 'r', OPT_TIMEOUT = 'T' };

#define SECOND INT64_C(1000000000)
#define MILLISECOND INT64_C(1000000)

static const struct cli_option options[] = {
    {OPT_OUT, "out", "FILE", "write it to a file"},
    {OPT_RAW, "raw", NULL, "the MessagePack bytes as they came, not JSON"},
    {OPT_TIMEOUT, "timeout", "SECONDS", "wait so long for the answer (default 10)"},
    {0, NULL, NULL, NULL},
};

struct request {
    const char *endpoint, *out;
    int64_t timeout_ns;
    bool raw;
};

/** Asks and takes the answer: `*answer` is for free(). */
static int ask(const struct cli_command *command, const struct request *request, char **answer, size_t *bytes)
{
    static const char question[] = "REQUEST_INSTANCE_INFO";
    int timeout_ms = (int)(request->timeout_ns / MILLISECOND), none = 0, code = CLI_PEER;
    int64_t most = KVF_TRTLLM_MAX_RANK_BYTES;
    void *context = zmq_ctx_new();
    void *socket = context != NULL ? zmq_socket(context, ZMQ_DEALER) : NULL;
    zmq_msg_t message;
    zmq_msg_init(&message);
    if (socket == NULL) {
        cli_error(command, "no socket: %s", zmq_strerror(zmq_errno()));
        code = CLI_FAILED;
        goto done;
    }
    zmq_setsockopt(socket, ZMQ_LINGER, &none, sizeof(none));
    zmq_setsockopt(socket, ZMQ_RCVTIMEO, &timeout_ms, sizeof(timeout_ms));
    zmq_setsockopt(socket, ZMQ_SNDTIMEO, &timeout_ms, sizeof(timeout_ms));
    zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &most, sizeof(most));
    if (zmq_connect(socket, request->endpoint) != 0) {
        code = cli_usage_error(command, "\"%s\" is no endpoint, tcp://HOST:PORT: %s", request->endpoint,
                               zmq_strerror(zmq_errno()));
        goto done;
    }
    if (zmq_send(socket, question, sizeof(question) - 1, 0) < 0 || zmq_msg_recv(&message, socket, 0) < 0) {
        cli_error(command, "%s: no answer within %g s: is this the info endpoint of a context server's rank 0?",
                  request->endpoint, (double)request->timeout_ns / 1e9);
        goto done;
    }
    *bytes = zmq_msg_size(&message);
    *answer = malloc(*bytes + 1);
    if (*answer != NULL)
        memcpy(*answer, zmq_msg_data(&message), *bytes);
    code = *answer != NULL ? CLI_OK : CLI_FAILED;
done:
    zmq_msg_close(&message);
    if (socket != NULL)
        zmq_close(socket);
    if (context != NULL)
        zmq_ctx_term(context);
    return code;
}

/** Writes the answer as indented JSON. */
static int write_json(const struct cli_command *command, const struct request *request, const char *answer,
                      size_t bytes)
{
    struct kvf_error error = {.position = -1};
    kvf_trtllm_rank *rank = NULL;
    char *line = NULL, *text = NULL;
    json_t *root = NULL;
    int code = CLI_FAILED;
    if (kvf_trtllm_rank_decode(answer, bytes, &rank, &error) != KVF_OK) {
        code = cli_library_error(command, request->endpoint, &error);
        goto done;
    }
    if (kvf_trtllm_rank_to_json(rank, &line, &error) != KVF_OK) {
        code = cli_library_error(command, NULL, &error);
        goto done;
    }
    root = json_loads(line, 0, NULL);
    text = root != NULL ? json_dumps(root, JSON_INDENT(1)) : NULL;
    if (text != NULL) {
        size_t used = strlen(text);
        text[used] = '\n'; /* in the place of the terminator */
        code = cli_write_file(command, request->out, text, used + 1);
    }
done:
    free(text);
    json_decref(root);
    kvf_trtllm_text_free(line);
    kvf_trtllm_rank_release(rank);
    return code;
}

static int info(const struct cli_command *command, const struct request *request)
{
    char *answer = NULL;
    size_t bytes = 0;
    int code = ask(command, request, &answer, &bytes);
    if (code == CLI_OK && request->raw)
        code = cli_write_file(command, request->out, answer, bytes);
    else if (code == CLI_OK)
        code = write_json(command, request, answer, bytes);
    free(answer);
    return code;
}

/** "tcp://HOST:PORT", as far as the library below does not look itself. */
static bool is_endpoint(const char *text)
{
    const char *colon = strrchr(text, ':');
    long port = colon != NULL ? strtol(colon + 1, NULL, 10) : 0;
    return strncmp(text, "tcp://", 6) == 0 && port > 0 && port <= 65535;
}

static int run(const struct cli_command *command, int argc, char **argv)
{
    struct cli_parser parser;
    struct request request = {.timeout_ns = 10 * SECOND};
    int id = 0;
    cli_parser_init(&parser, command, argc, argv);
    while ((id = cli_parser_next(&parser)) >= 0) {
        if (id == OPT_OUT)
            request.out = parser.value;
        else if (id == OPT_RAW)
            request.raw = true;
        else if (!cli_value_seconds(&parser, &request.timeout_ns))
            return CLI_USAGE;
    }
    if (id == CLI_PARSE_STOP)
        return parser.exit_code;
    if (argc - optind != 1)
        return cli_usage_error(command, "takes one endpoint; %d given", argc - optind);
    request.endpoint = argv[optind];
    if (!is_endpoint(request.endpoint))
        return cli_usage_error(command, "\"%s\" is no endpoint: tcp://HOST:PORT", request.endpoint);
    return info(command, &request);
}

const struct cli_command cli_trtllm_info_command = {
    .name = "trtllm info",
    .summary = "ask a context server who it is",
    .operands = "tcp://HOST:PORT",
    .about = "Asks the info endpoint of a context instance (TensorRT-LLM's own, or kvferry's) for the rank info of\n"
             "its rank 0, and writes it as JSON, which 'kvferry trtllm plan' and 'worker' read. Only that one rank\n"
             "answers; its page table stands for the others as far as they are alike. Nothing is registered there.",
    .options = options,
    .examples = "  kvferry trtllm info tcp://10.0.0.1:5555\n"
                "  kvferry trtllm info tcp://10.0.0.1:5555 --raw -o ctx.msgpack",
    .run = run,
};
