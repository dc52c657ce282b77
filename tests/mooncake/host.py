#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""An engine in a process of its own, driven by lines of JSON: the Python peer, or the published wheel.

    host.py peer|wheel

Each line of standard input is an object with `do`; each gets one line on standard output with `ok` and, when that is
false, `error`. Numbers are signed: addresses from 2^63 up are negative. The end of standard
input ends the process. `host.c` speaks the same for kvferry:

    open       host, handshake_port, data_port, v1, once      -> segment
    map        file, bytes                                     -> address
    register   address, bytes
    unregister address
    move       write, segment, ranges [[local, remote, bytes]]
    moves      moves [as move], all at once                    -> results
    notify     segment, name, text
    notifies                                                   -> list [[name, text]]
    probe      segment
"""
import ctypes
import json
import mmap
import os
import sys
import threading

import peer


class PeerEngine:
    BASE = 0xFFFF000000000000  # no address of this process: it goes over the wire and nothing else looks at it

    def __init__(self):
        self.memory, self.target, self.initiator, self.next = peer.Memory(), None, None, self.BASE

    def open(self, line):
        habits = peer.Habits()
        if line.get("once"):  # as releases before 0.3.10
            habits = peer.Habits(requests_each=1, version=None, publish_host=False)
        self.target = peer.Target(self.memory, line.get("host", "127.0.0.1"), line.get("handshake_port", 0),
                                  line.get("data_port", 0), habits)
        self.initiator = peer.Initiator(self.memory, 0 if line.get("once") else 4, line.get("v1", False))
        return {"segment": self.target.name, "data_port": self.target.data.port}

    def map(self, line):
        with open(line["file"], "r+b") as file:
            data = mmap.mmap(file.fileno(), line["bytes"])
        address, self.next = self.next, self.next + (line["bytes"] + 0xFFFF & ~0xFFF)
        self.memory.map(address, data)
        return {"address": address}

    def register(self, line):
        code = self.memory.register(line["address"], line["bytes"])
        return {} if code == 0 else {"error": f"register: {code}"}

    def unregister(self, line):
        code = self.memory.unregister(line["address"])
        return {} if code == 0 else {"error": f"unregister: {code}"}

    def move(self, line):
        failed = self.initiator.move(line["segment"], line["write"], line["ranges"])
        return {"error": f"{len(failed)} failed: {next(iter(failed.items()))}"} if failed else {}

    def notify(self, line):
        peer.notify(line["segment"], line["name"], line["text"])
        return {}

    def notifies(self, _line):
        out, self.target.notifies[:] = list(self.target.notifies), []
        return {"list": out}

    def probe(self, line):
        peer.probe(line["segment"])
        return {}


class WheelEngine:
    def __init__(self):
        from mooncake.engine import TransferEngine
        self.engine, self.kept = TransferEngine(), []

    def open(self, line):
        host = line.get("host", "127.0.0.1")
        code = self.engine.initialize(host, "P2PHANDSHAKE", "tcp", "")
        return {"segment": f"{host}:{self.engine.get_rpc_port()}"} if code == 0 else {"error": f"initialize: {code}"}

    def map(self, line):
        with open(line["file"], "r+b") as file:
            data = mmap.mmap(file.fileno(), line["bytes"])
        self.kept.append(data)
        return {"address": ctypes.addressof(ctypes.c_char.from_buffer(data))}

    def register(self, line):
        code = self.engine.register_memory(line["address"], line["bytes"])
        return {} if code == 0 else {"error": f"register: {code}"}

    def unregister(self, line):
        code = self.engine.unregister_memory(line["address"])
        return {} if code == 0 else {"error": f"unregister: {code}"}

    def move(self, line):
        ranges = line["ranges"]
        if len(ranges) == 1:
            call = self.engine.transfer_sync_write if line["write"] else self.engine.transfer_sync_read
            code = call(line["segment"], *ranges[0])
        else:
            call = self.engine.batch_transfer_sync_write if line["write"] else self.engine.batch_transfer_sync_read
            code = call(line["segment"], *(list(column) for column in zip(*ranges)))
        return {} if code == 0 else {"error": f"move: {code}"}

    def notify(self, line):
        from mooncake.engine import TransferNotify, TransferOpcode
        local, remote, size = line["range"]  # this engine sends a notify with a transfer only
        code = self.engine.transfer_sync(line["segment"], local, remote, size, TransferOpcode.Write,
                                         TransferNotify(line["name"], line["text"]))
        return {} if code == 0 else {"error": f"notify: {code}"}

    def notifies(self, _line):
        return {"list": [[one.name, one.msg] for one in self.engine.get_notifies()]}

    def probe(self, line):
        code = self.engine.send_probe(line["segment"])
        return {} if code == 0 else {"error": f"probe: {code}"}


def unsigned(value):
    """The lines have signed numbers; addresses are not."""
    if isinstance(value, dict):
        return {key: unsigned(item) for key, item in value.items()}
    if isinstance(value, list):
        return [unsigned(item) for item in value]
    return value % (1 << 64) if type(value) is int else value


def do(engine, line):
    if line["do"] == "moves":
        results = [None] * len(line["moves"])

        def one(at, move):
            results[at] = do(engine, {**move, "do": "move"})
        threads = [threading.Thread(target=one, args=item) for item in enumerate(line["moves"])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {"ok": True, "results": results}
    try:
        out = getattr(engine, line["do"])(line)
    except Exception as error:  # the driver is told, whatever it was
        out = {"error": f"{type(error).__name__}: {error}"}
    return {"ok": "error" not in out, **out}


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an engine prints must not mix with the answers
    engine = {"peer": PeerEngine, "wheel": WheelEngine}[sys.argv[1]]()
    for text in sys.stdin:
        print(json.dumps(do(engine, unsigned(json.loads(text)))), file=answers, flush=True)


if __name__ == "__main__":
    main()
