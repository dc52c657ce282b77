#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""vLLM's MooncakeConnector, written apart from kvferry: producer and consumer, as stock workers behave.

Every rank has a thread on which its sockets live; `ask` runs a call there. Bytes go by the Mooncake peer of
`tests/mooncake`. `generation` is 32 or 33: the release whose messages are spoken. Every wait has a deadline.
"""
import concurrent.futures
import importlib.util
import queue
import random
import threading
import time
from pathlib import Path

import zmq

import arithmetic
import pattern
import wire
from arithmetic import Fatal
from registry import PATIENCE, http_request


def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


engine = load("mooncake_peer", Path(__file__).resolve().parents[1] / "mooncake" / "peer.py")


# ---- what both roles have in common


class Worker:
    def __init__(self, rank, generation):
        self.rank, self.generation = rank, generation
        self.context, self.news = zmq.Context(), threading.Condition()
        self.calls, self.closed, self.surprises = queue.SimpleQueue(), False, []
        self.wake, self.woken = self.context.socket(zmq.PAIR), self.context.socket(zmq.PAIR)
        self.woken.bind("inproc://wake-%d" % id(self))
        self.wake.connect("inproc://wake-%d" % id(self))
        self.lock = threading.Lock()
        self.poller = zmq.Poller()
        self.poller.register(self.woken, zmq.POLLIN)
        self.thread = threading.Thread(target=self._loop, daemon=True)

    def post(self, call):
        self.calls.put(call)
        with self.lock:
            if not self.closed:
                self.wake.send(b"")

    def ask(self, call):
        """Runs a call on the thread and returns what it gave."""
        done = concurrent.futures.Future()

        def run():
            try:
                done.set_result(call())
            except BaseException as error:
                done.set_exception(error)
        self.post(run)
        return done.result(PATIENCE)

    def until(self, condition, what, seconds=PATIENCE):
        with self.news:
            if not self.news.wait_for(condition, seconds):
                raise AssertionError("%s%d: no %s within %d s" % (self.rank.instance.name, self.rank.number, what,
                                                                  seconds))

    def _loop(self):
        while not self.closed:
            due = self.due()
            wait = None if due is None else max(0, due - time.monotonic()) * 1000 + 1
            for sock, _ in self.poller.poll(wait):
                if sock is self.woken:
                    self.woken.recv()
                else:
                    self.heard(sock)
            while not self.calls.empty():
                self.calls.get()()
            self.expire(time.monotonic())
            with self.news:
                self.news.notify_all()

    def close(self):
        if not self.closed:
            self.ask(self.stop)
            with self.lock:
                self.closed = True
                self.wake.send(b"")
            self.thread.join(PATIENCE)
            self.context.destroy(0)

    def due(self):
        return None

    def expire(self, now):
        pass

    def stop(self):
        pass


# ---- producer


class Send:
    """One transfer id."""

    def __init__(self, p_req_id=""):
        self.p_req_id, self.blocks, self.ready, self.expires = p_req_id, None, False, None
        self.need, self.sent, self.sending = 0, 0, 0


class Pull:
    def __init__(self, identity, request, pull, regions):
        self.identity, self.request, self.pull, self.regions = identity, request, pull, regions
        self.pending = dict(request["req_blocks"])  # d_req_id -> [transfer id, blocks]
        self.writing, self.deadline = False, None


class Producer(Worker):
    """A stock P. `write` may stand in for the engine: (session, descriptors) -> 0 or an error. `say` sees each answer
    before it goes: (identity, bytes) -> what goes instead, a list of bytes."""

    def __init__(self, rank, engine_id, registry, generation=33, patience=PATIENCE, host="127.0.0.1", dp_rank=0,
                 port=0):
        super().__init__(rank, generation)
        self.engine_id, self.patience, self.host = engine_id, patience, host
        self.facts = arithmetic.Producer(rank.producer())
        self.bytes = pattern.source(rank)
        memory = engine.Memory()
        for start, storage in zip(rank.starts, rank.storages):
            memory.map(storage["base"], self.bytes[start:start + storage["bytes"]].data)
        self.initiator = engine.Initiator(memory)
        self.pool = concurrent.futures.ThreadPoolExecutor(10)
        self.sends, self.pulls, self.layouts = {}, [], {}
        self.finished, self.expired, self.requests, self.writes, self.asked = [], [], [], [], []
        self.write, self.say, self.answering = self._write, lambda identity, data: [data], True
        self.router = self.context.socket(zmq.ROUTER)
        self.router.ipv6 = ":" in host
        self.router.bind("tcp://%s:%d" % ("[%s]" % host if ":" in host else host, port))
        self.address = self.router.last_endpoint.decode("ascii").rstrip("\0")
        self.poller.register(self.router, zmq.POLLIN)
        self.thread.start()
        if registry is not None:
            status, body = http_request("POST", registry, "/register", {
                "engine_id": engine_id, "dp_rank": dp_rank, "tp_rank": rank.tp_rank, "pp_rank": rank.pp_rank,
                "addr": self.address})
            if status != 200:
                raise AssertionError("registration: %d %s" % (status, body))

    def _write(self, session, moves):
        errors = self.initiator.move(session, True, [tuple(move) for move in moves])
        if errors:
            self.initiator.forget(session)
        return -1 if errors else 0

    def stop(self):
        self.initiator.close()
        self.pool.shutdown(wait=False)

    # what the scheduler says

    def offer(self, transfer_id, p_req_id, blocks):
        """Blocks are ready; None: the request is known, its blocks are not."""
        def run():
            send = self.sends.setdefault(transfer_id, Send())
            send.p_req_id = p_req_id
            if blocks is not None:
                send.blocks, send.ready, send.expires = blocks, True, time.monotonic() + self.patience
                self.progress()
        self.ask(run)

    def drop(self, transfer_id):
        self.ask(lambda: self.sends.pop(transfer_id, None))

    # what consumers say

    def heard(self, sock):
        frames = sock.recv_multipart()
        if len(frames) != 2:
            self.surprises.append(frames)
            return
        identity, data = frames
        self.asked.append(data)
        if not self.answering:
            return
        try:
            request = wire.read_request(data)
            self.requests.append(request)
            self.pull(identity, request)
        except (wire.Malformed, Fatal) as error:
            self.reply(identity, status=wire.ERROR, err_msg=str(error))

    def reply(self, identity, **fields):
        for data in self.say(identity, wire.reply(**fields)):
            self.router.send_multipart([identity, data])

    def pull(self, identity, request):
        pull, layout = wire.pull_of(request), request["layout_id"] if self.generation >= 33 else 0
        error = self.facts.refuse(pull)
        if error:
            raise Fatal(error)
        key = pull["hostname"], pull["port"], pull["tp_rank"], pull["pp_size"], pull["tp_size"], layout
        if layout and not pull["regions"]["base_addr"]:
            if key not in self.layouts:
                self.reply(identity, status=wire.LAYOUT_MISS, err_msg="Mooncake KV layout 0x%x from %s:%d is not "
                           "cached." % (layout, pull["hostname"], pull["port"]))
                return
            local, remote = self.layouts[key]
        else:
            local, remote, error = self.facts.prepare(pull)
            if error:
                raise Fatal(error)
            if layout:
                self.layouts[key] = local, remote
        error = self.facts.lengths(local, remote, pull["tp_size"])
        if error:
            raise Fatal(error)
        one = Pull(identity, request, pull, (local, remote))
        one.deadline = time.monotonic() + self.patience
        for transfer_id, _ in one.pending.values():
            self.sends.setdefault(transfer_id, Send())
        self.pulls.append(one)
        self.progress()

    def progress(self):
        for one in list(self.pulls):
            ready = [(name, row) for name, row in one.pending.items()
                     if self.sends.get(row[0]) is None or self.sends[row[0]].ready]
            if not one.writing and (ready or not one.pending):
                self.batch(one, ready)

    def batch(self, one, ready):
        """All that are ready, in one call of the engine."""
        batch, moves, errors, errs = [], [], [], []
        for name, (transfer_id, blocks) in ready:
            del one.pending[name]
            send = self.sends.get(transfer_id)
            if send is None:
                continue  # gone meanwhile: neither in nor out
            send.sending += 1
            send.need = send.need or arithmetic.need_send(self.facts.rank, self.facts.size, self.facts.pp,
                                                          one.pull["tp_size"], one.pull["pp_size"])
            batch.append((name, transfer_id, send))
            found, error = self.facts.descriptors(*one.regions, one.pull, send.blocks, blocks)
            if error:
                errors.append(error)
                errs.append(name)
            moves += found
        one.writing = True

        def write():
            session = "%s:%d" % (one.pull["hostname"], one.pull["port"])
            code = self.write(session, moves) if moves else 0
            self.post(lambda: self.written(one, batch, moves, errors, errs, code))
        self.pool.submit(write)

    def written(self, one, batch, moves, errors, errs, code):
        text = errors[0] if errors else None
        if code:
            text = "%sMooncake transfer engine returned %d" % (text + "; " if text else "", code)
            errs = [name for name, _, _ in batch]
        elif moves:
            self.writes.append((one.pull["hostname"], one.pull["port"], moves))
        for name, transfer_id, send in batch:
            send.sending -= 1
            if name not in errs:
                send.sent += 1
                if send.sent == send.need and self.sends.get(transfer_id) is send:
                    del self.sends[transfer_id]
                    self.finished.append(send.p_req_id)
        self.end(one, status=wire.CONTINUE if one.pending else wire.FINISH,
                 ok_reqs=[name for name, _, _ in batch if name not in errs], err_reqs=errs, err_msg=text)

    def end(self, one, **fields):
        one.writing = False
        layout = one.request["layout_id"] if self.generation >= 33 else 0
        self.reply(one.identity, layout_id=layout, **fields)
        one.deadline = time.monotonic() + self.patience
        if fields["status"] == wire.FINISH:
            self.pulls.remove(one)
        else:
            self.progress()

    def due(self):
        times = [one.deadline for one in self.pulls if not one.writing]
        times += [send.expires for send in self.sends.values() if send.expires and not send.sending]
        return min(times, default=None)

    def expire(self, now):
        for one in [one for one in self.pulls if not one.writing and one.deadline <= now]:
            self.end(one, status=wire.FINISH, err_reqs=list(one.pending), err_msg="Timeout waiting for P side ready.")
        for transfer_id, send in list(self.sends.items()):
            if send.p_req_id and send.expires and send.expires < now and not send.sending:
                del self.sends[transfer_id]
                self.finished.append(send.p_req_id)
                self.expired.append(send.p_req_id)


# ---- consumer


class Fetch:
    """One request of a consumer."""

    def __init__(self, blocks):
        self.blocks, self.left, self.failed = blocks, 0, None


class Task:
    """One batch at one producer worker."""

    def __init__(self, address, names, requests, whole):
        self.address, self.names, self.requests, self.whole = address, names, requests, whole
        self.socket, self.deadline = None, None


class Consumer(Worker):
    """A stock D. `patience` is how long each answer is waited for."""

    def __init__(self, rank, generation=33, patience=PATIENCE, host="127.0.0.1", ports=(0, 0)):
        super().__init__(rank, generation)
        self.bytes = pattern.destination(rank)
        self.memory = engine.Memory()
        for start, storage in zip(rank.starts, rank.storages):
            self.memory.map(storage["base"], self.bytes[start:start + storage["bytes"]].data)
            assert self.memory.register(storage["base"], storage["bytes"]) == 0
        self.target = engine.Target(self.memory, host, *ports)
        self.described = {**rank.pull(), "hostname": host, "port": self.target.handshake.port}
        self.agents, self.acknowledged = {}, set()
        self.layout = random.getrandbits(62) << 1 | 1 if generation >= 33 else 0
        self.fetches, self.tasks, self.finished, self.failed, self.replies = {}, {}, [], {}, []
        self.patience, self.misses, self.invalid = patience, 0, set()
        self.bend = lambda data: data  # what goes instead of a request
        self.thread.start()

    def stop(self):
        self.target.close()

    def query(self, bootstrap):
        status, body = http_request("GET", bootstrap, "/query")
        if status == 200:
            for known in body.values():
                self.agents[known["engine_id"]] = {
                    int(tp): {int(pp): address for pp, address in stages.items()}
                    for tp, stages in known["worker_addr"].items()}

    def fetch(self, engine_id, bootstrap, requests):
        """Pulls `requests` = {d_req_id: (transfer id, blocks per group)} in one batch."""
        if engine_id not in self.agents:
            try:
                self.query(bootstrap)
            except (OSError, ValueError):
                pass
        self.ask(lambda: self.begin(engine_id, bootstrap, requests))

    def begin(self, engine_id, bootstrap, requests):
        for name, (_, blocks) in requests.items():
            self.fetches[name] = Fetch(blocks)
        known = self.agents.get(engine_id)
        if known is None:
            for name in requests:
                self.settle(name, "remote engine_id %s not found from bootstrap server %s" % (engine_id, bootstrap), 0)
            return
        pairs = [(tp, pp) for tp in arithmetic.target_ranks(self.rank.tp_rank, self.rank.instance.tp, len(known))
                 for pp in arithmetic.stages(self.rank.instance.pp, self.rank.pp_rank, known[tp])]
        for name in requests:
            self.fetches[name].left = len(pairs)
        for tp, pp in pairs:
            address = known[tp][pp]
            self.send(Task(address, list(requests), requests, not self.layout or address not in self.acknowledged))

    def send(self, task):
        task.socket = self.context.socket(zmq.DEALER)
        task.socket.linger, task.socket.sndhwm, task.socket.rcvhwm = 0, 0, 0
        task.socket.ipv6 = "[" in task.address
        task.socket.connect(task.address)
        left = {name: task.requests[name] for name in task.names}
        task.socket.send(self.bend(wire.request(self.described, left, self.layout, task.whole)))
        task.deadline = time.monotonic() + self.patience
        self.tasks[task.socket] = task
        self.poller.register(task.socket, zmq.POLLIN)

    def over(self, task, reason=None):
        self.poller.unregister(task.socket)
        del self.tasks[task.socket]
        task.socket.close(0)
        if reason is not None:
            for name in task.names:
                self.settle(name, reason)
            task.names = []

    def settle(self, name, reason, count=1):
        fetch = self.fetches[name]
        fetch.left -= count
        if reason and not fetch.failed:
            fetch.failed = self.failed[name] = reason
            self.invalid.update(block for ids in fetch.blocks for block in ids)
        if fetch.left == 0 and any(fetch.blocks):
            self.finished.append(name)

    def heard(self, sock):
        task, data = self.tasks.get(sock), sock.recv_multipart()
        if task is None:
            return
        self.replies.append(data[0])
        try:
            reply = wire.read_reply(data[0], self.generation >= 33)
        except wire.Malformed as error:
            self.over(task, "transfer failed: %s" % error)
            return
        if reply["status"] == wire.LAYOUT_MISS and not task.whole:
            self.misses += 1
            self.acknowledged.discard(task.address)
            self.over(task)
            self.send(Task(task.address, task.names, task.requests, True))
            return
        if reply["status"] in (wire.ERROR, wire.LAYOUT_MISS):
            self.over(task, reply["err_msg"] or "transfer error")
            return
        if self.layout and reply["layout_id"] == self.layout:
            self.acknowledged.add(task.address)
        for name in reply["err_reqs"] or []:
            if name in task.names:
                task.names.remove(name)
                self.settle(name, reply["err_msg"] or "unknown error")
        for name in reply["ok_reqs"] or []:
            if name in task.names:
                task.names.remove(name)
                self.settle(name, None)
        task.deadline = time.monotonic() + self.patience
        if reply["status"] == wire.FINISH:
            self.over(task, "peer finished without reporting a transfer result")

    def due(self):
        return min((task.deadline for task in self.tasks.values()), default=None)

    def expire(self, now):
        for task in [task for task in self.tasks.values() if task.deadline <= now]:
            self.over(task, "transfer failed: Resource temporarily unavailable")
