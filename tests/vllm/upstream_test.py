#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""kvferry beside upstream's own connector worker, in either role: every byte of every rank is checked.

scripts/test-upstream.sh says where vLLM's Python is (KVF_VLLM_PYTHON). Upstream's worker has its own registry, side
channel and Mooncake engine; upstream_host.py stands in for the engine around it.
"""
import json
import os
from pathlib import Path
import queue
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

import numpy

from upstream_model import Shape

FOLDER = Path(__file__).resolve().parent
START_SECONDS = 120
DEADLINE = 60
BASE = 0x7E0000000000
PATIENCE = 5  # seconds that a producer lets a pull wait for readiness


class Process:
    """A child that speaks JSON lines."""

    def __init__(self, command, log, environment):
        self.log = log
        with open(log, "w", encoding="utf-8") as errors:
            self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                                          env=environment, text=True, bufsize=1)
        self.lines = queue.Queue()
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.child.stdout:
            self.lines.put(json.loads(line))
        self.lines.put(None)

    def take(self, seconds=DEADLINE):
        try:
            line = self.lines.get(timeout=seconds)
        except queue.Empty:
            line = None
        if line is None:
            raise AssertionError(f"no answer; {self.log}:\n{Path(self.log).read_text(encoding='utf-8')[-3000:]}")
        return line

    def tell(self, **command):
        self.child.stdin.write(json.dumps(command) + "\n")
        self.child.stdin.flush()

    def kill(self):
        self.child.kill()
        self.child.wait()
        self.child.stdin.close()
        self.reader.join()
        self.child.stdout.close()


class Rank:
    """One rank of either make; `noise` seeds what its memory holds at first."""

    def __init__(self, case, role, shape, noise):
        self.case, self.role, self.shape = case, role, shape
        self.name = f"{role}-{shape.pp[0]}-{shape.tp[0]}"
        self.folder = Path(case.folder.name)
        self.expected = shape.noise(noise)
        self.engine = f"engine-{role}"
        self.process = None

    def environment(self):
        older = self.case.tree is None
        path = {} if older else {"PYTHONPATH": os.environ[self.case.tree]}
        return dict(os.environ, **path, VLLM_HOST_IP="127.0.0.1", MC_FORCE_TCP="1", OMP_NUM_THREADS="1",
                    VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT=str(PATIENCE),
                    VLLM_MOONCAKE_BOOTSTRAP_PORT=str(self.case.port))

    def write_spec(self, spec):
        path = self.folder / f"{self.name}.json"
        path.write_text(json.dumps(spec), encoding="utf-8")
        return str(path)


class Upstream(Rank):
    def start(self):
        shape, storages = self.shape, []
        for at, memory in enumerate(self.expected):
            path = self.folder / f"{self.name}.{at}"
            memory.tofile(path)
            storages.append(dict(path=str(path), bytes=memory.nbytes))
        spec = dict(role=self.role, engine_id=self.engine, tp_rank=shape.tp[0], tp_size=shape.tp[1],
                    pp_rank=shape.pp[0], pp_size=shape.pp[1], is_mla=shape.is_mla, total_kv_heads=shape.total_heads,
                    block_tokens=16, heads=len(shape.heads), content_bytes=shape.content, storages=storages,
                    views=shape.views, layer_groups={view["layer"]: 0 for view in shape.views},
                    num_blocks=shape.blocks)
        self.files = [one["path"] for one in storages]
        self.process = Process([os.environ["KVF_VLLM_PYTHON"], str(FOLDER / "upstream_host.py"),
                                self.write_spec(spec)], self.folder / f"{self.name}.log", self.environment())

    def wait_ready(self):
        self.ready = self.process.take(START_SECONDS)
        self.case.assertEqual(self.ready["event"], "ready")

    def call(self, **command):
        self.process.tell(**command)
        answer = self.process.take()
        self.case.assertTrue(answer["ok"], answer)
        return answer

    def announce(self, transfers):
        self.call(do="step", send={"p-" + name: [name, []] for name in transfers})

    def offer(self, transfers):
        for name, ids in transfers.items():
            self.shape.put([numpy.memmap(path, dtype=numpy.uint8, mode="r+") for path in self.files],
                           self.case.number(name), ids)
        self.call(do="step", send={"p-" + name: [name, [ids]] for name, ids in transfers.items()})

    def fetch(self, requests):
        self.call(do="step", recv=[dict(one, remote_engine_id="engine-producer",
                                        remote_bootstrap_addr=f"http://127.0.0.1:{self.case.port}")
                                   for one in requests])

    def wait(self, count, seconds=DEADLINE / 2):
        """(ids that are over, those of them that failed)"""
        answer = self.call(do="wait", count=count, seconds=seconds)
        over = answer["sent"] if self.role == "producer" else answer["received"]
        failed = set(answer["failed"]) | ({"some"} if answer["invalid_blocks"] else set())
        return set(over), failed

    def memory(self):
        return [numpy.fromfile(path, dtype=numpy.uint8) for path in self.files]

    def stop(self):
        if self.process:
            self.process.kill()


class Kvferry(Rank):
    def start(self):
        shape = self.shape
        bases, at = [], BASE
        for size in shape.storages:
            bases.append(at)
            at += size + 4096
        case = {"id": "rank", "family": "register", "input": shape.register_input(bases)}
        done = subprocess.run([os.environ["KVF_ANSWER_VLLM"]], input="{}\n" + json.dumps(case) + "\n", text=True,
                              capture_output=True, timeout=DEADLINE, check=True)
        regions = json.loads(done.stdout.strip().split("\n")[-1])["answer"]
        memory, opaque = regions.pop("memory"), bool(regions.pop("opaque_storages"))
        names = [view["layer"] for view in shape.views]
        layer_spec = dict(kind="mla" if shape.is_mla else "attention", page_bytes=shape.page,
                          unpadded_page_bytes=shape.page, nvfp4=False)
        common = dict(tp_rank=shape.tp[0], tp_size=shape.tp[1], pp_size=shape.pp[1], regions=regions)
        facts = dict(is_mla=shape.is_mla, total_kv_heads=shape.total_heads, group_kinds=["attention"],
                     layer_groups=dict.fromkeys(names, 0), layer_specs=dict.fromkeys(names, layer_spec),
                     kernel_blocks_per_block=1, has_opaque_row=opaque)
        endpoint = dict(host="127.0.0.1", engine_id=self.engine, pp_rank=shape.pp[0],
                        remote_engine_id="engine-producer", bootstrap=f"http://127.0.0.1:{self.case.port}",
                        remote_bootstrap_addr=f"http://127.0.0.1:{self.case.port}", abort_timeout_s=PATIENCE,
                        slack_s=10, layout_ids=self.case.layout_ids)
        if self.role == "producer":
            endpoint["serve_bootstrap"] = shape.tp[0] == 0 and shape.pp[0] == 0
        self.dump = self.folder / f"{self.name}.dump"
        self.spec = dict(memory=memory, endpoint=endpoint, dump=str(self.dump), requests="-",
                         fill={"file": str(self.folder / f"{self.name}.fill")})
        if self.role == "producer":
            self.spec["producer"] = dict(common, **facts, ready=[])
        else:
            self.spec.update(pull=dict(common, requests=[]), facts=facts)
        self.events, self.transfers, self.started = [], {}, False

    def launch(self):
        """Its memory is filled at the start: whatever is to be sent must be there by then."""
        numpy.concatenate(self.expected).tofile(self.folder / f"{self.name}.fill")
        self.process = Process([os.environ["KVFERRY"], "vllm", "worker", "--role", self.role,
                                self.write_spec(self.spec)], self.folder / f"{self.name}.log", self.environment())

    def wait_ready(self):
        for name, (ids, _) in self.case.plan.items():
            if self.role == "producer":
                self.shape.put(self.expected, self.case.number(name), ids)
        self.launch()
        self.ready = self.process.take(START_SECONDS)
        self.case.assertEqual(self.ready["event"], "ready")

    def announce(self, transfers):
        pass

    def offer(self, transfers):
        for name, ids in transfers.items():
            self.process.tell(transfer_id=name, p_req_id="p-" + name, block_ids=[ids])

    def fetch(self, requests):
        for one in requests:
            self.process.tell(**one)

    def wait(self, count, seconds=DEADLINE / 2):
        ends = {"released", "expired"} if self.role == "producer" else {"received", "settled"}
        end, over, failed = time.monotonic() + seconds, set(), set()
        while len(over) < count and time.monotonic() < end:
            try:
                event = self.process.lines.get(timeout=max(end - time.monotonic(), 0.01))
            except queue.Empty:
                break
            if event is None:
                break
            self.events.append(event)
            if event["event"] in ends:
                over.add(event["req_id"])
            if event["event"] in {"failed", "settled"}:
                failed.add(event["req_id"])
        return over, failed

    def memory(self):
        self.process.child.send_signal(signal.SIGTERM)
        self.process.child.wait(DEADLINE)
        whole, parts, at = numpy.fromfile(self.dump, dtype=numpy.uint8), [], 0
        for size in self.shape.storages:
            parts.append(whole[at:at + size])
            at += size
        return parts

    def stop(self):
        if self.process:
            self.process.kill()


class Matrix:
    """What must hold whoever sits on which side."""
    producer = consumer = None
    layout_ids = 1
    tree = None  # the environment variable that says where a newer upstream is unpacked

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="kvf-vllm-")
        self.addCleanup(self.folder.cleanup)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.ranks = []
        self.addCleanup(lambda: [rank.stop() for rank in self.ranks])

    @staticmethod
    def number(name):
        return int(name.split("-")[1])

    def bring_up(self, layout, p_tp=1, d_tp=1, p_pp=1, d_pp=1, d_layout=None, plan=None, d_model=None, **model):
        """`plan`: transfer id -> (producer's block ids, consumer's). `d_model`: what is otherwise at the consumer.
        Registers all ranks of both sides."""
        self.plan = plan or {"x-0": ([3, 4, 5, 9], [7, 1, 2, 3])}
        self.producers = self.side(self.producer, "producer", layout, p_tp, p_pp, model)
        self.consumers = self.side(self.consumer, "consumer", d_layout or layout, d_tp, d_pp,
                                   {**model, **(d_model or {})})
        self.ranks = self.producers + self.consumers
        for rank in self.ranks:
            rank.start()
        self.producers[0].wait_ready()  # the registry is its
        for rank in self.ranks[1:]:
            rank.wait_ready()

    def side(self, make, role, layout, tps, pps, model):
        seed = 100 if role == "producer" else 200
        return [make(self, role, Shape(layout, (tp, tps), (pp, pps), **model), seed + pp * tps + tp)
                for pp in range(pps) for tp in range(tps)]

    def fetch(self, *names, ids=None):
        for rank in self.consumers:
            rank.fetch([dict(d_req_id="d-" + name, transfer_id=name, block_ids=[ids or self.plan[name][1]])
                        for name in names])

    def announce(self, *names):
        for rank in self.producers:
            rank.announce(names)

    def offer(self, *names):
        for rank in self.producers:
            rank.offer({name: self.plan[name][0] for name in names})

    def all_over(self, *names):
        for rank in self.ranks:
            prefix = "p-" if rank.role == "producer" else "d-"
            over, failed = rank.wait(len(names))
            self.assertEqual((over, failed), ({prefix + name for name in names}, set()), rank.name)

    def check_bytes(self, *names):
        for rank in self.ranks:
            if rank.role == "consumer" or isinstance(rank, Upstream):
                for name in names:
                    ours, theirs = self.plan[name]
                    ids = ours if rank.role == "producer" else theirs
                    rank.shape.put(rank.expected, self.number(name), ids,
                                   0 if rank.role == "producer" else len(ours) - len(theirs))
            for at, (found, expected) in enumerate(zip(rank.memory(), rank.expected)):
                wrong = numpy.flatnonzero(found != expected)
                self.assertEqual(wrong.size, 0,
                                 f"{rank.name} allocation {at}: {wrong.size} bytes differ, first {wrong[:3]}")

    def move(self, layout, **grid):
        self.bring_up(layout, **grid)
        names = list(self.plan)
        self.announce(*names)
        self.offer(*names)
        self.fetch(*names)
        self.all_over(*names)
        self.check_bytes(*names)

    def test_tp_1_to_1_head_major(self):
        self.move("head-major")

    def test_tp_2_to_1(self):
        self.move("head-major", p_tp=2)

    def test_tp_1_to_2(self):
        self.move("head-major", d_tp=2)

    def test_tp_4_to_2(self):
        self.move("head-major", p_tp=4, d_tp=2)

    def test_replicated_heads_tp_4_to_1(self):
        self.move("head-major", p_tp=4, heads=2)

    def test_pp_1_to_2(self):
        self.move("head-major", d_pp=2)

    def test_pp_2_to_1(self):
        self.move("head-major", p_pp=2)

    def test_pp_2_to_1_and_tp_1_to_2(self):
        self.move("head-major", p_pp=2, d_tp=2)

    def test_token_major(self):
        self.move("token-major")

    def test_rows_of_all_layers(self):
        self.move("rows")

    def test_rows_pp_2_to_1(self):
        self.move("rows", p_pp=2)

    def test_rows_to_layers(self):
        self.move("rows", d_layout="head-major", d_tp=2)

    def test_opaque_rows(self):
        self.move("opaque")

    def test_mla(self):
        self.move("mla")

    def test_mla_rows_tp_2_to_1(self):
        self.move("mla rows", p_tp=2)

    def test_the_consumer_has_a_prefix_already(self):
        self.move("head-major", plan={"x-0": ([3, 4, 5, 9], [8, 2])})

    def test_a_pull_waits_for_readiness(self):
        self.bring_up("head-major")
        self.fetch("x-0")
        time.sleep(1)
        self.announce("x-0")
        time.sleep(0.5)
        self.offer("x-0")
        self.all_over("x-0")
        self.check_bytes("x-0")

    def test_a_readiness_time_out(self):
        self.bring_up("head-major")
        self.announce("x-0")
        self.fetch("x-0")
        over, failed = self.consumers[0].wait(1)
        self.assertEqual(over, {"d-x-0"})
        self.assertTrue(failed)
        self.check_bytes()

    def test_a_pull_that_asks_too_much(self):
        self.bring_up("head-major", plan={"x-0": ([3, 4], [7, 1]), "x-1": ([5, 6], [2, 3])})
        self.announce("x-0", "x-1")
        self.offer("x-0", "x-1")
        self.fetch("x-0", ids=[7, 1, 2])
        over, failed = self.consumers[0].wait(1)
        self.assertEqual(over, {"d-x-0"})
        self.assertTrue(failed)
        self.fetch("x-1")
        self.assertEqual(self.consumers[0].wait(1), ({"d-x-1"}, set()))
        for rank in self.producers:
            if isinstance(rank, Upstream):  # it was told to hold it, though nobody got it
                rank.shape.put(rank.expected, self.number("x-0"), self.plan["x-0"][0])
        self.check_bytes("x-1")

    def test_pulls_over_one_cached_layout(self):
        self.bring_up("head-major", plan={f"x-{at}": ([at, at + 4], [11 - at, 5 - at]) for at in range(3)})
        for name in self.plan:
            self.announce(name)
            self.offer(name)
            self.fetch(name)
            self.all_over(name)
        if isinstance(self.producers[0], Upstream):
            self.producers[0].process.tell(do="state")
            self.assertEqual(self.producers[0].process.take()["prepared"], 1)
        self.check_bytes(*self.plan)

    def test_many_at_once(self):
        plan = {f"x-{at}": ([at, 63 - at], [(at * 7) % 32, 32 + (at * 5) % 32]) for at in range(32)}
        self.move("head-major", plan=plan, blocks=64, p_tp=2, d_tp=1)


class Unwritten:
    """What a stock producer leaves unwritten, and reports as a success: such a request fails here."""

    def missed(self, layout, expected, found, **more):
        self.bring_up(layout, **more)
        for step in (self.announce, self.offer, self.fetch):
            step("x-0")
        self.assertEqual(self.consumers[0].wait(1), ({"d-x-0"}, {"d-x-0"}))
        texts = [event["text"] for event in self.consumers[0].events if event["event"] == "failed"]
        self.assertEqual(len(texts), 1)
        self.assertIn(f"said that request d-x-0 is finished, but of {expected} bytes {found} arrived", texts[0])
        self.assertEqual(self.producers[0].wait(1), ({"p-x-0"}, set()))

    def test_latents_that_are_longer_here(self):
        self.missed("mla", 4 * 4 * 16 * 192, 4 * 4 * 16 * 128, d_model={"content": 96})

    def test_rows_of_latents_that_are_longer_here(self):
        self.missed("mla rows", 4 * 4 * 16 * 192, 4 * 4 * 16 * 128, d_model={"content": 96})

    def test_a_layer_that_only_this_side_has(self):
        self.missed("head-major", 4 * 5 * 4096, 4 * 4 * 4096, d_model={"layers": 5})


class UpstreamToKvferry(Unwritten, Matrix, unittest.TestCase):
    producer, consumer = Upstream, Kvferry

    def test_a_producer_that_dies_while_a_pull_waits(self):
        self.bring_up("head-major")
        self.announce("x-0")
        self.fetch("x-0")
        time.sleep(1)
        self.producers[0].stop()
        self.producers[0].process = None
        over, failed = self.consumers[0].wait(1)  # long before any time-out of the protocol
        self.assertEqual((over, failed), ({"d-x-0"}, {"d-x-0"}))
        self.ranks.remove(self.producers[0])
        self.check_bytes()


class KvferryToUpstream(Matrix, unittest.TestCase):
    producer, consumer = Kvferry, Upstream

    def test_a_consumer_that_dies_while_its_pull_waits(self):
        self.bring_up("head-major", plan={"x-0": ([3, 4], [7, 1]), "x-1": ([5, 6], [2, 3])})
        consumer = self.consumers[0]
        self.fetch("x-0")
        time.sleep(1)
        consumer.stop()
        consumer.start()
        consumer.wait_ready()
        self.offer("x-0", "x-1")
        self.fetch("x-1")
        self.assertEqual(consumer.wait(1), ({"d-x-1"}, set()))
        self.check_bytes("x-1")


class UpstreamToKvferryWithoutLayoutIds(Matrix, unittest.TestCase):
    producer, consumer = Upstream, Kvferry
    layout_ids = 0

    test_tp_4_to_2 = test_pp_2_to_1_and_tp_1_to_2 = test_many_at_once = test_replicated_heads_tp_4_to_1 = None


class Newer(Matrix):
    """Upstream 0.33.0, which sends and answers layout ids."""
    tree = "KVF_VLLM_NEWER_TREE"

    test_tp_1_to_2 = test_pp_1_to_2 = test_pp_2_to_1_and_tp_1_to_2 = test_replicated_heads_tp_4_to_1 = None
    test_rows_of_all_layers = test_rows_to_layers = test_tp_1_to_1_head_major = None
    test_the_consumer_has_a_prefix_already = None

    def setUp(self):
        if not os.environ.get(self.tree):
            self.skipTest(f"{self.tree} is not set")
        super().setUp()


class NewerUpstreamToKvferry(Unwritten, Newer, unittest.TestCase):
    producer, consumer = Upstream, Kvferry


class KvferryToNewerUpstream(Newer, unittest.TestCase):
    producer, consumer = Kvferry, Upstream


class NewerUpstreamToKvferryWithoutLayoutIds(Newer, unittest.TestCase):
    producer, consumer = Upstream, Kvferry
    layout_ids = 0

    test_tp_4_to_2 = test_many_at_once = test_mla_rows_tp_2_to_1 = test_rows_pp_2_to_1 = None
    test_opaque_rows = test_mla = test_token_major = test_a_readiness_time_out = None


class UpstreamToUpstream(Matrix, unittest.TestCase):
    """The tests themselves, with nothing of ours: run when KVF_VLLM_SELF is set."""
    producer = consumer = Upstream

    def setUp(self):
        if not os.environ.get("KVF_VLLM_SELF"):
            self.skipTest("KVF_VLLM_SELF is not set")
        super().setUp()


if __name__ == "__main__":
    unittest.main(verbosity=2)
