# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Measures the network between ranks (latency of a message, bandwidth) and the speed of a copy, for the cost model.

Under torchrun the command measures between torchrun's ranks. Otherwise the command starts workers on this machine,
which talk over emulated links or over the loopback interface. Loopback describes this machine only, and no network. A
measurement takes seconds.
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
"""Bytes of the all-reduces, smallest first; sizes that are likely to take longer than ``LONGEST`` are not tried."""

REPEATS = 7
"""Number of timed all-reduces of each size; 3 are timed if an all-reduce of the previous size took 0.1 s or more."""

LONGEST = 1.5
"""Seconds that the longest all-reduce is allowed to take."""

COPY_BYTES = 33_554_432
"""Bytes of the tensor whose copy is timed."""

PATIENCE = 60.0
"""Seconds after which the parent gives up waiting for its workers."""

Say = Callable[[str], None]


class Calibration(Settings):
    """Measured speed of a network between ranks, and of a copy.

    Attributes:
        alpha: latency of a message in seconds.
        bandwidth: bits per second of a rank's link.
        copy_bytes_per_s: bytes of a tensor / seconds that a copy of the tensor takes.
        workers: number of ranks.
        backend: torch.distributed's backend, such as ``"gloo"``.
        device: type of the device that held the tensors.
        where: ``"torchrun"`` (ranks that a launcher started), ``"loopback"``, or ``"emulated"`` (emulated links).
        link: the emulated link as text, such as ``"100mbit"``; empty if no link was emulated.
        sizes: bytes of the measured all-reduces.
        seconds: median seconds of each all-reduce.
        stamp: version of the code, time of the measurement and speed of the machine; ``None`` in older files.
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
        """Return the machine for the cost model.

        Args:
            overlap: fraction of backward that hides exchange, which a calibration does not measure.
        """
        return Machine(self.copy_bytes_per_s, overlap)


def read_calibration(path: Path) -> Calibration:
    """Read a file that ``gravac calibrate --json`` wrote.

    Raises:
        ValueError: the file is no calibration; names the file and the field.
        OSError: the file cannot be read.
    """
    try:
        content = json.loads(path.read_text())
        if not isinstance(content, dict):
            raise SettingsError("no JSON object")
        return Calibration(**content)
    except ValueError as error:
        raise ValueError(f"calibration: {path}: {error}; write one with gravac calibrate --json {path}") from None


def fit_line(sizes: tuple[int, ...], seconds: tuple[float, ...], world: int) -> tuple[float, float]:
    """Return latency of a message (s) and bandwidth (bit/s) of ring all-reduces, by least squares of relative errors.

    Args:
        sizes: payload bytes of the all-reduces, at least two different sizes.
        seconds: seconds of each all-reduce.
        world: number of ranks.

    Raises:
        ValueError: larger all-reduces took no longer, so no bandwidth follows.

    Example:
        >>> latency, bandwidth = fit_line((1000, 1_001_000), (0.001, 0.081), world=2)  # 1 MB more takes 80 ms more
        >>> round(bandwidth / 1e6), "Mbit/s"
        (100, 'Mbit/s')
    """
    times = np.array(seconds)
    columns = np.array([[2 * (world - 1), 8e-9 * AllReduce.wire_bytes(size, world)] for size in sizes])
    alpha, per_gigabit = np.linalg.lstsq(columns / times[:, None], np.ones(len(sizes)), rcond=None)[0]
    if alpha < 0:
        alpha = 0.0
        ratios = columns[:, 1] / times
        per_gigabit = ratios.sum() / (ratios @ ratios)
    if per_gigabit <= 0:
        raise ValueError(f"seconds: {seconds} do not grow with sizes {sizes}; measure again on an idle machine")
    return float(alpha), float(1e9 / per_gigabit)


def measure(say: Say, where: Literal["torchrun", "loopback", "emulated"] = "torchrun", link: str = "") -> Calibration:
    """Measure between the ranks of the default group, all of which must call this function.

    Args:
        say: function that is called with a line of text about each measurement.
        where: kind of link, for the result.
        link: the emulated link as text, for the result.

    Raises:
        ValueError: the group has a single rank, or larger all-reduces took no longer.
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
    source = torch.ones(COPY_BYTES // 4, device=device)
    target = torch.empty_like(source)
    copying = statistics.median(
        [_timed(lambda: target.copy_(source), device, synchronized=False) for _ in range(10)][1:]
    )
    speed = COPY_BYTES / _slowest(copying, device)
    say(f"copy: {speed / 1e9:.2f} GB/s")
    alpha, bandwidth = fit_line(tuple(sizes), tuple(medians), world)
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


def _timed(work: Callable[[], object], device: torch.device, synchronized: bool = True) -> float:
    """Return the seconds that ``work`` takes; if ``synchronized``, all ranks start it together, after a barrier."""
    if synchronized:
        dist.barrier()
    _wait(device)
    start = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    """Wait until a GPU has finished its queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def _slowest(seconds: float, device: torch.device) -> float:
    """Return the largest of all ranks' times, so that all ranks decide alike."""
    slowest = torch.tensor(seconds, dtype=torch.float64, device=device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return float(slowest)


def measure_ranks(say: Say) -> Calibration | None:
    """Measure between the ranks that a launcher started; return ``None`` on all ranks but rank 0."""
    with local_ranks.launched() as rank:
        measured = measure(say if rank == 0 else _quiet)
        return measured if rank == 0 else None


def _quiet(text: str) -> None:
    """Print nothing: only rank 0 reports progress."""


def measure_here(workers: int, link: str | None) -> Calibration:
    """Measure between workers that this function starts on this machine; they print progress on standard error.

    Args:
        workers: number of workers, 2 to 8.
        link: emulated link of each worker, as text; ``None`` for the loopback interface.

    Raises:
        ValueError: an argument is out of range.
        gravac.lab.links.network.LinkError: this machine cannot make the links.
        RuntimeError: a worker failed, or took longer than a minute.
    """
    if not 2 <= workers <= links.MAX_WORKERS:
        raise ValueError(f"workers: {workers} is outside 2 to {links.MAX_WORKERS}; use 2")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gravac-calibrate-")))
        network = None if link is None else stack.enter_context(links.EmulatedNetwork(workers, link))
        module = "gravac.lab.calibrate"
        local_ranks.spawn(module, folder, workers, link or "", patience=PATIENCE, network=network)
        return read_calibration(folder / "calibration.json")


def run_worker(arguments: list[str]) -> None:
    """Run one worker of ``measure_here``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("workers", type=int)
    parser.add_argument("link")
    parser.add_argument("rank", type=int)
    options = parser.parse_args(arguments)
    is_first = options.rank == 0
    with local_ranks.joined(options.folder, options.rank, options.workers):
        measured = measure(say_aloud if is_first else _quiet, "emulated" if options.link else "loopback", options.link)
        if is_first:
            (options.folder / "calibration.json").write_text(measured.model_dump_json())


def say_aloud(text: str) -> None:
    """Print a line of text on standard error."""
    print(f"gravac calibrate: {text}", file=sys.stderr, flush=True)


def describe(measured: Calibration) -> str:
    """Return a description of the result, in three lines."""
    setting = {
        "torchrun": f"{measured.workers} ranks by {measured.backend}",
        "loopback": f"{measured.workers} workers over loopback: this describes this machine only, and no network",
        "emulated": f"{measured.workers} workers over emulated links of {measured.link}",
    }[measured.where]
    smallest, largest = min(measured.sizes, default=0), max(measured.sizes, default=0)
    errors = [
        abs(
            2 * (measured.workers - 1) * measured.alpha
            + 8 * AllReduce.wire_bytes(size, measured.workers) / measured.bandwidth
            - seconds
        )
        / seconds
        for size, seconds in zip(measured.sizes, measured.seconds, strict=True)
    ]
    largest_error = max(errors, default=math.nan)
    return (
        f"{setting}\n"
        f"latency {1e6 * measured.alpha:.1f} µs a message, bandwidth {measured.bandwidth / 1e6:.1f} Mbit/s, "
        f"copy {measured.copy_bytes_per_s / 1e9:.2f} GB/s\n"
        f"all-reduces of {smallest:,} to {largest:,} bytes; the line through them is off by at most {largest_error:.0%}"
    )


if __name__ == "__main__":
    run_worker(sys.argv[1:])
