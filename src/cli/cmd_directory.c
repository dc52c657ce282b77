/* SPDX-License-Identifier: Apache-2.0 */
/* kvferry directory: the registry of instances, as a process. */
#include <poll.h>
#include <stdio.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "cli/cli.h"

enum { OPT_DIRECTORY_LISTEN = 'l', OPT_VERBOSE = 'v', OPT_LEASE = 256, OPT_VLLM, OPT_VLLM_REPLACE };

static const struct cli_option options[] = {
    {OPT_DIRECTORY_LISTEN, "listen", "HOST:PORT", "where to listen (default 127.0.0.1:8700); port 0 takes a\nfree one"},
    {OPT_LEASE, "lease", "SECONDS", "a rank that is silent for so long is forgotten (default 10)"},
    {OPT_VLLM, "vllm", NULL, "also be the bootstrap server of vLLM's Mooncake connector:\nPOST /register, GET /query"},
    {OPT_VLLM_REPLACE, "vllm-replace", NULL,
     "the same, and a restarted engine takes the place of its former\nself, which that server would refuse"},
    {OPT_VERBOSE, "verbose", NULL, "tell what happens on standard error"},
    {0, NULL, NULL, NULL},
};

static int serve(const struct cli_command *command, const struct kvf_directory_options *directory_options)
{
    kvf_directory *directory = NULL;
    struct kvf_error error = {.position = -1};
    struct signalfd_siginfo info;
    int code = CLI_OK;
    int signals = cli_signal_fd();
    if (signals < 0) {
        cli_error(command, "cannot wait for signals");
        return CLI_FAILED;
    }
    if (kvf_directory_open(directory_options, &directory, &error) != KVF_OK) {
        code = cli_library_error(command, NULL, &error);
        goto done;
    }
    printf("listening on %s\n", kvf_directory_url(directory));
    code = cli_finish_output(command, CLI_OK);
    struct pollfd wait = {.fd = signals, .events = POLLIN};
    while (code == CLI_OK && (poll(&wait, 1, -1) < 1 || read(signals, &info, sizeof(info)) != (ssize_t)sizeof(info))) {
    }
done:
    kvf_directory_close(directory);
    close(signals);
    return code;
}

static int run(const struct cli_command *command, int argc, char **argv)
{
    struct cli_parser parser;
    struct kvf_directory_options directory_options;
    int id = 0;
    kvf_directory_options_init(&directory_options, sizeof(directory_options));
    directory_options.listen = "127.0.0.1:8700";
    directory_options.log = (struct kvf_log_sink){.fd = STDERR_FILENO, .level = KVF_LOG_WARN};
    cli_parser_init(&parser, command, argc, argv);
    while ((id = cli_parser_next(&parser)) >= 0) {
        if (id == OPT_DIRECTORY_LISTEN)
            directory_options.listen = parser.value;
        else if (id == OPT_VERBOSE)
            directory_options.log.level = KVF_LOG_INFO;
        else if (id == OPT_VLLM)
            directory_options.flags |= KVF_DIRECTORY_VLLM_BOOTSTRAP;
        else if (id == OPT_VLLM_REPLACE)
            directory_options.flags |= KVF_DIRECTORY_VLLM_BOOTSTRAP | KVF_DIRECTORY_VLLM_REPLACE;
        else if (!cli_value_seconds(&parser, &directory_options.lease_ns))
            return CLI_USAGE;
    }
    if (id == CLI_PARSE_STOP)
        return parser.exit_code;
    if (optind < argc)
        return cli_usage_error(command, "\"%s\" is too much: everything is given by options", argv[optind]);
    return serve(command, &directory_options);
}

const struct cli_command cli_directory_command = {
    .name = "directory",
    .summary = "run the directory that instances find each other by",
    .operands = "",
    .about = "Serves the directory over HTTP until it is interrupted: who serves which rank of which instance, and\n"
             "where. It prints the URL that 'kvferry prefill' and 'kvferry decode' take. It listens on the loopback\n"
             "interface unless another is named; whoever can reach it can register.",
    .options = options,
    .examples = "  kvferry directory\n"
                "  kvferry directory --listen 192.168.1.10:8700\n"
                "  kvferry directory --vllm --listen 0.0.0.0:8998\n"
                "  curl -s http://127.0.0.1:8700/v1/list",
    .run = run,
};
