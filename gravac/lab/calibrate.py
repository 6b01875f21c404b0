# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Measures the network between ranks (latency of a message, bandwidth) and the speed of a copy, for the cost model.

Under torchrun it measures between the ranks that run. Otherwise it starts workers on this machine: over the loopback
interface, which describes this machine only and no network; or over emulated links. Takes seconds.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.distributed as dist
from pydantic import Field

from gravac.collectives import AllReduce
from gravac.costmodel import Machine, Network
from gravac.lab import local_ranks
from gravac.lab.links import network as links
from gravac.lab.provenance import Stamp
from gravac.settings import Settings, SettingsError

SIZES = (256, 4096, 65_536, 1_048_576, 8_388_608, 33_554_432)
"""Bytes of the all-reduces, smallest first; the next is not tried once it is likely to take longer than ``LONGEST``."""

REPEATS = 7

LONGEST = 1.5
"""Seconds that the longest all-reduce is allowed to take."""

COPIED = 33_554_432
"""Bytes of the tensor whose copy is timed."""

PATIENCE = 60.0
"""Seconds after which workers are given up."""

Say = Callable[[str], None]


class Calibration(Settings):
    """The speed of a network and of a copy, measured between some ranks.

    Attributes:
        alpha: latency of a message in seconds.
        bandwidth: bits per second of a rank's link.
        copy_bytes_per_s: bytes of a tensor over the seconds that copying it takes.
        workers: number of ranks.
        backend: torch.distributed's backend, such as ``"gloo"``.
        device: type of the device that the tensors were on.
        where: ``"torchrun"`` (ranks that a launcher started), ``"loopback"``, or ``"emulated"`` (emulated links).
        link: the emulated link, in words; empty otherwise.
        sizes: bytes of the all-reduces measured.
        seconds: median seconds of each all-reduce.
        stamp: code, time and speed of the machine; ``None`` in older files.
    """

    alpha: float = Field(ge=0, allow_inf_nan=False)
    bandwidth: float = Field(gt=0, allow_inf_nan=False)
    copy_bytes_per_s: float = Field(gt=0, allow_inf_nan=False)
    workers: int = Field(ge=2)
    backend: str = "gloo"
    device: str = "cpu"
    where: Literal["torchrun", "loopback", "emulated"] = "torchrun"
    link: str = ""
    sizes: tuple[int, ...] = ()
    seconds: tuple[float, ...] = ()
    stamp: Stamp | None = None

    @property
    def network(self) -> Network:
        """Return the network for the cost model."""
        return Network(self.alpha, self.bandwidth)

    def machine(self, overlap: float = 0.9) -> Machine:
        """Return the machine for the cost model; ``overlap`` is not measured here."""
        return Machine(self.copy_bytes_per_s, overlap)


def read_calibration(path: Path) -> Calibration:
    """Read what ``gravac calibrate --json`` wrote.

    Raises:
        ValueError: the file is no calibration; names the file and the field.
        OSError: it cannot be read.
    """
    try:
        content = json.loads(path.read_text())
        if not isinstance(content, dict):
            raise SettingsError("no JSON object")
        return Calibration(**content)
    except ValueError as error:
        raise ValueError(f"calibration: {path}: {error}; write one with gravac calibrate --json {path}") from None


def line(sizes: tuple[int, ...], seconds: tuple[float, ...], world: int) -> tuple[float, float]:
    """Return latency of a message (s) and bandwidth (bit/s) of ring all-reduces, by least squares of relative errors.

    Args:
        sizes: payload bytes of all-reduces, two or more different ones.
        seconds: seconds that each of them took.
        world: number of ranks.

    Raises:
        ValueError: larger ones took no longer, so that there is no bandwidth.

    Example:
        >>> latency, bandwidth = line((1000, 1_001_000), (0.001, 0.081), world=2)  # 1 MB more takes 80 ms more
        >>> round(bandwidth / 1e6), "Mbit/s"
        (100, 'Mbit/s')
    """
    taken = np.array(seconds)
    columns = np.array([[2 * (world - 1), 8e-9 * AllReduce.wire_bytes(size, world)] for size in sizes])
    alpha, per_gigabit = np.linalg.lstsq(columns / taken[:, None], np.ones(len(sizes)), rcond=None)[0]
    if alpha < 0:
        alpha = 0.0
        ratios = columns[:, 1] / taken
        per_gigabit = ratios.sum() / (ratios @ ratios)
    if per_gigabit <= 0:
        raise ValueError(f"seconds: {seconds} do not grow with sizes {sizes}; measure again on an idle machine")
    return float(alpha), float(1e9 / per_gigabit)


def measure(say: Say, where: Literal["torchrun", "loopback", "emulated"] = "torchrun", link: str = "") -> Calibration:
    """Measure between the ranks of the default group, all of which must call it.

    Args:
        say: called with what is going on, in words.
        where: kind of link, for the result.
        link: the emulated link in words, for the result.

    Raises:
        ValueError: there is one rank only, or larger all-reduces took no longer.
    """
    world = dist.get_world_size()
    if world < 2:
        raise ValueError(
            "workers: 1 rank has no network to measure; start 2 or more, such as torchrun --nproc-per-node 2"
        )
    device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
    sizes: list[int] = []
    medians: list[float] = []
    for size in SIZES:
        if len(sizes) > 1:
            likely = medians[-1] + (medians[-1] - medians[-2]) / (sizes[-1] - sizes[-2]) * (size - sizes[-1])
            if _slowest(likely, device) > LONGEST:
                break
        tensor = torch.ones(size // 4, device=device)
        repeats = REPEATS if not medians or medians[-1] < 0.1 else 3
        times = [_timed(partial(dist.all_reduce, tensor), device) for _ in range(repeats + 1)][1:]
        sizes.append(size)
        medians.append(_slowest(statistics.median(times), device))
        say(f"all-reduce of {size:,} bytes: {1e3 * medians[-1]:.3f} ms")
    source = torch.ones(COPIED // 4, device=device)
    target = torch.empty_like(source)
    copying = statistics.median([_timed(lambda: target.copy_(source), device, together=False) for _ in range(10)][1:])
    speed = COPIED / _slowest(copying, device)
    say(f"copy: {speed / 1e9:.2f} GB/s")
    alpha, bandwidth = line(tuple(sizes), tuple(medians), world)
    return Calibration(
        alpha=alpha,
        bandwidth=bandwidth,
        copy_bytes_per_s=speed,
        workers=world,
        backend=dist.get_backend(),
        device=device.type,
        where=where,
        link=link,
        sizes=tuple(sizes),
        seconds=tuple(medians),
    )


def _timed(work: Callable[[], object], device: torch.device, together: bool = True) -> float:
    """Return the seconds that work takes, from a common start."""
    if together:
        dist.barrier()
    _wait(device)
    began = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - began


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _slowest(seconds: float, device: torch.device) -> float:
    """Return the largest of all ranks' times, so that they decide alike."""
    most = torch.tensor(seconds, dtype=torch.float64, device=device)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return float(most)


def measure_ranks(say: Say) -> Calibration | None:
    """Measure between the ranks that a launcher started; ``None`` on all but rank 0."""
    with local_ranks.launched() as rank:
        measured = measure(say if rank == 0 else _quiet)
        return measured if rank == 0 else None


def _quiet(words: str) -> None:
    """Say nothing: only rank 0 speaks."""


def measure_here(workers: int, link: str | None) -> Calibration:
    """Measure between workers started on this machine; their progress goes to standard error.

    Args:
        workers: number of workers, 2 to 8.
        link: emulated link of each worker, in words; ``None`` for the loopback interface.

    Raises:
        ValueError: an argument is out of range.
        gravac.lab.links.network.LinkError: links cannot be made here.
        RuntimeError: a worker failed, or took longer than a minute.
    """
    if not 2 <= workers <= links.MOST_WORKERS:
        raise ValueError(f"workers: {workers} is outside 2 to {links.MOST_WORKERS}; use 2")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gravac-calibrate-")))
        network = None if link is None else stack.enter_context(links.EmulatedNetwork(workers, link))
        module = "gravac.lab.calibrate"
        local_ranks.spawn(module, folder, workers, link or "", patience=PATIENCE, network=network)
        return read_calibration(folder / "calibration.json")


def worker(arguments: list[str]) -> None:
    """Run one worker of ``measure_here``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("workers", type=int)
    parser.add_argument("link")
    parser.add_argument("rank", type=int)
    options = parser.parse_args(arguments)
    first = options.rank == 0
    with local_ranks.joined(options.folder, options.rank, options.workers):
        measured = measure(say_aloud if first else _quiet, "emulated" if options.link else "loopback", options.link)
        if first:
            (options.folder / "calibration.json").write_text(measured.model_dump_json())


def say_aloud(words: str) -> None:
    """Print words on standard error."""
    print(f"gravac calibrate: {words}", file=sys.stderr, flush=True)


def in_words(measured: Calibration) -> str:
    """Return the result in a few lines."""
    between = {
        "torchrun": f"{measured.workers} ranks by {measured.backend}",
        "loopback": f"{measured.workers} workers over loopback: this describes this machine only, and no network",
        "emulated": f"{measured.workers} workers over emulated links of {measured.link}",
    }[measured.where]
    least, most = min(measured.sizes, default=0), max(measured.sizes, default=0)
    errors = [
        abs(
            2 * (measured.workers - 1) * measured.alpha
            + 8 * AllReduce.wire_bytes(size, measured.workers) / measured.bandwidth
            - seconds
        )
        / seconds
        for size, seconds in zip(measured.sizes, measured.seconds, strict=True)
    ]
    off = max(errors, default=math.nan)
    return (
        f"{between}\n"
        f"latency {1e6 * measured.alpha:.1f} µs a message, bandwidth {measured.bandwidth / 1e6:.1f} Mbit/s, "
        f"copy {measured.copy_bytes_per_s / 1e9:.2f} GB/s\n"
        f"all-reduces of {least:,} to {most:,} bytes; the line through them is off by at most {off:.0%}"
    )


if __name__ == "__main__":
    worker(sys.argv[1:])
