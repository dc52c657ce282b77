/* SPDX-License-Identifier: Apache-2.0 */
#include "loop/call.h"

#include "base/error.h"

struct call {
    struct kvfi_loop_command command; /* first */
    struct kvfi_loop *loop;
    kvfi_loop_fn fn;
    void *argument;
    struct kvf_error *error;
    enum kvf_status status;
    bool done; /* loop->lock */
};

/* After this the call, on its caller's stack, may be gone. */
static void finish(struct call *call, enum kvf_status status)
{
    struct kvfi_loop *loop = call->loop;

    pthread_mutex_lock(&loop->lock);
    call->status = status;
    call->done = true;
    pthread_cond_broadcast(&loop->changed);
    pthread_mutex_unlock(&loop->lock);
}

static void run(void *owner, struct kvfi_loop_command *command)
{
    struct call *call = (struct call *)(void *)command;
    finish(call, call->fn(owner, call->argument, call->error));
}

static void drop(void *owner, struct kvfi_loop_command *command)
{
    struct call *call = (struct call *)(void *)command;
    const char *name = call->loop->hooks.name;

    (void)owner;
    finish(call, kvfi_fail(call->error, KVF_ERR_CLOSED, "the %s is closed", name != NULL ? name : "loop"));
}

enum kvf_status kvfi_loop_call(struct kvfi_loop *loop, kvfi_loop_fn fn, void *argument, struct kvf_error *error)
{
    struct call call = {.command = {.run = run, .drop = drop}, .loop = loop, .fn = fn, .argument = argument,
                        .error = error};

    pthread_mutex_lock(&loop->lock);
    kvfi_loop_post(loop, &call.command);
    while (!call.done)
        kvfi_loop_wait(loop, kvfi_deadline_after(KVFI_SECOND));
    pthread_mutex_unlock(&loop->lock);
    return call.status;
}

void kvfi_loop_changed(struct kvfi_loop *loop)
{
    pthread_mutex_lock(&loop->lock);
    loop->changes++;
    pthread_cond_broadcast(&loop->changed);
    pthread_mutex_unlock(&loop->lock);
}

/* Waits until the number of changes is not `seen` any more, or the deadline. */
static bool await_change(struct kvfi_loop *loop, int64_t seen, int64_t deadline_ns)
{
    bool has_changed;

    pthread_mutex_lock(&loop->lock);
    while (loop->changes == seen && kvfi_now_ns() < deadline_ns)
        kvfi_loop_wait(loop, deadline_ns);
    has_changed = loop->changes != seen;
    pthread_mutex_unlock(&loop->lock);
    return has_changed;
}

enum kvf_status kvfi_loop_call_until_idle(struct kvfi_loop *loop, kvfi_loop_fn fn, void *argument, const int64_t *left,
                                          int64_t timeout_ns, struct kvf_error *error)
{
    int64_t deadline_ns = kvfi_deadline_after(timeout_ns), seen;
    enum kvf_status status;

    do { /* a change during the call counts: it is asked again */
        pthread_mutex_lock(&loop->lock);
        seen = loop->changes;
        pthread_mutex_unlock(&loop->lock);
        status = kvfi_loop_call(loop, fn, argument, error);
    } while (status == KVF_OK && *left != 0 && await_change(loop, seen, deadline_ns));
    return status;
}
