/* SPDX-License-Identifier: Apache-2.0 */
#include "trtllm_worker/agent.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/checked.h"
#include "base/error.h"
#include "sys/table.h"
#include "transport/transport.h"

/* A process that is written to, or watched. */
struct remote {
    struct kvfi_link link; /* by name */
    char name[KVF_TRTLLM_AGENT_NAME_BYTES];
    char endpoint[KVFI_ENDPOINT_BYTES];
    uint64_t number; /* of the transport's peer */
    bool ended;      /* that process; another one may have got its number since */
};

struct kvfi_agent {
    const struct kvfi_transport_ops *ops;
    struct kvfi_transport *transport;
    struct kvfi_memory_region *memories;
    size_t memory_count;
    struct kvfi_table remotes; /* that are written to */
    struct kvfi_table watched;
    struct kvfi_log *log;
};

/* ---- remotes ------------------------------------------------------------------------------------------------ */

static struct remote *find(const struct kvfi_table *table, const char *name)
{
    struct kvfi_link *link = kvfi_table_find(table, name, strlen(name));
    return link == NULL ? NULL : KVFI_HOLDER(link, struct remote, link);
}

static void drop(struct kvfi_agent *agent, struct kvfi_table *table, struct remote *remote)
{
    kvfi_table_remove(table, &remote->link);
    if (agent->transport != NULL)
        agent->ops->disconnect(agent->transport, remote->number);
    free(remote);
}

static enum kvf_status connect_remote(struct kvfi_agent *agent, struct remote *remote, struct kvf_error *error)
{
    struct kvfi_peer_identity identity = {.incarnation = 0};

    memcpy(identity.name, remote->name,
           strlen(remote->name) < sizeof identity.name ? strlen(remote->name) : sizeof identity.name - 1);
    return agent->ops->connect(agent->transport, remote->endpoint, &identity, &remote->number, error);
}

/* Printable ASCII: it is quoted in errors. */
static bool is_text(const void *info, size_t byte_count)
{
    const unsigned char *bytes = info;

    for (size_t i = 0; i < byte_count; i++)
        if (bytes[i] < 0x20 || bytes[i] > 0x7e)
            return false;
    return true;
}

/* One that is known by the same endpoint stays as it is while it lives. */
static enum kvf_status add(struct kvfi_agent *agent, struct kvfi_table *table, const char *name, const void *info,
                           size_t info_bytes, struct kvf_error *error)
{
    struct remote *old = find(table, name), *remote;
    enum kvf_status status;

    if (info_bytes >= KVFI_ENDPOINT_BYTES || !is_text(info, info_bytes))
        return kvfi_fail(error, KVF_ERR_INVALID_ARGUMENT, "agent \"%s\" describes itself in %zu bytes that are no text "
                         "of this kind of agent", name, info_bytes);
    remote = calloc(1, sizeof *remote);
    if (remote == NULL)
        return kvfi_fail_memory(error, "a remote agent");
    memcpy(remote->name, name, strlen(name) + 1);
    if (info_bytes > 0)
        memcpy(remote->endpoint, info, info_bytes);
    if (old != NULL && !old->ended && strcmp(old->endpoint, remote->endpoint) == 0) {
        free(remote);
        return KVF_OK;
    }
    status = connect_remote(agent, remote, error);
    if (status != KVF_OK) {
        free(remote);
        return status;
    }
    if (old != NULL)
        drop(agent, table, old);
    kvfi_table_insert(table, &remote->link, remote->name, strlen(remote->name));
    return KVF_OK;
}

static enum kvf_status agent_load(void *context, const char *name, const void *info, size_t info_bytes,
                                  struct kvf_error *error)
{
    struct kvfi_agent *agent = context;
    return add(agent, &agent->remotes, name, info, info_bytes, error);
}

static enum kvf_status agent_watch(void *context, const char *name, const void *info, size_t info_bytes,
                                   struct kvf_error *error)
{
    struct kvfi_agent *agent = context;
    return add(agent, &agent->watched, name, info, info_bytes, error);
}

static void agent_invalidate(void *context, const char *name)
{
    struct kvfi_agent *agent = context;
    struct remote *remote = find(&agent->remotes, name);

    if (remote != NULL)
        drop(agent, &agent->remotes, remote);
}

static enum kvf_status agent_describe(void *context, void *buffer, size_t capacity, size_t *byte_count,
                                      struct kvf_error *error)
{
    struct kvfi_agent *agent = context;
    char text[KVFI_ENDPOINT_BYTES];

    (void)error;
    agent->ops->endpoint(agent->transport, text);
    *byte_count = strlen(text);
    if (capacity > 0)
        memcpy(buffer, text, *byte_count < capacity ? *byte_count : capacity);
    return KVF_OK;
}

/* ---- writes ------------------------------------------------------------------------------------------------- */

struct source {
    size_t (*next)(void *source, struct kvf_trtllm_fragment *out, size_t capacity);
    void *source;
};

static size_t next_ranges(void *context, struct kvfi_range *out, size_t capacity)
{
    const struct source *source = context;
    struct kvf_trtllm_fragment fragments[64];
    size_t count = source->next(source->source, fragments, capacity < 64 ? capacity : 64);

    for (size_t i = 0; i < count; i++)
        out[i] = (struct kvfi_range){fragments[i].src_address, fragments[i].dst_address, fragments[i].bytes};
    return count;
}

static enum kvf_status agent_submit(void *context, const struct kvf_trtllm_agent_write *write, struct kvf_error *error)
{
    struct kvfi_agent *agent = context;
    struct remote *remote = find(&agent->remotes, write->name);
    struct kvfi_range_source ranges = {.next = next_ranges, .destroy = free, .bytes = write->bytes};
    struct source *source;
    enum kvf_status status;

    if (remote == NULL)
        return kvfi_fail(error, KVF_ERR_NOT_FOUND, "agent \"%s\" is not known", write->name);
    source = malloc(sizeof *source);
    if (source == NULL)
        return kvfi_fail_memory(error, "a write");
    *source = (struct source){write->next, write->source};
    ranges.context = source;
    status = agent->ops->post_ranges(agent->transport, remote->number, &ranges, write->cookie, error);
    if (status != KVF_OK)
        free(source);
    if (status == KVF_ERR_CLOSED) /* the transport forgets who has ended */
        status = kvfi_fail(error, KVF_ERR_PEER_LOST, "the process of \"%s\" has ended", write->name);
    return status;
}

static bool tell_gone(struct kvfi_agent *agent, uint64_t number, struct kvf_trtllm_agent_event *out)
{
    for (size_t i = 0; i < agent->watched.bucket_count; i++)
        for (struct kvfi_link *link = agent->watched.buckets[i]; link != NULL; link = link->next) {
            struct remote *remote = KVFI_HOLDER(link, struct remote, link);
            if (remote->number != number)
                continue;
            out->kind = KVF_TRTLLM_AGENT_GONE;
            memcpy(out->name, remote->name, sizeof out->name);
            drop(agent, &agent->watched, remote);
            return true;
        }
    return false;
}

static void mark_ended(struct kvfi_agent *agent, uint64_t number)
{
    for (size_t i = 0; i < agent->remotes.bucket_count; i++)
        for (struct kvfi_link *link = agent->remotes.buckets[i]; link != NULL; link = link->next) {
            struct remote *remote = KVFI_HOLDER(link, struct remote, link);
            remote->ended |= remote->number == number;
        }
}

static bool translate(struct kvfi_agent *agent, const struct kvfi_transport_event *event,
                      struct kvf_trtllm_agent_event *out)
{
    memset(out, 0, sizeof *out);
    if (event->kind == KVFI_TEV_PEER_DOWN) {
        mark_ended(agent, event->peer);
        return tell_gone(agent, event->peer, out);
    }
    if (event->kind != KVFI_TEV_POSTED)
        return false;
    /* the system call has returned: nothing is written any more, however it went */
    out->kind = event->status == KVF_OK ? KVF_TRTLLM_AGENT_DONE : KVF_TRTLLM_AGENT_FAILED;
    out->status = (int32_t)event->status;
    out->cookie = event->cookie;
    memcpy(out->text, event->text, sizeof out->text);
    return true;
}

static size_t agent_poll(void *context, struct kvf_trtllm_agent_event *events, size_t capacity)
{
    struct kvfi_agent *agent = context;
    struct kvfi_transport_event taken;
    size_t count = 0;

    while (count < capacity && agent->ops->events(agent->transport, &taken, 1) == 1)
        count += translate(agent, &taken, &events[count]);
    return count;
}

static int agent_fd(void *context)
{
    struct kvfi_agent *agent = context;
    return agent->ops->event_fd(agent->transport);
}

/* ---- opening and closing ------------------------------------------------------------------------------------ */

static bool span(const struct kvf_trtllm_pool *pool, int64_t *bytes)
{
    return pool->num_slots > 0 && kvfi_mad_i64(pool->slot_stride_bytes, pool->num_slots - 1, pool->slot_bytes, bytes);
}

static void add_memory(struct kvfi_agent *agent, uint64_t address, int64_t bytes)
{
    if (address != 0 && bytes > 0)
        agent->memories[agent->memory_count++] =
            (struct kvfi_memory_region){.address = (void *)(uintptr_t)address, .bytes = bytes, .fd = -1};
}

static enum kvf_status list_memories(struct kvfi_agent *agent, const struct kvf_trtllm_rank_spec *self,
                                     struct kvf_error *error)
{
    const struct kvf_trtllm_page_table *table = self->page_table;
    size_t count = self->aux == NULL ? 0 : self->aux->ptr_count;
    int64_t bytes;

    for (size_t i = 0; i < table->pool_group_count; i++)
        count += table->pool_groups[i].pool_count;
    agent->memories = kvfi_alloc_zeroed(count, sizeof *agent->memories);
    if (agent->memories == NULL)
        return kvfi_fail_memory(error, "the memories of an agent");
    for (size_t i = 0; i < table->pool_group_count; i++)
        for (size_t p = 0; p < table->pool_groups[i].pool_count; p++)
            if (span(&table->pool_groups[i].pools[p], &bytes))
                add_memory(agent, table->pool_groups[i].pools[p].base_address, bytes);
    for (size_t i = 0; self->aux != NULL && i < self->aux->ptr_count && i < self->aux->size_count; i++)
        add_memory(agent, self->aux->ptrs[i], self->aux->size[i]);
    return KVF_OK;
}

static enum kvf_status open_transport(struct kvfi_agent *agent, const struct kvf_trtllm_rank_spec *self,
                                      struct kvf_error *error)
{
    struct kvfi_transport_config config = {.host = "127.0.0.1", .self = self->instance_name, .streams = 1,
                                           .connect_timeout_ns = INT64_C(5000000000), .memories = agent->memories,
                                           .memory_count = agent->memory_count, .log = agent->log};

    agent->ops = kvfi_transport_find("cma");
    if (agent->ops == NULL)
        return kvfi_fail(error, KVF_ERR_NOT_SUPPORTED, "this build cannot write across processes");
    return agent->ops->open(&config, &agent->transport, error);
}

static void close_table(struct kvfi_table *table)
{
    struct kvfi_link *link;

    while (table->buckets != NULL && (link = kvfi_table_any(table)) != NULL) {
        struct remote *remote = KVFI_HOLDER(link, struct remote, link);
        kvfi_table_remove(table, link);
        free(remote);
    }
    kvfi_table_fini(table);
}

void kvfi_agent_stop(struct kvfi_agent *agent)
{
    if (agent == NULL || agent->transport == NULL)
        return;
    agent->ops->close(agent->transport);
    agent->transport = NULL;
}

void kvfi_agent_close(struct kvfi_agent *agent)
{
    if (agent == NULL)
        return;
    kvfi_agent_stop(agent);
    close_table(&agent->remotes);
    close_table(&agent->watched);
    free(agent->memories);
    free(agent);
}

enum kvf_status kvfi_agent_open(const kvf_trtllm_rank *self, struct kvfi_log *log, struct kvf_trtllm_agent *table,
                                struct kvfi_agent **out, struct kvf_error *error)
{
    const struct kvf_trtllm_rank_spec *spec = kvf_trtllm_rank_get_spec(self);
    struct kvfi_agent *agent = calloc(1, sizeof *agent);
    enum kvf_status status;

    if (agent == NULL)
        return kvfi_fail_memory(error, "an agent");
    agent->log = log;
    if (!kvfi_table_init(&agent->remotes) || !kvfi_table_init(&agent->watched))
        status = kvfi_fail_memory(error, "an agent");
    else
        status = list_memories(agent, spec, error);
    if (status == KVF_OK)
        status = open_transport(agent, spec, error);
    if (status != KVF_OK) {
        kvfi_agent_close(agent);
        return status;
    }
    *table = (struct kvf_trtllm_agent){.struct_size = sizeof *table, .context = agent, .describe = agent_describe,
                                       .load = agent_load, .invalidate = agent_invalidate, .submit = agent_submit,
                                       .poll = agent_poll, .fd = agent_fd, .watch = agent_watch};
    *out = agent;
    return KVF_OK;
}
