# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Codecs are timed: on a GPU by its events alone, on a CPU by the clock, alike on all ranks, and to some effect."""

import functools
import itertools
import math
import random
import warnings
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

import gravac.attach
from gravac import Compressor, Goodput, Policy, Static, dense, ladder, powersgd, quantize, topk
from gravac.averaging.plan import Form
from gravac.collectives import Collective, Ledger, tensors_of
from gravac.compressors import Context
from gravac.compressors.base import Rounds
from gravac.controllers.base import Controller
from gravac.engine import codec_timing
from gravac.engine.admission import Admission, admit, averager_of
from gravac.engine.codec_timing import (
    BUDGET_SECONDS,
    BUDGET_SECONDS_ON_CPU,
    MAX_ELEMENTS,
    MAX_ELEMENTS_ON_CPU,
    MIN_ELEMENTS_ON_CPU,
    TIMED_STEPS,
    UNTIMED_STEPS,
    time_codecs,
    typical_tensors,
)
from gravac.exchange.executor import Executor
from gravac.exchange.fifo import Fifo
from gravac.exchange.group import GroupTransport
from gravac.exchange.link_probe import LinkProbe
from gravac.exchange.opening import OpenedExecutor, open_executor
from gravac.exchange.streams import StreamExecutor
from gravac.telemetry.descriptions import describe_run
from gravac.telemetry.records import RunRecord
from tests.device.idle import Idle
from tests.distributed.training import parallel, sgd, train
from tests.policies import adaptive
from tests.ranks import processes

CPU = torch.device("cpu")
LINK = LinkProbe(latency=1e-5, bandwidth=1e10, copy_bytes_per_s=1e10)
FORMS: Sequence[Form] = [((64, 48), torch.float32), ((64,), torch.float32), ((64, 48), torch.float32)]
SQUARE: Sequence[Form] = [((512, 512), torch.float32)]
SENT = 2 * 64 * 48
"""Elements of ``FORMS`` that are compressed, all of which are timed."""


class Echo:
    """Stands in for a transport of three ranks that sum what this one hands over, in place."""

    rank, world, ledger = 0, 3, Ledger(3)

    def __init__(self) -> None:
        self.sent: list[Collective] = []

    def launch(self, requests: list[Collective]) -> list[Collective]:
        self.sent += requests
        return requests

    def finish(self, pending: list[Collective]) -> list[Any]:
        return [tensors_of(asked)[0].mul_(self.world) for asked in pending]


def opened(passes: Callable[[], float] = lambda: 1.0) -> OpenedExecutor:
    device = Idle(CPU, passes)
    return OpenedExecutor(StreamExecutor(Echo(), device), LINK, device)  # type: ignore[arg-type]


def policy_of(base: Compressor = topk, controller: Controller[Any] | None = None, **settings: Any) -> Policy:
    return Policy(**{"base": base, "cf_range": (2, 1000), "controller": controller or Goodput(), **settings})


def admitted(
    policy: Policy, coding: dict[float, float], forms: Sequence[Form] = FORMS, rate: float = 1e10
) -> Admission:
    averager = averager_of(policy)
    averager.world = 3
    return admit(policy, averager, forms, LINK._replace(bandwidth=rate), coding)


def cfs_of(policy: Policy, forms: Sequence[Form] = FORMS) -> list[float]:
    """CFs of the candidates that compress."""
    return [forecast.candidate.cf for forecast in admitted(policy, {}, forms).forecasts if not forecast.candidate.dense]


@pytest.mark.parametrize(
    ("base", "rounds"), [(topk, 1), (quantize, 2), (powersgd(4), 2), (quantize(4, exchange="gather"), 1)], ids=repr
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_it_is_the_time_between_events_for_each_stretch_of_coding(
    base: Compressor, rounds: int, dtype: torch.dtype
) -> None:
    """A millisecond passes from event to event; a step codes once more than it exchanges."""
    policy, forms = policy_of(base), [(shape, dtype) for shape, _ in FORMS]
    found = time_codecs(policy, forms, opened())
    assert list(found) == cfs_of(policy, forms)
    assert [*found.values()] == pytest.approx([(1 + rounds) * 1e-3 / (4 * SENT)] * len(found))


def on_cpu(ms: float, elements: int) -> dict[float, float]:
    """What is timed of a square tensor on a CPU whose clock advances so many ms from look to look."""
    looks = itertools.count()
    there = opened()._replace(device=None)
    with mock.patch.object(codec_timing, "time", SimpleNamespace(perf_counter=lambda: next(looks) * ms / 1e3)):
        return time_codecs(policy_of(topk), [((elements // 1024, 1024), torch.float32)], there)


def test_on_a_cpu_it_is_the_time_by_the_hosts_clock() -> None:
    found = on_cpu(1.0, MIN_ELEMENTS_ON_CPU)
    assert list(found) == cfs_of(policy_of(topk), SQUARE)
    assert [*found.values()] == pytest.approx([2e-3 / (4 * MAX_ELEMENTS_ON_CPU)] * len(found))


def test_a_cpu_does_not_time_small_models_nor_beyond_its_budget() -> None:
    assert on_cpu(1.0, MIN_ELEMENTS_ON_CPU - 1024) == {}
    assert len(on_cpu(1e3 * BUDGET_SECONDS_ON_CPU, MIN_ELEMENTS_ON_CPU)) == 1


def test_nothing_travels_but_what_the_ranks_agree_on() -> None:
    there = opened()
    time_codecs(policy_of(ladder), FORMS, there)
    assert len(there.executor.transport.sent) == 1  # type: ignore[attr-defined]


def test_what_they_took_is_expected_of_candidates() -> None:
    policy = policy_of()
    coding = {cf: 1e-9 * cf for cf in cfs_of(policy)}
    forecasts, known = (admitted(policy, seconds).forecasts for seconds in (coding, {}))
    for one, other in zip(forecasts, known, strict=True):
        assert one.exchange_s == other.exchange_s
        if one.candidate.dense:
            assert one.coding_s == other.coding_s
        else:
            assert one.coding_s == pytest.approx(4 * SENT * coding[one.candidate.cf], rel=0.01)


def test_a_compressor_without_known_costs_has_them_then() -> None:
    class Unknown(type(topk)):  # type: ignore[misc]
        """Top-k of unknown cost."""

        name = "unknown"
        coding_costs = ()

    policy = policy_of(Unknown())
    assert {forecast.coding_s for forecast in admitted(policy, {}).forecasts[2:]} == {None}
    found = time_codecs(policy, FORMS, opened())
    assert None not in {forecast.coding_s for forecast in admitted(policy, found).forecasts}


def test_goodput_starts_by_them() -> None:
    """Timed as if all but one took longer than dense on a slow link, that one runs."""
    policy = policy_of(ladder, cf_range=(2, 16), sixteen_bit=False)(controller=Goodput(near=0.5))
    cfs = cfs_of(policy, SQUARE)
    started = []
    for cheap in cfs:
        coding = {cf: 1e-12 if cf == cheap else 1.0 for cf in cfs}
        forecasts = admitted(policy, coding, SQUARE, rate=1e7).forecasts
        started.append(policy.controller.start(forecasts)[1].candidate.cf)
    assert started == cfs
    assert len(cfs) > 2


class Fails(type(topk)):  # type: ignore[misc]
    """Top-k that has no kernel for some CFs, on some ranks."""

    name = "fails"
    above: float = 100.0
    ranks: tuple[int, ...] = (0, 1, 2)

    def rounds(self, x: torch.Tensor, cf: float, ctx: Context) -> Rounds:
        if cf > self.above and ctx.rank in self.ranks:
            raise RuntimeError("no kernel")
        return (yield from super().rounds(x, cf, ctx))


def test_what_fails_keeps_the_costs_that_are_known_of_it() -> None:
    policy = policy_of(Fails())
    with pytest.warns(UserWarning, match="could not be timed .*: RuntimeError.'no kernel'"):
        found = time_codecs(policy, FORMS, opened())
    assert list(found) == [cf for cf in cfs_of(policy) if cf <= 100]
    by_table = {forecast.candidate: forecast.coding_s for forecast in admitted(policy, {}).forecasts}
    for forecast in admitted(policy, found).forecasts[2:]:
        assert (forecast.coding_s == by_table[forecast.candidate]) == (forecast.candidate.cf > 100)


def test_no_candidate_is_begun_once_the_budget_is_spent() -> None:
    policy, each = policy_of(), 2 * TIMED_STEPS * 0.1
    assert list(time_codecs(policy, FORMS, opened(lambda: 100.0))) == cfs_of(policy)[: math.ceil(BUDGET_SECONDS / each)]


def test_what_compiles_does_not_count() -> None:
    """The first step's events are far apart, and no others."""
    policy, events = policy_of(), iter(range(10**9))
    first = 2 * 2 * UNTIMED_STEPS + 1
    found = time_codecs(policy, FORMS, opened(lambda: 1e5 if next(events) < first else 1.0))
    assert list(found) == cfs_of(policy)
    assert max(found.values()) < 1e-2 / SENT


UNUSED: Any = SimpleNamespace(rank=0, world=3)
"""An executor that is handed nothing."""


@pytest.mark.parametrize(
    ("policy", "forms", "there"),
    [
        (policy_of(), FORMS, OpenedExecutor(UNUSED)),
        (policy_of(), FORMS, OpenedExecutor(UNUSED, LINK)),
        (policy_of(), FORMS, OpenedExecutor(UNUSED, None, Idle(CPU))),
        (policy_of(), [], OpenedExecutor(UNUSED, LINK, Idle(CPU))),
        (policy_of(), [((5,), torch.float32)], OpenedExecutor(UNUSED, LINK, Idle(CPU))),
        (policy_of(dense, cf_range=(1, 2)), FORMS, OpenedExecutor(UNUSED, LINK, Idle(CPU))),
    ],
    ids=[
        "an executor that was given",
        "small on a CPU",
        "one rank",
        "no forms yet",
        "small tensors alone",
        "nothing compressed",
    ],
)
def test_nothing_is_timed_where_it_would_tell_nothing(
    policy: Policy, forms: Sequence[Form], there: OpenedExecutor
) -> None:
    assert time_codecs(policy, forms, there) == {}


sides = st.integers(1, 300) | st.sampled_from([1 << 13, 1 << 24, 1 << 25])


@given(st.lists(st.lists(sides, min_size=2, max_size=4).map(tuple), min_size=1, max_size=5))
def test_a_sample_is_of_the_shape_that_most_elements_have_and_bounded(shapes: list[tuple[int, ...]]) -> None:
    forms = [(shape, torch.float32) for shape in shapes]
    sample = typical_tensors(forms)
    held = {shape: shapes.count(shape) * math.prod(shape) for shape in shapes}
    most = max(held.values())
    assert 0 < sample.elements <= min(most, MAX_ELEMENTS)
    assert sample.tensors >= 1
    if most <= MAX_ELEMENTS:
        assert sample.elements == most
        assert any((s[0], math.prod(s[1:])) == (sample.rows, sample.columns) for s in shapes if held[s] == most)
    assert sample == typical_tensors(forms)


# over real process groups

Numbers = dict[float, float]


def executor_of(streams: bool, device: Idle) -> Executor:
    group = dist.new_group()
    assert isinstance(group, dist.ProcessGroup)
    return StreamExecutor(GroupTransport(group), device) if streams else Fifo(GroupTransport(group))


def measured(rank: int, streams: bool, fails: tuple[int, ...]) -> tuple[Numbers, Numbers]:
    """What is agreed on, and what this rank measured by a clock of its own."""
    moments, own = random.Random(rank), dict[float, float]()
    by_cf = codec_timing._median_seconds_by_cf

    def noted(*given: Any) -> Any:
        seconds = by_cf(*given)
        own.update((cf, one) for cf, one in seconds.items() if one is not None)
        return seconds

    device = Idle(CPU, lambda: moments.expovariate(1.0))
    executor = executor_of(streams, device)
    with mock.patch.object(codec_timing, "_median_seconds_by_cf", noted), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = time_codecs(policy_of(Fails()(ranks=fails)), FORMS, OpenedExecutor(executor, LINK, device))
    executor.close()
    return found, own


def strict() -> str:
    """What is raised where a warning is an error, and one rank's kernels fail."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        device = Idle(CPU)
        executor = executor_of(True, device)
        try:
            found = time_codecs(policy_of(Fails()(ranks=(1,))), FORMS, OpenedExecutor(executor, LINK, device))
        except UserWarning as raised:
            return str(raised)
        return str(max(found))


class Timed(NamedTuple):
    """What one of three ranks saw: see ``measured``, on streams and on a thread, and ``strict``."""

    on_streams: tuple[Numbers, Numbers]
    on_a_thread: tuple[Numbers, Numbers]
    strictly: str


def timed(rank: int, world: int) -> Timed:
    return Timed(measured(rank, True, (1,)), measured(rank, False, (1,)), strict())


@functools.cache
def of_three_ranks() -> list[Timed]:
    return processes(timed, 3)


def test_a_warning_that_is_an_error_is_raised_when_the_ranks_have_agreed() -> None:
    first, failed, last = (of_rank.strictly for of_rank in of_three_ranks())
    assert "could not be timed" in failed
    assert first == last  # which CFs were timed before the second was up is up to the machine
    assert 1 < float(first) <= 100


@pytest.mark.parametrize("streams", [True, False])
def test_ranks_go_by_the_mean_of_what_all_of_them_measured(streams: bool) -> None:
    ranks = [of_rank.on_streams if streams else of_rank.on_a_thread for of_rank in of_three_ranks()]
    found = ranks[0][0]
    assert all(other == found for other, _ in ranks)
    owns = [own for _, own in ranks]
    assert len({tuple(own.values()) for own in owns}) == 3
    assert max(owns[0]) > 100 >= max(found)  # one rank could not, so none has it
    for cf, per_byte in found.items():
        assert 4 * SENT * per_byte == pytest.approx(sum(own[cf] for own in owns) / 3)


class Started(NamedTuple):
    """A run's candidates, what it starts with, and its record, which rank 0 alone writes."""

    candidates: str
    ran: str
    records: list[RunRecord]


def trained(rank: int, passes: float | None) -> Started:
    """Train with a device that has so many ms between two events; without ``passes`` on the CPU as it is."""

    def there(device: torch.device, group: Any, *_: Any) -> OpenedExecutor:
        idle = Idle(CPU, lambda: passes or 0.0)
        return OpenedExecutor(StreamExecutor(GroupTransport(group), idle), LINK, idle)

    ddp = parallel()
    optimizer = sgd(ddp)
    records: list[Any] = []
    opens = gravac.attach.open_executor if passes is None else there
    with (
        mock.patch.object(gravac.attach, "open_executor", opens),
        adaptive(topk, sinks=[records.append], dense_below=16) as compressor,
    ):
        compressor.attach(ddp, optimizer)
        train(ddp, optimizer, rank, range(2))
        candidates, ran = repr(compressor._engine.deciding.candidates), str(compressor._engine.state.candidate)
    return Started(candidates, ran, [record for record in records if isinstance(record, RunRecord)])


class OffAndOnCPU(NamedTuple):
    """What one of two ranks saw: runs off the CPU and on it, and whether the CPU is a device to time on."""

    off: Started
    on: Started
    has_device: bool


def off_and_on_cpu(rank: int, world: int) -> OffAndOnCPU:
    there = open_executor(CPU)
    there.executor.close()
    return OffAndOnCPU(trained(rank, 1.0), trained(rank, None), there.device is not None)


@functools.cache
def of_two_ranks() -> list[OffAndOnCPU]:
    return processes(off_and_on_cpu, 2)


def test_a_run_off_the_cpu_times_its_candidates_when_it_is_attached() -> None:
    first, other = (of_rank.off for of_rank in of_two_ranks())
    (run,) = first.records
    assert first[:2] == other[:2]
    assert other.records == []
    assert run.timed == tuple(forecast.candidate.cf for forecast in run.forecasts if not forecast.candidate.dense) != ()
    assert f"Encode and decode were timed on the gradients' device, at topk {run.timed[0]:g}x" in describe_run(run)


def test_a_run_on_the_cpu_does_not() -> None:
    (run,) = of_two_ranks()[0].on.records
    assert run.timed == ()
    assert "timed" not in describe_run(run)


def test_the_cpu_has_no_device_to_time_on() -> None:
    assert [of_rank.has_device for of_rank in of_two_ranks()] == [False, False]


def test_a_policy_with_one_candidate_is_timed_too() -> None:
    assert list(time_codecs(policy_of(topk, Static(cf=50.0)), FORMS, opened())) == [50.0]
