# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The tables of beliefs: read from ``known.json``, and which of them are in force.

The file is made by ``python -m tests.measure.beliefs`` from committed records, which it names. All efficiencies are
relative to a step with dense gradient averaging.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import Field, TypeAdapter, field_validator

from gravac.beliefs.belief import Belief
from gravac.beliefs.points import EfficiencyPoints, efficiency_at
from gravac.settings import Settings

Kind = Literal["16 bit", "quantized", "sparse", "low rank", "not measured", "outer", "delay"]
"""Kinds of ways to run a step whose beliefs are equally doubtful."""

UNKNOWN: EfficiencyPoints = ((1.0, 1.0), (10.0, 0.4))
"""Efficiency by CF that is assumed of a compressor that was not measured."""

APART: EfficiencyPoints = ((1.0, 1.0), (5.0, 1.7), (20.0, 2.9))
"""Power of the efficiency by number of steps between two exchanges, of a compressor that was not measured."""


class OfCompressor(Settings):
    """What is believed of a compressor whose ranks exchange in each step.

    Attributes:
        kind: what its doubt goes by.
        by_cf: ``(CF, efficiency)``, ascending.
        by_rank: ``(rank, efficiency)`` of low rank, ascending; empty: not by rank.
        by_gain: ``(gain, efficiency)``, ascending, if one curve fits all tasks; empty: none does.
        apart: ``(number of steps, power)``, ascending: the power that efficiency is raised to if exchanges are that
            many steps apart.
    """

    kind: Kind = "not measured"
    by_cf: EfficiencyPoints = UNKNOWN
    by_rank: EfficiencyPoints = ()
    by_gain: EfficiencyPoints = ()
    apart: EfficiencyPoints = APART

    @field_validator("by_cf", "by_rank", "by_gain", "apart")
    @classmethod
    def _ascend(cls, points: EfficiencyPoints) -> EfficiencyPoints:
        return _ascending(points)


class Doubt(Settings):
    """How far off a belief may be: the standard deviation of an efficiency's logarithm.

    It is the hypotenuse of both attributes' parts.

    Attributes:
        least: deviation of a belief that nothing is lost.
        of_loss: deviation over the logarithm of the efficiency that is believed: at 1 a step may lose nothing, or
            twice as much as is believed, within one standard deviation.
    """

    least: float = Field(default=0.0, ge=0)
    of_loss: float = Field(default=0.0, ge=0)

    def deviation(self, efficiency: float) -> float:
        """Return the standard deviation of the logarithm of an efficiency whose median is given.

        Example:
            >>> Doubt(least=0.03, of_loss=0.5).deviation(1.0)
            0.03
        """
        return math.hypot(self.least, self.of_loss * math.log(max(efficiency, 1e-9)))


class Beliefs(Settings):
    """All beliefs.

    Attributes:
        source: records that the numbers come from.
        compressors: beliefs about each compressor, by its name.
        outer: ``(number of steps between two exchanges, efficiency)`` of dense outer steps, by number of ranks.
        delay: ``(1 + number of steps behind which an exchange travels, efficiency)``, relative to waiting for it.
        doubts: how far off beliefs of each kind may be; a kind that is missing is certain.
    """

    source: str = ""
    compressors: Mapping[str, OfCompressor] = Field(default_factory=dict)
    outer: Mapping[int, EfficiencyPoints]
    delay: EfficiencyPoints
    doubts: Mapping[Kind, Doubt] = Field(default_factory=dict)

    @field_validator("outer")
    @classmethod
    def _of_ranks(cls, outer: Mapping[int, EfficiencyPoints]) -> Mapping[int, EfficiencyPoints]:
        if not outer:
            raise ValueError("name at least one number of ranks")
        return {ranks: _ascending(outer[ranks]) for ranks in sorted(outer)}

    @property
    def digest(self) -> str:
        """Twelve letters that differ if any number does, by which ranks are compared."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:12]

    def of(self, compressor: str) -> OfCompressor:
        """Return what is believed of a compressor; a careful guess if it was not measured."""
        return self.compressors.get(compressor) or OfCompressor()

    def doubted(self, efficiency: float, kind: Kind) -> Belief:
        """Return a belief by its median and what its doubt goes by."""
        doubt = self.doubts.get(kind)
        return Belief(efficiency, doubt.deviation(efficiency) if doubt else 0.0)

    def of_outer(self, every: int, delay: int, world: int) -> Belief:
        """Return the belief about a step of dense outer steps.

        Between numbers of ranks that were measured, the efficiency is a power of their number; beyond them, that of
        the nearest number.

        Args:
            every: number of steps from one exchange to the next.
            delay: number of steps that an exchange is in flight before its mean is applied.
            world: number of ranks.
        """
        by_ranks = tuple((number, efficiency_at(points, every)) for number, points in self.outer.items())
        apart = self.doubted(efficiency_at(by_ranks, min(world, max(self.outer))), "outer")
        if not delay:
            return apart
        return apart.times(self.doubted(efficiency_at(self.delay, 1 + delay), "delay"))


def _ascending(points: EfficiencyPoints) -> EfficiencyPoints:
    if [at for at, _ in points] != sorted({at for at, _ in points}) or any(not share > 0 for _, share in points):
        raise ValueError("points must ascend, and their second numbers be above 0")
    return points


@lru_cache(maxsize=1)
def known() -> Beliefs:
    """Return the beliefs that come with gravac."""
    plain = TypeAdapter(dict[str, object]).validate_json(Path(__file__).with_name("known.json").read_bytes())
    return Beliefs(**plain)


_in_force: list[Beliefs] = []


def current() -> Beliefs:
    """Return the beliefs in force: those that come with gravac, if no others are used (``using``)."""
    return _in_force[-1] if _in_force else known()


@contextmanager
def using(beliefs: Beliefs) -> Iterator[None]:
    """Have other beliefs in force, in this process: for measurements and tests."""
    _in_force.append(beliefs)
    try:
        yield
    finally:
        _in_force.pop()
