/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/mooncake/frame.h"

#include <string.h>

static const uint8_t magic[4] = {'V', 'T', 'C', 'M'};

static void put_u64(uint8_t *out, uint64_t number)
{
    for (int i = 0; i < 8; i++) out[i] = (uint8_t)(number >> (8 * i));
}

static uint64_t get_u64(const uint8_t *in)
{
    uint64_t number = 0;

    for (int i = 7; i >= 0; i--) number = number << 8 | in[i];
    return number;
}

void kvfi_moon_pack_prefix(uint8_t type, size_t text_bytes, uint8_t out[KVFI_MOON_PREFIX_BYTES])
{
    put_u64(out, (uint64_t)text_bytes + 1);
    out[8] = type;
}

size_t kvfi_moon_parse_length(const uint8_t in[KVFI_MOON_LENGTH_BYTES], size_t max)
{
    uint64_t length = get_u64(in);

    return length > max ? 0 : (size_t)length;
}

void kvfi_moon_pack_header(const struct kvfi_moon_header *header, uint8_t out[KVFI_MOON_HEADER_BYTES])
{
    put_u64(out, header->bytes);
    put_u64(out + 8, header->address);
    memset(out + 16, 0, 8);
    out[16] = header->opcode;
}

bool kvfi_moon_parse_header(const uint8_t in[KVFI_MOON_HEADER_BYTES], struct kvfi_moon_header *header)
{
    if ((in[16] & 0x7E) != 0) return false;
    *header = (struct kvfi_moon_header){.bytes = get_u64(in), .address = get_u64(in + 8), .opcode = in[16]};
    return true;
}

void kvfi_moon_pack_status(uint32_t code, uint8_t out[KVFI_MOON_STATUS_BYTES])
{
    for (int i = 0; i < 4; i++) out[i] = (uint8_t)(code >> (8 * i));
    memcpy(out + 4, magic, sizeof magic);
}

bool kvfi_moon_parse_status(const uint8_t in[KVFI_MOON_STATUS_BYTES], uint32_t *code)
{
    if (memcmp(in + 4, magic, sizeof magic) != 0) return false;
    *code = (uint32_t)in[0] | (uint32_t)in[1] << 8 | (uint32_t)in[2] << 16 | (uint32_t)in[3] << 24;
    return true;
}
