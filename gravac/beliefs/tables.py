# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Tables of beliefs (assumed efficiencies of compression methods): their format, and which tables controllers use.

By default, controllers use the tables in ``shipped.json``, a file of the package. The command ``python -m
tests.measure.beliefs --write`` makes that file from committed records, and writes their names into the file. All
efficiencies are relative to a step with dense gradient averaging.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from gravac.beliefs.belief import Belief
from gravac.beliefs.points import EfficiencyPoints, efficiency_at
from gravac.settings import Settings

MethodKind = Literal["16 bit", "quantized", "sparse", "low rank", "not measured", "outer", "delay"]
"""Kind of compression method. All methods of a kind share one ``Doubt``: the uncertainty of their efficiencies.
``"outer"``: dense outer steps (ranks exchange once in several steps); ``"delay"``: outer steps that apply the mean some
steps later; ``"not measured"``: a compressor without measurements."""

UNMEASURED_EFFICIENCY: EfficiencyPoints = ((1.0, 1.0), (10.0, 0.4))
"""Points ``(CF, median efficiency)`` that gravac assumes of a compressor without measurements."""

UNMEASURED_EXPONENTS: EfficiencyPoints = ((1.0, 1.0), (5.0, 1.7), (20.0, 2.9))
"""Points ``(steps between two exchanges, exponent)`` that gravac assumes of a compressor without measurements; see
``CompressorBeliefs.apart``."""


class CompressorBeliefs(Settings):
    """Assumed efficiencies of one compressor.

    The efficiencies of ``by_cf``, ``by_rank`` and ``by_gain`` hold if ranks exchange in each step.

    Attributes:
        kind: kind of method, which selects the compressor's ``Doubt`` (uncertainty).
        by_cf: points ``(CF, median efficiency)``, ascending by CF.
        by_rank: points ``(rank of the approximation, median efficiency)`` of a low-rank compressor, ascending by rank;
            empty for other compressors.
        by_gain: points ``(gain, median efficiency)``, ascending by gain (share of the energy sent); empty if
            efficiency does not depend on gain.
        apart: points ``(steps between two exchanges, exponent)``, ascending by steps. In outer steps (ranks exchange
            once in several steps), the efficiency is raised to the exponent.
    """

    kind: MethodKind = "not measured"
    by_cf: EfficiencyPoints = UNMEASURED_EFFICIENCY
    by_rank: EfficiencyPoints = ()
    by_gain: EfficiencyPoints = ()
    apart: EfficiencyPoints = UNMEASURED_EXPONENTS

    @field_validator("by_cf", "by_rank", "by_gain", "apart")
    @classmethod
    def _check_ascending(cls, points: EfficiencyPoints) -> EfficiencyPoints:
        return _checked_points(points)


class Doubt(Settings):
    """Uncertainty of the efficiencies of one kind of method, as a standard deviation of log efficiency.

    ``deviation = sqrt(least**2 + (of_loss * log(median))**2)``

    Attributes:
        least: standard deviation of log efficiency at a median efficiency of 1; 0: no uncertainty.
        of_loss: factor of ``log(median)`` in the formula: how fast the standard deviation grows as the median
            efficiency falls below 1; 0: it does not grow.
    """

    least: float = Field(default=0.0, ge=0)
    of_loss: float = Field(default=0.0, ge=0)

    def deviation(self, efficiency: float) -> float:
        """Return the standard deviation of log efficiency of a method whose median efficiency is ``efficiency``.

        Example:
            >>> Doubt(least=0.03, of_loss=0.5).deviation(1.0)
            0.03
        """
        return math.hypot(self.least, self.of_loss * math.log(max(efficiency, 1e-9)))


class Beliefs(Settings):
    """Assumed efficiencies of all compression methods, and their uncertainties.

    Attributes:
        source: text that names the records that the numbers come from.
        compressors: beliefs about each compressor, by the compressor's name.
        outer: points ``(steps between two exchanges, median efficiency)`` of dense outer steps (ranks exchange once in
            several steps, without compression), by number of ranks.
        delay: points ``(1 + delay in steps, median efficiency)`` of outer steps with a delay: training continues while
            an exchange is in flight. The efficiency is relative to the same outer steps without a delay.
        delay_every: number of steps from one exchange to the next (H) in the measurements that ``delay`` comes from. At
            another H, gravac assumes that the cost depends on delay / H: at twice the H, a delay of twice as many steps
            costs as much. ``None``: a delay of as many steps costs the same at any H.
        doubts: uncertainty of the efficiencies of each kind of method. A kind without an entry has no uncertainty.
    """

    source: str = ""
    compressors: Mapping[str, CompressorBeliefs] = Field(default_factory=dict)
    outer: Mapping[int, EfficiencyPoints]
    delay: EfficiencyPoints
    delay_every: int | None = Field(default=None, ge=1)
    doubts: Mapping[MethodKind, Doubt] = Field(default_factory=dict)

    @field_validator("outer")
    @classmethod
    def _check_outer(cls, outer: Mapping[int, EfficiencyPoints]) -> Mapping[int, EfficiencyPoints]:
        if not outer:
            raise ValueError("give points (number of steps, efficiency) for at least one number of ranks")
        return {ranks: _checked_points(outer[ranks]) for ranks in sorted(outer)}

    @property
    def digest(self) -> str:
        """Hash of all tables: twelve hexadecimal digits. Ranks compare hashes to check that their beliefs are equal."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:12]

    def of_compressor(self, name: str) -> CompressorBeliefs:
        """Return the beliefs about a compressor; if the tables lack its name, the default ``CompressorBeliefs()``."""
        return self.compressors.get(name) or CompressorBeliefs()

    def belief(self, efficiency: float, kind: MethodKind) -> Belief:
        """Return the belief with median ``efficiency`` and with the uncertainty that ``doubts`` states for ``kind``."""
        doubt = self.doubts.get(kind)
        return Belief(efficiency, doubt.deviation(efficiency) if doubt else 0.0)

    def of_outer(self, every: int, delay: int, world: int) -> Belief:
        """Return the belief about the efficiency of a dense outer step: ranks exchange once in ``every`` steps.

        The median is interpolated between the measured numbers of ranks. Above the largest measured number, the median
        of that number is returned.

        Args:
            every: number of steps from one exchange to the next.
            delay: number of steps that an exchange is in flight before its mean is applied; 0: training waits.
            world: number of ranks.
        """
        efficiency_by_ranks = tuple((ranks, efficiency_at(points, every)) for ranks, points in self.outer.items())
        belief_without_delay = self.belief(efficiency_at(efficiency_by_ranks, min(world, max(self.outer))), "outer")
        if not delay:
            return belief_without_delay
        table_delay_steps = delay if self.delay_every is None else delay * self.delay_every / every
        return belief_without_delay.times(self.belief(efficiency_at(self.delay, 1 + table_delay_steps), "delay"))


def _checked_points(points: EfficiencyPoints) -> EfficiencyPoints:
    """Return the points unchanged after a check.

    Raises:
        ValueError: the first numbers do not ascend, or a second number is not above 0.
    """
    if [x for x, _ in points] != sorted({x for x, _ in points}) or any(not y > 0 for _, y in points):
        raise ValueError(
            f"the first numbers of {points!r} do not ascend, or a second number is not above 0; sort the points, give "
            "each first number once, and second numbers above 0"
        )
    return points


@lru_cache(maxsize=1)
def shipped_beliefs() -> Beliefs:
    """Return the beliefs of ``shipped.json``, which gravac uses by default; the file is read once."""
    return read_beliefs(Path(__file__).with_name("shipped.json"))


def read_beliefs(path: Path) -> Beliefs:
    """Read beliefs from a JSON file whose keys are the attributes of ``Beliefs``.

    Raises:
        SettingsError: a table is missing, unknown or wrong; the message names it.
    """
    return Beliefs(**json.loads(path.read_text(encoding="utf-8")))


_replacement_beliefs: list[Beliefs] = []


def beliefs_in_force() -> Beliefs:
    """Return the beliefs that controllers use now: those given to ``use_beliefs``, or those of ``shipped.json``."""
    return _replacement_beliefs[-1] if _replacement_beliefs else shipped_beliefs()


@contextmanager
def use_beliefs(beliefs: Beliefs) -> Iterator[None]:
    """Let this process use other beliefs within a ``with`` block; all ranks must use the same beliefs."""
    _replacement_beliefs.append(beliefs)
    try:
        yield
    finally:
        _replacement_beliefs.pop()
