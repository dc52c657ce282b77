/* SPDX-License-Identifier: Apache-2.0 */
/* All with the lock held, but for running an item. */
#include "sys/crew.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/array.h"
#include "sys/clock.h"
#include "sys/thread.h"

/* The clock looks at all that is queued; not more often than this. */
#define TICK_NS (5 * KVFI_MS)

struct kvfi_crew_thread {
    struct kvfi_crew_thread *next;
    struct kvfi_crew *crew;
    pthread_t thread;
    int wake_fd;
};

/* ---- which lanes have something to be begun ---------------------------------------------------------------------- */

static void leave_list(struct kvfi_crew_lane *lane)
{
    struct kvfi_crew_list *list = lane->list;

    if (!list) return;
    *(lane->previous ? &lane->previous->next : &list->first) = lane->next;
    *(lane->next ? &lane->next->previous : &list->last) = lane->previous;
    list->count--;
    lane->list = NULL;
}

/* Puts a lane where it belongs, last there unless it was there already. */
static void place(struct kvfi_crew *crew, struct kvfi_crew_lane *lane)
{
    struct kvfi_crew_list *list = lane->queued == 0 ? NULL
                                  : lane->running == 0 ? &crew->fresh
                                  : lane->running < crew->rules->lane_items ? &crew->more
                                                                     : &crew->full;

    if (list == lane->list) return;
    leave_list(lane);
    if (!list) return;
    lane->next = NULL;
    lane->previous = list->last;
    *(list->last ? &list->last->next : &list->first) = lane;
    list->last = lane;
    list->count++;
    lane->list = list;
}

/* With threads getting scarce each lane has one. */
static bool is_plenty(const struct kvfi_crew *crew)
{
    return crew->rules->stays_busy || crew->running_count < crew->rules->max_threads / 2;
}

static void enqueue(struct kvfi_crew *crew, struct kvfi_crew_lane *lane, struct kvfi_crew_item *item)
{
    item->lane = lane;
    item->state = KVFI_CREW_QUEUED;
    item->wake_fd = -1;
    item->next = NULL;
    item->previous = lane->last;
    *(lane->last ? &lane->last->next : &lane->first) = item;
    lane->last = item;
    lane->queued++;
    place(crew, lane);
}

static void dequeue(struct kvfi_crew_item *item)
{
    struct kvfi_crew_lane *lane = item->lane;

    *(item->previous ? &item->previous->next : &lane->first) = item->next;
    *(item->next ? &item->next->previous : &lane->last) = item->previous;
    lane->queued--;
    item->state = KVFI_CREW_IDLE;
}

void kvfi_crew_drop(struct kvfi_crew *crew, struct kvfi_crew_item *item)
{
    struct kvfi_crew_lane *lane = item->lane;

    dequeue(item);
    place(crew, lane);
}

static struct kvfi_crew_item *begin(struct kvfi_crew *crew, int wake_fd)
{
    struct kvfi_crew_lane *lane = crew->fresh.first ? crew->fresh.first : is_plenty(crew) ? crew->more.first : NULL;
    struct kvfi_crew_item *item = lane ? lane->first : NULL;
    eventfd_t ignored;

    if (!item) return NULL;
    eventfd_read(wake_fd, &ignored);
    dequeue(item);
    leave_list(lane); /* its turn is over */
    lane->running++;
    place(crew, lane);
    item->state = KVFI_CREW_RUNNING;
    item->wake_fd = wake_fd;
    item->previous = NULL;
    item->next = crew->running;
    if (crew->running) crew->running->previous = item;
    crew->running = item;
    crew->running_count++;
    return item;
}

static void end(struct kvfi_crew *crew, struct kvfi_crew_item *item)
{
    *(item->previous ? &item->previous->next : &crew->running) = item->next;
    if (item->next) item->next->previous = item->previous;
    crew->running_count--;
    item->state = KVFI_CREW_IDLE;
    item->wake_fd = -1;
    item->lane->running--;
    place(crew, item->lane);
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

static void *work(void *argument);

static int add_thread(struct kvfi_crew *crew)
{
    struct kvfi_crew_thread *thread = kvfi_alloc_zeroed(1, sizeof *thread);
    int failure;

    if (!thread) return ENOMEM;
    thread->crew = crew;
    thread->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    failure = thread->wake_fd < 0 ? errno : kvfi_thread_start(&thread->thread, work, thread);
    if (failure != 0) {
        if (thread->wake_fd >= 0) close(thread->wake_fd);
        free(thread);
        return failure;
    }
    thread->next = crew->threads;
    crew->threads = thread;
    crew->thread_count++;
    crew->starting++;
    return 0;
}

/* Has a thread come for each lane that could begin something; `spare` come by themselves. */
static void call(struct kvfi_crew *crew, size_t spare)
{
    size_t wanted = crew->fresh.count + (is_plenty(crew) ? crew->more.count : 0);

    while (!crew->stopping && crew->calls + crew->starting + spare < wanted) {
        if (crew->idle > crew->calls) {
            crew->calls++;
            pthread_cond_signal(&crew->called);
        } else if (crew->thread_count >= crew->rules->max_threads || add_thread(crew) != 0) {
            break; /* those there are take it later */
        }
    }
}

static void await_call(struct kvfi_crew *crew)
{
    crew->idle++;
    while (crew->calls == 0 && !crew->stopping) pthread_cond_wait(&crew->called, crew->lock);
    if (crew->calls > 0) crew->calls--;
    crew->idle--;
}

static void *work(void *argument)
{
    struct kvfi_crew_thread *thread = argument;
    struct kvfi_crew *crew = thread->crew;

    pthread_mutex_lock(crew->lock);
    crew->starting--;
    while (!crew->stopping) {
        struct kvfi_crew_item *item = begin(crew, thread->wake_fd);

        if (!item) {
            await_call(crew);
            continue;
        }
        call(crew, 0);
        pthread_mutex_unlock(crew->lock);
        crew->rules->run(crew->owner, item);
        pthread_mutex_lock(crew->lock);
        end(crew, item);
        call(crew, 1);
        crew->rules->ended(crew->owner, item);
    }
    pthread_mutex_unlock(crew->lock);
    return NULL;
}

/* ---- deadlines --------------------------------------------------------------------------------------------------- */

/* Moves what is late to `late`; the clock looks again when the next one is. */
static void collect_late(struct kvfi_crew *crew, struct kvfi_crew_list *list, int64_t now_ns,
                         struct kvfi_crew_item **late)
{
    struct kvfi_crew_lane *next_lane;
    struct kvfi_crew_item *next;

    for (struct kvfi_crew_lane *lane = list->first; lane; lane = next_lane) {
        next_lane = lane->next;
        for (struct kvfi_crew_item *item = lane->first; item; item = next) {
            next = item->next;
            if (item->deadline_ns == 0) continue;
            if (item->deadline_ns > now_ns) {
                if (item->deadline_ns < crew->tick_ns) crew->tick_ns = item->deadline_ns;
                continue;
            }
            kvfi_crew_drop(crew, item);
            item->next = *late;
            *late = item;
        }
    }
}

static void expire(struct kvfi_crew *crew)
{
    struct kvfi_crew_list *lists[] = {&crew->fresh, &crew->more, &crew->full};
    struct kvfi_crew_item *late = NULL;
    int64_t now_ns = kvfi_now_ns();

    crew->tick_ns = INT64_MAX;
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) collect_late(crew, lists[i], now_ns, &late);
    if (crew->tick_ns < now_ns + TICK_NS) crew->tick_ns = now_ns + TICK_NS;
    while (late) {
        struct kvfi_crew_item *item = late;

        late = item->next;
        crew->rules->expired(crew->owner, item);
    }
}

static void *keep_time(void *argument)
{
    struct kvfi_crew *crew = argument;

    pthread_mutex_lock(crew->lock);
    while (!crew->stopping) {
        struct timespec until = {.tv_sec = crew->tick_ns / KVFI_SECOND, .tv_nsec = crew->tick_ns % KVFI_SECOND};

        if (crew->tick_ns <= kvfi_now_ns()) expire(crew);
        else if (crew->tick_ns == INT64_MAX) pthread_cond_wait(&crew->ticked, crew->lock);
        else pthread_cond_timedwait(&crew->ticked, crew->lock, &until);
    }
    pthread_mutex_unlock(crew->lock);
    return NULL;
}

static int mind_deadline(struct kvfi_crew *crew, int64_t deadline_ns)
{
    int failure = 0;

    if (deadline_ns < crew->tick_ns) {
        crew->tick_ns = deadline_ns;
        pthread_cond_signal(&crew->ticked);
    }
    if (!crew->has_clock) failure = kvfi_thread_start(&crew->clock, keep_time, crew);
    if (failure == 0) crew->has_clock = true;
    return failure;
}

/* ---- from outside ------------------------------------------------------------------------------------------------ */

void kvfi_crew_init(struct kvfi_crew *crew, const struct kvfi_crew_rules *rules, pthread_mutex_t *lock, void *owner)
{
    pthread_condattr_t monotonic;

    memset(crew, 0, sizeof *crew);
    crew->rules = rules;
    crew->owner = owner;
    crew->lock = lock;
    crew->tick_ns = INT64_MAX;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&crew->called, NULL);
    pthread_cond_init(&crew->ticked, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

void kvfi_crew_fini(struct kvfi_crew *crew)
{
    pthread_mutex_lock(crew->lock);
    crew->stopping = true;
    for (struct kvfi_crew_item *item = crew->running; item; item = item->next) kvfi_crew_stop(item);
    pthread_cond_broadcast(&crew->called);
    pthread_cond_broadcast(&crew->ticked);
    pthread_mutex_unlock(crew->lock);
    if (crew->has_clock) pthread_join(crew->clock, NULL);
    while (crew->threads) {
        struct kvfi_crew_thread *thread = crew->threads;

        crew->threads = thread->next;
        pthread_join(thread->thread, NULL);
        close(thread->wake_fd);
        free(thread);
    }
    pthread_cond_destroy(&crew->called);
    pthread_cond_destroy(&crew->ticked);
}

int kvfi_crew_start(struct kvfi_crew *crew)
{
    return crew->thread_count > 0 ? 0 : add_thread(crew);
}

int kvfi_crew_push(struct kvfi_crew *crew, struct kvfi_crew_lane *lane, struct kvfi_crew_item *item)
{
    int failure = kvfi_crew_start(crew);

    if (failure == 0 && item->deadline_ns != 0) failure = mind_deadline(crew, item->deadline_ns);
    if (failure != 0) return failure;
    enqueue(crew, lane, item);
    call(crew, 0);
    return 0;
}

void kvfi_crew_stop(struct kvfi_crew_item *item)
{
    if (atomic_load(&item->stop)) return;
    atomic_store(&item->stop, true);
    if (item->state == KVFI_CREW_RUNNING) eventfd_write(item->wake_fd, 1);
}
