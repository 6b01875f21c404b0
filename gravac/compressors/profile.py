# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What is known of a compressor before it has run: what its coding costs, what its steps are worth, how it may travel.

What coding costs stands in each compressor's own file, as points at some compression factors (CFs); here is how a value
is read off between them, and where the numbers come from.

**Coding costs** are points ``(CF, encode, decode)`` in copies of the tensor, measured on one CPU thread with
``MEASURED_WORLD`` ranks (``gravac bench compressors``, docs/measurements/compressors.json); interpolated in log CF,
beyond the points the nearest. What a GPU takes in copies of its own may differ much: there a run's candidates are timed
(``gravac.engine.codec_timing``), and ``gravac.costmodel.Machine`` can bring costs of its own.

**Efficiency** is the share of a dense step's progress that a compressed step makes. ``gravac.beliefs`` holds it; the
class of a compressor that is not there declares its own.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gravac.beliefs import EfficiencyPoints, MethodKind

CostPoints = Sequence[tuple[float, float, float]]
"""Points (CF, encode, decode at ``MEASURED_WORLD`` ranks), ascending by CF; costs in copies of the tensor."""

MEASURED_WORLD = 2
"""Number of ranks at which coding costs are measured."""

CODING_BYTES = 32
"""Bytes that coding takes for an element at most, by any compressor that says nothing else; see ``Profile``."""


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
            ``(number of steps, power that it is raised to)``, ascending; empty: it stays as it is.
        kind: kind of method, which selects the uncertainty of ``efficiency``; ``None``: it is certain.
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
    efficiency_apart: EfficiencyPoints = ()
    kind: MethodKind | None = "not measured"
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
