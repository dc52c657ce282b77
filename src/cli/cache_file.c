/* SPDX-License-Identifier: Apache-2.0 */
/* Loads and saves KV caches: a plan between the file's layout and the worker's, and a copy. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cache_file.h"

/** The layout of a file with blocks of one token instead of one block of all tokens. */
static enum kvf_status one_token_blocks(const kvf_layout *whole, int64_t tokens, kvf_layout **out,
                                        struct kvf_error *error)
{
    struct kvf_layout_spec spec = *kvf_layout_get_spec(whole);
    struct kvf_pool *pools = calloc(spec.pool_count + 1, sizeof(*pools));
    struct kvf_group *groups = calloc(spec.group_count + 1, sizeof(*groups));
    struct kvf_view *views = calloc(spec.view_count + 1, sizeof(*views));
    enum kvf_status status = KVF_ERR_NO_MEMORY;
    error->status = status;
    if (pools == NULL || groups == NULL || views == NULL)
        goto done;
    for (size_t i = 0; i < spec.pool_count; i++)
        pools[i] = spec.pools[i];
    for (size_t i = 0; i < spec.group_count; i++) {
        groups[i] = spec.groups[i];
        groups[i].tokens_per_block = 1;
    }
    for (size_t i = 0; i < spec.view_count; i++) {
        views[i] = spec.views[i];
        for (size_t p = 0; p < views[i].place_count; p++) {
            struct kvf_pool *pool = &pools[views[i].places[p].pool];
            pool->slot_stride_bytes = views[i].entry_stride_bytes;
            pool->slots = tokens;
        }
        views[i].entries = 1;
    }
    spec.pools = pools;
    spec.groups = groups;
    spec.views = views;
    status = kvf_layout_create(&spec, out, error);
done:
    free(pools);
    free(groups);
    free(views);
    return status;
}

/** Reads the header of the mapped file. */
static int read_layout(const struct cli_command *command, const char *path, struct cache_file *file)
{
    kvf_safetensors *header = NULL;
    kvf_layout *whole = NULL;
    struct kvf_error error = {.position = -1};
    int code = CLI_OK;
    if (kvf_safetensors_parse(file->map, file->bytes, (int64_t)file->bytes, &header, &error) != KVF_OK ||
        kvf_safetensors_layout(header, &whole, &file->tokens, &error) != KVF_OK ||
        one_token_blocks(whole, file->tokens, &file->layout, &error) != KVF_OK)
        code = cli_library_error(command, path, &error);
    kvf_layout_release(whole);
    kvf_safetensors_destroy(header);
    return code;
}

static int fail(const struct cli_command *command, const char *path, const char *what)
{
    cli_error(command, "%s: %s: %s", path, what, strerror(errno));
    return CLI_INPUT;
}

int cache_file_open(const struct cli_command *command, const char *path, struct cache_file *out)
{
    struct cache_file file = {.fd = open(path, O_RDONLY | O_CLOEXEC)};
    struct stat about;
    int code = CLI_OK;
    if (file.fd < 0)
        return fail(command, path, "cannot be opened");
    if (fstat(file.fd, &about) != 0) {
        code = fail(command, path, "cannot be read");
        goto done;
    }
    if (!S_ISREG(about.st_mode) || about.st_size == 0) {
        cli_error(command, "%s: is %s", path, S_ISREG(about.st_mode) ? "empty" : "no regular file");
        code = CLI_INPUT;
        goto done;
    }
    file.bytes = (size_t)about.st_size;
    file.map = mmap(NULL, file.bytes, PROT_READ, MAP_PRIVATE, file.fd, 0);
    if (file.map == MAP_FAILED) {
        file.map = NULL;
        code = fail(command, path, "cannot be mapped");
        goto done;
    }
    code = read_layout(command, path, &file);
done:
    if (code == CLI_OK)
        *out = file;
    else
        cache_file_close(&file);
    return code;
}

void cache_file_close(struct cache_file *file)
{
    kvf_layout_release(file->layout);
    if (file->map != NULL)
        munmap(file->map, file->bytes);
    if (file->fd >= 0)
        close(file->fd);
    *file = (struct cache_file){.fd = -1};
}

/** Shape of a whole instance's K and V. */
struct whole_shape {
    const char *dtype;
    int64_t layer_first, layer_end, heads, head_dim;
};

static const struct {
    const char *tag, *dtype;
    int64_t bytes;
} dtypes[] = {{"f16", "F16", 2},          {"bf16", "BF16", 2}, {"f32", "F32", 4}, {"fp8_e4m3", "F8_E4M3", 1},
              {"fp8_e5m2", "F8_E5M2", 1}, {"i8", "I8", 1},     {"u8", "U8", 1}};

/** Takes in one view; false when it cannot be part of a cache file. */
static bool take_view(const struct kvf_view *view, struct whole_shape *shape)
{
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
        if (strcmp(view->tag, dtypes[i].tag) != 0 || view->row_bytes % dtypes[i].bytes != 0)
            continue;
        shape->dtype = dtypes[i].dtype;
        shape->head_dim = view->row_bytes / dtypes[i].bytes;
    }
    shape->heads = view->unit_total;
    for (size_t p = 0; p < view->place_count; p++) {
        int64_t layer = view->places[p].layer;
        shape->layer_first = layer < shape->layer_first ? layer : shape->layer_first;
        shape->layer_end = layer >= shape->layer_end ? layer + 1 : shape->layer_end;
    }
    return shape->dtype != NULL;
}

static bool find_shape(const kvf_instance *instance, struct whole_shape *out)
{
    struct whole_shape shape = {.layer_first = INT64_MAX};
    for (size_t r = 0; r < kvf_instance_rank_count(instance); r++) {
        const struct kvf_layout_spec *spec = kvf_layout_get_spec(kvf_instance_layout(instance, r));
        for (size_t v = 0; v < spec->view_count; v++) {
            const char *role = spec->views[v].role;
            if ((strcmp(role, "k") == 0 || strcmp(role, "v") == 0) && !take_view(&spec->views[v], &shape))
                return false;
        }
    }
    *out = shape;
    return shape.dtype != NULL;
}

int cache_file_create(const struct cli_command *command, const char *path, const kvf_instance *instance, int64_t tokens,
                      struct cache_file *out)
{
    struct cache_file file = {.fd = -1};
    struct whole_shape shape;
    struct kvf_error error = {.position = -1};
    struct stat about;
    char *header = NULL;
    size_t header_bytes = 0;
    int64_t file_bytes = 0;
    int code = CLI_INPUT;
    if (!find_shape(instance, &shape)) {
        cli_error(command, "%s: the layout has no K and V of a type that a cache file can hold", path);
        goto done;
    }
    if (kvf_safetensors_header(shape.dtype, shape.layer_first, shape.layer_end, tokens, shape.heads, shape.head_dim,
                               &header, &header_bytes, &file_bytes, &error) != KVF_OK) {
        code = cli_library_error(command, path, &error);
        goto done;
    }
    file.fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (file.fd < 0 || fstat(file.fd, &about) != 0 ||
        (about.st_size != file_bytes && ftruncate(file.fd, file_bytes) != 0) ||
        pwrite(file.fd, header, header_bytes, 0) != (ssize_t)header_bytes) {
        code = fail(command, path, "cannot be written");
        goto done;
    }
    /* Claims the blocks: a full disk is an error here and not a signal while the map is written. */
    int claimed = posix_fallocate(file.fd, 0, file_bytes);
    if (claimed != 0) {
        errno = claimed;
        code = fail(command, path, "cannot be written");
        goto done;
    }
    file.bytes = (size_t)file_bytes;
    file.map = mmap(NULL, file.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd, 0);
    if (file.map == MAP_FAILED) {
        file.map = NULL;
        code = fail(command, path, "cannot be mapped");
        goto done;
    }
    code = read_layout(command, path, &file);
done:
    kvf_text_free(header);
    if (code == CLI_OK)
        *out = file;
    else
        cache_file_close(&file);
    return code;
}

/** Everything one copy between a file and a rank's blocks needs. */
struct copy {
    const struct cache_file *file;
    const struct cache_blocks *blocks;
    int64_t tokens;
    bool load; /* file to blocks; else blocks to file */
};

/** Plans a copy. Loading elects, so that what the file lacks is refused; saving takes what both have. */
static enum kvf_status plan_copy(const struct copy *copy, kvf_plan **plan, struct kvf_error *error)
{
    const kvf_layout *file = copy->file->layout, *blocks = copy->blocks->layout;
    if (!copy->load)
        return kvf_plan_create(blocks, file, NULL, NULL, plan, error);
    kvf_holdings *src = NULL, *dst = NULL;
    kvf_election *election = NULL;
    enum kvf_status status = kvf_holdings_from_layout(file, &src, error);
    if (status == KVF_OK)
        status = kvf_holdings_from_layout(blocks, &dst, error);
    if (status == KVF_OK) {
        struct kvf_member from = {.holdings = src}, to = {.holdings = dst};
        status = kvf_elect(&from, 1, &to, 1, 0, &election, error);
    }
    if (status == KVF_OK)
        status = kvf_plan_create(file, blocks, kvf_election_share(election, 0), NULL, plan, error);
    kvf_election_destroy(election);
    kvf_holdings_release(src);
    kvf_holdings_release(dst);
    return status;
}

static enum kvf_status bind_and_copy(const struct copy *copy, const kvf_plan *plan, struct kvf_error *error)
{
    struct block_lists rows = {0};
    struct kvf_bind_request request;
    kvf_binding *binding = NULL;
    void *map[1] = {copy->file->map};
    enum kvf_status status = KVF_ERR_NO_MEMORY;
    error->status = status;
    if (!block_lists_in_order(kvf_layout_get_spec(copy->file->layout), copy->tokens, &rows))
        goto done;
    const struct block_lists *src = copy->load ? &rows : copy->blocks->lists;
    const struct block_lists *dst = copy->load ? copy->blocks->lists : &rows;
    kvf_bind_request_init(&request, sizeof(request));
    request.flags = KVF_BIND_RING_TAIL;
    request.token_end = copy->tokens;
    request.request_tokens = copy->tokens;
    request.src = src->groups;
    request.src_count = src->count;
    request.dst = dst->groups;
    request.dst_count = dst->count;
    status = kvf_bind(plan, &request, &binding, error);
    if (status == KVF_OK && copy->load)
        status = kvf_copy(binding, map, 1, copy->blocks->bases, copy->blocks->base_count, error);
    else if (status == KVF_OK)
        status = kvf_copy(binding, copy->blocks->bases, copy->blocks->base_count, map, 1, error);
done:
    kvf_binding_destroy(binding);
    block_lists_fini(&rows);
    return status;
}

static int run_copy(const struct cli_command *command, const char *path, const struct copy *copy)
{
    kvf_plan *plan = NULL;
    struct kvf_error error = {.position = -1};
    int code = CLI_OK;
    if (plan_copy(copy, &plan, &error) != KVF_OK || bind_and_copy(copy, plan, &error) != KVF_OK)
        code = cli_library_error(command, path, &error);
    kvf_plan_release(plan);
    return code;
}

int cache_file_load(const struct cli_command *command, const char *path, const struct cache_file *file, int64_t tokens,
                    const struct cache_blocks *blocks)
{
    struct copy copy = {file, blocks, tokens, true};
    return run_copy(command, path, &copy);
}

int cache_file_save(const struct cli_command *command, const char *path, const struct cache_file *file, int64_t tokens,
                    const struct cache_blocks *blocks)
{
    struct copy copy = {file, blocks, tokens, false};
    return run_copy(command, path, &copy);
}
