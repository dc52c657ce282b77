/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/setup.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"

const struct kvf_log_sink *kvfi_options_log(const struct kvf_engine_options *options)
{
    size_t end = offsetof(struct kvf_engine_options, log) + sizeof options->log;

    return options != NULL && options->struct_size >= end ? &options->log : NULL;
}

/* ---- the layout -------------------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static enum kvf_status list_layers(kvf_engine *engine, const struct kvf_layout_spec *spec, struct kvf_error *error)
{
    size_t places = 0, count = 0;

    for (size_t v = 0; v < spec->view_count; v++)
        places += spec->views[v].place_count;
    engine->layers = kvfi_alloc_array(places, sizeof *engine->layers);
    if (engine->layers == NULL)
        return kvfi_fail_memory(error, "an engine");
    for (size_t v = 0; v < spec->view_count; v++)
        for (size_t p = 0; p < spec->views[v].place_count; p++)
            engine->layers[count++] = spec->views[v].places[p].layer;
    qsort(engine->layers, count, sizeof *engine->layers, by_value);
    for (size_t i = 0; i < count; i++)
        if (engine->layer_count == 0 || engine->layers[engine->layer_count - 1] != engine->layers[i])
            engine->layers[engine->layer_count++] = engine->layers[i];
    return KVF_OK;
}

struct spot {
    int64_t pool, group, offset_bytes;
};

static int by_spot(const void *a, const void *b)
{
    const struct spot *x = a, *y = b;

    if (x->pool != y->pool)
        return x->pool < y->pool ? -1 : 1;
    if (x->group != y->group)
        return x->group < y->group ? -1 : 1;
    return (x->offset_bytes > y->offset_bytes) - (x->offset_bytes < y->offset_bytes);
}

/* True when two views or layers of one group begin at one place. */
static enum kvf_status find_aliases(kvf_engine *engine, const struct kvf_layout_spec *spec, struct kvf_error *error)
{
    struct spot *spots;
    size_t count = 0;

    for (size_t v = 0; v < spec->view_count; v++)
        count += spec->views[v].place_count;
    spots = kvfi_alloc_array(count, sizeof *spots);
    if (spots == NULL)
        return kvfi_fail_memory(error, "an engine");
    count = 0;
    for (size_t v = 0; v < spec->view_count; v++)
        for (size_t p = 0; p < spec->views[v].place_count; p++)
            spots[count++] = (struct spot){spec->views[v].places[p].pool, spec->views[v].group,
                                           spec->views[v].places[p].offset_bytes};
    qsort(spots, count, sizeof *spots, by_spot);
    for (size_t i = 1; i < count; i++)
        if (by_spot(&spots[i - 1], &spots[i]) == 0)
            engine->layout_aliases = true;
    free(spots);
    return KVF_OK;
}

static enum kvf_status take_layout(kvf_engine *engine, const kvf_layout *layout, struct kvf_error *error)
{
    const struct kvf_layout_spec *spec = kvf_layout_get_spec(layout);
    enum kvf_status status;

    engine->layout = kvf_layout_acquire(layout);
    engine->memory_count = spec->memory_count;
    engine->memories = kvfi_alloc_zeroed(spec->memory_count, sizeof *engine->memories);
    engine->memory_registered = kvfi_alloc_zeroed(spec->memory_count, sizeof *engine->memory_registered);
    if (engine->memories == NULL || engine->memory_registered == NULL)
        return kvfi_fail_memory(error, "an engine");
    for (size_t i = 0; i < spec->memory_count; i++)
        engine->memories[i].fd = -1;
    status = kvf_holdings_from_layout(layout, &engine->holdings, error);
    if (status == KVF_OK)
        status = list_layers(engine, spec, error);
    return status == KVF_OK ? find_aliases(engine, spec, error) : status;
}

/* ---- the rest ---------------------------------------------------------------------------------------------- */

static enum kvf_status open_directory(kvf_engine *engine, struct kvf_error *error)
{
    struct kvfi_directory_client_options client = {.log = &engine->log};
    struct kvf_directory_options server;
    enum kvf_status status = KVF_OK;

    engine->directory_url = engine->settings.directory_url;
    if (engine->directory_url[0] == '\0') {
        kvf_directory_options_init(&server, sizeof server);
        server.listen = engine->settings.directory_listen;
        server.log = engine->log.sink;
        status = kvf_directory_open(&server, &engine->directory, error);
        if (status == KVF_OK)
            engine->directory_url = kvf_directory_url(engine->directory);
    }
    client.url = engine->directory_url;
    return status == KVF_OK ? kvfi_directory_client_open(&client, &engine->client, error) : status;
}

static enum kvf_status init_shared(kvf_engine *engine, struct kvf_error *error)
{
    enum kvf_status status;

    status = kvfi_events_init(&engine->events, engine->settings.event_capacity, sizeof(struct kvf_event),
                              error);
    if (status != KVF_OK)
        return status;
    if (!kvfi_table_init(&engine->pulls) || !kvfi_table_init(&engine->offers) || !kvfi_table_init(&engine->grants) ||
        !kvfi_table_init(&engine->requests) || !kvfi_ledger_init(&engine->ledger))
        return kvfi_fail_memory(error, "an engine");
    return KVF_OK;
}

enum kvf_status kvfi_engine_setup(kvf_engine *engine, const kvf_layout *layout, struct kvf_error *error)
{
    struct kvfi_channel_options channel = {.host = engine->settings.host, .log = &engine->log};
    enum kvf_status status;

    engine->incarnation = kvfi_random_u64();
    kvfi_peer_name(engine->self, engine->settings.instance, &engine->settings.rank);
    kvfi_host_identity(engine->host_identity, sizeof engine->host_identity);
    status = kvfi_progress_init(engine, error);
    if (status == KVF_OK)
        status = init_shared(engine, error);
    if (status == KVF_OK)
        status = take_layout(engine, layout, error);
    if (status == KVF_OK)
        status = kvfi_channel_open(&channel, &engine->channel, error);
    if (status == KVF_OK)
        status = kvfi_carriers_open(engine, error);
    if (status == KVF_OK)
        status = open_directory(engine, error);
    return status == KVF_OK ? kvfi_progress_watch(engine, error) : status;
}
