/* SPDX-License-Identifier: Apache-2.0 */
#include "life/block.h"

void kvfi_block_init(struct kvfi_block *block) { *block = (struct kvfi_block){.state = KVFI_BLOCK_HELD}; }

static enum kvfi_verdict release(struct kvfi_block *block, struct kvfi_actions *actions)
{
    block->state = KVFI_BLOCK_REUSABLE;
    kvfi_act(actions, KVFI_BLOCK_DO_REPORT_REUSABLE);
    return KVFI_TAKEN;
}

static enum kvfi_verdict on_access_end(struct kvfi_block *block, struct kvfi_actions *actions)
{
    if (block->accesses == 0)
        return KVFI_VIOLATION;
    block->accesses--;
    if (block->accesses == 0 && block->state == KVFI_BLOCK_IN_DOUBT)
        return release(block, actions);
    if (block->accesses == 0)
        block->state = KVFI_BLOCK_HELD;
    return KVFI_TAKEN;
}

enum kvfi_verdict kvfi_block_step(struct kvfi_block *block, const struct kvfi_life_event *event,
                                  struct kvfi_actions *actions)
{
    actions->count = 0;
    if (block->state == KVFI_BLOCK_QUARANTINED)
        return KVFI_IGNORED;
    if (block->state == KVFI_BLOCK_REUSABLE)
        return event->kind == KVFI_BLOCK_ON_OWNER_ENDED ? KVFI_IGNORED : KVFI_VIOLATION;
    switch (event->kind) {
    case KVFI_BLOCK_ON_ACCESS_BEGIN:
        if (block->state == KVFI_BLOCK_IN_DOUBT)
            return KVFI_VIOLATION; /* nothing new may begin after the end */
        block->accesses++;
        block->state = KVFI_BLOCK_ACCESSED;
        return KVFI_TAKEN;
    case KVFI_BLOCK_ON_ACCESS_END:
        return on_access_end(block, actions);
    case KVFI_BLOCK_ON_OWNER_ENDED:
        if (block->state == KVFI_BLOCK_IN_DOUBT)
            return KVFI_IGNORED;
        if (block->accesses == 0)
            return release(block, actions);
        block->state = KVFI_BLOCK_IN_DOUBT;
        return KVFI_TAKEN;
    case KVFI_BLOCK_ON_QUARANTINE:
        block->state = KVFI_BLOCK_QUARANTINED;
        return KVFI_TAKEN;
    default:
        return KVFI_IGNORED;
    }
}
