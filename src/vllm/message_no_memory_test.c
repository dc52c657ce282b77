/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation of reading and writing messages refused in turn: a status, outputs unwritten, nothing lost. The
 * argument is the folder of golden files. */
#include <stdlib.h>

#include "base/no_memory_kit.h"
#include "vllm/message_kit.h"

static const char *folder;

static enum kvf_status pull_again(const struct message_bytes *bytes, struct kvf_error *error)
{
    struct kvfi_vllm_pull pull = {0};
    struct kvfi_vllm_asker asker = {0};
    unsigned char *out = NULL;
    size_t count = 0;
    enum kvf_status status = kvfi_vllm_pull_decode(bytes->data, bytes->count, &pull, error);

    assert_true((status == KVF_OK) == (pull.memory != NULL));
    if (status == KVF_OK) status = kvfi_vllm_asker_init(&asker, &pull.peer, error);
    if (status == KVF_OK)
        status = kvfi_vllm_pull_encode(&asker, pull.requests, pull.request_count, true, &out, &count, error);
    assert_true((status == KVF_OK) == (out != NULL));
    free(out);
    kvfi_vllm_asker_fini(&asker);
    kvfi_vllm_pull_fini(&pull);
    return status;
}

static enum kvf_status reply_again(const struct message_bytes *bytes, struct kvf_error *error)
{
    struct kvfi_vllm_reply reply = {0};
    unsigned char *out = NULL;
    size_t count = 0;
    enum kvf_status status = kvfi_vllm_reply_decode(bytes->data, bytes->count, true, &reply, error);

    assert_true((status == KVF_OK) == (reply.memory != NULL));
    if (status == KVF_OK) status = kvfi_vllm_reply_encode(&reply, &out, &count, error);
    assert_true((status == KVF_OK) == (out != NULL));
    free(out);
    kvfi_vllm_reply_fini(&reply);
    return status;
}

static void refuses_every_allocation(void **state)
{
    struct message_bytes pull, reply;

    (void)state;
    /* Two requests of the same id: the place where they are told apart allocates too. */
    message_make_pull(&pull, "req_blocks", "aa 7265715f626c6f636b73 83 a161 92a17490 a162 92a17590 a161 92a176919103",
                      1);
    /* The layout as it would be sent: arrays of one length. */
    message_add_hex(&pull, "b6 726567697374657265645f6c617965725f6e616d6573 91a178");
    message_add_hex(&pull, "b8 726567697374657265645f6c617965725f696e6469636573 9100");
    pull.data[0] += 2;
    message_load(folder, "reply_continue", &reply);
    for (long allowed = 0;; allowed++) {
        struct kvf_error error = {0};
        enum kvf_status status;

        no_memory_once(allowed);
        status = pull_again(&pull, &error);
        if (status == KVF_OK) status = reply_again(&reply, &error);
        if (!no_memory_end()) {
            assert_int_equal(status, KVF_OK);
            assert_int_equal(allowed, 7);
            return;
        }
        assert_int_equal(status, KVF_ERR_NO_MEMORY);
        assert_true(error.text[0] != '\0');
    }
}

int main(int count, char **arguments)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(refuses_every_allocation)};

    if (count != 2) return 2;
    folder = arguments[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
