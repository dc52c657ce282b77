/* SPDX-License-Identifier: Apache-2.0 */
/* One rank of a prefill instance "p": puts its shard of a cache file into its blocks and offers them.
 *
 *   prefill LAYOUT.json PP,CP,TP CACHE.safetensors DIRECTORY-URL TRANSFER     (URL "": rank 0,0,0 embeds a directory)
 */
#include "example.h"

int main(int argc, char **argv)
{
    long long pp, cp, tp;
    if (argc != 6 || sscanf(argv[2], "%lld,%lld,%lld", &pp, &cp, &tp) != 3)
        return fprintf(stderr, "usage: prefill LAYOUT.json PP,CP,TP CACHE.safetensors DIRECTORY-URL TRANSFER\n"), 2;

    /* who this rank is, and where it keeps its blocks */
    size_t text_bytes = 0, file_bytes = 0, number;
    void *text = map_file(argv[1], &text_bytes), *file = map_file(argv[3], &file_bytes), *base[MAX_MEMORIES];
    static kvf_instance *instance; /* what lives as long as the process is static */
    must(kvf_instance_parse(text, text_bytes, &instance, &error));
    must(kvf_instance_find(instance, pp, cp, tp, &number, &error));
    const struct kvf_layout_spec *spec = kvf_layout_get_spec(kvf_instance_layout(instance, number));

    struct kvf_engine_options options;
    kvf_engine_options_init(&options, sizeof options);
    options.instance = "p";
    options.rank = kvf_instance_rank(instance, number);
    options.ranks_expected = (int64_t)kvf_instance_rank_count(instance);
    options.layout = kvf_instance_layout(instance, number);
    options.directory_url = argv[4];
    kvf_engine *engine;
    must(kvf_engine_open(&options, &engine, &error));
    for (size_t m = 0; m < spec->memory_count && m < MAX_MEMORIES; m++) {
        static kvf_memory *memory[MAX_MEMORIES];
        must(kvf_memory_create(spec->memory_bytes[m], 0, &memory[m], &error));
        base[m] = kvf_memory_address(memory[m]);
        must(kvf_engine_register_memory(engine, (int64_t)m, base[m], spec->memory_bytes[m], kvf_memory_fd(memory[m]),
                                        &error));
    }
    must(kvf_engine_announce(engine, &error));
    puts(kvf_engine_directory_url(engine));
    fflush(stdout);

    /* "prefill": a cache file is a layout too, one block of all tokens */
    int64_t tokens, file_block = 0, ids[MAX_BLOCKS];
    static kvf_safetensors *header;
    static kvf_layout *file_layout;
    must(kvf_safetensors_parse(file, file_bytes, (int64_t)file_bytes, &header, &error));
    must(kvf_safetensors_layout(header, &file_layout, &tokens, &error));
    for (int i = 0; i < MAX_BLOCKS; i++)
        ids[i] = i;
    struct kvf_id_list all = {&file_block, 1, 0}, blocks = {ids, 0, 0};
    blocks.count = (size_t)((tokens - 1) / spec->groups[0].tokens_per_block + 1);
    copy_cache(file_layout, &file, &all, options.layout, base, &blocks, tokens);

    struct kvf_offer offer;
    kvf_offer_init(&offer, sizeof offer);
    offer.transfer = argv[5];
    offer.request_tokens = offer.ready_tokens = tokens;
    offer.groups = &blocks;
    offer.group_count = 1;
    must(kvf_engine_offer(engine, &offer, &error));

    struct kvf_event event;
    int failed = 0;
    while (kvf_engine_wait(engine, &event, 1, INT64_MAX) == 1 && event.kind != KVF_EVENT_BLOCKS_REUSABLE)
        if (event.kind == KVF_EVENT_OFFER_FAILED)
            failed = fprintf(stderr, "prefill: %s\n", event.text) > 0;
    kvf_engine_close(engine);
    return failed;
}
