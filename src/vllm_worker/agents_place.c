/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses of producers' side channels: numbers as they are, names looked up; what was acknowledged there. */
#include "vllm_worker/consume.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/error.h"
#include "transport/mooncake/hosts.h"

#define SCHEME "tcp://"

/* ---- reading an address ----------------------------------------------------------------------------------------- */

static bool is_port(const char *text)
{
    size_t digits = strspn(text, "0123456789");
    long port = digits == 0 || digits > 5 || text[digits] != '\0' ? 0 : strtol(text, NULL, 10);

    return port >= 1 && port <= 65535;
}

/* Splits "tcp://HOST:PORT"; the port is behind the last ':'. Brackets around an IPv6 address are taken off; upstream
 * publishes such addresses without any. `host` has KVF_VLLM_ADDRESS_BYTES. */
static bool split(const char *address, char *host, const char **port)
{
    const char *begin = address + strlen(SCHEME), *colon = strrchr(address, ':');
    size_t bytes;

    if (strncmp(address, SCHEME, strlen(SCHEME)) != 0 || colon == NULL || colon <= begin)
        return false;
    bytes = (size_t)(colon - begin);
    if (bytes > 2 && begin[0] == '[' && begin[bytes - 1] == ']') {
        begin++;
        bytes -= 2;
    }
    if (bytes >= KVF_VLLM_ADDRESS_BYTES || !is_port(colon + 1))
        return false;
    memcpy(host, begin, bytes);
    host[bytes] = '\0';
    *port = colon + 1;
    return true;
}

static bool is_numeric(const char *host)
{
    unsigned char bytes[16];
    char bare[64];
    size_t length = strcspn(host, "%");

    if (inet_pton(AF_INET, host, bytes) == 1)
        return true;
    if (length >= sizeof bare)
        return false;
    memcpy(bare, host, length);
    bare[length] = '\0';
    return inet_pton(AF_INET6, bare, bytes) == 1;
}

/* `host` is numeric. */
static void set_host(struct kvfi_vllm_place *place, const char *host, const char *port)
{
    bool brackets = strchr(host, ':') != NULL;

    snprintf(place->host, sizeof place->host, "%s", host);
    memset(place->origin, 0, sizeof place->origin);
    kvfi_moon_host_parse(host, place->origin);
    snprintf(place->endpoint, sizeof place->endpoint, "tcp://%s%.255s%s:%.10s", brackets ? "[" : "", host,
             brackets ? "]" : "", port);
}

/* ---- looking up ------------------------------------------------------------------------------------------------- */

static void cut_waiting(struct kvfi_vllm_place *place, enum kvf_status status, const char *why)
{
    char text[KVF_ERROR_TEXT_BYTES];

    snprintf(text, sizeof text, "transfer failed: %.300s: %.150s", place->address, why);
    while (place->waiting.head != NULL)
        kvfi_vllm_fetch_cut(place->waiting.head, status, text);
}

static void connect_waiting(struct kvfi_vllm_place *place)
{
    while (place->waiting.head != NULL) {
        struct kvfi_vllm_fetch *fetch = place->waiting.head;

        kvfi_vllm_fetch_unlink(fetch);
        kvfi_vllm_fetch_connect(fetch);
    }
}

static void look_up_ended(struct kvfi_vllm_place *place, const char *host, const char *text)
{
    char name[KVF_VLLM_ADDRESS_BYTES];
    const char *port = "";

    place->looking_up = false;
    if (host != NULL && split(place->address, name, &port)) {
        set_host(place, host, port);
        place->looked_up_ns = kvfi_now_ns();
        connect_waiting(place);
    } else {
        cut_waiting(place, KVF_ERR_UNREACHABLE, text);
    }
}

void kvfi_vllm_consumer_on_looked_up(void *owner, const char *name, const char *host, const char *text)
{
    kvf_vllm_worker *worker = owner;
    struct kvfi_table *table = &worker->consumer->places;
    char own[KVF_VLLM_ADDRESS_BYTES];
    const char *port;

    for (size_t i = 0; i < table->bucket_count; i++)
        for (struct kvfi_link *link = table->buckets[i]; link != NULL; link = link->next) {
            struct kvfi_vllm_place *place = KVFI_HOLDER(link, struct kvfi_vllm_place, link);

            if (place->looking_up && split(place->address, own, &port) && strcmp(own, name) == 0)
                look_up_ended(place, host, text);
        }
    kvfi_vllm_consume_sweep(worker);
}

bool kvfi_vllm_place_resolve(struct kvfi_vllm_fetch *fetch)
{
    struct kvfi_vllm_place *place = fetch->place;
    kvf_vllm_worker *worker = place->worker;
    char host[KVF_VLLM_ADDRESS_BYTES];
    const char *port;
    struct kvf_error error;
    enum kvf_status status = KVF_OK;

    if (!split(place->address, host, &port)) {
        kvfi_vllm_fetch_link(&place->waiting, fetch);
        cut_waiting(place, KVF_ERR_INVALID_ARGUMENT, "the address is not tcp://HOST:PORT");
        return false;
    }
    if (is_numeric(host)) {
        set_host(place, host, port);
        return true;
    }
    if (place->looked_up_ns != 0 && kvfi_now_ns() - place->looked_up_ns < worker->options.topology_refresh_ns)
        return true;
    kvfi_vllm_fetch_link(&place->waiting, fetch);
    if (!place->looking_up)
        status = kvfi_vllm_lookup_ask(worker->consumer->lookup, host, &error);
    place->looking_up = status == KVF_OK;
    if (status != KVF_OK)
        cut_waiting(place, status, error.text);
    return false;
}

/* ---- keeping them ----------------------------------------------------------------------------------------------- */

void kvfi_vllm_place_renew(kvf_vllm_worker *worker, const char *address)
{
    struct kvfi_link *link = kvfi_table_find(&worker->consumer->places, address, strlen(address));

    if (link != NULL)
        KVFI_HOLDER(link, struct kvfi_vllm_place, link)->acknowledged = 0;
}

void kvfi_vllm_place_destroy(kvf_vllm_worker *worker, struct kvfi_vllm_place *place)
{
    kvfi_vllm_place_unwatch(place, true);
    kvfi_table_remove(&worker->consumer->places, &place->link);
    free(place->address);
    free(place);
}

/* Those that nothing is fetched from: all that is lost is what they acknowledged. */
static void forget_idle(kvf_vllm_worker *worker)
{
    struct kvfi_table *table = &worker->consumer->places;

    for (size_t i = 0; i < table->bucket_count; i++) {
        struct kvfi_link *link = table->buckets[i];

        while (link != NULL) {
            struct kvfi_vllm_place *place = KVFI_HOLDER(link, struct kvfi_vllm_place, link);

            link = link->next;
            if (place->uses == 0)
                kvfi_vllm_place_destroy(worker, place);
        }
    }
}

enum kvf_status kvfi_vllm_place_get(kvf_vllm_worker *worker, const char *address, struct kvfi_vllm_place **out,
                                    struct kvf_error *error)
{
    struct kvfi_table *table = &worker->consumer->places;
    struct kvfi_link *link = kvfi_table_find(table, address, strlen(address));
    struct kvfi_vllm_place *place;

    if (link != NULL) {
        *out = KVFI_HOLDER(link, struct kvfi_vllm_place, link);
        return KVF_OK;
    }
    if (table->count >= KVFI_VLLM_MAX_PLACES)
        forget_idle(worker);
    if (table->count >= KVFI_VLLM_MAX_PLACES)
        return kvfi_fail(error, KVF_ERR_LIMIT, "%zu addresses of producers are in use, at most %d", table->count,
                         KVFI_VLLM_MAX_PLACES);
    place = kvfi_alloc_zeroed(1, sizeof *place);
    if (place != NULL)
        place->address = kvfi_text_copy(address);
    if (place == NULL || place->address == NULL) {
        free(place);
        return kvfi_fail_memory(error, "an address of a producer");
    }
    place->worker = worker;
    kvfi_vllm_place_init_probe(place);
    kvfi_table_insert(table, &place->link, place->address, strlen(place->address));
    *out = place;
    return KVF_OK;
}
