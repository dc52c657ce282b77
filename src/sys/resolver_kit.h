/* SPDX-License-Identifier: Apache-2.0 */
/** @file resolver_kit.h  For tests: a system's resolver that hangs. A test that depends on `resolver_dep` has the calls
 * of this tree's own code to getaddrinfo go through here. Numbers go on to the system. Of names:
 *  - "hang..." is not answered before resolver_let_go, then it is unknown;
 *  - "none..." is unknown, "broken..." a failure of memory;
 *  - "two..." is 127.0.0.2 and then 127.0.0.1;
 *  - any other name is 127.0.0.1. Any thread. */
#ifndef KVFI_SYS_RESOLVER_KIT_H
#define KVFI_SYS_RESOLVER_KIT_H

#include <stdbool.h>

/** Names that hang do so from now on. */
void resolver_hang(void);

/** Answers those that hang, and waits until no name is being looked up any more. False: they did not end in 20 s. */
bool resolver_let_go(void);

/** Waits until `count` names hang. False: they do not after 20 s. */
bool resolver_await_hanging(int count);

/** How many names were looked up since resolver_hang. */
int resolver_count(void);

#endif
