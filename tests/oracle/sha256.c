/* SPDX-License-Identifier: Apache-2.0 */
#include "moves.h"

#include <stdio.h>
#include <string.h>

enum { CHUNK = 64 };

static const uint32_t round_words[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t turn(uint32_t word, int bits) { return word >> bits | word << (32 - bits); }

static void add_chunk(uint32_t hash[8], const unsigned char *chunk)
{
    uint32_t words[64], at[8];

    for (size_t i = 0; i < 16; i++)
        words[i] = (uint32_t)chunk[4 * i] << 24 | (uint32_t)chunk[4 * i + 1] << 16 | (uint32_t)chunk[4 * i + 2] << 8 |
                   chunk[4 * i + 3];
    for (size_t i = 16; i < 64; i++) {
        uint32_t low = words[i - 15], high = words[i - 2];

        words[i] = words[i - 16] + (turn(low, 7) ^ turn(low, 18) ^ low >> 3) + words[i - 7] +
                   (turn(high, 17) ^ turn(high, 19) ^ high >> 10);
    }
    memcpy(at, hash, sizeof at);
    for (size_t i = 0; i < 64; i++) {
        uint32_t a = at[0], e = at[4];
        uint32_t one = at[7] + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((e & at[5]) ^ (~e & at[6])) +
                       round_words[i] + words[i];
        uint32_t two = (turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & at[1]) ^ (a & at[2]) ^ (at[1] & at[2]));

        memmove(at + 1, at, 7 * sizeof *at);
        at[4] += one;
        at[0] = one + two;
    }
    for (size_t i = 0; i < 8; i++) hash[i] += at[i];
}

void moves_sha256(const void *bytes, size_t count, char text[65])
{
    uint32_t hash[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    unsigned char rest[2 * CHUNK] = {0};
    size_t whole = count / CHUNK, left = count % CHUNK, ends = left < CHUNK - 8 ? CHUNK : sizeof rest;

    for (size_t i = 0; i < whole; i++) add_chunk(hash, (const unsigned char *)bytes + i * CHUNK);
    if (left) memcpy(rest, (const unsigned char *)bytes + whole * CHUNK, left);
    rest[left] = 0x80;
    for (size_t i = 0; i < 8; i++) rest[ends - 1 - i] = (unsigned char)((uint64_t)count * 8 >> 8 * i);
    for (size_t i = 0; i < ends; i += CHUNK) add_chunk(hash, rest + i);
    for (size_t i = 0; i < 8; i++) snprintf(text + 8 * i, 9, "%08x", hash[i]);
}
