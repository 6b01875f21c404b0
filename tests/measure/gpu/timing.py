# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Times on a GPU: medians by events, of several works in turns, each time with what it reads out of the cache."""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

GPU = torch.device("cuda", 0)

FLUSHED = 1 << 28
"""Bytes written before each work, which takes what it reads out of the cache; and bytes whose copy is timed."""

CYCLES = 20_000_000
"""Length of the sleep that cycles are calibrated by."""


class Work(NamedTuple):
    """Something to time.

    Attributes:
        run: function to time, called without arguments.
        prepare: function that is called before ``run``, without arguments, and is not timed.
    """

    run: Callable[[], object]
    prepare: Callable[[], object] = lambda: None


class Taken(NamedTuple):
    """Median milliseconds of a work.

    Attributes:
        launched: from an idle device to the end of all that was launched.
        device: the same where the device has something else to do while that is launched, so that it never waits.
    """

    launched: float
    device: float


def medians(
    works: Mapping[str, Work], device: torch.device = GPU, repeats: int = 15, warm: int = 3
) -> dict[str, Taken]:
    """Time works in turns, some times without counting; on a CPU, by the host's clock."""
    flush = torch.empty(FLUSHED // 4 if device.type == "cuda" else 1, device=device)
    launched, alone = ({name: list[float]() for name in works} for _ in range(2))
    for turn in range(warm + repeats):
        for name, work in works.items():
            took = milliseconds(work, flush)
            busy = milliseconds(work, flush, ahead=1.5 * took + 0.3)
            if turn >= warm:
                launched[name].append(took)
                alone[name].append(busy)
    return {name: Taken(statistics.median(launched[name]), statistics.median(alone[name])) for name in works}


def milliseconds(work: Work, flush: torch.Tensor, ahead: float = 0.0) -> float:
    """Time a work once; the device sleeps ``ahead`` milliseconds first, which do not count."""
    work.prepare()
    flush.zero_()
    if flush.device.type == "cpu":
        began = time.perf_counter()
        work.run()
        return (time.perf_counter() - began) * 1e3
    torch.cuda.synchronize()
    if ahead:
        sleep(ahead / 1e3)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work.run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


_cycles_per_second: list[float] = []


def sleep(seconds: float) -> None:
    """Have the GPU's present stream do nothing for a while; the first call is calibrated, for which the host waits."""
    if not _cycles_per_second:
        taken = []
        for _ in range(4):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            torch.cuda._sleep(CYCLES)
            end.record()
            end.synchronize()
            taken.append(begin.elapsed_time(end) / 1e3)
        _cycles_per_second.append(CYCLES / statistics.median(taken[1:]))
    torch.cuda._sleep(int(seconds * _cycles_per_second[0]))


def copying(device: torch.device = GPU, size: int = FLUSHED) -> Work:
    """A copy, which reads and writes ``size`` bytes."""
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)
    return Work(lambda: target.copy_(source))


def floor(size: float, copied: float, milliseconds: float) -> float:
    """Milliseconds that reading and writing ``size`` bytes in all takes at a copy's rate.

    Args:
        size: bytes read plus bytes written.
        copied: bytes that the copy read, and wrote again.
        milliseconds: what the copy took.
    """
    return size / (2 * copied) * milliseconds
