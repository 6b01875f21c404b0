# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Times encode and decode (coding) of each candidate on the gradients' device, before the first step of a run.

The costs of coding that gravac knows were measured on one CPU, in multiples of the time to copy the tensor
(``gravac.compressors.profile``). On a GPU or another CPU they differ. So each rank runs each candidate's compressor on
tensors like the model's. Nothing is sent: each collective returns the result that it would have if all ranks sent the
same tensors. A GPU's own events time the coding, or the clock of the host. The ranks average their times, since
decisions must be the same on all ranks.
"""

import math
import statistics
import time
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
from gravac.policy import Policy

MAX_ELEMENTS = 1 << 24
"""Largest number of elements that are encoded and decoded to time coding: far more than a GPU's caches hold."""

MAX_ELEMENTS_ON_CPU = 1 << 19
"""The same on a CPU, whose times grow with the number of elements from far fewer on."""

MIN_ELEMENTS_ON_CPU = 1 << 20
"""On a CPU, coding is not timed if fewer of the model's elements may be compressed: it then takes a few ms."""

UNTIMED_STEPS = 2
"""Number of untimed steps of each candidate, before the timed ones: the first makes tables and has no residual."""

TIMED_STEPS = 3
"""Number of timed steps of each candidate."""

BUDGET_SECONDS = 1.0
"""When the timed steps have taken so many seconds in total, no further candidate is timed."""

BUDGET_SECONDS_ON_CPU = 0.25
"""The same on a CPU."""


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
        Seconds that encode and decode take for each byte of a float32 tensor, by CF; the same on every rank. Empty for
        a single rank, if no tensor is compressed, or on a CPU if the tensors are small.

    Raises:
        ExchangeError: a rank did not answer.
    """
    executor, link, device = opened
    if link is None:
        return {}

    def new_averager() -> Averager:
        averager = averager_of(policy)
        averager.rank, averager.world = executor.rank, executor.world
        return averager

    untimed_averager = new_averager()
    compressed_forms = [form for form in forms if untimed_averager.compresses(form[0])]
    candidates = [forecast.candidate for forecast in admit(policy, untimed_averager, forms).forecasts]
    cfs = [candidate.cf for candidate in candidates if not candidate.dense]
    elements = sum(math.prod(shape) for shape, _ in compressed_forms)
    if not cfs or elements < (1 if device else MIN_ELEMENTS_ON_CPU):
        return {}
    sample_tensors = typical_tensors(compressed_forms, MAX_ELEMENTS if device else MAX_ELEMENTS_ON_CPU)
    budget_s = BUDGET_SECONDS if device else BUDGET_SECONDS_ON_CPU
    failure_by_cf = dict[float, Exception]()

    def job() -> Job[dict[float, float]]:
        seconds = _median_seconds_by_cf(
            cfs, lambda cf: _time_steps(new_averager(), cf, sample_tensors, executor, device), budget_s, failure_by_cf
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


def typical_tensors(forms: Sequence[Form], max_elements: int = MAX_ELEMENTS) -> TypicalTensors:
    """Return the shape and dtype that most of a model's elements have, and the number of tensors that have them.

    Shapes are reduced to matrices. Rows, columns and number of tensors are reduced until there are at most
    ``max_elements`` elements in total.

    Args:
        forms: shapes and dtypes of the gradients that may be compressed; at least one.
        max_elements: largest number of elements of all tensors.
    """
    elements_by_form = Counter[Form]()
    for form in forms:
        elements_by_form[form] += math.prod(form[0])
    (shape, dtype), form_elements = elements_by_form.most_common(1)[0]
    columns = min(math.prod(shape[1:]), max_elements)
    rows = min(shape[0], max_elements // columns)
    return TypicalTensors(
        rows, columns, min(form_elements // math.prod(shape), max_elements // (rows * columns)), dtype
    )


def _median_seconds_by_cf(
    cfs: Sequence[float],
    time_steps: Callable[[float], list[float]],
    budget_s: float,
    failure_by_cf: dict[float, Exception],
) -> dict[float, float | None]:
    """Return the median seconds of a step's coding at each CF; ``None`` if timing failed or the budget is spent.

    Args:
        cfs: the CFs.
        time_steps: function that gets a CF, and returns the seconds of coding in each timed step.
        budget_s: seconds of coding after which no further CF is timed.
        failure_by_cf: output: at each CF at which timing failed, the exception is added.
    """
    spent_s, median_s_by_cf = 0.0, dict[float, float | None]()
    for cf in cfs:
        median_s_by_cf[cf] = None
        if spent_s >= budget_s:
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
    averager: Averager, cf: float, sample_tensors: TypicalTensors, executor: Executor, device: Device | None
) -> list[float]:
    """Run a candidate's compressor on sample tensors; return the seconds of coding of each timed step.

    Args:
        averager: averager of this candidate alone.
        cf: the candidate's compression factor.
        sample_tensors: shape, dtype and number of the tensors.
        executor: executor of the run, which says whether the host may read tensors; nothing is sent.
        device: streams and events of the tensors' GPU; ``None``: the tensors are on the CPU.
    """
    torch_device = torch.device("cpu") if device is None else device.device
    record: Callable[[], Any] = time.perf_counter if device is None else device.record
    random_gradients = Draws("codec timing").normal(sample_tensors.elements, torch_device).to(sample_tensors.dtype)
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
                for interval in _coding_intervals(averager, averager.average(segment, plan), record)
            ]
        )
        averager.commit()
    timed_intervals_by_step = coding_intervals_by_step[UNTIMED_STEPS:]
    if device is None:
        return [sum(ended - began for began, ended in intervals) for intervals in timed_intervals_by_step]
    coding_intervals_by_step[-1][-1][1].synchronize()
    return [sum(began.elapsed_time(ended) for began, ended in intervals) / 1e3 for intervals in timed_intervals_by_step]


def _coding_intervals(averager: Averager, job: Any, record: Callable[[], Any]) -> Iterator[tuple[Any, Any]]:
    """Run a job (generator of collectives) to its end; yield begin and end of each interval in which the job codes.

    Nothing is sent: each collective returns the result that it would have if all ranks sent the same tensors.

    Args:
        averager: averager whose rank and number of ranks the results are for.
        job: the job.
        record: function that returns the present point in the device's work: an event, or seconds.
    """
    collective_results: list[Any] | None = None
    while True:
        began = record()
        try:
            collectives = job.send(collective_results)
        except StopIteration:
            yield began, record()
            return
        yield began, record()
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
