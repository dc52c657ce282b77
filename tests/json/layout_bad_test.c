/* SPDX-License-Identifier: Apache-2.0 */
/* Layout files that must be refused, by the text that their author sees. `--print` lists them as JSON lines, for the
 * test of the schema. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kvferry/instance.h"
#include "text.h"

/* Two stages of two ranks; the rules of the schema. Rows write ' where JSON has ": see text_of_row. */
static const char rules[] =
    "{'version': 1, 'model': {'name': 'm', 'fingerprint': 'f'}, 'grid': {'pp': 2, 'cp': 1, 'tp': 2},\n"
    " 'layout': {'pools': [{'slots': 8}],\n"
    "  'groups': [{'tokens_per_block': 16}],\n"
    "  'views': [\n"
    "   {'role': 'k', 'tag': 'f16', 'row_bytes': 128, 'units': {'total': 4, 'split': 'tp'},\n"
    "    'order': 'heads_first', 'layers': {'total': 6, 'split': 'pp'}},\n"
    "   {'role': 'v', 'tag': 'f16', 'row_bytes': 128, 'units': {'total': 4, 'split': 'tp'},\n"
    "    'order': 'heads_first', 'layers': {'total': 6, 'split': 'pp'}}]}}";

/* Two ranks of half the heads each; the first one spelled out. */
static const char spelled[] =
    "{'version': 1, 'model': {'name': 'm'}, 'grid': {'tp': 2}, 'ranks': [\n"
    " {'tp': 0, 'layout': {'memories': [65536], 'pools': [{'slot_stride_bytes': 4096, 'slots': 16}],\n"
    "  'groups': [{'tokens_per_block': 16}], 'views': [\n"
    "   {'role': 'k', 'tag': 'f16', 'row_bytes': 32, 'units': {'total': 4, 'first': 0, 'count': 2},\n"
    "    'unit_stride_bytes': 512, 'entry_stride_bytes': 32, 'entries': 16,\n"
    "    'places': [{'layer': 0, 'offset_bytes': 0}, {'layer': 1, 'offset_bytes': 1024}]},\n"
    "   {'role': 'v', 'tag': 'f16', 'row_bytes': 32, 'units': {'total': 4, 'first': 0, 'count': 2},\n"
    "    'unit_stride_bytes': 512, 'entry_stride_bytes': 32, 'entries': 16,\n"
    "    'places': [{'first': 0, 'count': 2, 'offset_bytes': 2048, 'offset_step_bytes': 1024}]}]}},\n"
    " {'tp': 1, 'layout': {'memories': [65536], 'pools': [{'slot_stride_bytes': 4096, 'slots': 16}],\n"
    "  'groups': [{'tokens_per_block': 16}], 'views': [\n"
    "   {'role': 'k', 'tag': 'f16', 'row_bytes': 32, 'units': {'total': 4, 'first': 2, 'count': 2},\n"
    "    'order': 'tokens_first', 'layers': [0, 1]},\n"
    "   {'role': 'v', 'tag': 'f16', 'row_bytes': 32, 'units': {'total': 4, 'first': 2, 'count': 2},\n"
    "    'order': 'tokens_first', 'layers': [0, 1]}]}}]}";

/* Who refuses it: no JSON parser takes it; the schema sees it too; only the library sees it. */
enum seen { NO_JSON, SCHEMA, LIBRARY };

struct row {
    const char *name;
    enum seen seen;
    const char *base, *find, *replace; /* the base with this put in its place */
    enum kvf_status status;
    const char *text;
    const char *at; /* what stands at error->position; NULL: no position */
};

#define BOTH(find, replace, text, at) SCHEMA, rules, find, replace, KVF_ERR_PARSE, text, at
#define MINE(find, replace, text, at) LIBRARY, rules, find, replace, KVF_ERR_PARSE, text, at
#define PLAIN(find, replace, text, at) NO_JSON, rules, find, replace, KVF_ERR_PARSE, text, at
#define RANK0 "rank pp 0 cp 0 tp 0: "
#define POOL_KEYS \
    "known are 'memory', 'base_offset_bytes', 'slot_stride_bytes', 'slot_padding_bytes', 'slots' or 'per_layer'"
#define UNITS ", 'units': {'total': 4, 'split': 'tp'}"
#define LAYERS ", 'layers': {'total': 6, 'split': 'pp'}"
#define VIEW0 "layout.views[0]"
#define RANKS0 "ranks[0].layout.views[0]"
#define RANKS1 "ranks[0].layout.views[1]"

static const struct row rows[] = {
    /* not JSON */
    {"empty", PLAIN(rules, "", "layout file: line 1 column 0: '[' or '{' expected near end of file", "")},
    {"not json", PLAIN(rules, "hello", "layout file: line 1 column 5: '[' or '{' expected near 'hello'", "")},
    {"comma missing", PLAIN("16}],", "16}]", "layout file: line 4 column 9: '}' expected near ''views''", ":")},
    {"cut short", PLAIN("16}],", "16", NULL, NULL)},
    {"key given twice", PLAIN("'slots': 8", "'slots': 8, 'slots': 9",
                              "layout file: line 2 column 42: duplicate object key near ''slots''", ":")},
    {"not UTF-8", PLAIN("'m'", "'\xff'", "layout file: line 1 column 34: unable to decode byte 0xff near '''", NULL)},
    {"more behind the end", PLAIN("}]}}", "}]}} x", "layout file: line 8 column 71: end of file expected near 'x'",
     "")},
    {"integer above 2^63", SCHEMA, rules, "'slots': 8", "'slots': 9223372036854775808", KVF_ERR_PARSE,
     "layout file: line 2 column 51: too big integer near '9223372036854775808'", "}"},

    /* types */
    {"not an object", BOTH(rules, "[1]", "layout file: expected an object, found an array of 1", "[1]")},
    {"number as text", BOTH("128", "'x'", VIEW0 ".row_bytes: expected a positive integer, found 'x'", "'x'")},
    {"number as long text", BOTH("128", "'0123456789012345678901234567890123456789012345678901234567890123456789'",
                                 VIEW0 ".row_bytes: expected a positive integer, found "
                                 "'012345678901234567890123456789012345678901234567890123456789012345...'", "'0")},
    {"number with a point", BOTH("128", "128.5", VIEW0 ".row_bytes: expected a positive integer, found 128.5, which is "
                                 "not an integer", "128.5")},
    {"number with an exponent", MINE("128", "1.5e2", VIEW0 ".row_bytes: expected a positive integer, found 150, which "
                                     "is not an integer", "1.5e2")},
    {"negative", BOTH("128", "-128", VIEW0 ".row_bytes: expected a positive integer, found -128", "-128")},
    {"zero", BOTH("8}", "0}", "layout.pools[0].slots: expected a positive integer, found 0", "0}")},
    {"null", BOTH("8}", "null}", "layout.pools[0].slots: expected a positive integer, found null", "null}")},
    {"true", BOTH("8}", "true}", "layout.pools[0].slots: expected a positive integer, found true", "true}")},
    {"array as object", BOTH("{'slots': 8}", "[8]", "layout.pools[0]: expected an object, found an array of 1", "[8]")},
    {"object as array", BOTH("[{'slots': 8}]", "{'slots': 8}", "layout.pools: expected an array, found an object",
                             "{'slots'")},
    {"text as flag", BOTH("'order'", "'atomic': 'yes', 'order'", VIEW0 ".atomic: expected true or false, found 'yes'",
                          "'yes'")},
    {"comment that is no text", BOTH("8}", "8, 'comment': 5}", "layout.pools[0].comment: expected a text, found 5",
                                     "5}")},
    {"version of tomorrow", BOTH("1, 'model'", "2, 'model'", "version: is 2, this library reads 1", "2")},
    {"role empty", BOTH("'k'", "''", VIEW0 ".role: expected a text of 1 to 255 bytes, found ''", "'', 'tag'")},
    {"order unknown", BOTH("'heads_first'", "'HND'", VIEW0 ".order: expected 'heads_first' or 'tokens_first', found "
                           "'HND'", "'HND'")},

    /* absurd numbers */
    {"absurd grid", BOTH("'tp': 2", "'tp': 70000", "grid.tp: expected an integer from 1 to 4096, found 70000",
     "70000")},
    {"absurd layers", BOTH("'total': 6", "'total': 1000000000000", VIEW0 ".layers.total: expected an integer from 1 to "
                           "1048576, found 1000000000000", "1000000000000")},
    {"too many ranks", LIBRARY, rules, "'cp': 1, 'tp': 2", "'cp': 64, 'tp': 64", KVF_ERR_LIMIT,
     "grid: pp 2 x cp 64 x tp 64 ranks, at most 4096", "{'pp'"},
    {"too many chunks", MINE("128,", "131072, 'chunk_bytes': 1,",
     VIEW0 ".chunk_bytes: 131072 bytes do not divide into at "
                             "most 65536 chunks of 1", "1,")},
    {"too many places", LIBRARY, rules, LAYERS, ", 'layers': {'count': 1000000}", KVF_ERR_LIMIT,
     "rank pp 0 cp 0 tp 1: views[0]: too many layers in all views and ranks, at most 1048576", "{'pools'"},

    /* keys */
    {"mistyped key", BOTH("row_bytes", "row_byte", VIEW0 ": unknown key 'row_byte', did you mean 'row_bytes'?",
                          "{'role'")},
    {"unknown key", BOTH("'slots'", "'colour': 1, 'slots'", "layout.pools[0]: unknown key 'colour', " POOL_KEYS,
                         "{'colour'")},
    {"unknown key at the top", BOTH("'grid'", "'gird'", "layout file: unknown key 'gird', did you mean 'grid'?",
                                    "{'version'")},
    {"control characters in a key", BOTH("'slots'", "'a\\u001b[31m\\n': 1, 'slots'",
                                         "layout.pools[0]: unknown key 'a?[31m?', " POOL_KEYS, "{'a")},
    {"version missing", BOTH("'version': 1, ", "", "layout file: 'version' is missing, expected a positive integer",
                             "{'model'")},
    {"model missing", BOTH("'model': {'name': 'm', 'fingerprint': 'f'}, ", "",
                           "layout file: 'model' is missing, expected an object", "{'version'")},
    {"model without a name", BOTH("'name': 'm', ", "", "model: 'name' is missing, expected a text of 1 to 255 bytes",
                                  "{'fingerprint'")},
    {"grid missing", BOTH("'grid': {'pp': 2, 'cp': 1, 'tp': 2},", "",
                          "layout file: 'grid' is missing, expected an object", "{'version'")},
    {"pools missing", BOTH("'pools': [{'slots': 8}],", "", "layout: 'pools' is missing, expected an array", "{\n")},
    {"no pools", BOTH("[{'slots': 8}]", "[]", "layout.pools: expected at least 1 items, found 0", "[]")},
    {"slots missing", BOTH("'slots': 8", "", "layout.pools[0]: 'slots' is missing, expected a positive integer", "{}")},
    {"tokens missing", BOTH("'tokens_per_block': 16", "", "layout.groups[0]: 'tokens_per_block' is missing, "
     "expected an "
                            "integer of at least 0", "{}")},
    {"role missing", BOTH("'role': 'k', ", "", VIEW0 ": 'role' is missing, expected a text of 1 to 255 bytes",
     "{'tag'")},
    {"units missing", BOTH(UNITS, "", VIEW0 ": 'units' is missing, expected an object", "{'role'")},
    {"units without a total", BOTH("'total': 4, ", "", VIEW0 ".units: 'total' is missing, expected a positive integer",
                                   "{'split'")},
    {"order missing", BOTH("'order': 'heads_first', ", "", VIEW0 ": 'order' is missing, or 'unit_stride_bytes' and "
                           "'entry_stride_bytes'", "{'role'")},
    {"layers missing", BOTH(LAYERS, "", VIEW0 ": 'layers' is missing, or 'places'", "{'role'")},
    {"layers with a total only", BOTH("6, 'split': 'pp'", "6", VIEW0 ".layers.total: needs 'split'", "6}")},
    {"rank without a layout", LIBRARY, spelled, "'tp': 0, 'layout': {", "'tp': 0}, {'tp': 0, 'layout': {",
     KVF_ERR_PARSE,
     "ranks[0]: 'layout' is missing, here or at the top for all ranks", "{'tp': 0}"},

    /* keys that do not go together */
    {"order and strides", BOTH("'order'", "'unit_stride_bytes': 8, 'order'",
                               VIEW0 ".unit_stride_bytes: does not go with 'order'", "8,")},
    {"layers and places", BOTH("'layers'", "'places': [{'layer': 0}], 'layers'",
                               VIEW0 ".layers: does not go with 'places'", "{'total': 6")},
    {"step without offset", BOTH("'layers'", "'offset_step_bytes': 64, 'layers'",
                                 VIEW0 ".offset_step_bytes: needs 'offset_bytes'", "64,")},
    {"bounds and split", BOTH("'split': 'tp'", "'split': 'tp', 'bounds': [0, 2, 4]",
                              VIEW0 ".units.bounds: does not go with 'split'", "[0, 2, 4]")},
    {"stride and padding", BOTH("8}", "8, 'slot_stride_bytes': 8, 'slot_padding_bytes': 9}",
                                "layout.pools[0].slot_padding_bytes: does not go with 'slot_stride_bytes'", "9}")},
    {"stripes twice", BOTH("16}", "16, 'cp_stripe_tokens': 1, 'stripes': 3}",
                           "layout.groups[0].stripes: does not go with 'cp_stripe_tokens'", "3}")},
    {"chunks tokens first", BOTH("'order': 'heads_first'", "'chunk_bytes': 16, 'order': 'tokens_first'",
                                 VIEW0 ".chunk_bytes: needs 'order': 'heads_first' or the three strides", "16,")},
    {"chunk stride alone", SCHEMA, spelled, "'entries'", "'chunk_stride_bytes': 5, 'entries'", KVF_ERR_PARSE,
     RANKS0 ".chunk_stride_bytes: needs 'chunk_bytes'", "5,"},
    {"memory of nothing", BOTH("8}", "8, 'memory': 0}", "layout.pools[0].memory: needs 'memories': without them each "
                               "pool is its own", "0}")},
    {"per layer in listed memories", SCHEMA, spelled, "16}]", "16, 'per_layer': true}]", KVF_ERR_PARSE,
     "ranks[0].layout.pools[0].per_layer: does not go with 'memories': each layer's pool is one", "true"},
    {"places in a pool per layer", LIBRARY, spelled, "'memories': [65536], 'pools': [{",
     "'pools': [{'per_layer': true, ",
     KVF_ERR_PARSE, RANKS0 ".places[0]: pool 0 is per layer: give 'layers' instead of 'places'", "{'layer': 0"},

    /* numbers that point to nothing */
    {"split along another axis", BOTH("'split': 'tp'", "'split': 'pp'", VIEW0 ".units.split: expected 'tp', found 'pp'",
                                      "'pp'")},
    {"no such pool", MINE("'layers'", "'pool': 1, 'layers'", VIEW0 ".pool: expected an integer from 0 to 0, found 1",
                          "1,")},
    {"no such group", MINE("'order'", "'group': 3, 'order'", VIEW0 ".group: expected an integer from 0 to 0, found 3",
                           "3,")},
    {"no such memory", LIBRARY, spelled, "{'slot_stride_bytes'", "{'memory': 1, 'slot_stride_bytes'", KVF_ERR_PARSE,
     "ranks[0].layout.pools[0].memory: expected an integer from 0 to 0, found 1", "1,"},
    {"stripe outside", MINE("16}", "16, 'stripes': 2, 'stripe': 2}",
                            "layout.groups[0].stripe: expected an integer from 0 to 1, found 2", "2}")},
    {"bytes outside of the row", MINE("'order'", "'bytes': {'first': 64, 'count': 65}, 'order'",
                                      VIEW0 ".bytes.count: expected an integer from 1 to 64, found 65", "65}")},
    {"chunks that do not divide", MINE("'order'", "'chunk_bytes': 48, 'order'", VIEW0 ".chunk_bytes: 128 bytes do not "
                                       "divide into at most 65536 chunks of 48", "48")},
    {"rank outside of the grid", LIBRARY, spelled, "'tp': 1", "'tp': 2", KVF_ERR_PARSE,
     "ranks[1].tp: expected an integer from 0 to 1, found 2", "2,"},

    /* heads over the ranks */
    {"heads that do not divide", MINE("'total': 4", "'total': 5",
     VIEW0 ".units: 5 units do not split evenly over tp 2, "
                                      "give 'bounds' instead", "{'total': 5")},
    {"bounds for too few ranks", MINE("'split': 'tp'", "'bounds': [0, 4]",
                                      VIEW0 ".units.bounds: expected 3 bounds for tp 2, found 2", "[0, 4]")},
    {"bounds that do not cover", MINE("'split': 'tp'", "'bounds': [0, 2, 3]",
                                      VIEW0 ".units.bounds: cover units 0 to 3, expected 0 to 4", "[0, 2, 3]")},
    {"bounds that cover twice", MINE("'split': 'tp'", "'bounds': [0, 3, 2]",
                                     VIEW0 ".units.bounds[2]: expected more than 3, found 2", "2]")},
    {"a rank without heads", MINE("'split': 'tp'", "'bounds': [0, 4, 4]",
                                  VIEW0 ".units.bounds[2]: expected more than 4, found 4", "4]")},
    {"units outside of the total", LIBRARY, spelled, "'first': 0, 'count': 2", "'first': 3, 'count': 2", KVF_ERR_PARSE,
     RANKS0 ".units.count: expected an integer from 1 to 1, found 2", "2}"},
    {"heads on no rank", LIBRARY, spelled, "'first': 2, 'count': 2", "'first': 3, 'count': 1", KVF_ERR_LAYOUT,
     "k layer 0: units 2 to 3 of 4 are on no rank", NULL},
    {"last heads on no rank", LIBRARY, spelled, "'first': 2, 'count': 2", "'first': 0, 'count': 2", KVF_ERR_LAYOUT,
     "k layer 0: units 2 to 4 of 4 are on no rank", NULL},
    {"heads on two ranks", LIBRARY, spelled, "'first': 2, 'count': 2", "'first': 1, 'count': 2", KVF_ERR_LAYOUT,
     "k layer 0: units 0 to 2 on rank pp 0 cp 0 tp 0 and units 1 to 3 on rank pp 0 cp 0 tp 1 overlap without being "
     "equal",
     NULL},
    {"heads twice on one rank", LIBRARY, spelled, "'role': 'v'", "'role': 'k'", KVF_ERR_LAYOUT,
     RANK0 "k layer 0: unit 0 byte 0 is held by views 0 and 1", "{'memories'"},
    {"half a row of some heads", LIBRARY, spelled, "'first': 2, 'count': 2}",
     "'first': 2, 'count': 2}, 'bytes': {'count': "
     "16}", KVF_ERR_LAYOUT, "k layer 0: units 2 to 4 of 4 are on no rank", NULL},
    {"ranks of unlike rows", LIBRARY, spelled, "'v', 'tag': 'f16', 'row_bytes': 32",
     "'v', 'tag': 'f16', 'row_bytes': 16",
     KVF_ERR_LAYOUT, "v layer 0: row_bytes is 16 on rank pp 0 cp 0 tp 0 and 32 on rank pp 0 cp 0 tp 1", NULL},
    {"ranks of unlike dtypes", LIBRARY, spelled, "'v', 'tag': 'f16'", "'v', 'tag': 'bf16'", KVF_ERR_LAYOUT,
     "v layer 0: tag is \"bf16\" on rank pp 0 cp 0 tp 0 and \"f16\" on rank pp 0 cp 0 tp 1", NULL},
    {"a stripe on no rank", LIBRARY, rules, "16}", "16, 'stripes': 2, 'stripe_tokens': 16}", KVF_ERR_LAYOUT,
     "k layer 0: stripe 1 of 2 is on no rank", NULL},

    /* layers and ranks */
    {"layers out of order", MINE("{'total': 6, 'split': 'pp'}", "[3, 1]",
                                 VIEW0 ".layers[1]: expected more than 3, found 1", "1]")},
    {"layer given twice in a list", MINE("{'total': 6, 'split': 'pp'}", "[3, 3]",
                                         VIEW0 ".layers[1]: expected more than 3, found 3", "3]")},
    {"layer bounds out of order", MINE("{'total': 6, 'split': 'pp'}", "{'bounds': [0, 7, 6]}",
                                       VIEW0 ".layers.bounds[2]: expected at least 7, found 6", "6]")},
    {"rank given twice", LIBRARY, spelled, "'tp': 1", "'tp': 0", KVF_ERR_PARSE,
     "ranks[1]: rank pp 0 cp 0 tp 0 was given by ranks[0]", "{'tp': 0"},
    {"rank missing", LIBRARY, spelled, "{'tp': 2}", "{'tp': 3}", KVF_ERR_PARSE,
     "layout file: rank pp 0 cp 0 tp 2 is neither in 'ranks' nor is there a 'layout' for all", "{'version'"},

    /* places */
    {"layer twice", LIBRARY, spelled, "{'layer': 1, ", "{'layer': 0, ", KVF_ERR_LAYOUT,
     RANK0 "k layer 0: given twice", "{'memories'"},
    {"places that overlap", LIBRARY, spelled, "'offset_bytes': 1024}]", "'offset_bytes': 512}]", KVF_ERR_LAYOUT,
     RANK0 "k layer 0 slot 0 overlaps k layer 1 slot 0", "{'memories'"},
    {"strides inside each other", LIBRARY, spelled, "'unit_stride_bytes': 512", "'unit_stride_bytes': 256",
     KVF_ERR_LAYOUT, RANK0 "k layer 0: stride 256 is smaller than the 512 bytes inside it", "{'memories'"},
    {"slots inside each other", LIBRARY, spelled, "'slot_stride_bytes': 4096", "'slot_stride_bytes': 2048",
     KVF_ERR_LAYOUT, RANK0 "k layer 0 slot 1 overlaps v layer 0 slot 0", "{'memories'"},
    {"outside of the memory", LIBRARY, spelled, "[65536]", "[65535]", KVF_ERR_LAYOUT,
     RANK0 "v layer 1: ends at 65536, memory has 65535", "{'memories'"},
    {"base outside of the memory", LIBRARY, spelled, "{'slot_stride_bytes'",
     "{'base_offset_bytes': 65536, 'slot_stride_bytes'", KVF_ERR_LAYOUT,
     RANK0 "k layer 0: ends at 128000, memory has 65536", "{'memories'"},
    {"entries that do not divide", LIBRARY, spelled, "'entries': 16", "'entries': 15", KVF_ERR_LAYOUT,
     RANK0 "view 0 (k): 16 tokens per block do not divide by 1 slots of 15 entries",
     "{'memories'"},
    {"offset steps below 0", LIBRARY, spelled, "'offset_step_bytes': 1024", "'offset_step_bytes': -4096", KVF_ERR_PARSE,
     RANKS1 ".places[0]: the last offset is -2048 bytes, expected at least 0", "{'first'"},
    {"pool steps past the end", LIBRARY, spelled, "'count': 2, 'offset", "'count': 2, 'pool_step': 1, 'offset",
     KVF_ERR_PARSE, RANKS1 ".places[0].pool_step: expected an integer from 0 to 0, found 1", "1,"},

    /* sums beyond 64 bits */
    {"last layer", LIBRARY, spelled, "'count': 2, 'offset", "'count': 3, 'layer_step': 9223372036854775807, 'offset",
     KVF_ERR_OVERFLOW, RANKS1 ".places[0]: the last layer does not fit in 64 bits", "{'first'"},
    {"last offset", LIBRARY, spelled, "'offset_step_bytes': 1024", "'offset_step_bytes': 9223372036854775807",
     KVF_ERR_OVERFLOW, RANKS1 ".places[0]: the last offset does not fit in 64 bits", "{'first'"},
    {"slots times stride", LIBRARY, rules, "8}", "9223372036854775807}", KVF_ERR_OVERFLOW,
     RANK0 "pool 0: 9223372036854775807 slots of 24576 bytes do not fit in 64 bits", "{'pools'"},
    {"rows times tokens", LIBRARY, rules, "128", "4611686018427387904", KVF_ERR_OVERFLOW,
     RANK0 "views[0]: its sizes do not fit in 64 bits", "{'pools'"},
    {"tokens in a block", LIBRARY, rules, "16}", "9223372036854775807}", KVF_ERR_OVERFLOW,
     RANK0 "views[0]: its sizes do not fit in 64 bits", "{'pools'"},
    {"padding", LIBRARY, rules, "8}", "8, 'slot_padding_bytes': 9223372036854775807}", KVF_ERR_OVERFLOW,
     RANK0 "pools[0]: its sizes do not fit in 64 bits", "{'pools'"},
    {"offset of a layer", LIBRARY, rules, "'layers'", "'offset_bytes': 9, 'offset_step_bytes': 9223372036854775807, "
     "'layers'", KVF_ERR_OVERFLOW, RANK0 "views[0]: its sizes do not fit in 64 bits", "{'pools'"},
    {"base offset", LIBRARY, spelled, "{'slot_stride_bytes'", "{'base_offset_bytes': 9223372036854775807, "
     "'slot_stride_bytes'", KVF_ERR_OVERFLOW, RANK0 "k layer 0: ends beyond 2^62 bytes", "{'memories'"},
};

#define ROWS (sizeof rows / sizeof rows[0])

static void to_double_quotes(char *text)
{
    for (; *text; text++) {
        if (*text == '\'') *text = '"';
    }
}

static char *text_of_row(const struct row *row)
{
    char *text = text_replace(row->base, row->find, row->replace);

    to_double_quotes(text);
    return text;
}

/* Expected texts are written with ' for "; both stand for either, because a parser quotes with ' too. */
static bool same_text(const char *expected, const char *found)
{
    for (; *expected && *found; expected++, found++) {
        bool quotes = strchr("'\"", *expected) && strchr("'\"", *found);

        if (*expected != *found && !quotes) break;
    }
    return (*expected == '\0' && *found == '\0') ;
}

static void test_row(void **state)
{
    const struct row *row = *state;
    struct kvf_error error = {.status = -1};
    kvf_instance *instance = (kvf_instance *)&error;
    char *text = text_of_row(row), *exact = malloc(strlen(text) + 1);
    enum kvf_status status;

    assert_non_null(exact);
    memcpy(exact, text, strlen(text)); /* no zero behind it */
    status = kvf_instance_parse(exact, strlen(text), &instance, &error);
    if (status != row->status || (row->text && !same_text(row->text, error.text))) {
        fail_msg("status %d, \"%s\"\nexpected %d, \"%s\"", status, error.text, row->status, row->text ? row->text : "");
    }
    assert_int_equal(error.status, row->status);
    assert_null(strchr(error.text, '\n'));
    assert_ptr_equal(instance, &error); /* not written */
    if (row->at) {
        char at[64];

        snprintf(at, sizeof at, "%s", row->at);
        to_double_quotes(at);
        assert_in_range(error.position, 0, strlen(text));
        if (strncmp(text + error.position, at, strlen(at)) != 0) {
            fail_msg("position %d is at \"%.20s\"", (int)error.position, text + error.position);
        }
    } else if (row->text && row->seen == LIBRARY) {
        assert_int_equal(error.position, -1);
    }
    free(exact);
    free(text);
}

/* The bases themselves are fine: else the rows would prove nothing. */
static void test_bases(void **state)
{
    const char *bases[] = {rules, spelled};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        char *text = text_replace(bases[i], "'", "\"");
        kvf_instance *instance;
        struct kvf_error error;

        to_double_quotes(text);
        if (kvf_instance_parse(text, strlen(text), &instance, &error) != KVF_OK) fail_msg("%s", error.text);
        kvf_instance_destroy(instance);
        free(text);
    }
}

static void expect_limit(char *text, size_t bytes, const char *expected)
{
    kvf_instance *instance;
    struct kvf_error error;

    assert_int_equal(kvf_instance_parse(text, bytes, &instance, &error), KVF_ERR_LIMIT);
    assert_string_equal(error.text, expected);
    free(text);
}

static void test_bombs(void **state)
{
    (void)state;
    expect_limit(text_repeat("x", (size_t)100 << 20), (size_t)100 << 20,
                 "layout file: 104857600 bytes, at most 67108864 are read");
    expect_limit(text_repeat("[", 100000), 100000, "layout file: more than 32 levels of nesting at byte 32");
    expect_limit(text_repeat("{\"a\":", 100000), 500000, "layout file: more than 32 levels of nesting at byte 160");
    expect_limit(text_repeat("{},", 4000000), 12000000, "layout file: more than 1310720 values at byte 3932160");
    expect_limit(text_repeat("1,", 10000000), 20000000, "layout file: more than 6291456 values at byte 12582913");
}

/* What a template lists once, every rank gets: a small file must not become large memory. */
static void test_many_ranks(void **state)
{
    static const char frame[] = "{\"version\": 1, \"model\": {\"name\": \"m\"}, \"grid\": {\"tp\": 4096}, \"layout\": {"
        "\"groups\": [%.*s{\"tokens_per_block\": 16}], \"views\": [{\"role\": \"k\", \"tag\": \"f16\", "
        "\"row_bytes\": 2, \"units\": {\"total\": 1}, \"order\": \"heads_first\", \"layers\": {\"count\": 1}}], "
        "\"pools\": [%.*s{\"slots\": 1, \"slot_stride_bytes\": 32}]}}";
    static const char pool[] = "{\"slots\": 1, \"slot_stride_bytes\": 32},", group[] = "{\"tokens_per_block\": 1},";
    static const struct { const char *name; size_t pools, groups; const char *text; } rows[] = {
        {"plain", 0, 0, NULL},
        {"pools", 20000, 0, "rank pp 0 cp 0 tp 52: too many pools, memories and groups in all ranks, at most 1048576"},
        {"groups", 0, 1000,
         "rank pp 0 cp 0 tp 1046: too many pools, memories and groups in all ranks, at most 1048576"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char *pools = text_repeat(pool, rows[i].pools), *groups = text_repeat(group, rows[i].groups);
        size_t bytes = sizeof frame + rows[i].pools * strlen(pool) + rows[i].groups * strlen(group);
        char *text = malloc(bytes);
        struct kvf_error error = {.text = ""};
        kvf_instance *instance = NULL;

        assert_non_null(text);
        snprintf(text, bytes, frame, (int)(rows[i].groups * strlen(group)), groups,
                 (int)(rows[i].pools * strlen(pool)), pools);
        assert_int_equal(kvf_instance_parse(text, strlen(text), &instance, &error),
                         rows[i].text ? KVF_ERR_LIMIT : KVF_OK);
        if (rows[i].text && strcmp(error.text, rows[i].text) != 0) fail_msg("%s: \"%s\"", rows[i].name, error.text);
        kvf_instance_destroy(instance);
        free(text);
        free(groups);
        free(pools);
    }
}

/* A layout whose rows all lie apart takes a while to check: 4,096 such ranks are not begun with. */
static void test_many_runs(void **state)
{
    static const char text[] =
        "{\"version\": 1, \"model\": {\"name\": \"m\"}, \"grid\": {\"tp\": 4096}, \"layout\": {\"groups\": "
        "[{\"tokens_per_block\": 16384}], \"pools\": [{\"slots\": 2}], \"views\": [{\"role\": \"k\", \"tag\": \"u8\", "
        "\"row_bytes\": 1, \"units\": {\"total\": 64}, \"unit_stride_bytes\": 65536, \"entry_stride_bytes\": 4, "
        "\"layers\": [0, 1]}]}}";
    struct kvf_error error = {.text = ""};
    kvf_instance *instance = NULL;

    (void)state;
    assert_int_equal(kvf_instance_parse(text, strlen(text), &instance, &error), KVF_ERR_LIMIT);
    assert_string_equal(error.text,
                        "rank pp 0 cp 0 tp 5: too many separate runs in the slots of all ranks, at most 8388608");
    assert_null(instance);
}

/* A file that was cut anywhere is refused, and nothing behind its end is read. No error struct is fine as well. */
static void test_cuts(void **state)
{
    char *text = text_replace(spelled, "'", "\"");

    (void)state;
    to_double_quotes(text);
    for (size_t cut = 0; cut < strlen(text); cut += 3) {
        char *part = malloc(cut ? cut : 1);
        kvf_instance *instance;

        assert_non_null(part);
        memcpy(part, text, cut);
        assert_int_equal(kvf_instance_parse(part, cut, &instance, NULL), KVF_ERR_PARSE);
        free(part);
    }
    free(text);
}

static void print_string(const char *text)
{
    putchar('"');
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') putchar('\\');
        if (*text == '\n') printf("\\n");
        else putchar(*text);
    }
    putchar('"');
}

static void print_rows(void)
{
    for (size_t i = 0; i < ROWS; i++) {
        char *text = text_of_row(&rows[i]);

        if (rows[i].seen != NO_JSON) {
            printf("{\"schema_sees\": %s, \"name\": ", rows[i].seen == SCHEMA ? "true" : "false");
            print_string(rows[i].name);
            printf(", \"text\": ");
            print_string(text);
            printf("}\n");
        }
        free(text);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest others[] = {cmocka_unit_test(test_bases), cmocka_unit_test(test_bombs),
                                        cmocka_unit_test(test_many_ranks), cmocka_unit_test(test_many_runs),
                                        cmocka_unit_test(test_cuts)};
    struct CMUnitTest tests[ROWS];
    int failed = 0;

    if (argc > 1 && strcmp(argv[1], "--print") == 0) {
        print_rows();
        goto done;
    }
    for (size_t i = 0; i < ROWS; i++) {
        tests[i] = (struct CMUnitTest){rows[i].name, test_row, NULL, NULL, (void *)&rows[i]};
    }
    failed = cmocka_run_group_tests_name("refused", tests, NULL, NULL);
    failed += cmocka_run_group_tests_name("hostile", others, NULL, NULL);
done:
    return failed;
}
