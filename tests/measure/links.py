# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Whether emulated links give what they promise: in rate, in bytes, and in time.

Rows of kind ``all-reduce``: 25 MB summed over 2 and 4 workers, each in its own network namespace, at 20, 100 and 1000
Mbit/s, by torch's own all-reduce on gloo, by the transport below gravac's exchange, and by a DDP step through gravac
that compresses nothing. Expected is ``2(N-1)/N`` of the bytes at the payload rate that one TCP stream reached on the
same link just before. The interfaces' bytes are read from outside, once they stand still; a second ratio takes off 66
bytes of Ethernet, IP and TCP headers for each packet.

Rows of kind ``schedule``: a TCP stream across a change of the rate, received bytes sampled every 50 ms; the lag is the
time from the change's due moment until the rate has first come within a tenth of what it settles at, over 0.2 s.

    python -m tests.measure.links [--json FILE] [--rates MBIT ...] [--workers N ...] [--schedule WORDS ...]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gravac import AdaptiveCompressor, Static, topk
from gravac.collectives import AllReduce
from gravac.exchange.group import GroupTransport
from gravac.lab.links.link import Link, Phase, parse_link
from gravac.lab.links.link_rate import Sample, stream, tcp_rate
from gravac.lab.links.network import INTERFACE, EmulatedNetwork, InterfaceCounters
from gravac.lab.links.schedule import Schedule
from tests.measure.results import write

WIDTH = 1768
"""Two square layers of it are 25 MB."""

WAYS = ("torch", "transport", "ddp")

HEADERS = 66
"""Bytes of Ethernet, IPv4 and TCP with timestamps, per packet."""

WINDOW = 0.2
"""Seconds over which a stream's rate is taken."""


class Rank:
    """One worker: says how long each thing it is told to do took."""

    def __init__(self, rank: int, world: int, store: str) -> None:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
        torch.manual_seed(0)
        layers = [torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2)]
        self.ddp = DistributedDataParallel(torch.nn.Sequential(*layers))
        optimizer = torch.optim.SGD(self.ddp.parameters(), lr=1e-4)
        self.compressor = AdaptiveCompressor(topk, cf_range=(1, 1000), controller=Static(cf=1))
        self.compressor.attach(self.ddp, optimizer)
        self.transport = GroupTransport(dist.new_group())
        self.flat = torch.ones(2 * WIDTH * WIDTH)
        self.x = torch.randn(1, WIDTH)
        self.optimizer = optimizer

    def do(self, way: str) -> dict[str, float]:
        """One all-reduce: ``seconds``, ``compute`` in it that is no exchange, and ``wire_bytes`` by the ledger."""
        self.flat.fill_(1)
        compute = 0.0
        if way == "ddp":
            with self.ddp.no_sync():
                began = time.perf_counter()
                self.ddp(self.x).square().mean().backward()
                compute = time.perf_counter() - began
        self.optimizer.zero_grad()
        ledger = self.compressor.ledger if way == "ddp" else self.transport.ledger
        booked = ledger.wire_bytes
        dist.barrier()
        began = time.perf_counter()
        if way == "torch":
            dist.all_reduce(self.flat)
        elif way == "transport":
            self.transport.finish(self.transport.launch([AllReduce(self.flat)]))
        else:
            self.ddp(self.x).square().mean().backward()
        seconds = time.perf_counter() - began
        if way == "ddp":
            self.optimizer.step()
        wire = ledger.wire_bytes - booked
        if way == "torch":
            wire = AllReduce(self.flat).wire_bytes(self.flat.numel() * 4, dist.get_world_size())
        return {"seconds": seconds, "compute": compute, "wire_bytes": wire}


def rank_main(rank: int, world: int, store: str) -> None:
    worker = Rank(rank, world, store)
    for line in sys.stdin:
        way = line.strip()
        if way == "small":
            dist.all_reduce(torch.ones(250_000))
            print("{}", flush=True)
        else:
            print(json.dumps(worker.do(way)), flush=True)
    worker.compressor.close()
    dist.destroy_process_group()


class Ranks:
    """The workers of a network, told what to do all at once."""

    def __init__(self, network: EmulatedNetwork, store: str) -> None:
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1"}
        module = [sys.executable, "-m", "tests.measure.links", "--store", store, "--world", str(network.workers)]
        self.processes = [
            subprocess.Popen(
                [*network.prefix(rank), *module, "--rank", str(rank)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
            for rank in range(network.workers)
        ]

    def do(self, way: str) -> list[dict[str, float]]:
        for process in self.processes:
            assert process.stdin
            process.stdin.write(f"{way}\n")
            process.stdin.flush()
        said = []
        for process in self.processes:
            assert process.stdout
            said.append(json.loads(process.stdout.readline()))
        return said


@contextmanager
def ranks(network: EmulatedNetwork) -> Iterator[Ranks]:
    with tempfile.TemporaryDirectory() as folder:
        started = Ranks(network, f"{folder}/store")
        try:
            yield started
        finally:
            for process in started.processes:
                process.kill()
                process.wait()


def drained(network: EmulatedNetwork) -> list[InterfaceCounters]:
    """The workers' counters once they have stood still for 0.2 s."""
    before: list[InterfaceCounters] = []
    while True:
        now = [network.interface_counters(worker) for worker in range(network.workers)]
        if now == before:
            return now
        before = now
        time.sleep(0.2)


def all_reduces(workers: int, rate: float) -> Iterator[dict[str, Any]]:
    link = Link((Phase(0, rate, rate),))
    with EmulatedNetwork(workers, link) as network, ranks(network) as told:
        network.apply(Phase(0, None, None))  # set up without a limit: DDP hands out the model first
        for way in (*WAYS, *WAYS):
            told.do(way)
        network.apply(link.phases[0])
        time.sleep(0.5)
        reached = tcp_rate(network)
        for way in WAYS:
            told.do("small")
            yield {
                "kind": "all-reduce",
                "way": way,
                "workers": workers,
                "rate_mbit": rate / 1e6,
                "tcp_mbit": round(reached / 1e6, 2),
                **repeated(network, told, way, 1 if rate < 50e6 else 3, reached),
            }


def repeated(network: EmulatedNetwork, told: Ranks, way: str, repeats: int, tcp: float) -> dict[str, Any]:
    size = 2 * WIDTH * WIDTH * 4
    expected = AllReduce.wire_bytes(size, network.workers) * 8 / tcp
    seconds, compute, by_ledger, with_headers, payload = [], [], [], [], []
    for _ in range(repeats):
        before = drained(network)
        said = told.do(way)
        after = drained(network)
        seconds.append(max(one["seconds"] for one in said))
        compute.append(max(one["compute"] for one in said))
        for rank, one in enumerate(said):
            sent = after[rank].sent - before[rank].sent
            packets = after[rank].sent_packets - before[rank].sent_packets
            by_ledger.append(one["wire_bytes"])
            with_headers.append(sent / one["wire_bytes"])
            payload.append((sent - HEADERS * packets) / one["wire_bytes"])
    took = statistics.median(seconds)
    return {
        "repeats": repeats,
        "seconds": round(took, 4),
        "expected_seconds": round(expected, 4),
        "over_expected": round(took / expected, 4),
        "all_over_expected": [round(one / expected, 4) for one in seconds],
        "compute_seconds": round(statistics.median(compute), 4),
        "ledger_wire_bytes": round(statistics.mean(by_ledger)),
        "interface_over_ledger": [round(min(with_headers), 4), round(max(with_headers), 4)],
        "interface_less_headers_over_ledger": [round(min(payload), 4), round(max(payload), 4)],
    }


def followed(words: str) -> Iterator[dict[str, Any]]:
    link = parse_link(words)
    with EmulatedNetwork(2, link) as network, Schedule(network) as schedule:
        with stream(network, link.phases[-1].at_seconds + 4) as samples:
            time.sleep(2)
            began = time.monotonic()
            schedule.follow()
        changes = schedule.changes
    ends = [phase.at_seconds for phase in link.phases[1:]] + [samples[-1].time_s - began - WINDOW]
    for phase, change, end in zip(link.phases[1:], changes, ends[1:], strict=True):
        settled = rate_between(samples, began + (phase.at_seconds + end) / 2, began + end)
        yield {
            "kind": "schedule",
            "link": words,
            "at_seconds": phase.at_seconds,
            "rate_mbit": (phase.down or 0) / 1e6,
            "settled_mbit": round(settled / 1e6, 2),
            "applied_after_seconds": round(change.applied_s - change.due_s, 4),
            "lag_seconds": round(lag(samples, began + phase.at_seconds, began + end, settled), 3),
        }


def rate_between(samples: list[Sample], start: float, end: float) -> float:
    within = [sample for sample in samples if start <= sample.time_s <= end]
    return (within[-1].received_bytes - within[0].received_bytes) * 8 / (within[-1].time_s - within[0].time_s)


def lag(samples: list[Sample], due: float, end: float, settled: float) -> float:
    for position, first in enumerate(samples):
        later = next((sample for sample in samples[position + 1 :] if sample.time_s >= first.time_s + WINDOW), None)
        if first.time_s >= due and later is not None and later.time_s <= end:
            rate = (later.received_bytes - first.received_bytes) * 8 / (later.time_s - first.time_s)
            if abs(rate / settled - 1) <= 0.1:
                return first.time_s - due
    return float("inf")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--rates", type=float, nargs="*", default=[1000, 100, 20])
    parser.add_argument("--workers", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--schedule", nargs="*", default=["200mbit,3s:20mbit,6s:200mbit", "1gbit,3s:50mbit,6s:1gbit"])
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--world", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        rank_main(arguments.rank, arguments.world, arguments.store)
        return
    rows: list[dict[str, Any]] = []
    for workers in arguments.workers:
        for rate in arguments.rates:
            for row in all_reduces(workers, rate * 1e6):
                print(row["way"], workers, rate, row["over_expected"], file=sys.stderr, flush=True)
                rows.append(row)
    for words in arguments.schedule:
        rows += followed(words)
    write(rows, arguments.json)


if __name__ == "__main__":
    main()
