# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Times encode and decode (coding) of each candidate on the gradients' device, before the first step of a run.

The costs of coding that gravac knows were measured on a CPU, in multiples of the time to copy the tensor
(``gravac.compressors.profile``). On a GPU they may differ. So on a GPU each rank runs each candidate's compressor on
tensors like the model's. Nothing is sent: each collective returns the result that it would have if all ranks sent the
same tensors. The device's own events time the coding. The ranks average their times, since decisions must be the same
on all ranks.
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
from gravac.averaging.recording import StepRecording
from gravac.candidate import Candidate
from gravac.compressors.draws import Draws
from gravac.engine.admission import admit, averager_of
from gravac.engine.coalescing import MAX_CODING_BYTES, split
from gravac.exchange.device import Device
from gravac.exchange.executor import Executor, Job, sums_over_all
from gravac.exchange.memory import result_for_equal_ranks
from gravac.exchange.opening import OpenedExecutor
from gravac.exchange.streams import Interval
from gravac.policy import Policy

MAX_ELEMENTS = 1 << 24
"""Largest number of elements that are encoded and decoded to time coding: far more than a GPU's caches hold."""

UNTIMED_STEPS = 2
"""Number of untimed steps of each candidate, before the timed ones: the first makes tables and has no residual."""

TIMED_STEPS = 3
"""Number of timed steps of each candidate."""

BUDGET_SECONDS = 1.0
"""When the timed steps have taken so many seconds in total, no further candidate is timed."""


class TypicalTensors(NamedTuple):
    """Several matrices of one shape, like most tensors of a model, which are encoded and decoded to time coding.

    Attributes:
        rows: number of rows of each matrix.
        columns: number of columns of each matrix.
        tensors: number of matrices.
        dtype: number format of the gradients.
    """

    rows: int
    columns: int
    tensors: int
    dtype: torch.dtype

    @property
    def elements(self) -> int:
        """Number of elements of all the matrices."""
        return self.rows * self.columns * self.tensors


def time_codecs(policy: Policy, forms: Sequence[Form], opened: OpenedExecutor) -> dict[float, float]:
    """Time encode and decode of a run's candidates. Called on every rank at the same point; no job may be in flight.

    1. Each rank codes sample tensors at every CF, without a collective; the host waits for the device once per CF. A CF
       is skipped if it fails (no memory, no kernel), or if ``BUDGET_SECONDS`` is spent.
    2. The ranks sum the seconds that they measured. A CF's result is the mean, if no rank skipped the CF.

    Args:
        policy: policy with compressor, controller and CF range.
        forms: shapes and dtypes of all the model's gradients; empty if they are not known yet.
        opened: the executor, the link's speed, and the device.

    Returns:
        Seconds that encode and decode take for each byte of a float32 tensor, by CF; the same on every rank. Empty on
        the CPU, for a single rank, or if no tensor is compressed.

    Raises:
        ExchangeError: a rank did not answer.
    """
    executor, link, device = opened
    if link is None or device is None:
        return {}

    def new_averager() -> Averager:
        averager = averager_of(policy)
        averager.rank, averager.world = executor.rank, executor.world
        return averager

    untimed_averager = new_averager()
    compressed_forms = [form for form in forms if untimed_averager.compresses(form[0])]
    candidates = [forecast.candidate for forecast in admit(policy, untimed_averager, forms).forecasts]
    cfs = [candidate.cf for candidate in candidates if not candidate.dense]
    if not compressed_forms or not cfs:
        return {}
    sample_tensors = typical_tensors(compressed_forms)
    failure_by_cf = dict[float, Exception]()

    def job() -> Job[dict[float, float]]:
        seconds = _median_seconds_by_cf(
            cfs, lambda cf: _time_steps(new_averager(), cf, sample_tensors, executor, device), failure_by_cf
        )
        mean_seconds = yield from _mean_over_ranks(seconds, executor)
        return {cf: mean_s / (4 * sample_tensors.elements) for cf, mean_s in mean_seconds.items()}

    seconds_per_byte = executor.submit(job()).result()
    for cf, failure in failure_by_cf.items():  # only now, when no rank waits: a warning may be an error
        warnings.warn(
            f"gravac: encode and decode at CF {cf:g} could not be timed on this device, so gravac uses times "
            f"measured on a CPU: {failure!r}",
            stacklevel=2,
        )
    return seconds_per_byte


def typical_tensors(forms: Sequence[Form]) -> TypicalTensors:
    """Return the shape and dtype that most of a model's elements have, and the number of tensors that have them.

    Shapes are reduced to matrices. Rows, columns and number of tensors are reduced until there are at most
    ``MAX_ELEMENTS`` elements in total.

    Args:
        forms: shapes and dtypes of the gradients that may be compressed; at least one.
    """
    elements_by_form = Counter[Form]()
    for form in forms:
        elements_by_form[form] += math.prod(form[0])
    (shape, dtype), form_elements = elements_by_form.most_common(1)[0]
    columns = min(math.prod(shape[1:]), MAX_ELEMENTS)
    rows = min(shape[0], MAX_ELEMENTS // columns)
    return TypicalTensors(
        rows, columns, min(form_elements // math.prod(shape), MAX_ELEMENTS // (rows * columns)), dtype
    )


def _median_seconds_by_cf(
    cfs: Sequence[float], time_steps: Callable[[float], list[float]], failure_by_cf: dict[float, Exception]
) -> dict[float, float | None]:
    """Return the median seconds of a step's coding at each CF; ``None`` if timing failed or the budget is spent.

    Args:
        cfs: the CFs.
        time_steps: function that gets a CF, and returns the seconds of coding in each timed step.
        failure_by_cf: output: at each CF at which timing failed, the exception is added.
    """
    spent_s, median_s_by_cf = 0.0, dict[float, float | None]()
    for cf in cfs:
        median_s_by_cf[cf] = None
        if spent_s >= BUDGET_SECONDS:
            continue
        try:
            seconds = time_steps(cf)
        except Exception as failure:
            failure_by_cf[cf] = failure
            continue
        spent_s += sum(seconds)
        median_s_by_cf[cf] = statistics.median(seconds)
    return median_s_by_cf


def _time_steps(
    averager: Averager, cf: float, sample_tensors: TypicalTensors, executor: Executor, device: Device
) -> list[float]:
    """Run a candidate's compressor on sample tensors; return the seconds of coding of each timed step.

    Args:
        averager: averager of this candidate alone.
        cf: the candidate's compression factor.
        sample_tensors: shape, dtype and number of the tensors.
        executor: executor of the run, which says whether the host may read tensors; nothing is sent.
        device: device of the tensors.
    """
    random_gradients = Draws("codec timing").normal(sample_tensors.elements, device.device).to(sample_tensors.dtype)
    flat_gradients = torch.empty_like(random_gradients)
    shape = (sample_tensors.rows, sample_tensors.columns)
    pieces = [
        Piece(str(index), matrix, shape) for index, matrix in enumerate(flat_gradients.chunk(sample_tensors.tensors))
    ]
    averager.dense_below, coding_intervals_by_step = 0, []
    for step in range(UNTIMED_STEPS + TIMED_STEPS):
        flat_gradients.copy_(random_gradients)
        averager.measure(StepRecording(step, Candidate("hook", averager.base.name, cf)), executor)
        plan = averager.plan(step, cf)
        segments = split(pieces, MAX_CODING_BYTES // averager.coding_bytes_per_element(plan))
        coding_intervals_by_step.append(
            [
                interval
                for segment in segments
                for interval in _coding_intervals(averager, averager.average(segment, plan), device)
            ]
        )
        averager.commit()
    coding_intervals_by_step[-1][-1].ended.synchronize()
    timed_intervals_by_step = coding_intervals_by_step[UNTIMED_STEPS:]
    return [sum(began.elapsed_time(ended) for began, ended in intervals) / 1e3 for intervals in timed_intervals_by_step]


def _coding_intervals(averager: Averager, job: Any, device: Device) -> Iterator[Interval]:
    """Run a job (generator of collectives) to its end; yield each interval in which the job codes, as two events.

    Nothing is sent: each collective returns the result that it would have if all ranks sent the same tensors.

    Args:
        averager: averager whose rank and number of ranks the results are for.
        job: the job.
        device: device that records the events.
    """
    collective_results: list[Any] | None = None
    while True:
        began = device.record()
        try:
            collectives = job.send(collective_results)
        except StopIteration:
            yield Interval(began, device.record())
            return
        yield Interval(began, device.record())
        collective_results = [
            result_for_equal_ranks(collective, averager.rank, averager.world) for collective in collectives
        ]


def _mean_over_ranks(seconds_by_cf: dict[float, float | None], executor: Executor) -> Job[dict[float, float]]:
    """Return the mean over ranks of each CF's seconds; CFs that a rank did not measure (``None``) are left out."""
    measured_s = [0.0 if median_s is None else median_s for median_s in seconds_by_cf.values()]
    measured_flags = [float(median_s is not None) for median_s in seconds_by_cf.values()]
    (copied_sums,) = yield from sums_over_all(executor, [measured_s + measured_flags])
    sums = copied_sums.read()
    sums_by_cf = zip(seconds_by_cf, sums[: len(measured_s)], sums[len(measured_s) :], strict=True)
    return {cf: total_s / rank_count for cf, total_s, rank_count in sums_by_cf if rank_count == executor.agree_world}
