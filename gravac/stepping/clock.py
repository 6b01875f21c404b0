# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Where a step's time and bytes went, on this rank."""

from dataclasses import dataclass

from gravac.averaging.stats import StepStats
from gravac.collectives import AllReduce, wire_ratio
from gravac.exchange.executor import Executor


@dataclass(frozen=True, slots=True)
class Timestamps:
    """When a step's stages happened on the training thread, ``time.perf_counter()`` seconds; ``None`` if not known.

    Attributes:
        inputs: forward started: the inputs were there.
        optimized: the optimizer's step before that forward ended.
        backward: backward ended, but for waiting for the exchange.
    """

    inputs: float | None = None
    optimized: float | None = None
    backward: float | None = None


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

    @property
    def wire_ratio(self) -> float:
        """Bytes of a dense float32 all-reduce over those sent."""
        return wire_ratio(self.dense_wire_bytes, self.wire_bytes)


class StepClock:
    """Reads the exchange's counters and the clock at the start and the end of each step."""

    def __init__(self) -> None:
        self._ended: float | None = None
        self._before = (0, 0, 0.0, 0.0)

    def begin(self, executor: Executor) -> None:
        """A step's exchange starts."""
        self._before = _counters(executor)

    def end(self, executor: Executor, timestamps: Timestamps, stats: StepStats) -> StepCosts:
        """A step's exchange ended, and with it the step."""
        now = executor.now()
        payload, wire, compress, exchange = (
            after - before for after, before in zip(_counters(executor), self._before, strict=True)
        )
        seconds = now - self._ended if self._ended is not None else float("nan")
        exposed = now - timestamps.backward if timestamps.backward is not None else 0.0
        free_since = max((t for t in (timestamps.optimized, self._ended) if t is not None), default=None)
        waited = timestamps.inputs - free_since if timestamps.inputs is not None and free_since is not None else 0.0
        self._ended = now
        return StepCosts(
            achieved_cf=stats.achieved_cf,
            payload_bytes=int(payload),
            wire_bytes=int(wire),
            dense_wire_bytes=AllReduce.wire_bytes(4 * stats.elements, executor.world),
            seconds=seconds,
            compute=max(seconds - exposed - max(0.0, waited), 0.0),
            compress=compress,
            exchange=exchange,
            input_wait=max(0.0, waited),
            waited=min(exposed, exchange) if timestamps.backward is not None else float("nan"),
        )


def _counters(executor: Executor) -> tuple[int, int, float, float]:
    ledger = executor.ledger
    return ledger.payload_bytes, ledger.wire_bytes, executor.compress_seconds, executor.exchange_seconds
