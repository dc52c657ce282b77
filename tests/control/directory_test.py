#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The directory as a stranger meets it: plain HTTP and JSON.

    directory_test.py DIRECTORY_HOST
"""
import concurrent.futures
import http.client
import json
import re
import resource
import socket
import subprocess
import sys
import threading
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request

HOST = sys.argv[1]
MAX_BODY = 16777216
HOLDINGS = [{"role": "k", "tag": "f16", "row": [128, 0, 128], "units": [3, 0, 1], "layers": [[0, 15], [20, 22]]}]
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Directory:
    def __init__(self, *arguments):
        self.process = subprocess.Popen([HOST, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)
        self.url = self.process.stdout.readline().strip()
        self.port = int(self.url.rsplit(":", 1)[1]) if self.url.startswith("http") else None

    def close(self):
        if not self.process.stdin.closed:
            self.process.stdin.close()
        code = self.process.wait(20)
        self.process.stdout.close()
        return code

    def ask(self, path, body=None, method=None):
        """Returns status, parsed JSON (or text), headers."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method=method)
        try:
            with OPENER.open(request, timeout=20) as answer:
                return self.read(answer.status, answer)
        except urllib.error.HTTPError as error:
            with error:
                return self.read(error.code, error)

    @staticmethod
    def read(code, answer):
        text = answer.read().decode()
        is_json = answer.headers["content-type"] == "application/json"
        return code, json.loads(text) if is_json else text, answer.headers

    def register(self, **changes):
        return self.ask("/v1/register", claim(**changes))[:2]


def allow_descriptors(count):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = count if hard == resource.RLIM_INFINITY else min(hard, count)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def claim(instance="p", incarnation=1, tp=0, expected=1, **changes):
    body = {"instance": instance, "incarnation": "%016x" % incarnation,
            "rank": {"dp": 0, "pp": 0, "cp": 0, "tp": tp, "salt": 0}, "ranks_expected": expected, "model": "m",
            "endpoints": {"channel": "tcp://127.0.0.1:%d" % (4000 + tp)}, "holdings": HOLDINGS}
    body.update(changes)
    return {key: value for key, value in body.items() if value is not None}


def key(instance="p", incarnation=1, tp=0):
    return {"instance": instance, "incarnation": "%016x" % incarnation, "rank": {"tp": tp}}


class Endpoints(unittest.TestCase):
    def setUp(self):
        self.directory = Directory()
        self.addCleanup(self.directory.close)

    def test_register_and_query(self):
        ask = self.directory.ask
        code, first = self.directory.register(tp=1, expected=2)
        self.assertEqual(code, 200)
        self.assertEqual({**first, "epoch": 0}, {"status": "ok", "epoch": 0, "registered": 1, "expected": 2,
                                                "complete": False, "lease_ms": 10000})
        self.assertFalse(ask("/v1/query?instance=p")[1]["complete"])
        _, second = self.directory.register(tp=0, expected=2, incarnation=2)
        self.assertGreater(second["epoch"], first["epoch"])
        code, answer, headers = ask("/v1/query?instance=p")
        self.assertEqual(code, 200)
        self.assertEqual(headers["content-type"], "application/json")
        ranks = answer.pop("ranks")
        self.assertEqual(answer, {"instance": "p", "model": "m", "complete": True, "registered": 2, "expected": 2,
                                  "epoch": second["epoch"]})
        self.assertEqual([rank["rank"]["tp"] for rank in ranks], [0, 1])
        self.assertEqual(ranks[1], {"rank": {"dp": 0, "pp": 0, "cp": 0, "tp": 1, "salt": 0},
                                    "incarnation": "0000000000000001",
                                    "endpoints": {"channel": "tcp://127.0.0.1:4001"}, "holdings": HOLDINGS})

    def test_the_same_again_changes_nothing_and_a_restart_raises_the_epoch(self):
        _, first = self.directory.register()
        _, again = self.directory.register()
        _, restart = self.directory.register(incarnation=2)
        _, moved = self.directory.register(incarnation=2, endpoints={"channel": "tcp://127.0.0.1:5"})
        self.assertEqual(first["epoch"], again["epoch"])
        self.assertGreater(restart["epoch"], again["epoch"])
        self.assertGreater(moved["epoch"], restart["epoch"])
        ranks = self.directory.ask("/v1/query?instance=p")[1]["ranks"]
        self.assertEqual([rank["incarnation"] for rank in ranks], ["0000000000000002"])

    def test_renew_and_withdraw(self):
        ask = self.directory.ask
        self.directory.register(incarnation=5)
        self.assertEqual(ask("/v1/renew", key(incarnation=5))[:2][0], 200)
        rows = [
            ("/v1/renew", key("q"), 404, 'instance "q" is not registered'),
            ("/v1/renew", key(tp=3), 404, 'instance "p" has no rank pp0.cp0.tp3 registered'),
            ("/v1/renew", key(incarnation=6), 409,
             'instance "p" rank pp0.cp0.tp0 is held by incarnation 0000000000000005, not 0000000000000006'),
            ("/v1/withdraw", key(incarnation=6), 409,
             'instance "p" rank pp0.cp0.tp0 is held by incarnation 0000000000000005, not 0000000000000006'),
        ]
        for path, body, code, text in rows:
            with self.subTest(text):
                self.assertEqual(ask(path, body)[:2], (code, {"error": text}))
        self.assertEqual(ask("/v1/withdraw", key(incarnation=5))[:2], (200, {"status": "ok"}))
        self.assertEqual(ask("/v1/query?instance=p")[:2], (404, {"error": 'instance "p" is not registered'}))
        self.assertEqual(ask("/v1/list")[1], {"instances": []})

    def test_list_health_metrics(self):
        ask = self.directory.ask
        for name in ("z", "a", "m ü"):
            self.directory.register(instance=name)
        names = [instance["instance"] for instance in ask("/v1/list")[1]["instances"]]
        self.assertEqual(names, ["a", "m ü", "z"])
        health = ask("/v1/health")[1]
        self.assertEqual((health["status"], health["instances"], health["ranks"]), ("ok", 3, 3))
        ask("/nothing")
        code, text, headers = ask("/metrics")
        self.assertEqual((code, headers["content-type"]), (200, "text/plain; version=0.0.4"))
        for line in ('kvferry_directory_requests_total{endpoint="register"} 3',
                     'kvferry_directory_refused_total{endpoint="other"} 1', "kvferry_directory_ranks 3",
                     "# TYPE kvferry_directory_ranks gauge"):
            self.assertIn(line + "\n", text)
        for line in text.splitlines():
            self.assertRegex(line, r'^(# (HELP|TYPE) \w+ .+|\w+(\{endpoint="\w+"\})? \d+)$')

    def test_names_are_quoted_and_escaped(self):
        name = 'a"\\/&=%+ü'
        self.assertEqual(self.directory.register(instance=name)[0], 200)
        answer = self.directory.ask("/v1/query?instance=" + urllib.parse.quote(name, safe=""))[1]
        self.assertEqual(answer["instance"], name)

    def test_ranks_that_contradict_each_other(self):
        self.directory.register(tp=0, expected=2)
        rows = [
            (dict(tp=1, expected=3), 'instance "p" has 2 ranks, pp0.cp0.tp1 expects 3'),
            (dict(tp=1, expected=2, model="n"), 'instance "p" has model "m", pp0.cp0.tp1 has "n"'),
            (dict(tp=1, expected=2, rank={"dp": 1, "tp": 1}),
             'instance "p" is one data-parallel group: dp 0 is registered, pp0.cp0.tp1 says dp 1'),
        ]
        for changes, text in rows:
            with self.subTest(text):
                self.assertEqual(self.directory.register(**changes), (409, {"error": text}))
        self.directory.register(tp=1, expected=2)
        self.assertEqual(self.directory.register(tp=2, expected=2),
                         (409, {"error": 'instance "p" has all its 2 ranks, pp0.cp0.tp2 is one more'}))
        self.assertEqual(self.directory.ask("/v1/query?instance=p")[1]["registered"], 2)

    def test_paths_and_methods(self):
        rows = [
            ("GET", "/", 404, 'there is no "/" here'),
            ("GET", "/v1/registers", 404, 'there is no "/v1/registers" here'),
            ("GET", "/v1/register", 405, "/v1/register takes POST, not GET"),
            ("POST", "/v1/query?instance=p", 405, "/v1/query takes GET, not POST"),
            ("DELETE", "/metrics", 405, "/metrics takes GET, not DELETE"),
            ("GET", "/v1/query", 400, "query names no instance: expected /v1/query?instance=NAME"),
            ("GET", "/v1/query?instance=", 400, "query names no instance: expected /v1/query?instance=NAME"),
        ]
        for method, path, code, text in rows:
            with self.subTest(method + " " + path):
                got, answer, headers = self.directory.ask(path, b"" if method == "POST" else None, method)
                self.assertEqual((got, answer), (code, {"error": text}))
                if code == 405:
                    self.assertIn(headers["allow"], text.split(",")[0])

    def test_bodies_that_make_no_claim(self):
        deep = b"[" * 5000 + b"]" * 5000
        rows = [
            (b"", "request body"), (b"garbage", "request body"), (b"\xff\xfe\x00", "request body"),
            (deep, "more than 8 levels of nesting"),
            (b'{"a":1,"a":2}', "duplicate"), (b"[1]", "expected an object"), (b"17", "request body"),
            (claim(instance=None), "instance"), (claim(instance=""), "instance"), (claim(instance=5), "instance"),
            (claim(instance="x" * 128), "instance"), (claim(instance="a\nb"), "instance: has control characters"),
            (claim(incarnation=0), "incarnation: expected 16 lower-case hex digits"),
            ({**claim(), "incarnation": "xyz"}, "incarnation"), (claim(rank=None), "rank"), (claim(rank=[0]), "rank"),
            (claim(rank={"tp": -1}), "rank.tp"), (claim(rank={"tp": 1.5}), "rank.tp"),
            (claim(rank={"ep": 1}), "ep"), (claim(rank={"tp": 1 << 70}), ""),
            (claim(expected=0), "ranks_expected"), (claim(expected=65537), "ranks_expected"),
            (claim(endpoints=None), "endpoints"), (claim(endpoints={}), "endpoints: \"channel\" is missing"),
            (claim(endpoints={"channel": "x" * 512}), "endpoints.channel"), (claim(model="x" * 256), "model"),
            (claim(holdings=None), "holdings"), (claim(holdings={}), "holdings"), (claim(holdings=[1]), "holdings[0]"),
            (claim(holdings=[{**HOLDINGS[0], "row": [128, 0, 129]}]), ""),
            (claim(holdings=[{**HOLDINGS[0], "layers": [[0, 1 << 60]]}]), ""),
        ]
        for body, text in rows:
            with self.subTest(str(body)[:60] + " / " + text):
                code, answer, _ = self.directory.ask("/v1/register", body)
                self.assertEqual(code, 400, answer)
                self.assertIn(text, answer["error"])
                self.assertEqual(len(answer["error"].splitlines()), 1)
        self.assertEqual(self.directory.ask("/v1/renew", {"instance": "p"})[0], 400)
        self.assertEqual(self.directory.ask("/v1/list")[1], {"instances": []})

    def test_unknown_keys_are_fine(self):
        self.assertEqual(self.directory.register(later={"a": [1]})[0], 200)

    def test_bodies_too_long(self):
        spaces = b" " * (MAX_BODY + 1)
        code, answer, _ = self.directory.ask("/v1/register", spaces)
        self.assertEqual((code, answer["error"]), (413, "request body has more than 16777216 bytes"))
        body = json.dumps(claim()).encode()
        self.assertEqual(self.directory.ask("/v1/register", body + b" " * (MAX_BODY - len(body)))[0], 200)

    def test_answers_that_nobody_reads_are_bounded(self):
        big = [{**HOLDINGS[0], "comment": "x" * 15000000}]
        self.assertEqual(self.directory.register(holdings=big)[0], 200)
        readers = [socket.create_connection(("127.0.0.1", self.directory.port), 20) for _ in range(17)]
        for reader in readers:
            self.addCleanup(reader.close)
            reader.sendall(b"GET /v1/query?instance=p HTTP/1.1\r\nHost: x\r\n\r\n")
        codes = [reader.recv(12)[-3:] for reader in readers]
        self.assertEqual(codes.count(b"200"), 16)
        self.assertEqual(codes.count(b"503"), 1)
        for reader in readers:
            reader.close()
        deadline = time.monotonic() + 10
        while self.directory.ask("/v1/query?instance=p")[0] != 200:
            self.assertLess(time.monotonic(), deadline)

    def test_a_length_beyond_reason_is_answered_before_it_is_sent(self):
        for length in ("9223372036854775808", "99999999999"):
            with socket.create_connection(("127.0.0.1", self.directory.port), 20) as connection:
                connection.sendall(b"POST /v1/register HTTP/1.1\r\nHost: x\r\nContent-Length: %s\r\n\r\n" %
                                   length.encode())
                answer = connection.recv(4096)
                self.assertRegex(answer, rb"^(HTTP/1.1 4\d\d .*|)$" if not answer else rb"^HTTP/1.1 4\d\d ")

    def test_a_chunked_body_is_taken(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.directory.port, timeout=20)
        self.addCleanup(connection.close)
        body = json.dumps(claim()).encode()
        connection.request("POST", "/v1/register", iter([body[:10], body[10:]]), encode_chunked=True,
                           headers={"Transfer-Encoding": "chunked"})
        self.assertEqual(connection.getresponse().status, 200)

    def test_connections_that_say_nothing_or_nonsense(self):
        idle = [socket.create_connection(("127.0.0.1", self.directory.port), 20) for _ in range(100)]
        for one in idle:
            self.addCleanup(one.close)
        idle[0].sendall(b"\x00\x01\x02\r\n\r\n")
        idle[1].sendall(b"POST /v1/register HTTP/1.1\r\nContent-Length: 100\r\nHost: x\r\n\r\nhalf")
        idle[2].sendall(b"G")
        self.assertEqual(self.directory.ask("/v1/health")[0], 200)

    def trickle(self, clients, beat):
        """Sends a byte to each client now and then; those that are turned away leave the list."""
        stop = threading.Event()

        def run():
            while not stop.wait(0.05):
                for one in list(clients):
                    try:
                        one.send(beat)
                    except OSError:
                        clients.remove(one)

        thread = threading.Thread(target=run)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(stop.set)

    def connect(self, count, begin):
        clients = []
        for _ in range(count):
            clients.append(socket.create_connection(("127.0.0.1", self.directory.port), 20))
            self.addCleanup(clients[-1].close)
            clients[-1].sendall(begin)
        return clients

    def test_clients_that_never_come_to_an_end(self):
        """More of them than the directory has room for, none ever silent: those who have something to say are served,
        also on connections that came first."""
        allow_descriptors(4000)
        self.directory = Directory()
        self.addCleanup(self.directory.close)
        rows = [("headers", b"GET /v1/health HTTP/1.1\r\nX: "),
                ("bodies", b"POST /v1/register HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n")]
        for name, begin in rows:
            with self.subTest(name):
                kept = http.client.HTTPConnection("127.0.0.1", self.directory.port, timeout=20)
                self.addCleanup(kept.close)
                clients = self.connect(800, begin)
                kept.request("GET", "/v1/health")
                self.assertEqual(kept.getresponse().read()[:14], b'{"status":"ok"')
                clients += self.connect(800, begin)
                self.trickle(clients, b"a")
                deadline = time.monotonic() + 20
                while len(clients) == 1600:  # those that came first are turned away
                    self.assertLess(time.monotonic(), deadline)
                    self.assertEqual(self.directory.ask("/v1/health")[0], 200)
                self.assertGreater(len(clients), 500)
                self.assertEqual(self.directory.register()[0], 200)

    def test_bodies_that_never_come_to_an_end(self):
        """All memory for bodies is taken by clients that go on sending: after a while they make room."""
        head = b"POST /v1/register HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % MAX_BODY
        clients = self.connect(16, head + b" " * (MAX_BODY - 1000))
        body = json.dumps(claim()).encode() + b" " * 65536
        deadline = time.monotonic() + 5
        while self.directory.ask("/v1/register", body)[0] != 503:
            self.assertLess(time.monotonic(), deadline)  # the last of those bodies may still be on their way
        self.trickle(clients, b" ")
        deadline = time.monotonic() + 30
        while self.directory.ask("/v1/register", body)[0] != 200:
            self.assertLess(time.monotonic(), deadline)
        self.assertEqual(self.directory.ask("/v1/health")[0], 200)

    def test_64_clients_at_once(self):
        def one(index):
            for step in range(4):
                code, answer = self.directory.register(tp=index, expected=64, incarnation=index + 1)
                assert code == 200, answer
                code, answer, _ = self.directory.ask("/v1/query?instance=p")
                assert code == 200 and answer["registered"] == len(answer["ranks"]), answer
                assert self.directory.ask("/v1/renew", key(tp=index, incarnation=index + 1))[0] == 200, step
            return index

        with concurrent.futures.ThreadPoolExecutor(64) as pool:
            self.assertEqual(sorted(pool.map(one, range(64))), list(range(64)))
        answer = self.directory.ask("/v1/query?instance=p")[1]
        self.assertTrue(answer["complete"])
        self.assertEqual([rank["rank"]["tp"] for rank in answer["ranks"]], list(range(64)))


def stock(engine_id="eng-1", dp=0, tp=0, pp=0, addr="tcp://1.1.1.1:1111", **changes):
    body = {"engine_id": engine_id, "dp_rank": dp, "tp_rank": tp, "pp_rank": pp, "addr": addr, **changes}
    return {key: value for key, value in body.items() if value is not ...}


class Bootstrap(unittest.TestCase):
    """The registry of vLLM's Mooncake connector."""

    def setUp(self):
        self.directory = Directory("127.0.0.1:0", 10000, 100, 1)
        self.addCleanup(self.directory.close)

    def post(self, body, **headers):
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        headers = {"content-type": "application/json", **named}
        connection = http.client.HTTPConnection("127.0.0.1", self.directory.port, timeout=20)
        try:
            connection.request("POST", "/register", body if isinstance(body, bytes) else json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def query(self):
        code, text, headers = self.directory.ask("/query?ignored=1")
        self.assertEqual((code, headers["content-type"]), (200, "application/json"))
        return text

    def test_register_and_query(self):
        self.assertEqual(self.query(), {})
        ok = (200, {"status": "ok"})
        self.assertEqual(self.post(stock(dp=3, tp=1)), ok)
        self.assertEqual(self.post(stock(dp=3, tp=1)), ok)
        self.assertEqual(self.post(stock(dp=3, tp=0, addr="tcp://2.2.2.2:2222")), ok)
        self.assertEqual(self.post(stock(dp=3, tp=1, pp=1, addr="tcp://3.3.3.3:3")), ok)
        self.assertEqual(self.post(stock("eng-0", addr="tcp://4.4.4.4:4")), ok)
        with OPENER.open(self.directory.url + "/query", timeout=20) as answer:
            self.assertEqual(answer.read().decode(), (
                '{"3":{"engine_id":"eng-1","worker_addr":{"1":{"0":"tcp://1.1.1.1:1111","1":"tcp://3.3.3.3:3"},'
                '"0":{"0":"tcp://2.2.2.2:2222"}}},'
                '"0":{"engine_id":"eng-0","worker_addr":{"0":{"0":"tcp://4.4.4.4:4"}}}}'))

    def test_what_contradicts(self):
        self.post(stock())
        self.assertEqual(self.post(stock("eng-2", tp=5)),
                         (400, {"detail": "Engine ID mismatch for dp_rank=0: expected eng-1, got eng-2"}))
        self.assertEqual(self.post(stock(addr="tcp://9.9.9.9:9")),
                         (400, {"detail": "Worker with dp_rank=0, tp_rank=0, pp_rank=0 is already registered at "
                                          "tcp://1.1.1.1:1111, but still want to register at tcp://9.9.9.9:9"}))

    def test_what_counts_as_an_integer(self):
        for value, rank in (("7", 7), (" -2 ", -2), ("3.0", 3), (2.0, 2), (True, 1), (-5, -5)):
            with self.subTest(value):
                self.assertEqual(self.post(stock(addr="tcp://h:%d" % rank, tp=value))[0], 200)
                self.assertEqual(self.query()["0"]["worker_addr"][str(rank)], {"0": "tcp://h:%d" % rank})
        for value in (2.5, "2.5", "x", "", None, [], 1e300, "99999999999999999999", ...):
            with self.subTest(value):
                code, answer = self.post(stock(tp=value))
                self.assertEqual((code, type(answer["detail"])), (422, list))

    def test_what_is_no_body(self):
        for body in (b"", b"{", b"[]", b"17", stock(engine_id=5), stock(addr=None), stock(engine_id=...)):
            with self.subTest(str(body)):
                self.assertEqual(self.post(body)[0], 422)
        self.assertEqual(self.post(stock(), content_type="text/plain")[0], 422)
        self.assertEqual(self.post(stock(extra=[1]), content_type="application/json; charset=utf-8")[0], 200)

    def test_paths_and_methods(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.directory.port, timeout=20)
        self.addCleanup(connection.close)
        rows = [
            ("GET", "/register", 405, '{"detail":"Method Not Allowed"}', "allow", "POST"),
            ("POST", "/query", 405, '{"detail":"Method Not Allowed"}', "allow", "GET"),
            ("HEAD", "/query", 405, "", "allow", "GET"),
            ("GET", "/other", 404, '{"detail":"Not Found"}', "content-type", "application/json"),
            ("GET", "/query/", 307, "", "location", "/query"),
            ("POST", "/register/", 307, "", "location", "/register"),
            ("GET", "/query//", 307, "", "location", "/query"),
            ("GET", "/query/x", 404, '{"detail":"Not Found"}', "location", None),
            ("GET", "/v1/health", 200, None, "content-type", "application/json"),
        ]
        for method, path, code, body, header, value in rows:  # on one connection: it is kept alive
            with self.subTest(method + " " + path):
                connection.request(method, path)
                answer = connection.getresponse()
                text = answer.read().decode()
                self.assertEqual((answer.status, answer.getheader(header)), (code, value))
                if body is not None:
                    self.assertEqual(text, body)

    def test_it_is_bounded(self):
        for index in range(100):
            self.assertEqual(self.post(stock(tp=index))[0], 200)
        self.assertEqual(self.post(stock(tp=100))[0], 503)
        self.assertEqual(self.post(stock(tp=99))[0], 200)

    def test_it_is_off_unless_asked_for(self):
        directory = Directory()
        self.addCleanup(directory.close)
        self.assertEqual(directory.ask("/register", stock())[:2], (404, {"error": 'there is no "/register" here'}))
        self.assertEqual(directory.ask("/query")[0], 404)


class Lifecycle(unittest.TestCase):
    def open(self, *arguments):
        directory = Directory(*arguments)
        self.addCleanup(directory.close)
        return directory

    def test_leases_expire(self):
        directory = self.open("127.0.0.1:0", 1000)
        directory.register(tp=0, expected=2)
        directory.register(tp=1, expected=2)
        end = time.monotonic() + 20
        while directory.ask("/v1/query?instance=p")[1].get("registered") != 1:
            directory.ask("/v1/renew", key(tp=1))
            self.assertLess(time.monotonic(), end)
        answer = directory.ask("/v1/query?instance=p")[1]
        self.assertEqual((answer["complete"], answer["ranks"][0]["rank"]["tp"]), (False, 1))
        self.assertEqual(directory.ask("/v1/renew", key(tp=0))[0], 404)
        while directory.ask("/v1/query?instance=p")[0] != 404:
            self.assertLess(time.monotonic(), end)
        self.assertIn("kvferry_directory_leases_expired_total 2\n", directory.ask("/metrics")[1])

    def test_a_restart_forgets_but_epochs_rise(self):
        first = Directory()
        before = first.register()[1]["epoch"]
        self.assertEqual(first.close(), 0)
        second = self.open("127.0.0.1:%d" % first.port)
        self.assertEqual(second.ask("/v1/query?instance=p")[0], 404)
        self.assertEqual(second.ask("/v1/renew", key())[0], 404)
        self.assertGreater(second.register()[1]["epoch"], before)

    def test_a_full_directory(self):
        directory = self.open("127.0.0.1:0", 10000, 2)
        self.assertEqual(directory.register(instance="a")[0], 200)
        self.assertEqual(directory.register(instance="b")[0], 200)
        self.assertEqual(directory.register(instance="c"), (503, {"error": "directory is full: it holds 2 ranks"}))
        self.assertEqual(directory.register(instance="b", incarnation=9)[0], 200)

    def test_what_it_cannot_open(self):
        directory = self.open()
        rows = [
            (["127.0.0.1:%d" % directory.port],
             "KVF_ERR_ADDRESS_IN_USE directory: address 127.0.0.1:%d is in use" % directory.port),
            (["nowhere"], 'KVF_ERR_INVALID_ARGUMENT directory: address "nowhere" is not HOST:PORT or [IPV6]:PORT with '
                          "a port of 0 to 65535"),
            (["::1:80"], 'KVF_ERR_INVALID_ARGUMENT directory: address "::1:80" is not HOST:PORT or [IPV6]:PORT with a '
                         "port of 0 to 65535"),
            (["127.0.0.1:65536"], 'KVF_ERR_INVALID_ARGUMENT directory: address "127.0.0.1:65536" is not HOST:PORT or '
                                  "[IPV6]:PORT with a port of 0 to 65535"),
            (["127.0.0.1:0", "999"],
             "KVF_ERR_INVALID_ARGUMENT directory: lease_ns is 999000000, expected 1000000000 to 3600000000000"),
            (["127.0.0.1:0", "1000", "-1"],
             "KVF_ERR_INVALID_ARGUMENT directory: max_ranks is -1, expected 1 to 16777216"),
            (["127.0.0.1:0", "1000", "5", "6"],
             "KVF_ERR_NEWER_OPTION directory: flags are 0x6, this library knows 0x3"),
        ]
        for arguments, text in rows:
            with self.subTest(text):
                failed = Directory(*arguments)
                self.assertEqual(failed.url, text)
                self.assertEqual(failed.close(), 1)

    def test_it_closes_with_connections_open(self):
        directory = Directory()
        connections = [socket.create_connection(("127.0.0.1", directory.port), 20) for _ in range(5)]
        connections[0].sendall(b"POST /v1/register HTTP/1.1\r\nContent-Length: 100\r\nHost: x\r\n\r\nhalf")
        began = time.monotonic()
        self.assertEqual(directory.close(), 0)
        self.assertLess(time.monotonic() - began, 5)
        for connection in connections:
            connection.close()

    def test_ipv6(self):
        directory = self.open("[::1]:0")
        if not directory.url.startswith("http"):
            self.skipTest(directory.url)
        self.assertTrue(re.fullmatch(r"http://\[::1\]:\d+", directory.url))
        self.assertEqual(directory.ask("/v1/health")[0], 200)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
