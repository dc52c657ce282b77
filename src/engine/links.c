/* SPDX-License-Identifier: Apache-2.0 */
/* Data connections to destination ranks: made when first wished for, kept until the peer goes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "engine/jobs.h"
#include "engine/links.h"

static void close_link(kvf_engine *engine, struct kvfi_peer *peer, size_t carrier)
{
    struct kvfi_data_link *link = &peer->links[carrier];
    const struct kvfi_carrier *own = &engine->carriers[carrier];

    if (carrier < engine->carrier_count && (link->state == KVFI_DATA_CONNECTING || link->state == KVFI_DATA_UP))
        own->ops->disconnect(own->transport, link->number);
    link->state = KVFI_DATA_DOWN;
    link->number = 0;
    free(link->endpoint);
    link->endpoint = NULL;
}

void kvfi_links_close(kvf_engine *engine, struct kvfi_peer *peer)
{
    for (size_t i = 0; i < KVFI_MAX_TRANSPORTS; i++) {
        close_link(engine, peer, i);
        peer->warned[i] = false;
    }
}

static enum kvf_status open_link(kvf_engine *engine, struct kvfi_peer *peer, size_t carrier, const char *endpoint,
                                 struct kvf_error *error)
{
    struct kvfi_data_link *link = &peer->links[carrier];
    const struct kvfi_carrier *own = &engine->carriers[carrier];
    struct kvfi_peer_identity identity = {.incarnation = peer->incarnation};
    enum kvf_status status = own->ops->probe(own->transport, endpoint, error);

    if (status != KVF_OK)
        goto done;
    snprintf(identity.name, sizeof identity.name, "%s", peer->name);
    link->endpoint = kvfi_text_copy(endpoint);
    if (link->endpoint == NULL) {
        status = kvfi_fail_memory(error, "a connection");
        goto done;
    }
    status = own->ops->connect(own->transport, endpoint, &identity, &link->number, error);
    if (status == KVF_OK)
        link->state = KVFI_DATA_CONNECTING;
done:
    return status;
}

int kvfi_link_want(kvf_engine *engine, struct kvfi_peer *peer, size_t carrier, const char *endpoint,
                   struct kvf_error *error)
{
    struct kvfi_data_link *link = &peer->links[carrier];

    if (link->endpoint != NULL && strcmp(link->endpoint, endpoint) != 0)
        close_link(engine, peer, carrier);
    if (link->state == KVFI_DATA_DOWN && open_link(engine, peer, carrier, endpoint, &link->error) != KVF_OK) {
        link->state = KVFI_DATA_FAILED;
        if (link->endpoint == NULL)
            link->endpoint = kvfi_text_copy(endpoint);
    }
    if (link->state == KVFI_DATA_FAILED)
        *error = link->error;
    return link->state;
}

void kvfi_links_retry(kvf_engine *engine, struct kvfi_peer *peer)
{
    for (size_t i = 0; i < engine->carrier_count; i++)
        if (peer->links[i].state == KVFI_DATA_FAILED)
            close_link(engine, peer, i);
}

static struct kvfi_peer *find(kvf_engine *engine, size_t carrier, uint64_t number)
{
    struct kvfi_peer *peer = engine->peers;

    while (peer != NULL && !(peer->role == KVFI_PEER_SINK && peer->links[carrier].number == number &&
                             (peer->links[carrier].state == KVFI_DATA_CONNECTING ||
                              peer->links[carrier].state == KVFI_DATA_UP)))
        peer = peer->next;
    return peer;
}

void kvfi_links_on_event(kvf_engine *engine, size_t carrier, const struct kvfi_transport_event *event)
{
    struct kvfi_peer *peer = find(engine, carrier, event->peer);
    const struct kvfi_carrier *own = &engine->carriers[carrier];
    struct kvfi_data_link *link;

    if (peer == NULL)
        return;
    link = &peer->links[carrier];
    if (event->kind == KVFI_TEV_CONNECTED && event->status == KVF_OK) {
        link->state = KVFI_DATA_UP;
        kvfi_sinks_on_link(engine, peer, carrier);
        return;
    }
    kvfi_fail(&link->error, event->status == KVF_OK ? KVF_ERR_PEER_LOST : event->status, "%s over %s: %.300s",
              peer->name,
              own->name, event->text[0] == '\0' ? "the connection is gone" : event->text);
    own->ops->disconnect(own->transport, link->number);
    link->number = 0;
    if (event->kind == KVFI_TEV_CONNECTED) {
        link->state = KVFI_DATA_FAILED;
        kvfi_sinks_on_link(engine, peer, carrier);
    } else {
        struct kvf_error error = link->error;
        link->state = KVFI_DATA_DOWN;
        kvfi_sinks_on_link_down(engine, peer, carrier, &error);
    }
}
