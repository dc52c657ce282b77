#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A peer of TensorRT-LLM's native transceiver, both roles, that shares nothing with kvferry but the protocol.

Each rank is an object with sockets and a thread of its own; all ranks of a test live in its process. Memory is one
anonymous mapping per rank, and bytes move by process_vm_writev: the transfer agent's info is
`kvferry-cma/1 pid=<decimal>`.
"""
import ctypes
import mmap
import os
import re
import struct
import threading
import time

import msgpack
import numpy
import zmq

import arithmetic
import pattern
import rank as rank_info

PATIENCE = 60 * (4 if os.environ.get("KVF_SANITIZER") else 1)
SUCCESS, FAILED, IN_DOUBT, FAILED_QUIESCED = range(4)
RESULT = struct.Struct("<qqqBBq")
LIBC = ctypes.CDLL(None, use_errno=True)
AGENT = re.compile(rb"kvferry-cma/1 pid=([1-9][0-9]*)")


def reads(cma, pid, rows, what):
    """Runs one of the two calls over rows (own address, other's address, bytes), whole or with an error."""
    rows = numpy.ascontiguousarray(rows, numpy.uint64).reshape(-1, 3)
    for first in range(0, len(rows), 1024):
        part = rows[first:first + 1024]
        own = numpy.ascontiguousarray(part[:, [0, 2]])
        other = numpy.ascontiguousarray(part[:, [1, 2]])
        wanted, count = int(part[:, 2].sum()), ctypes.c_ulong(len(part))
        done = cma(ctypes.c_int(pid), ctypes.c_void_p(own.ctypes.data), count, ctypes.c_void_p(other.ctypes.data),
                   count, ctypes.c_ulong(0))
        if done != wanted:
            raise OSError(ctypes.get_errno(), "%s: %d of %d bytes" % (what, done, wanted))


LIBC.process_vm_writev.restype = LIBC.process_vm_readv.restype = ctypes.c_ssize_t


def put(pid, rows):
    reads(LIBC.process_vm_writev, pid, rows, "write")


def get(pid, address, size):
    out = numpy.empty(size, numpy.uint8)
    step = 1 << 30
    reads(LIBC.process_vm_readv, pid, [(out.ctypes.data + at, address + at, min(step, size - at))
                                       for at in range(0, size, step)], "read")
    return out


class Memory:
    """A rank's pools and auxiliary buffers in one mapping, guard bytes around each of them."""
    GAP = 4096

    def __init__(self, plain, fill):
        self.plain = plain
        sizes = [(("pool", group, number), pattern.pool_bytes(plain, group, number))
                 for group, pools in enumerate(plain["table"]["pools"]) for number in range(len(pools))]
        aux = plain["aux"] or {"size": []}
        sizes += [(("aux", number), size) for number, size in enumerate(aux["size"])]
        total = self.GAP + sum((size + 63) // 64 * 64 + self.GAP for _, size in sizes)
        self.mapping = mmap.mmap(-1, max(total, mmap.PAGESIZE))
        self.all = numpy.frombuffer(self.mapping, numpy.uint8)
        self.all[:] = fill
        self.fill, self.pools, self.aux, at = fill, {}, [], self.GAP
        for key, size in sizes:
            area = self.all[at:at + size]
            if key[0] == "pool":
                self.pools[key[1:]] = area
                plain["table"]["pools"][key[1]][key[2]]["base"] = area.ctypes.data
            else:
                self.aux.append(area)
                plain["aux"]["address"][key[1]] = area.ctypes.data if size else 0
            at += (size + 63) // 64 * 64 + self.GAP

    def guards(self):
        """Number of guard bytes that were overwritten."""
        copy = self.all.copy()
        for area in list(self.pools.values()) + self.aux:
            at = area.ctypes.data - self.all.ctypes.data
            copy[at:at + len(area)] = self.fill
        return int((copy != self.fill).sum())


class Rank:
    """What both roles have: a router, dealers, a thread that owns them, and a record of all that came."""

    def __init__(self, instance, number, fill, host="127.0.0.1"):
        self.instance, self.number, self.plain = instance, number, instance.rank(number)
        self.painter = pattern.Painter(instance, number)
        self.memory = Memory(self.plain, fill)
        self.context = zmq.Context()
        self.router, self.endpoint = self.bind(host)
        self.monitor, self.accepted = self.router.get_monitor_socket(zmq.EVENT_ACCEPTED), 0
        self.dealers, self.came, self.surprises = {}, [], []
        self.news = threading.Condition()
        self.orders, self.stopping = [], False
        self.wake_in, self.wake_out = os.pipe()
        self.info = rank_info.rank_info(self.plain, [self.endpoint] * instance.size, self.endpoint,
                                        b"kvferry-cma/1 pid=%d" % os.getpid())
        self.thread = threading.Thread(target=self.run, name="%s%d" % (instance.name, number), daemon=True)

    def bind(self, host, port=0):
        socket = self.context.socket(zmq.ROUTER)
        socket.linger = 0
        socket.bind("tcp://%s:%d" % (host, port))
        return socket, socket.last_endpoint.decode("ascii").rstrip("\0")

    def connections(self):
        """How many connections its router took so far."""
        while self.monitor.poll(0):
            self.monitor.recv_multipart()
            self.accepted += 1
        return self.accepted

    def start(self):
        self.thread.start()
        return self

    def close(self):
        if self.context.closed:
            return
        self.stopping = True
        os.write(self.wake_out, b"x")
        if self.thread.is_alive():
            self.thread.join(PATIENCE)
        self.router.disable_monitor()
        for socket in self.sockets() + list(self.dealers.values()) + [self.monitor]:
            socket.close(0)
        self.context.term()
        os.close(self.wake_in)
        os.close(self.wake_out)

    def sockets(self):
        return [self.router]

    # the thread

    def run(self):
        poller = zmq.Poller()
        for socket in self.sockets():
            poller.register(socket, zmq.POLLIN)
        poller.register(self.wake_in, zmq.POLLIN)
        while not self.stopping:
            ready = dict(poller.poll(self.timeout_ms()))
            if self.wake_in in ready:
                os.read(self.wake_in, 4096)
            for socket in self.sockets():
                if socket in ready:
                    self.take(socket)
            while self.orders:
                self.orders.pop(0)()
            self.idle()
            with self.news:
                self.news.notify_all()

    def timeout_ms(self):
        return 1000

    def idle(self):
        pass

    def take(self, socket):
        for _ in range(100):
            try:
                frames = socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            try:
                self.handle(socket, frames[0], frames[1].decode("ascii"), frames[2:])
                with self.news:
                    self.came.append((frames[1].decode("ascii"), frames[2:]))
            except Exception as error:  # whatever it is, the test has to know
                self.surprises.append("%s: %r: %r" % (self.thread.name, error, frames))

    def order(self, call):
        """Has the thread do something."""
        self.orders.append(call)
        os.write(self.wake_out, b"x")

    def ask(self, call):
        """Has the thread do something, and waits for what comes of it."""
        out, done = [], threading.Event()

        def run():
            out.append(call())
            done.set()
        self.order(run)
        if not done.wait(PATIENCE):
            raise AssertionError("%s is stuck" % self.thread.name)
        return out[0]

    def until(self, ready, what, seconds=PATIENCE):
        """Waits until something holds; it is asked after each message."""
        end = time.monotonic() + seconds
        with self.news:
            while True:
                found = ready()
                if found:
                    return found
                left = end - time.monotonic()
                if left <= 0:
                    raise AssertionError("%s: no %s within %d s; came: %s" % (self.thread.name, what, seconds,
                                                                              self.came[-20:]))
                self.news.wait(min(left, 0.2))

    def send(self, endpoint, *frames):
        if endpoint not in self.dealers:
            dealer = self.dealers[endpoint] = self.context.socket(zmq.DEALER)
            dealer.linger = 0
            dealer.connect(endpoint)
        self.dealers[endpoint].send_multipart(list(frames))

    def count(self, tag):
        return sum(1 for kind, _ in list(self.came) if kind == tag)


def ascii_int(number):
    return b"%d" % number


class Generation(Rank):
    """A rank that receives: it asks, its memory is written, and it hears how each writer ended."""

    def __init__(self, instance, number, **names):
        super().__init__(instance, number, pattern.GUARD, **names)
        self.known, self.asked, self.words, self.aux_words, self.quiesced, self.cancels = {}, {}, {}, {}, {}, []

    def handle(self, _, __, tag, frames):
        if tag == "KV_AGENT_RESULT":
            writer, rid, piece, last, status, _ = RESULT.unpack(frames[0])
            assert len(frames) == 1 and last in (0, 1) and status < 4
            self.words.setdefault(rid, {}).setdefault(writer, []).append((piece, last, status))
        elif tag == "AUX_AGENT_RESULT":
            writer, rid, status = frames
            self.aux_words.setdefault(int(rid), {}).setdefault(int(writer), []).append(status.decode("ascii"))
        elif tag == "SESSION_QUIESCED":
            writer, rid = frames
            self.quiesced.setdefault(int(rid), set()).add(int(writer))
        elif tag == "CANCEL_SESSION":
            assert 1 <= len(frames) <= 3
            self.cancels.append(int(frames[0]))
        else:
            raise ValueError("unknown tag")

    # what a test does

    def contact(self, info, register=True, seconds=PATIENCE):
        """Asks an info endpoint once, and registers with every sender it names."""
        if info not in self.known:
            dealer = self.context.socket(zmq.DEALER)
            dealer.linger = 0
            dealer.connect(info)
            dealer.send_multipart([b"REQUEST_INSTANCE_INFO"])
            if not dealer.poll(int(seconds * 1000)):
                dealer.close(0)
                raise AssertionError("%s does not answer" % info)
            frames = dealer.recv_multipart()
            dealer.close(0)
            assert len(frames) == 1, frames
            self.known[info] = rank_info.unpack(frames[0])
            if register:
                self.ask(lambda: [self.send(endpoint, b"REGISTER_RANK_INFO", rank_info.pack(self.info))
                                  for endpoint in self.known[info]["sender_endpoints"]])
        return self.known[info]

    def writers(self, peer, dp_rank=0):
        return arithmetic.overlap(self.info, peer, dp_rank)

    def request(self, info, rid, tables, dp_rank=0, aux_slot=None, start_token=None, piece=0, **changes):
        """Publishes one request to all writers. `dp_rank` None: to the writers of every group."""
        peer = self.contact(info)
        groups = range(peer["dp_size"]) if dp_rank is None else [dp_rank]
        writers = [self.writers(peer, group) for group in groups]
        payload = self.payload(rid, tables, aux_slot, start_token, piece, **changes)
        every = sorted({writer for group in writers for writer in group})
        self.asked[rid] = {"peer": peer, "writers": every, "expected": len(writers[0]), "tables": tables,
                           "aux": aux_slot}
        self.ask(lambda: [self.send(peer["sender_endpoints"][writer], b"REQUEST_DATA", payload) for writer in every])

    def payload(self, rid, tables, aux_slot=None, start_token=None, piece=0, **changes):
        fields = {"sender_req_id": rid, "instance_name": self.instance.name, "instance_rank": self.number,
                  "block_ids_per_layer_groups": [numpy.asarray(ids, "<i8").tobytes() for ids in tables],
                  "unique_rid": rid, "dst_start_token": start_token, "aux_slot": aux_slot, "slice_id": piece,
                  "bounce_dst_base": None}
        fields.update(changes)
        return msgpack.packb(fields)

    def ends(self, rid):
        """{writer: its last word} of those that have said it."""
        out = {}
        for writer, words in list(self.words.get(rid, {}).items()):  # its thread may add some meanwhile
            for _, last, status in words:
                if writer not in out and (status in (FAILED, FAILED_QUIESCED) or (status == SUCCESS and last)):
                    out[writer] = status
        return out

    def wait(self, rid, seconds=PATIENCE):
        """The last words of all writers, once each of them has said it (auxiliary data included)."""
        asked = self.asked[rid]

        def ready():
            ends = self.ends(rid)
            aux = asked["aux"] is None or FAILED in ends.values() or \
                len(self.aux_words.get(rid, {})) >= asked["expected"]
            return len(ends) >= asked["expected"] and aux
        self.until(ready, "end of request %d" % rid, seconds)
        return self.ends(rid)

    def success(self, rid, seconds=PATIENCE):
        """Waits, and complains about anything but one success of each expected writer."""
        ends, asked = self.wait(rid, seconds), self.asked[rid]
        assert set(ends.values()) == {SUCCESS} and len(ends) == asked["expected"], (rid, self.words[rid])
        assert set(ends) <= set(asked["writers"]), (ends, asked["writers"])
        for writer, words in self.words[rid].items():
            assert sum(last for _, last, _ in words) == 1 and words[-1][1] == 1, (rid, writer, words)
        if asked["aux"] is not None:
            said = self.aux_words[rid]
            assert len(said) == asked["expected"] and all(words == ["SUCCESS"] for words in said.values()), said
        return ends

    def cancel(self, rid):
        asked = self.asked[rid]
        self.ask(lambda: [self.send(asked["peer"]["sender_endpoints"][writer], b"CANCEL_SESSION", ascii_int(rid),
                                    self.instance.name.encode(), ascii_int(self.number))
                          for writer in asked["writers"]])


class Session:
    """One request on a context rank."""

    def __init__(self, rid):
        self.rid, self.pieces, self.cancelled, self.aux_slot, self.done = rid, [], False, None, set()
        self.prompt = None
        self.silent = set()  # requesters that were already told that it failed


class Context(Rank):
    """A rank that sends: it answers who it is, remembers who asks for what, and writes."""

    def __init__(self, instance, number, info_port=0, **names):
        super().__init__(instance, number, pattern.EMPTY, **names)
        self.info_router, self.info_endpoint = self.bind("127.0.0.1", info_port) if number == 0 else (None, None)
        self.peers, self.requests, self.sessions, self.cancelled, self.queries = {}, {}, {}, set(), 0
        self.holding, self.held, self.writes, self.holding_aux = False, [], [], False
        self.status = lambda rid, peer, piece: SUCCESS
        self.bend = lambda rows, rid: rows   # lets a test write to wrong places
        self.answering = True                # no: it takes requests and says nothing

    def sockets(self):
        return [self.router] + ([self.info_router] if self.info_router else [])

    def handle(self, socket, who, tag, frames):
        if socket is self.info_router:
            assert tag == "REQUEST_INSTANCE_INFO" and not frames
            self.queries += 1
            socket.send_multipart([who, rank_info.pack(self.info)])
        elif tag == "REGISTER_RANK_INFO":
            peer = rank_info.unpack(frames[0])
            self.peers[peer["instance_name"], peer["instance_rank"]] = peer
        elif tag == "REQUEST_DATA":
            self.take_request(msgpack.unpackb(frames[0]))
        elif tag == "CANCEL_SESSION":
            self.take_cancel(int(frames[0]), frames[1:])
        else:
            raise ValueError("unknown tag")

    def take_request(self, request):
        key, rid = (request["instance_name"], request["instance_rank"]), request["unique_rid"]
        assert key in self.peers, "asked before it registered"
        request["tables"] = [numpy.frombuffer(ids, "<i8") for ids in request["block_ids_per_layer_groups"]]
        self.requests.setdefault(rid, {})[key] = request
        session = self.sessions.get(rid)
        if rid in self.cancelled or (session and session.cancelled):
            self.result(rid, key, True, FAILED)
        elif session:
            for number in range(len(session.pieces)):
                self.dispatch(session, number, key)

    def take_cancel(self, rid, who):
        self.cancelled.add(rid)
        session = self.sessions.get(rid)
        if session:
            self.stop(session)
        key = (who[0].decode(), int(who[1])) if len(who) == 2 else None
        for other in [key] if key else list(self.requests.get(rid, {})):
            if other in self.peers and self.answering:
                self.send(self.peers[other]["self_endpoint"], b"SESSION_QUIESCED", ascii_int(self.number),
                          ascii_int(rid))

    def stop(self, session):
        """Ends a session: what was not sent fails, what is held is not written."""
        session.cancelled = True
        self.held = [order for order in self.held if order[0] is not session]
        for key in self.requests.get(session.rid, {}):
            if key not in session.done and key not in session.silent:
                self.result(session.rid, key, True, FAILED)
                session.silent.add(key)

    def dispatch(self, session, number, key):
        if self.holding:
            self.held.append((session, number, key))
        else:
            self.write(session, number, key)

    def write(self, session, number, key):
        request, (tables, last) = self.requests[session.rid][key], session.pieces[number]
        peer, status = self.peers[key], self.status(session.rid, key, number)
        if status == SUCCESS:
            rows = arithmetic.fragments(self.info, peer, tables, request["tables"], request["dst_start_token"],
                                        session.prompt)
            rows = self.bend(rows, session.rid)
            pid = int(AGENT.fullmatch(peer["transfer_engine_info"]).group(1))
            put(pid, rows)
            self.writes.append((session.rid, key, number, int(rows[:, 2].sum())))
        self.result(session.rid, key, last, status)
        if last and status == SUCCESS:
            session.done.add(key)
            self.write_aux(session, key)

    def write_aux(self, session, key):
        request, peer = self.requests[session.rid][key], self.peers[key]
        if session.aux_slot is None or request["aux_slot"] is None or self.holding_aux:
            return
        if arithmetic.sends_aux(self.info, peer):
            pid = int(AGENT.fullmatch(peer["transfer_engine_info"]).group(1))
            put(pid, arithmetic.aux_copies(self.info, peer, session.aux_slot, request["aux_slot"]))
        self.send(peer["self_endpoint"], b"AUX_AGENT_RESULT", ascii_int(self.number), ascii_int(session.rid),
                  b"SUCCESS")

    def result(self, rid, key, last, status, piece=None):
        piece = (self.requests[rid][key]["slice_id"] or 0) if piece is None else piece
        if self.answering:
            self.send(self.peers[key]["self_endpoint"], b"KV_AGENT_RESULT",
                      RESULT.pack(self.number, rid, piece, last, status, 0))

    # what a test does

    def paint(self, rid, tables, prompt):
        self.painter.paint(self.memory.pools, rid, tables, prompt)

    def offer(self, rid, tables, last=True, aux_slot=None, prompt=None):
        """Sends one piece of a request, to those that have asked and to those that will."""
        def run():
            session = self.sessions.setdefault(rid, Session(rid))
            session.aux_slot, session.prompt = aux_slot, prompt
            session.cancelled = session.cancelled or rid in self.cancelled
            if session.cancelled:
                return self.stop(session)
            session.pieces.append((tables, last))
            for key in list(self.requests.get(rid, {})):
                self.dispatch(session, len(session.pieces) - 1, key)
        self.ask(run)

    def hold(self):
        self.holding = True

    def release(self):
        def run():
            self.holding, held, self.held = False, self.held, []
            for order in held:
                self.write(*order)
        self.ask(run)

    def cancel(self, rid):
        """Ends a request from this side, and tells everyone who asked."""
        def run():
            self.cancelled.add(rid)
            session = self.sessions.setdefault(rid, Session(rid))
            self.stop(session)
            for key in self.requests.get(rid, {}):
                self.send(self.peers[key]["self_endpoint"], b"CANCEL_SESSION", ascii_int(rid))
        self.ask(run)

    def asked(self, rid):
        return self.requests.get(rid, {})


def contexts(instance, **names):
    """All ranks of a context instance, ready to be asked."""
    ranks = [Context(instance, number, **names) for number in range(instance.size)]
    endpoints = [rank.endpoint for rank in ranks]
    for rank in ranks:
        rank.info["sender_endpoints"] = endpoints
    return [rank.start() for rank in ranks]


def generations(instance, **names):
    return [Generation(instance, number, **names).start() for number in range(instance.size)]
