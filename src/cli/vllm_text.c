/* SPDX-License-Identifier: Apache-2.0 */
/* Rank pairs of two vLLM engines, as text. */
#include <inttypes.h>
#include <string.h>

#include "cli/vllm_pairs.h"

#define MOVES_SHOWN 8
#define LABEL "  %-11s"
#define WIDTH 110

/** Words of a sentence, in lines under a label. */
static void print_wrapped(const char *label, const char *text, FILE *out)
{
    size_t column = 0;
    fprintf(out, LABEL, label);
    while (*text != '\0') {
        size_t word = strcspn(text, " ");
        if (column > 0 && column + word + 14 > WIDTH) {
            fprintf(out, "\n" LABEL, "");
            column = 0;
        }
        fprintf(out, "%s%.*s", column > 0 ? " " : "", (int)word, text);
        column += word + (column > 0);
        text += word + (text[word] == ' ');
    }
    fputc('\n', out);
}

static void print_side(const char *label, const struct vllm_side *side, FILE *out)
{
    const struct vllm_rank *rank = &side->ranks[0];
    fprintf(out, "%-10s %s: %zu rank%s of TP %" PRId64 ", PP %" PRId64 "; %zu region%s", label, side->path,
            side->count, side->count == 1 ? "" : "s", rank->tp_size, rank->pp_size, rank->regions.base_addr_count,
            rank->regions.base_addr_count == 1 ? "" : "s");
    if (side->count > 1)
        fprintf(out, " on the first");
    if (rank->is_mla)
        fprintf(out, ", MLA");
    else if (rank->total_kv_heads > 0)
        fprintf(out, ", %" PRId64 " KV head%s in all", rank->total_kv_heads, rank->total_kv_heads == 1 ? "" : "s");
    if (rank->kernel_blocks_per_block > 1)
        fprintf(out, ", %" PRId64 " kernel blocks a block", rank->kernel_blocks_per_block);
    if (rank->has_opaque_row)
        fprintf(out, ", opaque rows");
    fputc('\n', out);
}

static void print_askers(const struct vllm_pairs *pairs, FILE *out)
{
    char name[64];
    for (size_t d = 0; d < pairs->consumers.count; d++) {
        size_t asked = 0;
        fprintf(out, "consumer %s asks", vllm_rank_name(&pairs->consumers.ranks[d], name, sizeof(name)));
        for (size_t p = 0; p < pairs->producers.count; p++) {
            if (!vllm_asks(&pairs->consumers.ranks[d], &pairs->producers.ranks[p]))
                continue;
            fprintf(out, "%s %s", asked++ > 0 ? ";" : " producer",
                    vllm_rank_name(&pairs->producers.ranks[p], name, sizeof(name)));
        }
        fputs(asked > 0 ? "\n" : " none of these producers\n", out);
    }
}

/** "+0 of 4096": where the bytes begin in a block's payload, and how far the blocks are apart if that is more. */
static const char *place_text(int64_t offset, const struct kvf_vllm_region *region, char *text, size_t bytes)
{
    int used = snprintf(text, bytes, "+%" PRId64 " of %" PRId64, offset, region->kv_block_len);
    if (region->block_len != region->kv_block_len)
        snprintf(text + used, bytes - (size_t)used, ", row %" PRId64, region->block_len);
    return text;
}

static const char *groups_text(const struct kvf_vllm_region *region, char *text, size_t bytes)
{
    size_t used = 0;
    if (region->group_index >= 0) {
        snprintf(text, bytes, "%" PRId64, region->group_index);
        return text;
    }
    text[0] = '\0';
    for (size_t i = 0; i < region->shared_groups.count && used + 24 < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%" PRId64, i > 0 ? "+" : "",
                                 region->shared_groups.ids[i]);
    return text;
}

/** The columns of a move, but for the layer. */
struct columns {
    char group[64], from[80], to[80];
};

static struct columns columns_of(const struct vllm_move *move)
{
    struct columns text;
    groups_text(&move->local, text.group, sizeof(text.group));
    place_text(move->src_offset, &move->local, text.from, sizeof(text.from));
    place_text(move->dst_offset, &move->remote, text.to, sizeof(text.to));
    return text;
}

static bool is_alike(const struct vllm_move *a, const struct vllm_move *b)
{
    struct columns x = columns_of(a), y = columns_of(b);
    return strcmp(x.group, y.group) == 0 && strcmp(x.from, y.from) == 0 && strcmp(x.to, y.to) == 0 &&
           a->bytes == b->bytes && a->folds == b->folds && a->layers == b->layers;
}

static void print_moves(const struct vllm_pair_row *row, FILE *out)
{
    size_t from = sizeof("from the producer's") - 1, to = sizeof("to the consumer's") - 1;
    size_t heads[MOVES_SHOWN], shown = 0; /* the first of each kind */
    int64_t bytes = 0;
    for (size_t i = 0; i < row->move_count; i++)
        bytes += row->moves[i].bytes;
    if (bytes == 0)
        return; /* every request is refused, as its line says */
    for (size_t i = 0; i < row->move_count; i++) {
        struct columns text = columns_of(&row->moves[i]);
        from = strlen(text.from) > from ? strlen(text.from) : from;
        to = strlen(text.to) > to ? strlen(text.to) : to;
    }
    fprintf(out, LABEL "%-6s %-*s  %-*s  %-10s %s\n", "a block", "group", (int)from, "from the producer's", (int)to,
            "to the consumer's", "bytes", "layer");
    for (size_t i = 0; i < row->move_count; i++) {
        const struct vllm_move *move = &row->moves[i];
        size_t alike = 0, k = 0;
        while (k < shown && !is_alike(&row->moves[heads[k]], move))
            k++;
        if (k < shown)
            continue;
        if (shown == MOVES_SHOWN) {
            fprintf(out, LABEL "and others: --json has them\n", "");
            return;
        }
        heads[shown++] = i;
        for (size_t other = i + 1; other < row->move_count; other++)
            alike += is_alike(move, &row->moves[other]);
        struct columns text = columns_of(move);
        fprintf(out, LABEL "%-6s %-*s  %-*s  %-10" PRId64 " %s", "", text.group, (int)from, text.from, (int)to, text.to,
                move->bytes, move->local.layer_name);
        if (move->layers > 1)
            fprintf(out, " to %zu behind it in the row", move->layers - 1);
        if (alike > 0)
            fprintf(out, " and %zu like it", alike);
        fputs(move->folds ? "; adjacent blocks go as one\n" : "\n", out);
    }
}

static void print_costs(const struct vllm_pair_row *row, FILE *out)
{
    char bytes[32], count[32];
    for (size_t i = 0; i < row->cost_count; i++) {
        const struct vllm_cost *cost = &row->costs[i];
        if (cost->status != KVF_OK) {
            fprintf(out, LABEL "refused: %s\n", cost->name, cost->text);
            if (vllm_advice(cost->text)[0] != '\0')
                print_wrapped("", vllm_advice(cost->text), out);
            continue;
        }
        fprintf(out, LABEL "%" PRId64 " block%s: ", cost->name, cost->blocks, cost->blocks == 1 ? "" : "s");
        if (cost->blocks == 0)
            fputs("the producer may free its own", out);
        else if (cost->descriptors == 0)
            fputs("nothing to copy", out);
        else
            fprintf(out, "%s bytes in %s descriptor%s", cli_format_count(cost->bytes, bytes),
                    cli_format_count(cost->descriptors, count), cost->descriptors == 1 ? "" : "s");
        if (cost->descriptors > 0 && cost->blocks > 0)
            fprintf(out, ", %.3g a block", (double)cost->descriptors / (double)cost->blocks);
        fputc('\n', out);
    }
}

static void print_accepted(const struct vllm_pair_row *row, FILE *out)
{
    fprintf(out, LABEL "%zu meet by layer, of %zu here and %zu there", "regions", row->met, row->local_regions,
            row->remote_regions);
    if (row->move_count < row->met)
        fprintf(out, "; neighbours merge to %zu", row->move_count);
    if (row->info.plans > 0)
        fprintf(out, "; %" PRId64 " plan%s", row->info.plans, row->info.plans == 1 ? "" : "s");
    fputc('\n', out);
    fprintf(out, LABEL "the producer frees a request's blocks after %" PRId64 " pull%s\n", "pulls",
            row->info.pulls_expected, row->info.pulls_expected == 1 ? "" : "s of different ranks");
    if (row->move_count == 0)
        fprintf(out, LABEL "nothing: no layers in common; the pull is answered and counted\n", "a block");
    else if (row->info.sends == 0)
        fprintf(out, LABEL "nothing from this rank: another has the same bytes and sends them; the pull is answered "
                           "and counted\n", "a block");
    else
        print_moves(row, out);
    print_costs(row, out);
    if (vllm_warning(row)[0] != '\0')
        print_wrapped("warning", vllm_warning(row), out);
}

void vllm_pairs_print(const struct vllm_pairs *pairs, FILE *out)
{
    char from[64], to[64];
    print_side("producer", &pairs->producers, out);
    print_side("consumer", &pairs->consumers, out);
    fputc('\n', out);
    print_askers(pairs, out);
    for (size_t i = 0; i < pairs->count; i++) {
        const struct vllm_pair_row *row = &pairs->rows[i];
        fprintf(out, "\nproducer %s -> consumer %s: %s%s\n",
                vllm_rank_name(&pairs->producers.ranks[row->producer], from, sizeof(from)),
                vllm_rank_name(&pairs->consumers.ranks[row->consumer], to, sizeof(to)),
                row->prepared != NULL ? "accepted" : "refused: ", row->text);
        if (row->prepared != NULL)
            print_accepted(row, out);
        else if (vllm_advice(row->text)[0] != '\0')
            print_wrapped("to change", vllm_advice(row->text), out);
    }
    vllm_pairs_draw(pairs, out);
}
