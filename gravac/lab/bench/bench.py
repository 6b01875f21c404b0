# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Settings of the compressor bench: sizes, factors, names, and all that is to be measured."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gravac.candidate import Span
from gravac.compressors import COMPRESSORS, Compressor
from gravac.lab.bench.ranks import TORCH, MakeRank, OurRank, Rank, Shape
from gravac.lab.shapes import MODELS
from gravac.lab.training.expression import compressor

SMALL = 1024
"""Number of elements below which a tensor is left out, as are those of one dimension: training sends them dense."""

MOST_CF = 1e6

MOST_LISTED = 8
"""Number of CFs above which a compressor with a list is measured only at those next to the ones asked for."""


@dataclass(frozen=True)
class Bench:
    """Settings of the bench; wrong values are refused at construction.

    Attributes:
        elements: number of elements of the tensor, which is about square; rounded down to whole rows.
        model: name of a model whose tensors are compressed instead, each on its own.
        cfs: compression factors for what can do any.
        workers: number of ranks, 2 to 64.
        repeats: number of timed calls.
        only: compressors to measure, by name or, with settings, as in Python (``"randomk(block=64)"``); empty for all.
        also: compressors that are measured besides, written in the same way.
        json: file for the rows; ``None`` writes none.

    Raises:
        ValueError: names the argument, the value and what is allowed.
    """

    elements: int = 2560 * 2560
    model: str | None = None
    cfs: tuple[float, ...] = (10.0, 100.0, 1000.0)
    workers: int = 2
    repeats: int = 7
    only: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    json: Path | None = None

    def __post_init__(self) -> None:
        if self.elements < 1:
            raise ValueError(f"elements: {self.elements} is below 1; use 6553600")
        if self.model is not None and self.model not in MODELS:
            raise ValueError(f"shapes: {self.model!r} is unknown; known: {', '.join(MODELS)}")
        for cf in self.cfs:
            if not 1 <= cf <= MOST_CF:
                raise ValueError(f"cf: {cf:g} is outside 1 to {MOST_CF:g}; use 10 100 1000")
        if not 2 <= self.workers <= 64:
            raise ValueError(f"workers: {self.workers} is outside 2 to 64; use 2")
        if self.repeats < 1:
            raise ValueError(f"repeats: {self.repeats} is below 1; use 7")
        for argument, names in (("only", self.only), ("also", self.also)):
            for name in names:
                _check(argument, name)
        if self.json is not None:
            folder = self.json.absolute().parent
            if self.json.is_dir():
                raise ValueError(f"json: {self.json} is a folder; name a file in it")
            if not folder.is_dir() or not os.access(folder, os.W_OK):
                raise ValueError(f"json: {folder} is not a folder that can be written to; name another")

    @property
    def shapes(self) -> list[Shape]:
        """Shapes of the tensors to compress."""
        if self.model is None:
            side = math.isqrt(self.elements)
            return [(side, self.elements // side)]
        return [shape for shape in MODELS[self.model]() if len(shape) > 1 and math.prod(shape) >= SMALL]


@dataclass(frozen=True, slots=True)
class Contender:
    """A compressor to measure.

    Attributes:
        name: name of the compressor.
        cf: compression factor asked for.
        make: makes one rank of it.
        host_waits: whether on a GPU the host waits for what it encodes; ``None``: not known.
    """

    name: str
    cf: float
    make: MakeRank
    host_waits: bool | None = None


def contenders(bench: Bench) -> list[Contender]:
    """Return all compressors that are asked for, ours first."""
    wanted = {*(bench.only or (*COMPRESSORS, *TORCH)), *bench.also}
    known = [*COMPRESSORS, *(name for name in (*bench.only, *bench.also) if name not in TORCH), *TORCH]
    found = []
    for name in dict.fromkeys(name for name in known if name in wanted):
        if name in TORCH:
            cfs = (2.0,) if name == "torch fp16" else bench.cfs
            found += [Contender(name, cf, _theirs(TORCH[name], cf)) for cf in cfs]
        else:
            ours = compressor(name)
            found += [Contender(name, cf, _ours(ours, cf), ours.host_waits) for cf in _cfs(ours, bench)]
    return found


def _check(argument: str, name: str) -> None:
    if name in TORCH:
        return
    try:
        compressor(name)
    except ValueError as error:
        known = ", ".join(map(repr, (*COMPRESSORS, *TORCH)))
        if name in COMPRESSORS:
            raise ValueError(f"{argument}: {error}") from None
        why = f": {error}" if "(" in name else ""
        raise ValueError(f"{argument}: {name!r} is unknown{why}; known: {known}") from None


def _cfs(compressor: Compressor, bench: Bench) -> tuple[float, ...]:
    reach = compressor.candidates((1.0, MOST_CF))
    if isinstance(reach, Span):
        return tuple(cf for cf in bench.cfs if reach.low <= cf <= reach.high)
    if len(reach) <= MOST_LISTED:
        return reach
    return tuple(sorted({min(reach, key=lambda listed: abs(math.log(listed / cf))) for cf in bench.cfs}))


def _ours(compressor: Compressor, cf: float) -> MakeRank:
    return lambda rank, world: OurRank(compressor, cf, rank, world)


def _theirs(make: Callable[[float, int], Rank], cf: float) -> MakeRank:
    return lambda rank, world: make(cf, world)
