# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Profiles of compressors: coding cost, efficiency of steps, and properties of the exchange, expected before a run.

Each compressor's file has its coding costs, as points at some compression factors (CFs). This file interpolates between
the points, and says how they were measured.

**Coding costs** are points ``(CF, encode, decode)``. Their unit is the time that a copy of the tensor takes. They are
measured on one CPU thread with ``MEASURED_WORLD`` ranks (``gravac bench compressors``,
record compressors.json of commit 43b3fe07). Between points, costs are interpolated in log CF; below the first and above
the last point, that point's costs are used. On a GPU, these costs may be far from true. A run on a GPU therefore times
its candidates (``gravac.engine.codec_timing``), and a ``gravac.costmodel.Machine`` may contain other costs.

**Efficiency** is the fraction of a dense step's progress that a compressed step makes. ``gravac.beliefs`` has the
efficiency of gravac's compressors; the class of any other compressor declares its own.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gravac.beliefs import EfficiencyPoints, MethodKind

CostPoints = Sequence[tuple[float, float, float]]
"""Points (CF, cost of encode, cost of decode at ``MEASURED_WORLD`` ranks), ascending by CF.

The unit of a cost is the time that a copy of the tensor takes.
"""

MEASURED_WORLD = 2
"""Number of ranks at which coding costs are measured."""

CODING_BYTES_PER_ELEMENT = 32
"""Default of ``Profile.coding_bytes_per_element``, in bytes per element: no compressor needs more memory for coding."""


@dataclass(frozen=True, slots=True)
class Coding:
    """Cost of coding a tensor, in units of the time that a copy of the tensor takes.

    Attributes:
        encode: cost of the work before the first collective.
        decode: cost of the work after the start of the first collective, with ``MEASURED_WORLD`` ranks.
        fixed: part of ``decode`` that does not grow with the number of ranks. If each rank decodes all ranks' codes,
            the other part is proportional to the number of ranks.
    """

    encode: float
    decode: float
    fixed: float = 0.0

    def copies(self, world: int = MEASURED_WORLD, gathered: bool = False) -> float:
        """Return the total cost of encode and decode; the unit is the time that a copy of the tensor takes.

        Args:
            world: number of ranks.
            gathered: whether every rank decodes the codes of all ranks.
        """
        if not gathered:
            return self.encode + self.decode
        return self.encode + self.fixed + (self.decode - self.fixed) * world / MEASURED_WORLD


@dataclass(frozen=True, slots=True)
class Profile:
    """Facts about a compressor at one CF, for a number of ranks and shapes of tensors; made by ``Compressor.profile``.

    Attributes:
        family: name shared by compressors and CFs whose coding takes comparable time; a controller compares step times
            within a family.
        coding: cost of encode and decode. ``None``: not measured, at this and every other CF. Step times are then not
            predicted, and ``gravac advise`` skips the compressor.
        efficiency: expected fraction of a dense step's progress that a step makes, in (0, 1].
        efficiency_by_gain: efficiency for a gain that was measured while training: ``(gain, efficiency)``, ascending;
            empty if efficiency does not depend on gain.
        efficiency_apart: exponents to which the efficiency is raised if ranks exchange only every few steps
            (``gravac.modes.outer``): ``(number of steps, exponent)``, ascending; empty: the efficiency does not change.
        kind: kind of method, which selects the uncertainty of ``efficiency``; ``None``: the efficiency is certain.
        one_round: whether ``rounds`` yields a single collective per tensor. The next tensors may then be encoded while
            this collective is in flight.
        error_feedback: fraction of the unsent rest (x - sent) that becomes the residual, unless the user sets another.
        pad_multiple: if several tensors are joined and coded as one, each is padded with zeros to a multiple of this
            number of elements; 0: tensors are never joined. Without error feedback, the result for each tensor is
            the same as if it were coded by itself.
        coding_bytes_per_element: maximum memory for coding, in bytes per float32 element, besides gradients and
            residuals (``python -m tests.measure.memory``). The lower it is, the larger the batches that a GPU codes at
            once.
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
    coding_bytes_per_element: int = CODING_BYTES_PER_ELEMENT


def coding_at(points: CostPoints, cf: float) -> Coding | None:
    """Return the coding cost at a CF, interpolated between points; ``None`` if there are no points.

    The result's ``fixed`` is the cost of decode at the highest measured CF, where there is hardly anything to decode;
    1.5 if that cost is higher.

    Example:
        >>> points = ((10, 9.0, 7.0), (1000, 3.0, 1.0))
        >>> coding_at(points, 1000)
        Coding(encode=3.0, decode=1.0, fixed=1.0)
        >>> round(coding_at(points, 100).copies(), 6)
        10.0
    """
    if not points:
        return None
    log_cfs = [math.log(point_cf) for point_cf, _, _ in points]
    encode = float(np.interp(math.log(cf), log_cfs, [point_encode for _, point_encode, _ in points]))
    decode = float(np.interp(math.log(cf), log_cfs, [point_decode for _, _, point_decode in points]))
    return Coding(encode, decode, min(1.5, points[-1][2], decode))
