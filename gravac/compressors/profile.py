# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What is known of a compressor before it has run: what its coding costs, what its steps are worth, how it may travel.

The numbers stand in each compressor's own file, as points at some compression factors (CFs); here is how a value is
read off between them, and where the numbers come from.

**Coding costs** are points ``(CF, encode, decode)`` in copies of the tensor, measured on one CPU thread with
``MEASURED_WORLD`` ranks (``gravac bench compressors``, docs/measurements/compressors.json); interpolated in log CF,
beyond the points the nearest. What a GPU takes in copies of its own may differ much: there a run's candidates are timed
(``gravac.engine.codec_timing``), and ``gravac.costmodel.Machine`` can bring costs of its own.

**Efficiency** is the share of a dense step's progress that a compressed step makes: the steps that dense training
needs to a target over those that the compressor needs, each with its own error feedback. Points are ``(CF,
efficiency)``, or ``(rank, efficiency)`` of low rank: geometric means over the three tasks of an older state of
``docs/measurements/tta.json``, of 468 runs (``docs/results.md`` says what today's would be, and which order that would
change); where that had no run (PowerSGD by CF, low CFs, 3 bits), put between by the losses in
``docs/measurements/worth.json``. It is what is expected before training, from small models. Gain, which is measured
while training, ranks compressors about as well, and is no measure of progress: 0.07 of the energy (top-k at 100x) makes
a third of a dense step's. If the work of many steps is compressed (``gravac.modes.outer``), what was not sent waits for
as many steps: then efficiency is raised to a power (``efficiency_apart``), put by
``docs/measurements/outer_efficiency.json``.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CostPoints = Sequence[tuple[float, float, float]]
"""Points (CF, encode, decode at ``MEASURED_WORLD`` ranks), ascending by CF; costs in copies of the tensor."""

EfficiencyPoints = tuple[tuple[float, float], ...]
"""Points (x, efficiency), ascending by x, which is a CF, a rank or a gain."""

MEASURED_WORLD = 2
"""Number of ranks at which coding costs are measured."""

CODING_BYTES = 32
"""Bytes that coding takes for an element at most, by any compressor that says nothing else; see ``Profile``."""

UNKNOWN: EfficiencyPoints = ((1.0, 1.0), (10.0, 0.4))
"""Efficiency by CF that is assumed of a compressor that was not measured."""

APART: EfficiencyPoints = ((1.0, 1.0), (5.0, 1.7), (20.0, 2.9))
"""``Profile.efficiency_apart`` of a compressor that says nothing else: of low rank, as measured at 5 and 20 steps."""


@dataclass(frozen=True, slots=True)
class Coding:
    """What coding a tensor costs, in copies of it: seconds over those that copying it takes.

    Attributes:
        encode: cost from the gradient to the first collective.
        decode: cost of all the rest, at ``MEASURED_WORLD`` ranks.
        fixed: the part of ``decode`` that does not grow with the ranks where each decodes what all have sent.
    """

    encode: float
    decode: float
    fixed: float = 0.0

    def copies(self, world: int = MEASURED_WORLD, gathered: bool = False) -> float:
        """What encode and decode cost together, in copies of the tensor.

        Args:
            world: number of ranks.
            gathered: whether every rank decodes what all ranks have sent.
        """
        if not gathered:
            return self.encode + self.decode
        return self.encode + self.fixed + (self.decode - self.fixed) * world / MEASURED_WORLD


@dataclass(frozen=True, slots=True)
class Profile:
    """What is known of a compressor at one CF, over so many ranks, on tensors of such shapes; made by ``profile``.

    Attributes:
        family: what at other CFs of the same name codes as cheaply: a controller compares step times within it.
        coding: what encode and decode cost; ``None`` where that was not measured (at every CF, then): a start that
            needs it is not made, and ``gravac advise`` leaves the compressor out.
        efficiency: share of a dense step's progress that a step is expected to make, in (0, 1].
        efficiency_by_gain: what a gain measured while training makes of that: ``(gain, efficiency)``, ascending; empty
            where gain says nothing.
        efficiency_apart: what becomes of that if ranks exchange every so many steps (``gravac.modes.outer``):
            ``(number of steps, power that it is raised to)``, ascending.
        one_round: whether ``rounds`` yields once for every tensor: the next tensors' rounds may then start while this
            one's travel.
        error_feedback: share of what is not sent that is kept, unless the user says otherwise.
        pad_multiple: multiple of elements that tensors must be padded to before they may be laid side by side; 0:
            never. Padded with zeros and laid so, each comes out as it would alone, where no error feedback is asked
            for.
        coding_bytes: bytes that coding tensors together takes for each of their elements at most, in float32, beside
            gradients and what is kept (``make measure-memory``). Where it is less, more go together off the CPU.
    """

    family: str
    coding: Coding | None = None
    efficiency: float = 1.0
    efficiency_by_gain: EfficiencyPoints = ()
    efficiency_apart: EfficiencyPoints = APART
    one_round: bool = False
    error_feedback: float = 0.0
    pad_multiple: int = 0
    coding_bytes: int = CODING_BYTES


def coding_at(points: CostPoints, cf: float) -> Coding | None:
    """The coding cost at a CF, in copies of the tensor; ``None`` without points.

    Of what all ranks have sent, at most a copy and a half of the decode is fixed: what it costs at the highest CF
    measured, where hardly anything is left to decode.

    Example:
        >>> points = ((10, 9.0, 7.0), (1000, 3.0, 1.0))
        >>> coding_at(points, 1000)
        Coding(encode=3.0, decode=1.0, fixed=1.0)
        >>> round(coding_at(points, 100).copies(), 6)
        10.0
    """
    if not points:
        return None
    at, *costs = zip(*points, strict=True)
    encode, decode = (float(np.interp(math.log(cf), [math.log(point) for point in at], cost)) for cost in costs)
    return Coding(encode, decode, min(1.5, points[-1][2], decode))


def efficiency_at(points: EfficiencyPoints, x: float) -> float:
    """The efficiency at a CF (or rank): between and beyond points a power of x; at most 1.

    Before the first point it is what is there, and so it is everywhere of a single one.

    Example:
        >>> round(efficiency_at(((1, 1.0), (10, 0.72), (100, 0.3)), 30), 2)
        0.47
    """
    if len(points) == 1 or x <= points[0][0]:
        return points[0][1]
    low, high = _around(points, x)
    slope = math.log(high[1] / low[1]) / math.log(high[0] / low[0])
    return float(min(1.0, low[1] * (x / low[0]) ** slope))


def power_at(points: EfficiencyPoints, every: float) -> float:
    """The power that an efficiency is raised to where ranks exchange every so many steps: linear in their logarithm.

    Before the first point it is what is there; beyond the last it goes on as it came.

    Example:
        >>> [round(power_at(((20, 1.0), (50, 2.0)), every), 2) for every in (1, 20, 50, 125)]
        [1.0, 1.0, 2.0, 3.0]
    """
    if len(points) == 1 or every <= points[0][0]:
        return points[0][1]
    low, high = _around(points, every)
    return low[1] + (high[1] - low[1]) * math.log(every / low[0]) / math.log(high[0] / low[0])


def _around(points: EfficiencyPoints, x: float) -> EfficiencyPoints:
    """The points before and after x; beyond the last, the last two."""
    return next((pair for pair in itertools.pairwise(points) if x <= pair[1][0]), points[-2:])
