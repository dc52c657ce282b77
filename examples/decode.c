/* SPDX-License-Identifier: Apache-2.0 */
/* The one rank of a decode instance "d": pulls a cache of so many tokens from instance "p" and writes it to a file.
 *
 *   decode LAYOUT.json DIRECTORY-URL TRANSFER TOKENS OUT.safetensors
 */
#include "example.h"

int main(int argc, char **argv)
{
    if (argc != 6)
        return fprintf(stderr, "usage: decode LAYOUT.json DIRECTORY-URL TRANSFER TOKENS OUT.safetensors\n"), 2;

    size_t text_bytes = 0, header_bytes, out_bytes;
    int64_t tokens = strtoll(argv[4], NULL, 10), file_block = 0, file_bytes, ids[MAX_BLOCKS];
    void *text = map_file(argv[1], &text_bytes), *base[MAX_MEMORIES];
    static kvf_instance *instance; /* what lives as long as the process is static */
    must(kvf_instance_parse(text, text_bytes, &instance, &error));
    const struct kvf_layout_spec *spec = kvf_layout_get_spec(kvf_instance_layout(instance, 0));

    struct kvf_engine_options options;
    kvf_engine_options_init(&options, sizeof options);
    options.instance = "d";
    options.layout = kvf_instance_layout(instance, 0);
    options.directory_url = argv[2];
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

    for (int i = 0; i < MAX_BLOCKS; i++)
        ids[i] = i;
    struct kvf_id_list all = {&file_block, 1, 0}, blocks = {ids, 0, 0};
    blocks.count = (size_t)((tokens - 1) / spec->groups[0].tokens_per_block + 1);
    struct kvf_pull pull;
    kvf_pull_init(&pull, sizeof pull);
    pull.transfer = argv[3];
    pull.from = "p";
    pull.request_tokens = pull.token_end = tokens;
    pull.groups = &blocks;
    pull.group_count = 1;
    must(kvf_engine_pull(engine, &pull, &error));
    struct kvf_event event;
    while (kvf_engine_wait(engine, &event, 1, INT64_MAX) == 1 && event.kind != KVF_EVENT_PULL_DONE)
        if (event.kind == KVF_EVENT_PULL_FAILED)
            return fprintf(stderr, "decode: %s\n", event.text), 1;

    /* "decode" goes on from here; this one writes the cache out: heads and head size are those of the first view */
    const struct kvf_view *k = &spec->views[0];
    static char *header;
    must(kvf_safetensors_header("F16", 0, (int64_t)k->place_count, tokens, k->unit_total, k->row_bytes / 2, &header,
                                &header_bytes, &file_bytes, &error));
    out_bytes = (size_t)file_bytes;
    void *out = memcpy(map_file(argv[5], &out_bytes), header, header_bytes);
    static kvf_safetensors *parsed;
    static kvf_layout *file_layout;
    must(kvf_safetensors_parse(out, out_bytes, file_bytes, &parsed, &error));
    must(kvf_safetensors_layout(parsed, &file_layout, &tokens, &error));
    copy_cache(options.layout, base, &blocks, file_layout, &out, &all, tokens);
    printf("%lld bytes in %lld pieces\n", (long long)event.bytes, (long long)event.pieces);
    kvf_engine_close(engine);
    return 0;
}
