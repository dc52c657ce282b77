#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""kvferry beside the Python peer, in either role, and beside itself: what every pair of engines must do."""
import unittest

from kit import Case, KVFERRY_HOST, PEER_HOST
from matrix import Matrix


class KvferryToPeer(Matrix, Case):
    initiator_command, target_command = [KVFERRY_HOST], PEER_HOST


class KvferryToOldPeer(KvferryToPeer):
    """A target as before 0.3.10: a connection for each request."""
    target_options = {"once": True}
    many, largest = 1000, 1 << 20


class KvferryToPeerVersion1(KvferryToPeer):
    initiator_options = {"v1": True}
    many, largest = 1000, 1 << 20


class KvferryByBatchesToPeer(KvferryToPeer):
    initiator_options = {"batches": True}


class KvferryByBatchesToPeerVersion1(KvferryToPeerVersion1):
    initiator_options = {"v1": True, "batches": True}


class PeerToKvferry(Matrix, Case):
    initiator_command, target_command = PEER_HOST, [KVFERRY_HOST]
    calls_after_restart = 5  # this initiator does not resend what a dead lane lost
    many = 2048

    test_restart_on_another_data_port = None  # nor does it look for the new port


class OldPeerToKvferry(PeerToKvferry):
    """An initiator as before 0.3.13: a connection for each request."""
    initiator_options = {"once": True}
    largest = 1 << 20


class PeerToKvferryVersion1(PeerToKvferry):
    """Nothing says when a write has arrived, nor that it was refused: the reads tell."""
    initiator_options = {"v1": True}
    largest = 1 << 20

    test_sizes = test_many_ranges = test_several_buffers = test_registered_anew = test_at_the_same_time = None
    test_refused_ranges = test_one_bad_range_of_many = test_restart_on_the_same_ports = None


class KvferryToKvferry(Matrix, Case):
    initiator_command = target_command = [KVFERRY_HOST]


if __name__ == "__main__":
    unittest.main()
