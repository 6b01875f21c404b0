# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Where a step's time and bytes went, on this rank."""

from collections.abc import Callable
from dataclasses import dataclass

from gravac.averaging.stats import StepStats
from gravac.collectives import AllReduce, wire_ratio
from gravac.exchange.executor import Executor, Mark


@dataclass(frozen=True, slots=True)
class Timestamps:
    """When a step's stages happened where it trains, as ``Executor.mark`` tells moments; ``None`` if not known.

    Attributes:
        inputs: forward started: the inputs were there.
        optimized: the optimizer's step before that forward ended.
        backward: backward ended, but for waiting for the exchange.
        waited: seconds for which training stood still for the exchange before ``backward`` ended, where what trains
            knows by itself.
        awaited: tells, once the exchange ended, since when training stands still for it, ``None`` where it goes on;
            not given where it stands still from ``backward`` on.
        paused: seconds since the last step in which nobody trained, by the host's clock: an evaluation.
        steps_of_ranks: steps of its own that each rank made for this one, where that is not one; see ``StepRecord``.
    """

    inputs: Mark | None = None
    optimized: Mark | None = None
    backward: Mark | None = None
    waited: float = 0.0
    awaited: Callable[[], Mark | None] | None = None
    paused: float = 0.0
    steps_of_ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StepCosts:
    """A step's numbers on this rank. Seconds and bytes; see ``StepRecord`` and, of ``waited``, ``Measurement``."""

    achieved_cf: float
    payload_bytes: int
    wire_bytes: int
    dense_wire_bytes: int
    seconds: float
    compute: float
    compress: float
    exchange: float
    input_wait: float
    waited: float
    steps_of_ranks: tuple[int, ...] = ()

    @property
    def wire_ratio(self) -> float:
        """Bytes of a dense float32 all-reduce over those sent."""
        return wire_ratio(self.dense_wire_bytes, self.wire_bytes)


@dataclass(frozen=True, slots=True)
class Boundary:
    """Where one step is over and the next begins: when its exchange ended, or when training went on without that.

    Attributes:
        mark: that moment, but for what training stood still for the exchange after it.
        awaited: moment since which it stood still for the exchange; ``None``: not at all.
        ended: when the exchange ended.
    """

    mark: Mark
    awaited: Mark | None
    ended: Mark

    def stood_still(self, between: Callable[[Mark, Mark], float]) -> float:
        """Return the seconds for which training stood still after ``mark``."""
        return 0.0 if self.awaited is None else max(0.0, between(self.awaited, self.ended))


@dataclass(frozen=True, slots=True)
class ClockedStep:
    """A step's bytes, and its moments, which may not be past yet.

    Attributes:
        achieved_cf: see ``StepRecord``, as the next three.
        payload_bytes: bytes.
        wire_bytes: bytes.
        dense_wire_bytes: bytes.
        before: where the step before ended; ``None`` of the first.
        over: where this one did.
        timestamps: when its stages happened.
        spent: see ``Executor``.
    """

    achieved_cf: float
    payload_bytes: int
    wire_bytes: int
    dense_wire_bytes: int
    before: Boundary | None
    over: Boundary
    timestamps: Timestamps
    spent: Callable[[], tuple[float, float]]

    def costs(self, between: Callable[[Mark, Mark], float]) -> StepCosts:
        """Return the step's costs, once; all its moments are past."""
        compress, exchange = self.spent()
        inputs, backward = self.timestamps.inputs, self.timestamps.backward
        before, after = self.before, self.over.stood_still(between)
        seconds = float("nan")
        if before is not None:
            seconds = between(before.mark, self.over.mark) + after - before.stood_still(between)
            seconds -= self.timestamps.paused
        behind = self.timestamps.awaited is not None
        exposed = 0.0 if behind or backward is None else between(backward, self.over.ended)
        exposed += after + self.timestamps.waited
        free_since = [mark for mark in (self.timestamps.optimized, before and before.ended) if mark is not None]
        waited = 0.0 if inputs is None else max(0.0, min((between(mark, inputs) for mark in free_since), default=0.0))
        return StepCosts(
            achieved_cf=self.achieved_cf,
            payload_bytes=self.payload_bytes,
            wire_bytes=self.wire_bytes,
            dense_wire_bytes=self.dense_wire_bytes,
            seconds=seconds,
            compute=max(seconds - exposed - waited, 0.0),
            compress=compress,
            exchange=exchange,
            input_wait=waited,
            waited=float("nan") if backward is None else min(exposed, exchange),
            steps_of_ranks=self.timestamps.steps_of_ranks,
        )


class StepClock:
    """Reads the exchange's counters and the clock at the start and the end of each step."""

    def __init__(self) -> None:
        self._over: Boundary | None = None
        self._payload = self._wire = 0
        self._every = 1

    def begin(self, executor: Executor, every: int = 1) -> None:
        """A step's exchange starts; it stands for ``every`` of the model's own steps."""
        self._every = every
        self._payload, self._wire = executor.ledger.payload_bytes, executor.ledger.wire_bytes
        executor.spent()

    def end(self, executor: Executor, timestamps: Timestamps, stats: StepStats) -> ClockedStep:
        """A step's exchange ended, and with it the step."""
        ended, behind = executor.mark(), timestamps.awaited
        now = Boundary(ended, None, ended) if behind is None else Boundary(timestamps.backward, behind(), ended)
        before, self._over = self._over, now
        return ClockedStep(
            achieved_cf=stats.achieved_cf,
            payload_bytes=executor.ledger.payload_bytes - self._payload,
            wire_bytes=executor.ledger.wire_bytes - self._wire,
            dense_wire_bytes=self._every * AllReduce.wire_bytes(4 * stats.elements, executor.world),
            before=before,
            over=now,
            timestamps=timestamps,
            spent=executor.spent(),
        )
