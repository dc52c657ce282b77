/* SPDX-License-Identifier: Apache-2.0 */
#include "sys/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void kvfi_log_init(struct kvfi_log *log, const struct kvf_log_sink *sink)
{
    log->sink = *sink;
    pthread_mutex_init(&log->lock, NULL);
}

void kvfi_log_fini(struct kvfi_log *log)
{
    pthread_mutex_destroy(&log->lock);
}

static const char *level_name(enum kvf_log_level level)
{
    static const char *const names[] = {"off", "error", "warning", "info", "debug", "trace"};

    return (unsigned)level < sizeof names / sizeof names[0] ? names[level] : "log";
}

static void write_line(int fd, enum kvf_log_level level, const char *text)
{
    char line[1200];
    int bytes = snprintf(line, sizeof line, "kvferry %s: %s\n", level_name(level), text);

    if (bytes >= (int)sizeof line) {
        bytes = (int)sizeof line - 1;
        line[bytes - 1] = '\n';
    }
    /* A log line that cannot be written has nowhere else to go. */
    if (write(fd, line, (size_t)bytes) < 0) return;
}

void kvfi_logf(struct kvfi_log *log, enum kvf_log_level level, const char *format, ...)
{
    char text[1024];
    va_list args;

    if (!log || (int)level > log->sink.level || (!log->sink.write && log->sink.fd <= 0)) return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    pthread_mutex_lock(&log->lock);
    if (log->sink.write) log->sink.write(log->sink.context, level, text);
    else write_line(log->sink.fd, level, text);
    pthread_mutex_unlock(&log->lock);
}
