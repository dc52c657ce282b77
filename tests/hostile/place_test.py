#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What is wrong around a worker: its directory, its ports, its memory, its descriptors, instances that are not there.

    place_test.py DIRECTORY_HOST WORKER
"""
import http.server
import json
import os
import resource
import socket
import sys
import threading
import unittest
import urllib.parse

import peer
from peer import TOKENS, Directory, Peer, Worker


class Liar:
    """A directory that hands on to a true one, except where it is asked for an instance that it lies about."""

    def __init__(self, true_url):
        liar = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self, body):
                name = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query).get("instance", [""])[0]
                self.name = name
                lie = liar.lies.get(name) or (liar.always if self.path != "/v1/query" else None)
                try:
                    if lie:
                        lie(self)
                    else:
                        self.reply(200, *liar.ask(self.path, body))
                except OSError:
                    pass  # who asked has given up

            def do_GET(self):
                self.answer(None)

            def do_POST(self):
                self.answer(self.rfile.read(int(self.headers["content-length"])))

            def reply(self, code, body, length=None):
                self.send_response(code)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body) if length is None else length))
                self.end_headers()
                self.wfile.write(body)
                self.close_connection = length is not None

            def log_message(self, *_):
                pass

        self.true_url, self.lies, self.always, self.over = true_url, {}, None, threading.Event()
        http.server.ThreadingHTTPServer.request_queue_size = 128
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = "http://127.0.0.1:%d" % self.server.server_port
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def ask(self, path, body):
        answer = peer.http(self.true_url + path, None if body is None else json.loads(body))
        return (json.dumps(answer).encode(),)

    def close(self):
        self.over.set()
        self.server.shutdown()
        self.server.server_close()


class PlaceCase(peer.Case):
    def worker(self, name, directory=None, **options):
        worker = Worker(self.worker_program, name, directory or self.scene.directory.url,
                        **{**self.scene.options, **options})
        self.addCleanup(worker.close)
        return worker

    def assert_pull(self, worker, source, transfer="t"):
        """A good pull by another worker than d."""
        self.assertEqual(self.p.ask("offer %s 0 %d %d 60000" % (transfer, TOKENS, TOKENS)), "ok")
        self.assertEqual(worker.ask("pull %s %s 0 %d 30000" % (source, transfer, TOKENS)), "ok")
        worker.event("pull-done", transfer)
        worker.event("reusable", transfer)
        self.assertEqual(worker.ask("check 0 %d" % TOKENS), "right")
        worker.ask("guard")


class Directories(PlaceCase):
    def test_a_directory_that_lies(self):
        liar = Liar(self.scene.directory.url)
        self.addCleanup(liar.close)
        worker = self.worker("e", liar.url, order="tokens", directory_ms=1200, incomplete_ms=300)
        self.assertEqual(worker.up, "ok")
        true = json.loads(liar.ask("/v1/query?instance=p", None)[0])

        def changed(**changes):
            return lambda h: h.reply(200, json.dumps({**true, "instance": h.name, **changes}).encode())

        def rank(**changes):
            return changed(ranks=[{**true["ranks"][0], **changes}])

        rows = [
            ("garbage", lambda h: h.reply(200, bytes(range(256))), "DIRECTORY", "answer makes no sense: "),
            ("nothing", lambda h: h.reply(200, b""), "DIRECTORY", "answer makes no sense: "),
            ("html", lambda h: h.reply(200, b"<html>welcome</html>"), "DIRECTORY", "answer makes no sense: "),
            ("an array", lambda h: h.reply(200, b"[]"), "DIRECTORY", "expected an object"),
            ("half of json", lambda h: h.reply(200, json.dumps(true).encode()[:90]), "DIRECTORY",
             "answer makes no sense: "),
            ("a depth bomb", lambda h: h.reply(200, b"[" * 100000), "DIRECTORY", "answer makes no sense: "),
            ("error 500", lambda h: h.reply(500, b'{"error": "out of order"}'), "DIRECTORY", "500"),
            ("error 400", lambda h: h.reply(400, b'{"error": "I do not like it"}'), "DIRECTORY", "400"),
            ("no answer", lambda h: liar.over.wait(peer.DEADLINE), "DIRECTORY", liar.url),
            ("half a body", lambda h: h.reply(200, b"{" * 50, 1000), "DIRECTORY", liar.url),
            ("a body of 1 TiB", lambda h: h.reply(200, b" " * 1000, 1 << 40), "DIRECTORY", liar.url),
            ("a body without end", self.endless, "DIRECTORY", liar.url),
            ("expected as a text", changed(expected="1"), "DIRECTORY",
             'expected an integer from 1 to 65536, found "1"'),
            ("expected of 2^62", changed(expected=1 << 62), "DIRECTORY", "from 1 to 65536, found 4611686018427387904"),
            ("a rank twice", changed(ranks=true["ranks"] * 2), "DIRECTORY", "rank is out of order or comes twice"),
            ("no endpoint", rank(endpoints={}), "DIRECTORY", "channel"),
            ("holdings that are none", rank(holdings=[{"role": "k"}]), "DIRECTORY", "holdings[0]"),
            ("an endpoint that is none", rank(endpoints={"channel": "carrier pigeon"}), "INVALID_ARGUMENT",
             "carrier pigeon"),
            ("another instance", changed(instance="other"), "DIRECTORY",
             'answers for instance "other", asked for "q'),
            ("one of six", changed(expected=6, registered=1, complete=False), "INCOMPLETE",
             "is not complete: 1 of 6 ranks registered"),
            ("one of six, said to be complete", changed(expected=6, registered=6, complete=True), "INCOMPLETE",
             "is not complete: 1 of 6 ranks registered"),
            ("unknown", lambda h: h.reply(404, b'{"error": "no such instance"}'), "NOT_FOUND",
             "is not known to the directory at " + liar.url),
        ]
        for number, (_, lie, _, _) in enumerate(rows):  # all at once: most are asked again until their deadline
            instance = "q%d" % number
            liar.lies[instance] = lie
            self.assertEqual(worker.ask("pull %s %s 1 %d 20000" % (instance, instance, TOKENS)), "ok")
        for number, (name, _, status, text) in enumerate(rows):
            with self.subTest(name):
                self.assert_ends(worker, "q%d" % number, "pull-failed", "KVF_ERR_" + status, text)
        self.assertEqual(worker.ask("untouched"), "untouched")
        self.assert_pull(worker, "p")

    @staticmethod
    def endless(handler):
        handler.send_response(200)
        handler.end_headers()
        while True:
            handler.wfile.write(b" " * 65536)

    def test_announcing(self):
        """The directory is down, then lies, then is there."""
        place = socket.create_server(("127.0.0.1", 0))
        port = place.getsockname()[1]
        place.close()
        worker = self.worker("e", "http://127.0.0.1:%d" % port, order="tokens", quiet=1, directory_ms=400)
        self.assertIn("http://127.0.0.1:%d/v1/register: " % port, got := worker.ask("announce"))
        self.assertRegex(got, "connect|refused")
        directory = Directory(self.directory_program, "127.0.0.1:%d" % port)
        self.addCleanup(directory.close)
        self.assertEqual(worker.ask("announce"), "ok")
        self.assertIn("announced already", worker.ask("announce"))
        for name, lie, text in (
                ("garbage", lambda h: h.reply(200, b"\0\1\2"), "answer makes no sense"),
                ("error 503", lambda h: h.reply(503, b'{"error": "directory is full"}'), "directory is full"),
                ("conflict", lambda h: h.reply(409, b'{"error": "instance \\"f\\" has 2 ranks, this expects 1"}'),
                 'instance "f" has 2 ranks, this expects 1'),
                ("silence", lambda h: liar.over.wait(peer.DEADLINE), "/v1/register")):
            with self.subTest(name):
                liar = Liar(directory.url)
                liar.always = lie
                other = self.worker("f", liar.url, quiet=1, directory_ms=400)
                self.assertIn(text, other.ask("announce"))
                liar.close()

    def test_a_directory_that_restarts(self):
        """Transfers go on without it; when it is back, both are there again."""
        directory = Directory(self.directory_program, lease_ms=1000)
        port = directory.url.rsplit(":", 1)[1]
        p = Worker(self.worker_program, "p", directory.url, order="heads", transports="tcp")
        d = self.worker("d", directory.url, order="tokens", directory_ms=500)
        self.addCleanup(p.close)

        def good(transfer, worker):
            self.assertEqual(p.ask("offer %s 0 %d %d 60000" % (transfer, TOKENS, TOKENS)), "ok")
            self.assertEqual(worker.ask("pull p %s 0 %d 30000" % (transfer, TOKENS)), "ok")
            got = worker.out.lines[worker.out.wait(r"^event pull-\w+ \S+ %s " % transfer)]
            self.assertIn(" pull-done ", got)
            worker.event("reusable", transfer)
            self.assertEqual(worker.ask("check 0 %d" % TOKENS), "right")
            worker.ask("guard")
        good("before", d)
        directory.close()
        good("without", d)
        directory = Directory(self.directory_program, "127.0.0.1:" + port, lease_ms=1000)
        self.addCleanup(directory.close)
        peer.until(lambda: {i["instance"] for i in directory.ask("/v1/list")["instances"] if i["complete"]} ==
                   {"p", "d"}, "both register anew")
        good("after", d)
        good("newcomer", self.worker("e", directory.url, order="tokens"))


class Places(PlaceCase):
    def test_a_port_in_use(self):
        place = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(place.close)
        address = "127.0.0.1:%d" % place.getsockname()[1]
        worker = self.worker("e", "-", listen=address)
        self.assertEqual(worker.up, "directory: address %s is in use" % address)
        listing = Directory(self.directory_program, address)
        self.assertEqual(listing.url, "KVF_ERR_ADDRESS_IN_USE directory: address %s is in use" % address)
        listing.close()

    def test_addresses_that_are_none(self):
        rows = [
            ("not of this machine", {"host": "203.0.113.7"}, "tcp://203.0.113.7:"),
            ("no address", {"host": "no such host"}, "no such host"),
            ("directory listens nowhere", {"listen": "127.0.0.1"}, 'address "127.0.0.1" is not HOST:PORT'),
            ("transport nobody knows", {"transports": "pigeon"}, 'names "pigeon", known are shm, tcp, loop'),
        ]
        for name, options, text in rows:
            with self.subTest(name):
                self.assertIn(text, self.worker("e", "-", **options).up)

    def test_instances_that_are_not_there(self):
        worker = self.worker("e", order="tokens", incomplete_ms=300)
        for tp in range(3):
            six = Peer(self.scene, "six", "p", rank={"dp": 0, "pp": 0, "cp": 0, "tp": tp, "salt": 0}, ranks_expected=6)
            self.addCleanup(six.close)
        rows = [
            ("nobody", "KVF_ERR_NOT_FOUND", 'instance "nobody" is not known to the directory at ' +
             self.scene.directory.url),
            ("six", "KVF_ERR_INCOMPLETE", 'instance "six" is not complete: 3 of 6 ranks registered'),
        ]
        for name, status, text in rows:
            with self.subTest(name):
                self.assertEqual(worker.ask("pull %s %s 1 %d 20000" % (name, name, TOKENS)), "ok")
                self.assert_ends(worker, name, "pull-failed", status, text)

    def test_transfers_that_cannot_be(self):
        self.scene.pull("p", "never", timeout_ms=500)
        self.assert_ends(self.d, "never", "pull-failed", "KVF_ERR_EXPIRED",
                         'transfer "never" attempt 0 was never offered at p/pp0.cp0.tp0')
        self.assertEqual(self.p.ask("offer idle 1 %d %d 300" % (TOKENS, TOKENS)), "ok")
        self.assert_ends(self.p, "idle", "offer-failed", "KVF_ERR_EXPIRED", 'transfer "idle" attempt 0 expired')
        self.scene.pull("p", "idle", timeout_ms=5000)
        self.assert_ends(self.d, "idle", "pull-failed", "KVF_ERR_EXPIRED", 'transfer "idle" attempt 0 ')
        for ids, text in (("1,2,3", "group 0 has 3 ids from block 0 on, 7 blocks of 16 tokens"),
                          ("1,2,3,4,5,6,1", "group 0: block id 1 is there twice"),
                          ("1,2,3,4,5,6,99", "group 0: block id 99 at index 6, expected -1 to 63")):
            with self.subTest(ids):
                self.assertIn(text.split(" has ")[0], got := self.d.ask("ids p bad %d %s" % (TOKENS, ids)))
                self.assertIn(text.rsplit(", ", 1)[-1], got)
        self.assertEqual(self.d.ask("untouched"), "untouched")

    def test_a_source_that_was_restarted(self):
        """Killed without a word; the next of its name comes in another shape."""
        d = self.worker("e", order="tokens")
        for round_, order in enumerate(("heads", "tokens")):
            source = Worker(self.worker_program, "k", self.scene.directory.url, order=order, transports="tcp")
            self.assertEqual(source.up, "ok")
            transfer = "r%d" % round_
            self.assertEqual(source.ask("offer %s 0 %d %d 60000" % (transfer, TOKENS, TOKENS)), "ok")
            self.assertEqual(d.ask("pull k %s 0 %d 30000" % (transfer, TOKENS)), "ok")
            self.assertIn(" pull-done ", d.out.lines[d.out.wait(r"^event pull-\w+ \S+ %s " % transfer)])
            d.event("reusable", transfer)
            self.assertEqual(d.ask("check 0 %d" % TOKENS), "right")
            d.ask("guard")
            if round_ == 0:
                self.assertEqual(d.ask("pull k cut 1 %d 30000" % TOKENS), "ok")
                source.kill()
                self.assert_ends(d, "cut", "pull-failed", "KVF_ERR_PEER_LOST", "k/pp0.cp0.tp0 is lost: nothing heard")
            else:
                source.close()

    def test_memory_that_is_not_to_be_had(self):
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        rows = [(2**62, "NO_MEMORY", "memory of 4611686018427387904 bytes: "),
                (2**63 - 1, "NO_MEMORY", "memory of 9223372036854775807 bytes: "),
                (2 * total, "NO_MEMORY", "memory of %d bytes: only " % (2 * total)),
                (0, "INVALID_ARGUMENT", "memory of 0 bytes"), (-5, "INVALID_ARGUMENT", "memory of -5 bytes")]
        for size, status, text in rows:
            with self.subTest(size):
                self.assertIn("KVF_ERR_%s %s" % (status, text), self.d.ask("memory %d" % size))

    def test_memory_that_a_limit_forbids(self):
        with open("/proc/%d/statm" % self.d.process.pid, encoding="ascii") as statm:
            used = int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        if used > 1 << 40:
            self.skipTest("a sanitizer has taken the address space")
        before = resource.prlimit(self.d.process.pid, resource.RLIMIT_AS)
        resource.prlimit(self.d.process.pid, resource.RLIMIT_AS, (used + (16 << 20), before[1]))
        got = self.d.ask("memory %d" % (64 << 20))
        resource.prlimit(self.d.process.pid, resource.RLIMIT_AS, before)
        self.assertEqual(got, "KVF_ERR_NO_MEMORY memory of 67108864 bytes: mmap: Cannot allocate memory")

    def test_descriptors_run_out(self):
        """While there are none left nobody new gets in; those who are in go on; then all is well again."""
        before = resource.prlimit(self.p.process.pid, resource.RLIMIT_NOFILE)
        host, port = self.scene.channel("p")[6:].rsplit(":", 1)
        resource.prlimit(self.p.process.pid, resource.RLIMIT_NOFILE, (self.p.count()[0] + 3, before[1]))
        held = [socket.create_connection((host, int(port)), timeout=peer.DEADLINE) for _ in range(30)]
        self.scene.good()
        resource.prlimit(self.p.process.pid, resource.RLIMIT_NOFILE, before)
        for stream in held:
            stream.close()


if __name__ == "__main__":
    peer.Case.directory_program, peer.Case.worker_program = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
