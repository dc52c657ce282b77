/* SPDX-License-Identifier: Apache-2.0 */
#include "copy/kernel.h"

#if defined(__x86_64__)

size_t kvfi_kernels_count(void)
{
    size_t count = 1;

    if (!__builtin_cpu_supports("avx2")) goto done;
    count = 2;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        count = 3;
done:
    return count;
}

const struct kvfi_kernels *kvfi_kernels_at(size_t index)
{
    static const struct kvfi_kernels *const sets[] = {&kvfi_kernels_plain, &kvfi_kernels_avx2, &kvfi_kernels_avx512};

    return sets[index];
}

#else

size_t kvfi_kernels_count(void)
{
    return 1;
}

const struct kvfi_kernels *kvfi_kernels_at(size_t index)
{
    (void)index;
    return &kvfi_kernels_plain;
}

#endif

const struct kvfi_kernels *kvfi_kernels_best(void)
{
    return kvfi_kernels_at(kvfi_kernels_count() - 1);
}
