#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The directory's bootstrap endpoints beside a stock registry of vLLM's Mooncake connector.

    bootstrap_test.py DIRECTORY_HOST ROWS        compares the directory with what a stock registry (0.32.0) answered
    bootstrap_test.py --observe PORT ROWS        asks the stock registry at that port of 127.0.0.1, and writes ROWS

ROWS is bootstrap_rows.json. Where the directory answers otherwise on purpose, DIFFERS says how and why.
"""
import concurrent.futures
import json
import socket
import subprocess
import sys
import time
import unittest
import urllib.parse

import bootstrap_cases

HEADERS = ("content-type", "allow", "location", "connection")
WAIT_S = 20
BAD_BODY = {"status": 422}
WIDE = "ranks have 64 bits"
DIFFERS = {
    "GET /query/?a=b": ({"status": 307, "location": "http://h/query"}, "a query string says nothing, and is not kept"),
    "HEAD /query/?a=b": ({"status": 307, "location": "http://h/query"}, "likewise"),
    "no HTTP": ({"status": None}, "the connection is closed"),
    "no version of HTTP": ({"status": 505}, "the text is the HTTP library's"),
    "no length": ({"status": 400}, "likewise"),
    "byte order mark": (BAD_BODY, "RFC 8259 forbids it"),
    "pp_rank 9223372036854775808": (BAD_BODY, WIDE),
    "pp_rank '9223372036854775808'": (BAD_BODY, WIDE),
    "pp_rank '\\xa01'": (BAD_BODY, "spaces are ASCII's"),
    "pp_rank spelled NaN": (BAD_BODY, "the stock registry breaks down over it: 500"),
    "engine_id of a zero": (BAD_BODY, "texts hold no zero"),
    "addr of a zero": (BAD_BODY, "texts hold no zero"),
    "engine_id of 5000 bytes": (BAD_BODY, "texts have at most 4096 bytes"),
    "addr of 5000 bytes": (BAD_BODY, "texts have at most 4096 bytes"),
    "half a character": (BAD_BODY, "the stock registry takes it, and answers 500 to every query from then on"),
    "query at the end": ({"status": 200, "content-type": "application/json"}, "see above"),
}


def read_head(peer):
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = peer.recv(1)
        if not byte:
            return None, {}
        head += byte
    lines = head.decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) if ": " in line else (line, "") for line in lines[1:] if line)
    return int(lines[0].split(" ")[1]), headers


def ask(port, method, request):
    """One request on a connection of its own, as a row of the table."""
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as peer:
        try:
            peer.sendall(request)
        except ConnectionError:
            pass
        status, headers = read_head(peer)
        row = {"continued": True} if status == 100 else {}
        if status == 100:
            status, headers = read_head(peer)
        row["status"] = status
        row.update((name, headers[name]) for name in HEADERS if name in headers)
        body = b""
        if method != "HEAD":
            while len(body) < int(headers.get("content-length", 0)):
                body += peer.recv(65536)
        if status != 422:
            row["body"] = body.decode("latin-1")
        if headers.get("connection") == "close":
            row["closed"] = peer.recv(1) == b""
    return row


def observe(port):
    return {name: ask(port, method, request) for name, method, request in bootstrap_cases.cases()}


class Host:
    def __init__(self, listen="127.0.0.1:0", flags=1, most=100000):
        self.process = subprocess.Popen([DIRECTORY_HOST, listen, "10000", str(most), str(flags)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.url = self.process.stdout.readline().strip()
        self.port = int(self.url.rsplit(":", 1)[1]) if self.url.startswith("http") else None

    def close(self):
        self.process.stdin.close()
        self.process.wait(WAIT_S)
        self.process.stdout.close()

    def register(self, **changes):
        row = ask(self.port, "POST", bootstrap_cases.post(bootstrap_cases.worker(**changes)))
        return row["status"], row.get("body")

    def query(self):
        return json.loads(ask(self.port, "GET", bootstrap_cases.get())["body"])


OK = (200, '{"status":"ok"}')


class Bootstrap(unittest.TestCase):
    def start(self, **options):
        host = Host(**options)
        self.addCleanup(host.close)
        return host

    def test_it_answers_as_a_stock_registry_does(self):
        with open(ROWS, encoding="utf-8") as file:
            rows = json.load(file)
        port = self.start().port
        names = set()
        for name, method, request in bootstrap_cases.cases():
            names.add(name)
            with self.subTest(name):
                row = ask(port, method, request)
                if "location" in row:
                    row["location"] = urllib.parse.urljoin("http://h/", row["location"])
                if name not in DIFFERS:
                    self.assertEqual(row, rows[name])
                    continue
                expected, _ = DIFFERS[name]
                self.assertEqual({key: row.get(key) for key in expected}, expected)
                self.assertNotEqual(row, rows[name], "it does not differ any more")
        self.assertEqual(names, set(rows))
        self.assertLessEqual(set(DIFFERS), names)

    def test_a_registration_holds_although_the_client_left(self):
        host = self.start()
        with socket.create_connection(("127.0.0.1", host.port), timeout=WAIT_S) as peer:
            peer.sendall(bootstrap_cases.post(bootstrap_cases.worker()))
        with socket.create_connection(("127.0.0.1", host.port), timeout=WAIT_S) as peer:
            peer.sendall(bootstrap_cases.post(bootstrap_cases.worker(tp_rank=1))[:-1])  # all but its end
        end = time.monotonic() + WAIT_S
        while not host.query():
            self.assertLess(time.monotonic(), end)
        self.assertEqual(host.register(), OK)
        self.assertEqual(host.query(), {"0": {"engine_id": "eng-1", "worker_addr": {"0": {"0": "tcp://1.1.1.1:1111"}}}})

    def test_many_clients_at_once(self):
        host = self.start()

        def work(client):
            for at in range(63):
                self.assertEqual(host.register(tp_rank=client, pp_rank=at, addr=f"tcp://10.0.{client}.1:{at + 1}"), OK)
                self.assertIn(str(at), host.query()["0"]["worker_addr"][str(client)])

        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            list(pool.map(work, range(16)))
        workers = host.query()["0"]["worker_addr"]
        self.assertEqual(sum(map(len, workers.values())), 16 * 63)

    def test_ipv6(self):
        try:
            host = self.start(listen="[::1]:0")
            if not host.port:
                raise OSError(host.url)
            with socket.create_connection(("::1", host.port), timeout=WAIT_S) as peer:
                peer.sendall(bootstrap_cases.get())
                self.assertEqual(read_head(peer)[0], 200)
        except OSError as error:
            self.skipTest(f"no IPv6 here: {error}")
        self.assertEqual(host.url, f"http://[::1]:{host.port}")
        both = self.start(listen="[::]:0")
        self.assertEqual(both.register(), OK)  # over IPv4

    def test_occupied_port_raises_to_caller(self):
        first = self.start()
        second = self.start(listen=f"127.0.0.1:{first.port}")
        self.assertEqual(second.url, f"KVF_ERR_ADDRESS_IN_USE directory: address 127.0.0.1:{first.port} is in use")

    def test_retains_and_releases_assigned_port(self):
        first = Host()
        with socket.socket() as other:
            with self.assertRaises(OSError):
                other.bind(("127.0.0.1", first.port))
        first.close()
        second = self.start(listen=f"127.0.0.1:{first.port}")
        self.assertEqual(second.port, first.port)
        self.assertEqual(second.query(), {})


class Restarts(unittest.TestCase):
    """KVF_DIRECTORY_VLLM_REPLACE."""

    def setUp(self):
        self.host = Host(flags=3, most=8)
        self.addCleanup(self.host.close)
        for tp in (0, 1):
            self.assertEqual(self.host.register(tp_rank=tp, addr=f"tcp://old:{tp}"), OK)
        self.assertEqual(self.host.register(dp_rank=1, engine_id="other"), OK)

    def engine(self):
        entry = self.host.query()["0"]
        return entry["engine_id"], entry["worker_addr"]

    OLD = ("eng-1", {"0": {"0": "tcp://old:0"}, "1": {"0": "tcp://old:1"}})
    NEW = ("eng-2", {"1": {"0": "tcp://new:1"}, "0": {"0": "tcp://new:0"}})

    def test_it_takes_over_as_a_whole(self):
        self.assertEqual(self.host.register(engine_id="eng-2", tp_rank=1, addr="tcp://new:1"), OK)
        self.assertEqual(self.engine(), self.OLD)
        self.assertEqual(self.host.register(engine_id="eng-2", tp_rank=1, addr="tcp://new:1"), OK)
        status, text = self.host.register(engine_id="eng-2", tp_rank=1, addr="tcp://other:1")
        self.assertEqual(status, 400)
        self.assertIn("is already registered at tcp://new:1", text)
        self.assertEqual(self.engine(), self.OLD)
        self.assertEqual(self.host.register(engine_id="eng-2", tp_rank=0, addr="tcp://new:0"), OK)
        self.assertEqual(self.engine(), self.NEW)
        self.assertEqual(list(self.host.query()), ["0", "1"])
        self.assertEqual(self.host.register(engine_id="eng-2", tp_rank=0, addr="tcp://new:0"), OK)
        status, text = self.host.register(engine_id="eng-2", tp_rank=0, addr="tcp://old:0")
        self.assertEqual(status, 400)

    def test_of_two_the_later_takes_over(self):
        for engine in ("eng-x", "eng-2"):
            self.assertEqual(self.host.register(engine_id=engine, tp_rank=1, addr="tcp://new:1"), OK)
        self.assertEqual(self.host.register(engine_id="eng-2", tp_rank=0, addr="tcp://new:0"), OK)
        self.assertEqual(self.engine(), self.NEW)

    def test_a_larger_one_may_go_on(self):
        for tp in (1, 0, 2):
            self.assertEqual(self.host.register(engine_id="eng-2", tp_rank=tp, addr=f"tcp://new:{tp}"), OK)
        self.assertEqual(self.engine(), ("eng-2", {**self.NEW[1], "2": {"0": "tcp://new:2"}}))

    def test_a_smaller_one_does_not(self):
        self.assertEqual(self.host.register(engine_id="eng-2", addr="tcp://new:0"), OK)
        self.assertEqual(self.engine(), self.OLD)
        self.assertEqual(self.host.register(tp_rank=2, addr="tcp://old:2"), OK)  # the known one is still served
        self.assertEqual(len(self.engine()[1]), 3)

    def test_it_is_bounded(self):
        for tp in range(2, 7):
            self.assertEqual(self.host.register(engine_id="eng-2", tp_rank=tp, addr="tcp://new:1"), OK)
        self.assertEqual(self.host.register(engine_id="eng-2", tp_rank=7, addr="tcp://new:1")[0], 503)
        self.assertEqual(self.host.register(engine_id="eng-2", tp_rank=6, addr="tcp://new:1"), OK)
        self.assertEqual(self.host.register(engine_id="eng-3", tp_rank=0, addr="tcp://new:1"), OK)  # that one's went
        self.assertEqual(self.engine(), self.OLD)

    def test_the_flag_needs_the_other(self):
        host = Host(flags=2)
        self.addCleanup(host.close)
        self.assertIn("KVF_ERR_INVALID_ARGUMENT directory: flags are 0x2", host.url)


if __name__ == "__main__":
    ROWS = sys.argv[-1]
    if sys.argv[1] == "--observe":
        with open(ROWS, "w", encoding="utf-8") as out:
            json.dump(observe(int(sys.argv[2])), out, indent=0)
            out.write("\n")
    else:
        DIRECTORY_HOST = sys.argv[1]
        unittest.main(argv=sys.argv[:1])
