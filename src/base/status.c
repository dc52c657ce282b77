/* SPDX-License-Identifier: Apache-2.0 */
#include "kvferry/status.h"
#include "kvferry/version.h"

_Static_assert(sizeof(struct kvf_error) == 512, "kvf_error is 512 bytes");

const char *kvf_strerror(int status)
{
    const char *text = "unknown status";

    switch (status) {
#define KVF_STATUS_TEXT_ROW(name, number, string) case number: text = string; break;
        KVF_STATUS_MAP(KVF_STATUS_TEXT_ROW)
#undef KVF_STATUS_TEXT_ROW
    default: break;
    }
    return text;
}

const char *kvf_status_name(int status)
{
    const char *text = "KVF_ERR_UNKNOWN";

    switch (status) {
#define KVF_STATUS_NAME_ROW(name, number, string) case number: text = #name; break;
        KVF_STATUS_MAP(KVF_STATUS_NAME_ROW)
#undef KVF_STATUS_NAME_ROW
    default: break;
    }
    return text;
}

#define KVF_TEXT_OF(x) #x
#define KVF_TEXT(x) KVF_TEXT_OF(x)

const char *kvf_version(void)
{
    return KVF_TEXT(KVF_VERSION_MAJOR) "." KVF_TEXT(KVF_VERSION_MINOR) "." KVF_TEXT(KVF_VERSION_PATCH);
}

uint32_t kvf_planner_version(void)
{
    return KVF_PLANNER_VERSION;
}
