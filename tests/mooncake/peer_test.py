#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The Python peer against itself, so that a failure elsewhere is the other side's."""
import json
import unittest

from kit import Case, PEER_HOST, golden
from matrix import Matrix
import peer


class PeerToPeer(Matrix, Case):
    initiator_command = target_command = PEER_HOST
    calls_after_restart = 5  # this initiator does not resend what a dead lane lost
    many, largest = 2000, 1 << 22

    test_restart_on_another_data_port = None  # nor does it look for the new port


class PeerToPeerOnce(PeerToPeer):
    """An initiator as before 0.3.13: a connection for each request."""
    initiator_options = {"once": True}
    many = 500


class Golden(unittest.TestCase):
    """Its frames are those of the files that kvferry's are compared with."""

    def test_handshakes(self):
        rows = {"probe_request": (peer.PROBE, "{}\n"), "probe_reply": (peer.PROBE, '{"status":"success"}\n'),
                "metadata_request": (peer.METADATA, "{}\n"),
                "notify_request": (peer.NOTIFY, peer.dump({"name": "agentA", "notify_msg": "kv-42 done"})),
                "notify_reply": (peer.NOTIFY, peer.dump({"name": "", "notify_msg": "success"})),
                "notify_rejected": (peer.NOTIFY, peer.dump({"name": "", "notify_msg": ""}))}
        for name, (kind, text) in rows.items():
            with self.subTest(name):
                self.assertEqual(peer.frame(kind, text), golden(name))
        reply = golden("metadata_reply")
        self.assertEqual(peer.frame(peer.METADATA, peer.dump(json.loads(reply[9:]))), reply)

    def test_data(self):
        for version, bit in ((1, 0), (2, peer.V2)):
            for name, opcode in (("read", peer.READ), ("write", peer.WRITE)):
                with self.subTest(name, version=version):
                    self.assertEqual(peer.HEADER.pack(65536, 0x7f1234560000, opcode | bit, bytes(7)),
                                     golden(f"{name}_{version}"))
        for name, word in (("status_accepted", peer.OK), ("status_rejected", peer.REFUSED)):
            self.assertEqual(word.to_bytes(8, "little"), golden(name))


if __name__ == "__main__":
    unittest.main()
