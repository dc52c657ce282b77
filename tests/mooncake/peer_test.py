#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The Python peer against itself, so that a failure elsewhere is the other side's."""
import unittest

from kit import Case, PEER_HOST
from matrix import Matrix


class PeerToPeer(Matrix, Case):
    initiator_command = target_command = PEER_HOST
    calls_after_restart = 5  # this initiator does not resend what a dead lane lost
    many, largest = 2000, 1 << 22

    test_restart_on_another_data_port = None  # nor does it look for the new port


class PeerToPeerOnce(PeerToPeer):
    """An initiator as before 0.3.13: a connection for each request."""
    initiator_options = {"once": True}
    many = 500


if __name__ == "__main__":
    unittest.main()
