# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""No two streams race for memory, whatever the schedule; and every wait is needed: without it, they do."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest
import torch

from gravac import Compressor, Policy, dgc, powersgd, quantize, topk, topkc
from gravac.averaging.plan import Piece
from gravac.candidate import Candidate, Forecast
from gravac.collectives import AllReduce
from gravac.compressors.profile import CODING_BYTES_PER_ELEMENT
from gravac.controllers import GraVAC
from gravac.controllers.base import Decision, Measurement
from gravac.engine import coalescing
from gravac.engine.codec_timing import time_codecs
from gravac.engine.inputs import StepInputs
from gravac.exchange.executor import Job, sums_over_all
from gravac.exchange.link_probe import LinkProbe
from gravac.exchange.opening import OpenedExecutor
from gravac.exchange.streams import StreamExecutor
from tests.policies import adaptive
from tests.streams.sanitized import COMPUTE, HOST, Alike, FakeDevice, FakeEvent, _places

SHAPES = {f"layer{number}.weight": (8, 8 * (1 + number % 3)) for number in range(6)} | {"bias": (8,)}
BASES: tuple[Compressor, ...] = (topk, topkc, quantize(2), powersgd, dgc)

SEEDS = 4
"""Number of schedules: two of each controller."""

STEPS = 5
"""Steps of a schedule: with fewer, not all that wait have waited."""

LARGEST = (100, 1 << 20)
"""Most elements of a part: some tensors go alone and some two by two, or groups go whole."""

CFS = (4.0, 16.0, None)


@dataclass(frozen=True)
class Restless:
    """Goes from one compression factor to another, and to dense, all the time; adds up gradients meanwhile."""

    compressor: str
    cf: Callable[[int], float | None]

    name = "restless"
    keeps_all = True
    chooses_sixteen_bit = False

    def propose(self, cf_range: tuple[float, float], reach: object) -> tuple[float, ...]:
        return tuple(cf for cf in CFS if cf)

    def start(self, forecasts: Sequence[Forecast]) -> tuple[int, Decision]:
        return 0, Decision(forecasts[-1].candidate)

    def dump(self, state: int) -> dict[str, Any]:
        return {}

    def restore(self, dumped: dict[str, Any], forecasts: Sequence[Forecast]) -> tuple[int, Decision]:
        return self.start(forecasts)

    def observe(self, state: int, measurement: Measurement) -> tuple[int, Decision]:
        cf = self.cf(measurement.step + 3)
        candidate = Candidate("hook", "dense", 1.0) if cf is None else Candidate("hook", self.compressor, cf)
        sums = ("add", "add", "report")[measurement.step % 3]
        return state, Decision(candidate, reason="restless", shadow=(8.0,), sums=sums)


def in_parts(largest: int) -> Any:
    """Has groups compressed in parts of so many elements, each by itself."""
    together = largest * CODING_BYTES_PER_ELEMENT
    return mock.patch.multiple(coalescing, MAX_SEGMENT_ELEMENTS=largest, MAX_CODING_BYTES=together)


def train(seed: int, base: Compressor, without: str | None = None) -> FakeDevice:
    """Train a made-up model whose gradients are written, and read, on the stream that computes, up to the first race.

    Args:
        seed: of the schedule: which gradients come together, in which order, and when nothing is handed over.
        base: the compressor; dense in some steps.
        without: where waits are left out.
    """
    draw = random.Random(seed)
    numbers = torch.Generator().manual_seed(seed)  # how many are chosen depends on them
    device = FakeDevice(without)
    with device, in_parts(LARGEST[seed % 2]):
        parameters = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
        gradients = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
        scale = torch.tensor(2.0)
        controllers = (GraVAC(window=2, warmup=1), Restless(base.name, lambda step: CFS[(seed + step * step) % 3]))
        settings = {"dense_below": 16, "overflow_safety": draw.choice((True, False))}
        compressor = adaptive(base, (1, 1000), controller=controllers[seed % 2], **settings)
        executor = StreamExecutor(Alike(device), device)
        engine = compressor.attach_parameters(parameters, executor=executor)
        for _ in range(STEPS):
            futures: list[tuple[FakeEvent, Sequence[str]]] = []
            for gradient in gradients.values():
                gradient.normal_(generator=numbers)
            scale.mul_(draw.choice((1.0, 2.0)))
            engine.begin(StepInputs(loss_scale=scale))
            parts = _parted(draw, [*gradients])
            handles = []
            for names in parts:
                pieces = [Piece(name, gradients[name].view(-1), SHAPES[name]) for name in names]

                def then(_: object, names: Sequence[str] = names, told: list[Any] = futures) -> None:
                    told.append((device.record(), names))

                if draw.random() < 0.7:
                    handles.append(engine.submit(pieces, then=then))
                else:
                    handles.append(engine.submit(pieces))
                    handles[-1].then(then)
            if draw.random() < 0.5:  # somebody looks, in the middle of a step
                executor.drain()
                done = [
                    name
                    for names, handle in zip(parts, handles, strict=True)
                    if handle._future.done()
                    for name in names
                ]
                device.access(HOST, _places([gradients[name] for name in done]), set(), "looking")
            engine.end()
            if draw.random() < 0.5:
                handles[-1].wait()
                device.access(COMPUTE, _places([gradients[name] for name in parts[-1]]), set(), "what was waited for")
            for done, names in futures:  # as DDP waits for a bucket
                device.handler._handle_event_wait(done.number, COMPUTE)
                device.access(COMPUTE, _places([gradients[name] for name in names]), set(), "the mean of a bucket")
            assert sorted(name for _, names in futures for name in names) == sorted(gradients)
            for name, gradient in gradients.items():
                parameters[name].add_(gradient)
            if device.errors:
                return device
        assert device.present == COMPUTE
        executor.order()  # the host waits for a device that is saved; which orders what it launches, unseen here
        saved = compressor.state_dict()
        for kept in (saved["residual"], saved["sums"], saved["memory"]):
            device.access(HOST, _places(kept), set(), "saving")
    return device


def _parted(draw: random.Random, names: list[str]) -> Sequence[Sequence[str]]:
    cuts = sorted(draw.sample(range(1, len(names)), draw.randrange(1, 4)))
    return [names[start:end] for start, end in zip([0, *cuts], [*cuts, len(names)], strict=True)]


@pytest.mark.parametrize("base", BASES, ids=lambda base: base.name)
def test_streams_race_for_nothing(base: Compressor) -> None:
    for seed in range(SEEDS):
        assert train(seed, base).errors == []


@pytest.mark.parametrize("base", BASES, ids=lambda base: base.name)
def test_timing_codecs_reads_no_moment_that_is_not_past(base: Compressor) -> None:
    device = FakeDevice()
    with device:
        executor = StreamExecutor(Alike(device), device)
        policy = Policy(base=base, controller=GraVAC(), cf_range=(4, 16), dense_below=16)
        forms = [(shape, torch.float32) for shape in SHAPES.values()]
        assert time_codecs(policy, forms, OpenedExecutor(executor, LinkProbe(1e-5, 1e10, 1e10), device))
    assert device.errors == []


def test_without_any_of_its_waits_they_do() -> None:
    sites = train(0, topk).sites
    assert len(sites) > 4
    for site in sites:
        assert any(train(seed, base, site).errors for seed in range(SEEDS) for base in (topk, dgc)), site


def test_only_timed_jobs_count() -> None:
    device = FakeDevice()
    with device:
        executor = StreamExecutor(Alike(device), device)

        def job() -> Job[None]:
            yield [AllReduce(torch.ones(4))]

        for timed in (True, False, True):
            executor.submit(job(), timed=timed)
        executor.drain()
        spent = executor.spent()
        coded_s, exchanged_s = spent.seconds()
        assert (spent.payload_bytes, executor.ledger.payload_bytes) == (32, 48)
        assert min(coded_s, exchanged_s) > 0
        executor.submit(job())
        executor.drain()
        later = executor.spent()
        assert (later.payload_bytes, *later.seconds()) == (0, 0.0, 0.0)
    assert device.errors == []


def test_the_host_waits_for_sums_of_a_step_ago_and_not_for_later_jobs() -> None:
    device, awaited = FakeDevice(), list[FakeEvent]()
    with device:
        executor = StreamExecutor(Alike(device), device)
        wait = executor._wait_for_event

        def waits(event: Any, seconds: float | None = None) -> bool:
            awaited.append(event)
            return wait(event, seconds)

        def job() -> Job[None]:
            yield [AllReduce(torch.ones(4))]

        with mock.patch.object(executor, "_wait_for_event", waits):
            executor.catch_up()
            (sums,) = executor.submit(sums_over_all(executor, [[1.0, 2.0]])).result(timeout=0)
            after_sums = device.count()
            executor.submit(job(), timed=True)
            executor.catch_up()
            assert [event.number < after_sums for event in awaited] == [True]
            assert sums.read() == [2.0, 4.0]
            assert len(awaited) == 1, "the host has waited for the copy already"
            (later,) = executor.submit(sums_over_all(executor, [[1.0]])).result(timeout=0)
            assert later.read() == [2.0]
            assert len(awaited) == 2, "the host had to wait for this one"
    assert device.errors == []
