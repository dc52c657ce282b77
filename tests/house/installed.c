/* SPDX-License-Identifier: Apache-2.0 */
/* A user's program, valid as C11 and as C++11: makes a layout, plans it to itself, prints the library's version. */
#include <kvferry/kvferry.h>

#include <stdio.h>

static int use_layout(void)
{
    struct kvf_error error;
    struct kvf_layout_spec spec;
    struct kvf_pool pool = {0, 0, 1024, 4};
    struct kvf_group group = {16, 0, 1, 0, 0};
    struct kvf_place place = {0, 0, 0};
    struct kvf_view view = {"k", "f16", 0, 64, 0, 64, 1, 0, 1, 64, 64, 16, 1, 0, 0, &place, 1};
    int64_t memory_bytes = 4096;
    kvf_layout *layout = NULL;
    kvf_plan *plan = NULL;
    int result = 1;

    kvf_layout_spec_init(&spec, sizeof(spec));
    spec.memory_bytes = &memory_bytes;
    spec.memory_count = 1;
    spec.pools = &pool;
    spec.pool_count = 1;
    spec.groups = &group;
    spec.group_count = 1;
    spec.views = &view;
    spec.view_count = 1;
    if (kvf_layout_create(&spec, &layout, &error) != KVF_OK ||
        kvf_plan_create(layout, layout, NULL, NULL, &plan, &error) != KVF_OK) {
        fprintf(stderr, "%s: %s\n", kvf_status_name(error.status), error.text);
    } else {
        result = 0;
    }
    kvf_plan_release(plan);
    kvf_layout_release(layout);
    return result;
}

int main(void)
{
    printf("%s\n", kvf_version());
    return use_layout();
}
