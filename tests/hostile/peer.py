# SPDX-License-Identifier: Apache-2.0
"""Honest workers in processes of their own, and peers written apart from them that can say anything.

Every wait has a deadline of DEADLINE seconds; a test that has to wait so long has failed.
"""
import json
import os
import re
import signal
import socket
import struct
import subprocess
import threading
import time
import unittest
import urllib.error
import urllib.request

import msgpack
import zmq

DEADLINE = float(os.environ.get("KVF_TEST_DEADLINE", "40"))
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
TOKENS = 100
LAYERS = 4


def until(condition, what, deadline=None):
    """Polls a condition until it holds, and returns what it gave."""
    end = time.monotonic() + (deadline or DEADLINE)
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError("not within the deadline: " + what)
        time.sleep(0.005)


class Lines:
    """What a stream says, line by line, to be waited for."""

    def __init__(self, stream):
        self.stream, self.lines, self.ended = stream, [], False
        self.changed = threading.Condition()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.stream:
            with self.changed:
                self.lines.append(line.rstrip("\n"))
                self.changed.notify_all()
        with self.changed:
            self.ended = True
            self.changed.notify_all()
        self.stream.close()

    def find(self, pattern, start=0):
        for at in range(start, len(self.lines)):
            if re.search(pattern, self.lines[at]):
                return at
        return None

    def wait(self, pattern, start=0, deadline=None):
        """The number of the first line from `start` on that matches."""
        end = time.monotonic() + (deadline or DEADLINE)
        with self.changed:
            while True:
                at = self.find(pattern, start)
                if at is not None:
                    return at
                left = end - time.monotonic()
                if left <= 0 or self.ended:
                    raise AssertionError("no line matches %r in:\n%s" % (pattern, "\n".join(self.lines[start:])))
                self.changed.wait(left)


class Worker:
    """An honest worker. `up` is "ok", or why it could not start."""

    def __init__(self, program, name, directory, limit=None, **options):
        arguments = [program, name, directory] + ["%s=%s" % item for item in options.items()]
        self.name = name
        self.process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, bufsize=1, preexec_fn=limit)
        self.out, self.log, self.heard = Lines(self.process.stdout), Lines(self.process.stderr), 0
        self.up = self.out.lines[self.out.wait("^up ")][3:]

    def ask(self, command):
        start = len(self.out.lines)
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.out.lines[self.out.wait("^reply ", start)][6:]

    def event(self, kind, transfer, deadline=None):
        """Status and text of the event."""
        at = self.out.wait("^event %s [A-Z_]+ %s " % (kind, re.escape(transfer)), 0, deadline)
        return re.match(r"event \S+ (\S+) \S+ -?\d+ \| (.*)", self.out.lines[at]).groups()

    def events(self, transfer):
        return [line.split()[1] for line in self.out.lines if line.startswith("event ") and line.split()[3] == transfer]

    def logged(self, part, start=0):
        return self.log.lines[self.log.wait(re.escape(part), start)]

    def count(self):
        return [int(number) for number in self.ask("count").split()]

    def alive(self):
        return self.process.poll() is None

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()

    def close(self):
        """Ends it in good order; the exit status is 0 and a sanitizer has nothing to say."""
        if self.alive():
            self.process.stdin.close()
        code = self.process.wait(DEADLINE)
        self.process.stdin.close()
        if code != 0:
            raise AssertionError("%s ended with %d:\n%s" % (self.name, code, "\n".join(self.log.lines[-60:])))


class Directory:
    """The real one, in a process of its own."""

    def __init__(self, program, listen="127.0.0.1:0", lease_ms=10000):
        self.process = subprocess.Popen([program, listen, str(lease_ms)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        self.url = self.process.stdout.readline().strip()

    def ask(self, path, body=None):
        return http(self.url + path, body)

    def stop(self):
        """Stands still until `go_on`: on return, each of its threads does."""
        self.process.send_signal(signal.SIGSTOP)
        tasks = "/proc/%d/task" % self.process.pid
        until(lambda: all(self.state(os.path.join(tasks, task, "stat")) == "T" for task in os.listdir(tasks)),
              "all threads of the directory stand still")

    @staticmethod
    def state(path):
        with open(path) as file:
            return file.read().rsplit(")", 1)[1].split()[0]

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)

    def close(self):
        self.process.stdin.close()
        self.process.wait(DEADLINE)
        self.process.stdout.close()


def http(url, body=None):
    request = urllib.request.Request(url, data=None if body is None else json.dumps(body).encode())
    try:
        with OPENER.open(request, timeout=DEADLINE) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return json.loads(error.read())


def message(kind, **fields):
    return msgpack.packb({"v": 1, "t": kind, **fields})


RANK = [0, 0, 0, 0, 0]
IDS = [7, 11, 13, 17, 19, 23, 29]  # not those of the honest pulls' order: holes between them


def differences(ids):
    return [b - a for a, b in zip([0] + ids, ids)]


class Peer:
    """Registered in the directory under a name of its own, with somebody else's holdings."""

    incarnations = 1000

    def __init__(self, scene, name, like, register=True, **changes):
        Peer.incarnations += 1
        self.scene, self.name, self.incarnation = scene, name, Peer.incarnations
        self.context = zmq.Context()
        self.router = self.context.socket(zmq.ROUTER)
        self.router.linger = 0
        self.endpoint = "tcp://127.0.0.1:%d" % self.router.bind_to_random_port("tcp://127.0.0.1")
        self.dealers, self.who = [], None
        if register:
            self.register(like, **changes)

    def register(self, like, **changes):
        answer = self.scene.directory.ask("/v1/query?instance=" + like)
        body = {"instance": self.name, "incarnation": "%016x" % self.incarnation,
                "rank": {"dp": 0, "pp": 0, "cp": 0, "tp": 0, "salt": 0}, "ranks_expected": 1, "model": answer["model"],
                "endpoints": {"channel": self.endpoint}, "holdings": answer["ranks"][0]["holdings"], **changes}
        answer = self.scene.directory.ask("/v1/register", body)
        assert answer.get("status") == "ok", answer

    def close(self):
        if self.context.closed:
            return
        for socket_ in self.dealers + [self.router]:
            socket_.close(100)
        self.context.term()

    # who asks

    def dealer(self, worker):
        """A connection to a worker's control port."""
        dealer = self.context.socket(zmq.DEALER)
        dealer.linger, dealer.rcvtimeo = 0, int(DEADLINE * 1000)
        dealer.connect(self.scene.channel(worker))
        self.dealers.append(dealer)
        return dealer

    def hello(self, to, view, own, other, **changes):
        fields = {"planner": self.scene.planner, "instance": self.name, "incarnation": self.incarnation, "rank": RANK,
                  "host": "elsewhere", "model": "", "peer": to, "peer_incarnation": 0, "epoch": 0, "peer_epoch": 0,
                  "digest": own, "peer_digest": other, "plan": "", "layout": view}
        kind = changes.pop("t", "hello")
        fields.update(changes)
        return message(kind, **fields)

    def answer(self, dealer, kind=None):
        """The next message that is no ping, or the next of a kind; pings are answered meanwhile."""
        while True:
            got = msgpack.unpackb(dealer.recv())
            if got["t"] == "ping":
                dealer.send(message("pong", sequence=got["sequence"], incarnation=self.incarnation))
            elif kind is None or got["t"] == kind:
                return got

    # who is asked

    def hear(self, kind, stop=lambda: False):
        """The next message of a kind on the router, or None once `stop` says so; pings are answered meanwhile."""
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            if not self.router.poll(100):
                if stop():
                    return None
                continue
            self.who, raw = self.router.recv_multipart()
            got = msgpack.unpackb(raw)
            if got["t"] == kind:
                return got
            if got["t"] == "ping":
                self.say("pong", sequence=got["sequence"], incarnation=self.incarnation)
        raise AssertionError("no %s within the deadline" % kind)

    def say(self, kind, **fields):
        self.router.send_multipart([self.who, message(kind, **fields)])

    def ack(self, hello, **changes):
        fields = {"planner": self.scene.planner, "instance": self.name, "incarnation": self.incarnation, "rank": RANK,
                  "host": "elsewhere", "model": "", "peer": hello["instance"],
                  "peer_incarnation": hello["incarnation"], "epoch": hello["peer_epoch"], "peer_epoch": hello["epoch"],
                  "digest": hello["peer_digest"], "peer_digest": hello["digest"], "plan": self.scene.plan, "status": 0,
                  "text": "", "layout": self.scene.layouts["p"]}
        fields.update(changes)
        self.say("hello_ack", **fields)


class Scene:
    """A directory, an honest prefill worker "p" and an honest decode worker "d", and what a peer has to know to speak
    as if it were one of them: layouts, digests and the fingerprint of their plan, learnt by asking."""

    def __init__(self, directory_program, worker_program, **options):
        self.worker_program, self.transfers, self.bytes = worker_program, 0, 0
        self.directory = Directory(directory_program)
        self.options = {"transports": "tcp", **options}
        self.workers = {"p": self.start("p", order="heads"), "d": self.start("d", order="tokens")}
        self.planner, self.plan, self.layouts, self.digests = 1, "", {}, {}
        self.learn()
        self.good()

    def start(self, name, **options):
        worker = Worker(self.worker_program, name, self.directory.url, **{**self.options, **options})
        assert worker.up == "ok", worker.up
        return worker

    def channel(self, worker):
        return self.directory.ask("/v1/query?instance=" + worker)["ranks"][0]["endpoints"]["channel"]

    def id(self):
        self.transfers += 1
        return "x%d" % self.transfers

    def learn(self):
        teacher = Peer(self, "teacher", like="p")
        self.pull("teacher", "learn", timeout_ms=60000)
        hello = teacher.hear("hello")
        self.planner = hello["planner"]
        self.layouts["d"] = hello["layout"]
        self.digests = {"d": hello["digest"], "p": hello["peer_digest"]}
        teacher.say("nack", of="hello", transfer="", attempt=0, status=20, text="that was all")
        self.workers["d"].event("pull-failed", "learn")
        self.workers["d"].event("reusable", "learn")
        teacher.close()
        pupil = Peer(self, "pupil", like="d")
        dealer = pupil.dealer("p")
        dealer.send(pupil.hello("p", self.layouts["d"], self.digests["d"], self.digests["p"]))
        ack = pupil.answer(dealer, "hello_ack")
        assert ack["status"] == 0, ack
        self.layouts["p"], self.plan = ack["layout"], ack["plan"]
        pupil.close()

    def pull(self, source, transfer, request=1, timeout_ms=20000):
        reply = self.workers["d"].ask("pull %s %s %d %d %d" % (source, transfer, request, TOKENS, timeout_ms))
        assert reply == "ok", reply

    def good(self):
        """A transfer between the honest two, byte for byte."""
        transfer = self.id()
        p, d = self.workers["p"], self.workers["d"]
        assert p.ask("offer %s 0 %d %d 60000" % (transfer, TOKENS, TOKENS)) == "ok"
        self.pull("p", transfer, request=0, timeout_ms=60000)
        at = d.out.wait(r"^event pull-\w+ [A-Z_]+ %s " % transfer)
        self.bytes = int(d.out.lines[at].split()[4])
        assert " pull-done " in d.out.lines[at], d.out.lines[at]
        p.event("offer-done", transfer)
        d.event("reusable", transfer)
        p.event("reusable", transfer)
        assert d.ask("check 0 %d" % TOKENS) == "right"
        d.ask("guard")

    def close(self):
        for worker in self.workers.values():
            worker.close()
        self.directory.close()


class Case(unittest.TestCase):
    """Tests over one scene. After each: both workers serve, and nothing was left open."""

    directory_program = worker_program = None
    options = {}
    slack = 4  # descriptors: connections that zmq has not closed yet, or tries anew

    @classmethod
    def setUpClass(cls):
        cls.scene = Scene(cls.directory_program, cls.worker_program, **cls.options)
        cls.p, cls.d = cls.scene.workers["p"], cls.scene.workers["d"]
        cls.before = [cls.p.count(), cls.d.count()]

    def setUp(self):
        self.addCleanup(self.assert_nothing_left)  # last of all
        self.addCleanup(self.assert_unharmed)

    @classmethod
    def tearDownClass(cls):
        cls.scene.close()

    def peer(self, name, like, **options):
        peer = Peer(self.scene, name, like, **options)
        self.addCleanup(peer.close)
        return peer

    def assert_unharmed(self):
        for worker in (self.p, self.d):
            self.assertTrue(worker.alive(), "\n".join(worker.log.lines[-40:]))
        self.scene.good()

    def assert_nothing_left(self):
        for worker, before in zip((self.p, self.d), self.before):
            until(lambda: worker.count()[0] <= before[0] + self.slack, "descriptors of %s fall to %d (now %d)" %
                  (worker.name, before[0], worker.count()[0]))
            self.assertLessEqual(worker.count()[1], before[1], worker.name)

    def assert_ends(self, worker, transfer, kind, status, text, reusable=True):
        """One terminal event, the right one; the blocks come back."""
        got = worker.event(kind, transfer)
        self.assertEqual(got[0], status, got[1])
        self.assertIn(text, got[1])
        if reusable:
            worker.event("reusable", transfer)
            self.assertEqual(worker.events(transfer), [kind, "reusable"])


# ---- data connections --------------------------------------------------------------------------------------------

HELLO, WELCOME, DATA, ACK = 1, 2, 3, 4
MAGIC = b"kVT1"


def frame(kind, body, magic=MAGIC, flags=0, length=None):
    return magic + struct.pack("<HHQ", kind, flags, len(body) if length is None else length) + body


def identity(name, incarnation):
    return struct.pack("<H", len(name)) + name.encode() + struct.pack("<Q", incarnation)


def chunk(grant, index=0, last=1, layers=(0, LAYERS), tokens=(0, TOKENS), flags=0, size=0):
    return struct.pack("<QIIqqqqQq", grant, index, last, *layers, *tokens, flags, size)


def data(head, payload, generation=1, offset=0, checksum=0, flags=0):
    return frame(DATA, head + struct.pack("<QqQ", generation, offset, checksum) + payload, flags=flags)


def rank_name(instance):
    return instance + "/pp0.cp0.tp0"


def closed(stream):
    """Waits until the other side has closed."""
    try:
        while stream.recv(4096):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


class Stream:
    """A raw connection to a data port, "tcp:HOST:PORT"."""

    def __init__(self, endpoint, window=None):
        host, port = endpoint[4:].rsplit(":", 1)
        self.socket = socket.socket()
        self.socket.settimeout(DEADLINE)
        if window is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        self.socket.connect((host, int(port)))

    def hello(self, self_name, self_incarnation, name, incarnation, version=1, session=1, generation=1):
        self.socket.sendall(frame(HELLO, struct.pack("<I", version) + identity(self_name, self_incarnation) +
                                  identity(name, incarnation) + struct.pack("<QQII", session, generation, 0, 1)))
        return self.welcome()

    def exactly(self, count):
        got = b""
        while len(got) < count:
            more = self.socket.recv(count - len(got))
            if not more:
                raise ConnectionError("closed by the worker")
            got += more
        return got

    def frame(self):
        head = self.exactly(16)
        kind, _, length = struct.unpack("<HHQ", head[4:])
        return kind, self.exactly(length)

    def welcome(self):
        """Status and sentence."""
        kind, body = self.frame()
        assert kind == WELCOME
        version, status, count = struct.unpack("<IIH", body[:10])
        assert version == 1
        return status, body[10:10 + count].decode()

    def ack(self):
        """Grant, index, status and sentence."""
        kind, body = self.frame()
        assert kind == ACK
        grant, index, status, count = struct.unpack("<QIIH", body[:18])
        return grant, index, status, body[18:18 + count].decode()

    def closed(self):
        return closed(self.socket)

    def close(self):
        self.socket.close()
