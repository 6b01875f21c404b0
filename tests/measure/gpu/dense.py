# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A step settled on dense against native DDP, one rank of NCCL: how long it takes, and the most memory it holds."""

import gc
import statistics
from collections.abc import Callable, Iterator
from functools import partial

import torch

from gravac import topk
from tests.measure.gpu.parts import Row, at_most, attempts
from tests.measure.gpu.timing import GPU
from tests.measure.gpu.training import Training, one_rank, static
from tests.measure.results import interval

BLOCK = 5
"""Steps of one kind before it is the other's turn."""

PAIRS, WARM = 25, 12

SIZES = {"a GPU-bound step": (4096, 4096, 1.01), "a host-bound step": (512, 64, None)}
"""Width, rows, and the aim for the ratio of step times."""


def rows() -> Iterator[Row]:
    with one_rank():
        cases: dict[str, Callable[[], Row]] = {}
        for name, (width, batch, aim) in SIZES.items():
            cases[f"{name}: over native"] = partial(raced, width, batch, aim)
        cases["memory"] = partial(memory, *SIZES["a GPU-bound step"][:2])
        yield from attempts(cases)


def raced(width: int, batch: int, aim: float | None) -> Row:
    both = {"native": Training(None, GPU, width, batch), "ours": Training(static(topk, 1.0), GPU, width, batch)}

    def block(training: Training, steps: int = BLOCK) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        for _ in range(steps):
            training.step()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / steps

    for training in both.values():
        block(training, WARM)
    taken: dict[str, list[float]] = {kind: [] for kind in both}
    for pair in range(PAIRS):
        for kind in sorted(both, reverse=bool(pair % 2)):
            taken[kind].append(block(both[kind]))
    both["ours"].close()
    ratios = [ours / native for ours, native in zip(taken["ours"], taken["native"], strict=True)]
    middle = statistics.median(ratios)
    row = {"native_ms": statistics.median(taken["native"]), "interval_95": interval(ratios)}
    return {**row, **({"value": middle} if aim is None else at_most(middle, aim))}


def memory(width: int, batch: int) -> Row:
    """Peak bytes per parameter of steps of either kind, and ours over native."""
    found: Row = {}
    for kind in ("native", "ours"):
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        training = Training(static(topk, 1.0) if kind == "ours" else None, GPU, width, batch)
        for _ in range(WARM):
            training.step()
        torch.cuda.synchronize()
        found[kind] = (torch.cuda.max_memory_allocated() - before) / training.weights.numel()
        training.close()
        del training
    return {"bytes_per_parameter": found, "value": found["ours"] / found["native"]}
