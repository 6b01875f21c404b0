# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Measures latency and bandwidth between ranks, and the speed of copying a tensor, as input of the cost model.

Under torchrun, ``gravac calibrate`` measures between torchrun's ranks. Otherwise the command starts workers on this
machine, which communicate over emulated links or over the loopback interface. Numbers measured over the loopback
interface say nothing about a real network. A measurement takes seconds.
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

ALL_REDUCE_BYTES = (256, 4096, 65_536, 1_048_576, 8_388_608, 33_554_432)
"""Payload bytes of the all-reduces to time, ascending; sizes predicted to take over ``LONGEST_S`` are skipped."""

TIMED_REPEATS = 7
"""Number of timed all-reduces of each size; 3 are timed if an all-reduce of the previous size took 0.1 s or more."""

LONGEST_S = 1.5
"""Maximum seconds of an all-reduce: the measurement stops before a size that is predicted to take longer."""

COPY_BYTES = 33_554_432
"""Bytes of the tensor whose copy is timed."""

KILL_AFTER_S = 60.0
"""Seconds after which ``measure_here`` kills its workers and fails."""

PrintLine = Callable[[str], None]
"""Function that is given a line of text about the progress, without line break, and shows the line."""


class Calibration(Settings):
    """Result of ``gravac calibrate``: speed of the network between ranks, and speed of copying a tensor in memory.

    Attributes:
        alpha: latency of a message, in seconds.
        bandwidth: bandwidth of each rank's link, in bits per second.
        copy_bytes_per_s: bytes of a tensor / seconds that a copy of the tensor takes.
        workers: number of ranks that measured.
        backend: torch.distributed's backend, such as ``"gloo"``.
        device: type of the device of the tensors, ``"cpu"`` or ``"cuda"``.
        where: kind of network: ``"torchrun"`` (between ranks that a launcher started), ``"loopback"`` (the loopback
            interface of one machine), or ``"emulated"`` (emulated links).
        link: the emulated link as text, such as ``"100mbit"``; empty if no link was emulated.
        sizes: payload bytes of each timed all-reduce.
        seconds: seconds of an all-reduce of each of ``sizes``: median on each rank, then the maximum over ranks.
        stamp: commit of the code, time of the measurement and speed of the machine; ``None`` in older files.
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
        """``Network`` of the cost model, with the measured latency and bandwidth."""
        return Network(self.alpha, self.bandwidth)

    def machine(self, overlap: float = 0.9) -> Machine:
        """Return a ``Machine`` of the cost model, with the measured speed of copying a tensor.

        Args:
            overlap: share of backward's time that can hide the exchange, in [0, 1]; a calibration does not measure it.
        """
        return Machine(self.copy_bytes_per_s, overlap)


def read_calibration(path: Path) -> Calibration:
    """Return the calibration in a file that ``gravac calibrate --json`` wrote.

    Raises:
        ValueError: the file does not hold a calibration; the message names the file and the wrong field.
        OSError: the file cannot be read.
    """
    try:
        content = json.loads(path.read_text())
        if not isinstance(content, dict):
            raise SettingsError("no JSON object in the file")
        return Calibration(**content)
    except ValueError as error:
        raise ValueError(f"calibration: {path}: {error}; write the file with gravac calibrate --json {path}") from None


def fit_line(sizes: tuple[int, ...], seconds: tuple[float, ...], world: int) -> tuple[float, float]:
    """Fit a line to times of ring all-reduces; return latency of a message (seconds) and bandwidth (bits per second).

    The line is seconds = 2 (world - 1) x latency + 8 x wire bytes / bandwidth. The fit minimizes the sum of the squared
    relative errors. If the fitted latency would be negative, it is 0.

    Args:
        sizes: payload bytes of the all-reduces, at least two different sizes.
        seconds: seconds of each all-reduce.
        world: number of ranks.

    Raises:
        ValueError: larger all-reduces took no longer than smaller ones, so the bandwidth cannot be computed.

    Example:
        >>> latency, bandwidth = fit_line((1000, 1_001_000), (0.001, 0.081), world=2)  # 1 MB more takes 80 ms more
        >>> round(bandwidth / 1e6), "Mbit/s"
        (100, 'Mbit/s')
    """
    times = np.array(seconds)
    columns = np.array([[2 * (world - 1), 8e-9 * AllReduce.wire_bytes(size, world)] for size in sizes])
    alpha, seconds_per_gigabit = np.linalg.lstsq(columns / times[:, None], np.ones(len(sizes)), rcond=None)[0]
    if alpha < 0:
        alpha = 0.0
        ratios = columns[:, 1] / times
        seconds_per_gigabit = ratios.sum() / (ratios @ ratios)
    if seconds_per_gigabit <= 0:
        raise ValueError(
            f"seconds: all-reduces of {sizes} bytes took {seconds} s, no longer for more bytes, so the bandwidth "
            "cannot be computed; measure again on an idle machine"
        )
    return float(alpha), float(1e9 / seconds_per_gigabit)


def measure(
    print_line: PrintLine, where: Literal["torchrun", "loopback", "emulated"] = "torchrun", link: str = ""
) -> Calibration:
    """Measure latency and bandwidth between the ranks of the default process group, and the speed of a copy.

    All ranks must call this function.

    Args:
        print_line: function that is called with a line of text about each measurement.
        where: kind of network, see ``Calibration``; only written into the result.
        link: the emulated link as text, empty if no link is emulated; only written into the result.

    Raises:
        ValueError: the group has a single rank, or larger all-reduces took no longer than smaller ones.
    """
    world = dist.get_world_size()
    if world < 2:
        raise ValueError(
            "workers: a single rank has no network to measure; start 2 or more, such as by torchrun --nproc-per-node 2"
        )
    device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
    sizes: list[int] = []
    medians_s: list[float] = []
    for size in ALL_REDUCE_BYTES:
        if len(sizes) > 1:
            predicted_s = medians_s[-1] + (medians_s[-1] - medians_s[-2]) / (sizes[-1] - sizes[-2]) * (size - sizes[-1])
            if _slowest_rank_s(predicted_s, device) > LONGEST_S:
                break
        tensor = torch.ones(size // 4, device=device)
        repeats = TIMED_REPEATS if not medians_s or medians_s[-1] < 0.1 else 3
        repeat_seconds = [_seconds_of(partial(dist.all_reduce, tensor), device) for _ in range(repeats + 1)][1:]
        sizes.append(size)
        medians_s.append(_slowest_rank_s(statistics.median(repeat_seconds), device))
        print_line(f"all-reduce of {size:,} bytes: {1e3 * medians_s[-1]:.3f} ms")
    source = torch.ones(COPY_BYTES // 4, device=device)
    target = torch.empty_like(source)
    copy_seconds = statistics.median(
        [_seconds_of(lambda: target.copy_(source), device, synchronized=False) for _ in range(10)][1:]
    )
    copy_bytes_per_s = COPY_BYTES / _slowest_rank_s(copy_seconds, device)
    print_line(f"copy: {copy_bytes_per_s / 1e9:.2f} GB/s")
    alpha, bandwidth = fit_line(tuple(sizes), tuple(medians_s), world)
    return Calibration(
        alpha=alpha,
        bandwidth=bandwidth,
        copy_bytes_per_s=copy_bytes_per_s,
        workers=world,
        backend=dist.get_backend(),
        device=device.type,
        where=where,
        link=link,
        sizes=tuple(sizes),
        seconds=tuple(medians_s),
    )


def _seconds_of(work: Callable[[], object], device: torch.device, synchronized: bool = True) -> float:
    """Call ``work`` and return the seconds until it is done, including work that it queues on a GPU.

    Args:
        work: function to time, called without arguments; its result is not used.
        device: device on which the function works.
        synchronized: whether all ranks start together, after a barrier.
    """
    if synchronized:
        dist.barrier()
    _wait_for_gpu(device)
    started = time.perf_counter()
    work()
    _wait_for_gpu(device)
    return time.perf_counter() - started


def _wait_for_gpu(device: torch.device) -> None:
    """Wait until a GPU has finished its queued work; do nothing for a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def _slowest_rank_s(seconds: float, device: torch.device) -> float:
    """All-reduce ``seconds`` of this rank; return the maximum over ranks, so that all ranks decide the same."""
    slowest_s = torch.tensor(seconds, dtype=torch.float64, device=device)
    dist.all_reduce(slowest_s, dist.ReduceOp.MAX)
    return float(slowest_s)


def measure_ranks(print_line: PrintLine) -> Calibration | None:
    """Measure network and copy speed between the ranks that a launcher such as torchrun started.

    Args:
        print_line: function that rank 0 calls with a line of text about each measurement.

    Returns:
        The result on rank 0; ``None`` on all other ranks.
    """
    with local_ranks.launched_group() as rank:
        calibration = measure(print_line if rank == 0 else _print_nothing)
        return calibration if rank == 0 else None


def _print_nothing(text: str) -> None:
    """Discard a line of progress; all ranks but rank 0 use this function instead of printing."""


def measure_here(workers: int, link: str | None) -> Calibration:
    """Start workers on this machine, and return the network and copy speed that they measure.

    The workers print their progress on standard error.

    Args:
        workers: number of workers, 2 to 8.
        link: emulated link of each worker, as text; ``None`` for the loopback interface.

    Raises:
        ValueError: ``workers`` is out of range, or ``link`` describes no link.
        gravac.lab.links.network.LinkError: this machine cannot make the emulated links.
        RuntimeError: a worker failed, or the workers took longer than ``KILL_AFTER_S``.
    """
    if not 2 <= workers <= links.MAX_WORKERS:
        raise ValueError(f"workers: {workers} is outside 2 to {links.MAX_WORKERS}; use 2")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gravac-calibrate-")))
        network = None if link is None else stack.enter_context(links.EmulatedNetwork(workers, link))
        module = "gravac.lab.calibrate"
        local_ranks.spawn(module, folder, workers, link or "", timeout_s=KILL_AFTER_S, network=network)
        return read_calibration(folder / "calibration.json")


def run_worker(arguments: list[str]) -> None:
    """Run one worker of ``measure_here``: measure, and on rank 0 write ``calibration.json``.

    Args:
        arguments: folder in which the ranks find each other, number of workers, link as text (empty: the loopback
            interface), and rank.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("workers", type=int)
    parser.add_argument("link")
    parser.add_argument("rank", type=int)
    options = parser.parse_args(arguments)
    is_rank_0 = options.rank == 0
    with local_ranks.joined_group(options.folder, options.rank, options.workers):
        where: Literal["emulated", "loopback"] = "emulated" if options.link else "loopback"
        calibration = measure(print_to_stderr if is_rank_0 else _print_nothing, where, options.link)
        if is_rank_0:
            (options.folder / "calibration.json").write_text(calibration.model_dump_json())


def print_to_stderr(text: str) -> None:
    """Print a line of text on standard error, with the name of the command in front."""
    print(f"gravac calibrate: {text}", file=sys.stderr, flush=True)


def describe(calibration: Calibration) -> str:
    """Return three lines of text about a calibration, for the terminal."""
    setup_text = {
        "torchrun": f"{calibration.workers} ranks by {calibration.backend}",
        "loopback": f"{calibration.workers} workers over loopback: the numbers hold for this machine only",
        "emulated": f"{calibration.workers} workers over emulated links of {calibration.link}",
    }[calibration.where]
    smallest_size, largest_size = min(calibration.sizes, default=0), max(calibration.sizes, default=0)
    relative_errors = [
        abs(
            2 * (calibration.workers - 1) * calibration.alpha
            + 8 * AllReduce.wire_bytes(size, calibration.workers) / calibration.bandwidth
            - seconds
        )
        / seconds
        for size, seconds in zip(calibration.sizes, calibration.seconds, strict=True)
    ]
    largest_error = max(relative_errors, default=math.nan)
    return (
        f"{setup_text}\n"
        f"latency {1e6 * calibration.alpha:.1f} µs a message, bandwidth {calibration.bandwidth / 1e6:.1f} Mbit/s, "
        f"copy {calibration.copy_bytes_per_s / 1e9:.2f} GB/s\n"
        f"all-reduces of {smallest_size:,} to {largest_size:,} bytes; the fitted line is off by at most "
        f"{largest_error:.0%}"
    )


if __name__ == "__main__":
    run_worker(sys.argv[1:])
