#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A Mooncake transfer engine over TCP, written apart from kvferry: both roles, and the manners of older releases.

A `Memory` holds buffers at addresses of its own choosing, so that any 64-bit address can be tried. `Target` serves it:
the handshake (metadata, notify, probe, set-up) and the data protocol, versions 1 and 2. `Initiator` moves bytes to and
from any target. `Habits` says how a target deviates from the newest release. Every wait has a deadline.
"""
import json
import queue
import select
import socket
import struct
import threading

SETUP, METADATA, NOTIFY, PROBE = 0, 1, 2, 3
READ, WRITE, V2 = 0, 1, 0x80
HEADER = struct.Struct("<QQB7s")
OK, REFUSED = 0x4D43545600000000, 0x4D43545600000001
MAX_FRAME = 1 << 20
DEADLINE = 20.0


class Refused(Exception):
    """The target said status 1."""


class Lost(Exception):
    """The connection ended or broke where an answer was due."""


def dump(value):
    """JSON as the engine writes it: keys in order, no space, one line."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True) + "\n"


def frame(kind, text):
    body = text.encode() if isinstance(text, str) else text
    return struct.pack("<QB", len(body) + 1, kind) + body


def address_of(name):
    host, _, port = name.rpartition(":")
    return host.strip("[]"), int(port)


def connect(address, timeout=DEADLINE):
    link = socket.create_connection(address, timeout=timeout)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return link


def take(link, size):
    """Exactly `size` bytes, or Lost."""
    data = bytearray(size)
    fill(link, memoryview(data))
    return bytes(data)


def fill(link, view):
    done = 0
    while done < len(view):
        try:
            count = link.recv_into(view[done:])
        except ConnectionError as error:
            raise Lost(f"{error} after {done} of {len(view)} bytes") from error
        if count == 0:
            raise Lost(f"end of file after {done} of {len(view)} bytes")
        done += count


def ask(name, kind, text, timeout=DEADLINE):
    """One handshake exchange; returns the text of the answer. Lost where the peer does not know the kind."""
    with connect(address_of(name), timeout) as link:
        link.sendall(frame(kind, text))
        length, = struct.unpack("<Q", take(link, 8))
        if not 1 <= length <= MAX_FRAME:
            raise ValueError(f"an answer of {length} bytes")
        answer = take(link, length)
        if answer[0] != kind:
            raise ValueError(f"answer of kind {answer[0]} to kind {kind}")
        return answer[1:].decode()


def fetch(name):
    return json.loads(ask(name, METADATA, "{}\n"))


def notify(name, sender, text):
    answer = json.loads(ask(name, NOTIFY, dump({"name": sender, "notify_msg": text})))
    if not answer.get("notify_msg"):
        raise Refused("the notify was rejected")
    return answer


def probe(name):
    return json.loads(ask(name, PROBE, "{}\n"))


class Memory:
    """Bytes at addresses, and which of them are registered."""

    def __init__(self):
        self.maps, self.buffers, self.lock = [], [], threading.Lock()

    def map(self, address, data):
        self.maps.append((address, memoryview(data)))

    def local(self, address, size):
        """A view of mapped bytes, registered or not."""
        for start, view in self.maps:
            if start <= address and address + size <= start + len(view):
                return view[address - start:address - start + size]
        raise KeyError(f"no memory at {address:#x} of {size} bytes")

    def register(self, address, size):
        with self.lock:
            if size == 0:
                return -1
            if any(address < start + length and start < address + size for start, length in self.buffers):
                return -7
            self.buffers.append((address, size))
            return 0

    def unregister(self, address):
        with self.lock:
            for at, (start, _) in enumerate(self.buffers):
                if start == address:
                    del self.buffers[at]
                    return 0
            return -3

    def granted(self, address, size):
        """A view of bytes that lie in one registered buffer, else None."""
        with self.lock:
            if size == 0 or not any(start <= address and address + size <= start + length
                                    for start, length in self.buffers):
                return None
        return self.local(address, size)


class Habits:
    """How a target deviates from the newest release; the defaults are the newest release."""

    def __init__(self, **given):
        self.version = 2              # of the descriptor; None = not written
        self.requests_each = None     # a connection closes after so many requests (1: releases before 0.3.10)
        self.publish_port = True      # False: no tcp_data_port, the data port is the next one (before 0.3.5)
        self.publish_host = True      # False: no tcp_data_host (before 0.3.13)
        self.kinds = {SETUP, METADATA, NOTIFY, PROBE}  # what the handshake knows
        self.describe = lambda descriptor: descriptor   # a dict or a text goes out
        self.pieces = None            # handshake answers and status frames go out in pieces of so many bytes
        self.request = None           # function(link, size, address, opcode) -> True when it dealt with a request
        self.drains = False           # after a refusal the rest is read away, so that the status is not lost
        self.silent = False           # the handshake takes requests and never answers
        self.__dict__.update(given)


class Listener:
    """A listening socket with a thread for each connection."""

    def __init__(self, host, port, serve, backlog=1024):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.socket = socket.socket(family)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self.socket.bind((host, port))
            self.socket.listen(backlog)
        except OSError:
            self.socket.close()
            raise
        self.port = self.socket.getsockname()[1]
        self.serve, self.links, self.lock, self.closed = serve, set(), threading.Lock(), False
        self.accepted, self.most = 0, 0
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                link, _ = self.socket.accept()
            except OSError:
                return
            with self.lock:
                if self.closed:
                    link.close()
                    return
                self.links.add(link)
                self.accepted += 1
                self.most = max(self.most, len(self.links))
            threading.Thread(target=self.run, args=(link,), daemon=True).start()

    def run(self, link):
        try:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.serve(link)
        except (Lost, OSError):
            pass
        finally:
            with self.lock:
                self.links.discard(link)
            link.close()

    def cut(self, reset=False):
        """Ends every connection, not the listener."""
        with self.lock:
            links = list(self.links)
        for link in links:
            try:
                if reset:
                    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    link.close()
                else:
                    link.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self):
        with self.lock:
            self.closed = True
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self.socket.close()
        self.cut()


class Target:
    def __init__(self, memory, host="127.0.0.1", handshake_port=0, data_port=0, habits=None):
        self.memory, self.host, self.habits = memory, host, habits or Habits()
        self.notifies, self.asked, self.requests = [], [], []  # what came, in order
        self.late = []  # handshakes whose client did not close after the answer
        self.data, self.handshake = self.bind(handshake_port, data_port)
        self.name = f"[{host}]:{self.handshake.port}" if ":" in host else f"{host}:{self.handshake.port}"

    def bind(self, handshake_port, data_port):
        if self.habits.publish_port:
            data = Listener(self.host, data_port, self.serve_data)
            try:
                return data, Listener(self.host, handshake_port, self.serve_handshake)
            except OSError:
                data.close()
                raise
        for _ in range(100):  # two ports in a row
            handshake = Listener(self.host, handshake_port, self.serve_handshake)
            try:
                return Listener(self.host, handshake.port + 1, self.serve_data), handshake
            except (OSError, OverflowError):
                handshake.close()
        raise OSError("no two free ports in a row")

    def close(self):
        self.handshake.close()
        self.data.close()

    def descriptor(self):
        with self.memory.lock:
            buffers = [{"addr": start, "length": length, "name": self.name} for start, length in self.memory.buffers]
        out = {"buffers": buffers, "name": self.name, "protocol": "tcp", "rdma_server_name": "",
               "timestamp": "2026-08-22 09:15:02.123456"}
        if self.habits.publish_host:
            out["tcp_data_host"] = self.host
        if self.habits.publish_port:
            out["tcp_data_port"] = self.data.port
        if self.habits.version is not None:
            out["tcp_proto_version"] = self.habits.version
        return self.habits.describe(out)

    def send(self, link, data):
        step = self.habits.pieces or len(data)
        for at in range(0, len(data), step):
            link.sendall(data[at:at + step])

    def serve_handshake(self, link):
        link.settimeout(DEADLINE)
        length, = struct.unpack("<Q", take(link, 8))
        if not 1 <= length <= MAX_FRAME:
            return
        body = take(link, length)
        kind, text = body[0], body[1:].decode()
        self.asked.append((kind, text))
        if self.habits.silent:
            link.recv(1)
            return
        if kind not in self.habits.kinds:
            return
        answer = self.answer(kind, json.loads(text))
        if answer is None:
            return
        out = frame(kind, answer)
        if self.habits.pieces:
            self.send(link, out)
        else:
            for part in (out[:8], out[8:9], out[9:]):
                link.sendall(part)
        link.shutdown(socket.SHUT_WR)
        link.settimeout(5)
        try:
            link.recv(1)
        except TimeoutError:
            self.late.append(kind)

    def answer(self, kind, value):
        if kind == METADATA:
            described = self.descriptor()
            return described if described is None or isinstance(described, (str, bytes)) else dump(described)
        if kind == NOTIFY:
            self.notifies.append((value.get("name", ""), value.get("notify_msg", "")))
            return dump({"name": "", "notify_msg": "success"})
        if kind == PROBE:
            return dump({"status": "success"})
        return dump({"local_gid": "", "local_lid": 0, "local_nic_path": "", "payload": "", "peer_nic_path": "",
                     "qp_num": [], "reply_msg": ""})

    def serve_data(self, link):
        link.settimeout(None)
        served = 0
        while served != self.habits.requests_each:
            header = bytearray(24)
            first = link.recv_into(header)
            if first == 0:
                return
            fill(link, memoryview(header)[first:])
            size, address, opcode, padding = HEADER.unpack(header)
            self.requests.append((opcode, address, size, padding))
            if self.habits.request is not None and self.habits.request(link, size, address, opcode):
                return
            if not self.serve_request(link, size, address, opcode):
                return
            served += 1

    def serve_request(self, link, size, address, opcode):
        view = self.memory.granted(address, size)
        if view is None:
            if opcode & V2:
                self.send(link, struct.pack("<Q", REFUSED))
            if self.habits.drains:
                link.shutdown(socket.SHUT_WR)
                while link.recv(65536):
                    pass
            return False
        if opcode & 0x7F == WRITE:
            fill(link, view)
            if opcode & V2:
                self.send(link, struct.pack("<Q", OK))
        else:
            if opcode & V2:
                self.send(link, struct.pack("<Q", OK))
            link.sendall(view)
        return True


class Lane:
    """One data connection of an initiator: one request at a time."""

    def __init__(self, address, timeout=DEADLINE):
        self.link = connect(address, timeout)

    def close(self):
        self.link.close()

    def status(self):
        word, = struct.unpack("<Q", take(self.link, 8))
        if word == REFUSED:
            raise Refused("status 1")
        if word != OK:
            raise ValueError(f"status frame {word:#x}")

    def read(self, address, view, version=2):
        self.link.sendall(HEADER.pack(len(view), address, READ | (V2 if version >= 2 else 0), bytes(7)))
        if version >= 2:
            self.status()
        fill(self.link, view)

    def write(self, address, view, version=2):
        header = HEADER.pack(len(view), address, WRITE | (V2 if version >= 2 else 0), bytes(7))
        try:
            self.link.sendall(header)
            for at in range(0, len(view), 65536):
                if version >= 2 and len(view) > 65536 and select.select([self.link], [], [], 0)[0]:
                    break  # an answer before the end of the body
                self.link.sendall(view[at:at + 65536])
        except ConnectionError as error:
            if version < 2:
                raise Lost(str(error)) from error
        if version >= 2:
            self.status()


class Initiator:
    """Moves ranges. `lanes` connections a peer live on; 0 = a connection for each request, as before 0.3.13."""

    def __init__(self, memory, lanes=4, force_v1=False):
        self.memory, self.lanes, self.force_v1 = memory, lanes, force_v1
        self.known, self.idle, self.lock = {}, {}, threading.Lock()

    def segment(self, name):
        with self.lock:
            known = self.known.get(name)
        if known is None:
            described = fetch(name)
            host = described.get("tcp_data_host") or address_of(name)[0]
            version = 1 if self.force_v1 else described.get("tcp_proto_version", 1)
            known = (host, described["tcp_data_port"]), version
            with self.lock:
                self.known[name] = known
        return known

    def forget(self, name):
        with self.lock:
            self.known.pop(name, None)

    def close(self):
        with self.lock:
            for lanes in self.idle.values():
                for lane in lanes:
                    lane.close()
            self.idle = {}

    def one(self, lane, write, local, remote, size, version):
        view = self.memory.local(local, size)
        if write:
            lane.write(remote, view, version)
        else:
            lane.read(remote, view, version)

    def run(self, address, version, write, work, errors):
        with self.lock:
            spare = self.idle.get(address, [])
            lane = spare.pop() if self.lanes and spare else None
        while True:
            try:
                at, (local, remote, size) = work.get_nowait()
            except queue.Empty:
                break
            if size == 0:
                continue
            try:
                lane = lane or Lane(address)
                self.one(lane, write, local, remote, size, version)
                if not self.lanes:
                    lane.close()
                    lane = None
            except (Refused, Lost, ValueError, KeyError, OSError) as error:
                errors[at] = f"{type(error).__name__}: {error}"
                if lane is not None:
                    lane.close()
                lane = None
        if lane is not None:
            with self.lock:
                self.idle.setdefault(address, []).append(lane)

    def move(self, name, write, ranges):
        """Moves (local, remote, size) each; returns what failed: index to text."""
        try:
            address, version = self.segment(name)
        except (Lost, ValueError, OSError) as error:
            return {at: f"{type(error).__name__}: {error}" for at in range(len(ranges))}
        work, errors = queue.SimpleQueue(), {}
        for item in enumerate(ranges):
            work.put(item)
        workers = [threading.Thread(target=self.run, args=(address, version, write, work, errors), daemon=True)
                   for _ in range(min(self.lanes or 8, len(ranges)))]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return errors
