# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What candidates' codecs take where the gradients lie, timed once, before the first step.

What coding costs in copies of the tensor was measured on a CPU (``gravac.compressors.profile``), and may be something
else on a GPU. So off the CPU each candidate averages tensors like the model's by itself, as a step would, and is
answered as if all ranks had sent what it did: nothing travels. The device's own events tell how long coding took, and
the ranks agree on the mean, as it steers what they decide.
"""

import math
import statistics
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from gravac.averaging.average import Averager
from gravac.averaging.plan import Form, Piece
from gravac.candidate import Candidate
from gravac.compressors.draws import Draws
from gravac.engine.admission import admit, averager_of
from gravac.engine.coalescing import TEMPORARIES, in_parts
from gravac.exchange.device import Device
from gravac.exchange.executor import Executor
from gravac.exchange.memory import echo
from gravac.exchange.opening import Opened
from gravac.exchange.streams import Stretch
from gravac.measurement import LocalMeasurement
from gravac.policy import Policy

ELEMENTS = 1 << 24
"""Number of elements that are coded at most: far more than a GPU's caches hold."""

WARM = 2
"""Steps of each candidate before those that are timed: the first compiles kernels, the second has a residual."""

REPEATS = 3
"""Steps that are timed."""

BUDGET = 1.0
"""Seconds of timed steps, over all candidates, after which no other candidate is begun."""


class TypicalTensors(NamedTuple):
    """Tensors like most of a model's.

    Attributes:
        rows: rows of each, seen as a matrix.
        columns: columns.
        tensors: number of tensors.
        dtype: number format of the gradients.
    """

    rows: int
    columns: int
    tensors: int
    dtype: torch.dtype

    @property
    def elements(self) -> int:
        """Number of elements of all of them."""
        return self.rows * self.columns * self.tensors


def time_codecs(policy: Policy, forms: Sequence[Form], opened: Opened) -> dict[float, float]:
    """Time the candidates that a run will have. Called on every rank at the same point; nothing else may be under way.

    1. Each rank averages a sample of tensors at every CF, alone, without a collective; the host waits for the device
       once a CF. What fails (no memory, no kernel), or comes when ``BUDGET`` is spent, is left out.
    2. The ranks sum what they measured, and go by the mean where none left it out.

    Args:
        policy: gives compressor, controller and range.
        forms: shapes and dtypes of all the model's gradients; none, where they are not known yet.
        opened: what will run the steps, the link, and the device.

    Returns:
        Seconds that encode and decode take for each byte of a float32 tensor, by CF; the same on every rank. Empty
        where there is nothing to time: on the CPU, alone, or where no tensor is compressed.

    Raises:
        ExchangeError: a rank did not answer.
    """
    executor, link, device = opened
    if link is None or device is None:
        return {}

    def averager() -> Averager:
        made = averager_of(policy)
        made.rank, made.world = executor.rank, executor.world
        return made

    untimed_averager = averager()
    compressed = [form for form in forms if untimed_averager.compresses(form[0])]
    candidates = [forecast.candidate for forecast in admit(policy, untimed_averager, forms).forecasts]
    cfs = [candidate.cf for candidate in candidates if not candidate.dense]
    if not compressed or not cfs:
        return {}
    sample, found, failures = typical(compressed), dict[float, float](), list[BaseException]()
    untimed = dict[float, Exception]()

    def job() -> Any:
        seconds = _by_cf(cfs, lambda cf: _runs(averager(), cf, sample, executor, device), untimed)
        found.update((cf, total / (4 * sample.elements)) for cf, total in _agreed(seconds, executor).items())
        yield from ()  # it asks for no collectives

    executor.exchange(job(), failures.append, device.device, lambda: True)
    executor.drain()
    if failures:
        raise failures[0]
    for cf, failure in untimed.items():  # now that no rank waits: a warning may be an error
        warnings.warn(f"gravac: coding at {cf:g}x could not be timed: {failure!r}", stacklevel=2)
    return found


def typical(forms: Sequence[Form]) -> TypicalTensors:
    """The form that most elements have, as many times as the model has it, cut to ``ELEMENTS``.

    Args:
        forms: shapes and dtypes of the gradients that may be compressed; at least one.
    """
    held = Counter[Form]()
    for form in forms:
        held[form] += math.prod(form[0])
    (shape, dtype), elements = held.most_common(1)[0]
    columns = min(math.prod(shape[1:]), ELEMENTS)
    rows = min(shape[0], ELEMENTS // columns)
    return TypicalTensors(rows, columns, min(elements // math.prod(shape), ELEMENTS // (rows * columns)), dtype)


def _by_cf(
    cfs: Sequence[float], runs: Callable[[float], list[float]], untimed: dict[float, Exception]
) -> dict[float, float | None]:
    """Median seconds of the runs at each CF; ``None`` where they fail, as ``untimed`` says, or the budget is spent."""
    spent, found = 0.0, dict[float, float | None]()
    for cf in cfs:
        found[cf] = None
        if spent >= BUDGET:
            continue
        try:
            seconds = runs(cf)
        except Exception as failure:
            untimed[cf] = failure
            continue
        spent += sum(seconds)
        found[cf] = statistics.median(seconds)
    return found


def _runs(averager: Averager, cf: float, sample: TypicalTensors, executor: Executor, device: Device) -> list[float]:
    """Seconds of coding in each of the steps that are timed."""
    source = Draws("codec timing").normal(sample.elements, device.device).to(sample.dtype)
    flat = torch.empty_like(source)
    shape = (sample.rows, sample.columns)
    pieces = [Piece(str(number), one, shape) for number, one in enumerate(flat.chunk(sample.tensors))]
    averager.dense_below, steps = 0, []
    for step in range(WARM + REPEATS):
        flat.copy_(source)
        averager.measure(LocalMeasurement(step, Candidate("hook", averager.base.name, cf)), executor)
        plan = averager.plan(step, cf)
        parts = in_parts(pieces, TEMPORARIES // averager.coding_bytes(plan))
        steps.append([span for part in parts for span in _coded(averager, averager.average(part, plan), device)])
        averager.commit()
    steps[-1][-1].ended.synchronize()
    return [sum(began.elapsed_time(ended) for began, ended in step) / 1e3 for step in steps[WARM:]]


def _coded(averager: Averager, job: Any, device: Device) -> Iterator[Stretch]:
    """Run a job to its end, answered by echoes; yields the stretches of the present stream's work that are coding."""
    answers: list[Any] | None = None
    while True:
        began = device.record()
        try:
            asked = job.send(answers)
        except StopIteration:
            yield Stretch(began, device.record())
            return
        yield Stretch(began, device.record())
        answers = [echo(one, averager.rank, averager.world) for one in asked]


def _agreed(seconds: dict[float, float | None], executor: Executor) -> dict[float, float]:
    """Return each CF's mean seconds over the ranks, of those CFs that every rank has measured."""
    measured_s = [0.0 if mean_s is None else mean_s for mean_s in seconds.values()]
    counted = [float(mean_s is not None) for mean_s in seconds.values()]
    (sums,) = executor.agreed(executor.agree([measured_s + counted]))
    both = zip(seconds, sums[: len(measured_s)], sums[len(measured_s) :], strict=True)
    return {cf: total / count for cf, total, count in both if count == executor.agree_world}
