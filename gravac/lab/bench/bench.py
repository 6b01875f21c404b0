# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Settings of ``gravac bench compressors``: tensor sizes, compression factors, and the compressors to measure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gravac.candidate import Span
from gravac.compressors import COMPRESSORS, Compressor
from gravac.lab.bench.ranks import TORCH_RANKS, GravacRank, MakeRank, Rank, Shape
from gravac.lab.json_file import check_writable
from gravac.lab.shapes import MODELS
from gravac.lab.training.expression import compressor

MIN_ELEMENTS = 1024
"""Minimum number of elements of a model's tensor to be measured; training compresses no smaller tensors."""

MAX_CF = 1e6
"""Highest compression factor (CF) that the bench measures."""

MAX_LISTED_CFS = 8
"""If a compressor lists more CFs than this number, only the CFs nearest to the requested CFs are measured."""


@dataclass(frozen=True)
class Bench:
    """Settings of ``gravac bench compressors``; the constructor refuses wrong settings.

    Attributes:
        elements: number of elements of the tensor to compress, an almost square matrix; rounded down to complete rows.
        model: name of a model whose large tensors, each by itself, are compressed instead of a matrix; ``None``: the
            matrix is compressed.
        cfs: compression factors to measure; a compressor that supports only a few CFs is measured at all of these.
        workers: number of ranks, 2 to 64.
        repeats: number of steps in which each compressor is timed.
        only: compressors to measure, by name or, with settings, as in Python (``"randomk(block=64)"``); empty for all.
        also: additional compressors to measure, written in the same way.
        json: file to write the results to; ``None`` writes no file.

    Raises:
        ValueError: a setting is wrong; the message names the argument, the value and what is allowed.
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
            if not 1 <= cf <= MAX_CF:
                raise ValueError(f"cf: {cf:g} is outside 1 to {MAX_CF:g}; use 10 100 1000")
        if not 2 <= self.workers <= 64:
            raise ValueError(f"workers: {self.workers} is outside 2 to 64; use 2")
        if self.repeats < 1:
            raise ValueError(f"repeats: {self.repeats} is below 1; use 7")
        for argument, compressor_names in (("only", self.only), ("also", self.also)):
            for name in compressor_names:
                _check_compressor(argument, name)
        if self.json is not None:
            check_writable("json", self.json)

    @property
    def shapes(self) -> list[Shape]:
        """Shapes of the tensors to compress; of a model, without vectors and tensors below ``MIN_ELEMENTS``."""
        if self.model is None:
            side_length = math.isqrt(self.elements)
            return [(side_length, self.elements // side_length)]
        return [shape for shape in MODELS[self.model]() if len(shape) > 1 and math.prod(shape) >= MIN_ELEMENTS]


@dataclass(frozen=True, slots=True)
class Contender:
    """A compressor to measure at one compression factor.

    Attributes:
        name: name of the compressor.
        cf: requested compression factor.
        make: function that takes the number of a rank and the number of ranks, and returns a new simulated rank, which
            averages with the compressor.
        host_waits: whether the host waits for the GPU while encoding; ``None``: not known.
    """

    name: str
    cf: float
    make: MakeRank
    host_waits: bool | None = None


def contenders(bench: Bench) -> list[Contender]:
    """Return all compressors to measure, each at each of its CFs: first gravac's compressors, then PyTorch's."""
    requested_names = {*(bench.only or (*COMPRESSORS, *TORCH_RANKS)), *bench.also}
    ordered_names = [
        *COMPRESSORS,
        *(name for name in (*bench.only, *bench.also) if name not in TORCH_RANKS),
        *TORCH_RANKS,
    ]
    all_contenders = []
    for name in dict.fromkeys(name for name in ordered_names if name in requested_names):
        if name in TORCH_RANKS:
            cfs = (2.0,) if name == "torch fp16" else bench.cfs
            all_contenders += [Contender(name, cf, _torch_rank(TORCH_RANKS[name], cf)) for cf in cfs]
        else:
            base_compressor = compressor(name)
            all_contenders += [
                Contender(name, cf, _gravac_rank(base_compressor, cf), base_compressor.host_waits)
                for cf in _cfs_to_measure(base_compressor, bench)
            ]
    return all_contenders


def _check_compressor(argument: str, name: str) -> None:
    """Raise a ``ValueError`` unless ``name`` is a compressor, or a call of a compressor with valid settings."""
    if name in TORCH_RANKS:
        return
    try:
        compressor(name)
    except ValueError as error:
        known_names = ", ".join(map(repr, (*COMPRESSORS, *TORCH_RANKS)))
        reason = f": {error}" if "(" in name else ""
        raise ValueError(f"{argument}: {name!r} is unknown{reason}; known: {known_names}") from None


def _cfs_to_measure(compressor: Compressor, bench: Bench) -> tuple[float, ...]:
    """Return the CFs at which the bench measures a compressor."""
    supported_cfs = compressor.candidates((1.0, MAX_CF))
    if isinstance(supported_cfs, Span):
        return tuple(cf for cf in bench.cfs if supported_cfs.low <= cf <= supported_cfs.high)
    if len(supported_cfs) <= MAX_LISTED_CFS:
        return supported_cfs
    return tuple(sorted({min(supported_cfs, key=lambda listed_cf: abs(math.log(listed_cf / cf))) for cf in bench.cfs}))


def _gravac_rank(compressor: Compressor, cf: float) -> MakeRank:
    """Return a function that creates a rank for the benchmark; the rank averages with a gravac compressor at a CF."""
    return lambda rank, world: GravacRank(compressor, cf, rank, world)


def _torch_rank(rank_class: Callable[[float, int], Rank], cf: float) -> MakeRank:
    """Return a function that creates a rank for the benchmark; the rank averages with plain PyTorch code at a CF.

    Args:
        rank_class: class of the rank, called with the compression factor and the number of ranks.
        cf: compression factor.
    """
    return lambda rank, world: rank_class(cf, world)
