/* SPDX-License-Identifier: Apache-2.0 */
#include "loop/timers.h"

#include <stddef.h>

/* Both are roots without siblings; NULL is fine. */
static struct kvfi_timer *meld(struct kvfi_timer *a, struct kvfi_timer *b)
{
    struct kvfi_timer *swap;

    if (a == NULL || b == NULL)
        return a == NULL ? b : a;
    if (b->due_ns < a->due_ns) {
        swap = a;
        a = b;
        b = swap;
    }
    b->previous = a;
    b->next = a->child;
    if (a->child != NULL)
        a->child->previous = b;
    a->child = b;
    return a;
}

/* Melds the children of a root that goes away: in pairs from the left, then all from the right. */
static struct kvfi_timer *meld_children(struct kvfi_timer *first)
{
    struct kvfi_timer *pairs = NULL, *root = NULL;

    while (first != NULL) {
        struct kvfi_timer *a = first, *b = a->next, *pair;
        first = b == NULL ? NULL : b->next;
        a->next = a->previous = NULL;
        if (b != NULL)
            b->next = b->previous = NULL;
        pair = meld(a, b);
        pair->next = pairs;
        pairs = pair;
    }
    while (pairs != NULL) {
        struct kvfi_timer *pair = pairs;
        pairs = pair->next;
        pair->next = NULL;
        root = meld(root, pair);
    }
    return root;
}

void kvfi_timer_disarm(struct kvfi_timers *timers, struct kvfi_timer *timer)
{
    struct kvfi_timer *children;

    if (!timer->armed)
        return;
    children = meld_children(timer->child);
    if (timers->root == timer) {
        timers->root = children;
    } else {
        if (timer->previous->child == timer)
            timer->previous->child = timer->next;
        else
            timer->previous->next = timer->next;
        if (timer->next != NULL)
            timer->next->previous = timer->previous;
        timers->root = meld(timers->root, children);
    }
    timer->child = timer->next = timer->previous = NULL;
    timer->armed = false;
}

void kvfi_timer_arm(struct kvfi_timers *timers, struct kvfi_timer *timer, int64_t due_ns)
{
    kvfi_timer_disarm(timers, timer);
    timer->due_ns = due_ns;
    timer->child = timer->next = timer->previous = NULL;
    timer->armed = true;
    timers->root = meld(timers->root, timer);
}

int64_t kvfi_timers_due(const struct kvfi_timers *timers)
{
    return timers->root == NULL ? INT64_MAX : timers->root->due_ns;
}

struct kvfi_timer *kvfi_timers_take(struct kvfi_timers *timers, int64_t now_ns)
{
    struct kvfi_timer *timer = timers->root;

    if (timer == NULL || timer->due_ns > now_ns)
        return NULL;
    kvfi_timer_disarm(timers, timer);
    return timer;
}
