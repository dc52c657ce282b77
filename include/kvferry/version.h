/* SPDX-License-Identifier: Apache-2.0 */
/** @file version.h  Versions of the library, of its plans, and of what it speaks. */
#ifndef KVFERRY_VERSION_H
#define KVFERRY_VERSION_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KVF_VERSION_MAJOR 0
#define KVF_VERSION_MINOR 1
#define KVF_VERSION_PATCH 0

/** Version of the planner: the rules that fix box order, wire order and both fingerprints.
 *  Two workers with different planner versions refuse each other, since equal inputs might give unequal wire order. */
#define KVF_PLANNER_VERSION 1

/** Version of the native control protocol `kvferry/1` and of the tcp data frames. */
#define KVF_PROTOCOL_VERSION 1

/** Marks a function of the shared library. Functions without it are not exported. */
#if defined(__GNUC__)
#define KVF_API __attribute__((visibility("default")))
#else
#define KVF_API
#endif

/** Returns the library's version as text, such as "0.1.0": a constant string. Any thread, never blocks. */
KVF_API const char *kvf_version(void);

/** Returns KVF_PLANNER_VERSION as the library was built. Any thread, never blocks. */
KVF_API uint32_t kvf_planner_version(void);

#ifdef __cplusplus
}
#endif

#endif
