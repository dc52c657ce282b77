/* SPDX-License-Identifier: Apache-2.0 */
/* Who holds up whom: peers that stand still beside peers that do not. */
#include "transport/posts.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_EVENTS = 512 };

/* A peer whose posts wait until their `stop` is set, or end at once. */
struct test_peer {
    struct kvfi_post_peer base;
    bool stands_still, refuses;
};

struct world {
    struct kvfi_queue queue;
    struct kvfi_posts posts;
    atomic_int moving, freed, destroyed;
};

static struct test_peer *of(const struct kvfi_post *post)
{
    return (struct test_peer *)post->peer;
}

static enum kvf_status test_connect(void *owner, struct kvfi_post_peer *peer, const struct kvfi_post *post,
                                    struct kvf_error *error)
{
    (void)owner;
    (void)post;
    if (!((struct test_peer *)peer)->refuses) return KVF_OK;
    snprintf(error->text, sizeof error->text, "refused");
    return KVF_ERR_UNREACHABLE;
}

static enum kvf_status test_move(void *owner, struct kvfi_post *post, int64_t *bytes, struct kvf_error *error)
{
    struct world *world = owner;
    struct pollfd wake = {.fd = post->item.wake_fd, .events = POLLIN};

    (void)error;
    atomic_fetch_add(&world->moving, 1);
    if (of(post)->stands_still && poll(&wake, 1, 30000) != 1) return KVF_ERR_TIMEOUT;
    if (!atomic_load(&post->item.stop)) *bytes = post->source.bytes;
    atomic_fetch_sub(&world->moving, 1);
    return KVF_OK;
}

static void free_test_peer(void *owner, struct kvfi_post_peer *peer)
{
    atomic_fetch_add(&((struct world *)owner)->freed, 1);
    free(peer);
}

static void destroy_source(void *context)
{
    atomic_fetch_add(&((struct world *)context)->destroyed, 1);
}

static const struct kvfi_posts_ops OPS = {.name = "test", .max_threads = 8, .peer_threads = 4, .connect = test_connect,
                                          .move = test_move, .free_peer = free_test_peer};

static int setup(void **state)
{
    struct world *world = calloc(1, sizeof *world);
    struct kvf_error error;

    if (!world || kvfi_queue_init(&world->queue, NULL, &error) != KVF_OK) return -1;
    *state = world;
    return kvfi_posts_init(&world->posts, &OPS, world, &world->queue, &error) == KVF_OK ? 0 : -1;
}

static int teardown(void **state)
{
    struct world *world = *state;

    kvfi_posts_fini(&world->posts);
    kvfi_queue_fini(&world->queue);
    free(world);
    return 0;
}

/* Takes one event, waiting for it. */
static struct kvfi_transport_event next_event(struct world *world)
{
    struct pollfd wait = {.fd = world->queue.fd, .events = POLLIN};
    struct kvfi_transport_event event = {0};

    assert_int_equal(poll(&wait, 1, 30000), 1);
    assert_int_equal(kvfi_queue_take(&world->queue, &event, 1), 1);
    return event;
}

static uint64_t add_peer(struct world *world, bool stands_still, bool refuses)
{
    struct test_peer *peer = calloc(1, sizeof *peer);
    struct kvfi_transport_event event;
    uint64_t number = 0;
    struct kvf_error error;

    assert_non_null(peer);
    peer->stands_still = stands_still;
    peer->refuses = refuses;
    pthread_mutex_lock(&world->posts.lock);
    assert_int_equal(kvfi_posts_add(&world->posts, &peer->base, &number, &error), KVF_OK);
    pthread_mutex_unlock(&world->posts.lock);
    event = next_event(world);
    assert_int_equal(event.kind, KVFI_TEV_CONNECTED);
    assert_int_equal(event.peer, number);
    assert_int_equal(event.status, refuses ? KVF_ERR_UNREACHABLE : KVF_OK);
    return number;
}

static enum kvf_status post(struct world *world, uint64_t peer, uint64_t cookie)
{
    const struct kvfi_range_source source = {.destroy = destroy_source, .context = world, .bytes = 7};
    struct kvf_error error;

    return kvfi_posts_post(&world->posts, peer, &source, cookie, &error);
}

static void test_peers_that_stand_still_hold_up_no_other(void **state)
{
    struct world *world = *state;
    uint64_t still[4], quick; /* half of the threads, as many as there may be peers that have more than one */

    for (size_t i = 0; i < 4; i++) {
        still[i] = add_peer(world, true, false);
        for (uint64_t at = 0; at < 20; at++) assert_int_equal(post(world, still[i], 100 * i + at), KVF_OK);
    }
    quick = add_peer(world, false, false); /* its connecting is not held up either */
    for (uint64_t cookie = 1000; cookie < 1050; cookie++) {
        struct kvfi_transport_event event;

        assert_int_equal(post(world, quick, cookie), KVF_OK);
        event = next_event(world);
        assert_int_equal(event.cookie, cookie);
        assert_int_equal(event.status, KVF_OK);
        assert_int_equal(event.bytes, 7);
    }
}

static void test_a_disconnect_ends_all_posts_of_a_peer_once(void **state)
{
    struct world *world = *state;
    uint64_t peer = add_peer(world, true, false), other = add_peer(world, true, false);
    bool seen[30] = {false};

    for (uint64_t at = 0; at < 30; at++) assert_int_equal(post(world, peer, at), KVF_OK);
    assert_int_equal(post(world, other, 99), KVF_OK);
    kvfi_posts_disconnect(&world->posts, peer);
    for (size_t i = 0; i < 30; i++) {
        struct kvfi_transport_event event = next_event(world);

        assert_int_equal(event.kind, KVFI_TEV_POSTED);
        assert_int_equal(event.status, KVF_ERR_CANCELLED);
        assert_string_equal(event.text, "disconnected");
        assert_true(event.cookie < 30 && !seen[event.cookie]);
        seen[event.cookie] = true;
    }
    assert_int_equal(post(world, peer, 1), KVF_ERR_CLOSED);
    kvfi_posts_abort(&world->posts, other, 98); /* none of that cookie */
    kvfi_posts_abort(&world->posts, other, 99);
    assert_int_equal(next_event(world).cookie, 99);
    assert_int_equal(atomic_load(&world->destroyed), 31);
}

static void test_a_peer_that_refuses_is_told_once_and_freed(void **state)
{
    struct world *world = *state;
    uint64_t peer = add_peer(world, false, true), next;

    assert_int_equal(post(world, peer, 1), KVF_ERR_CLOSED);
    next = add_peer(world, false, false); /* its event is the next one: no PEER_DOWN came */
    assert_int_not_equal(next, peer);
    assert_int_equal(atomic_load(&world->freed), 1);
}

static void test_the_end_of_a_peer_is_told_after_its_posts(void **state)
{
    struct world *world = *state;
    uint64_t number = add_peer(world, true, false);
    struct kvfi_transport_event event;

    assert_int_equal(post(world, number, 1), KVF_OK);
    pthread_mutex_lock(&world->posts.lock);
    kvfi_posts_end(&world->posts, kvfi_posts_find(&world->posts, number), KVF_ERR_PEER_LOST, "gone");
    pthread_mutex_unlock(&world->posts.lock);
    event = next_event(world);
    assert_int_equal(event.kind, KVFI_TEV_POSTED);
    assert_int_equal(event.status, KVF_ERR_PEER_LOST);
    event = next_event(world);
    assert_int_equal(event.kind, KVFI_TEV_PEER_DOWN);
    assert_string_equal(event.text, "gone");
}

static void test_closing_stops_what_is_under_way(void **state)
{
    struct world *world = *state;

    for (size_t i = 0; i < 8; i++) {
        uint64_t peer = add_peer(world, i % 2 == 0, false);

        for (uint64_t at = 0; at < 5; at++) assert_int_equal(post(world, peer, at), KVF_OK);
        for (uint64_t at = 0; i % 2 == 1 && at < 5; at++) next_event(world);
    } /* teardown does not hang, and nothing leaks */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_peers_that_stand_still_hold_up_no_other, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_disconnect_ends_all_posts_of_a_peer_once, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_peer_that_refuses_is_told_once_and_freed, setup, teardown),
        cmocka_unit_test_setup_teardown(test_the_end_of_a_peer_is_told_after_its_posts, setup, teardown),
        cmocka_unit_test_setup_teardown(test_closing_stops_what_is_under_way, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
