# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""No compression but the number format: float32 (CF 1), float16 or bfloat16 (CF 2), by all-reduce."""

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch

from gravac.beliefs import MethodKind
from gravac.collectives import AllReduce, Traffic
from gravac.compressors.base import Compressor, Context, Reduced, Rounds
from gravac.compressors.dtypes import dtype_of, magnitudes_in, unit_roundoff
from gravac.compressors.profile import Coding, Profile

SIXTEEN_BIT = Coding(1.24, 0.78)
"""Converting to 16 bit and back: docs/measurements/compressors.json, ``torch fp16``."""


def share(x: torch.Tensor, world: int, wire: torch.dtype) -> torch.Tensor:
    """``x / world`` in another format, in the shape of x: divided before it is summed, so that the sum cannot overflow.

    Where dividing only moves the exponent, and that has room for it, x is converted first, which is faster.
    """
    if wire == torch.bfloat16 and is_power_of_two(world):
        return x.to(wire).mul_(1 / world)
    return (x / world).to(wire)


def divides_first(world: int, wire: torch.dtype) -> bool:
    """Whether gradients are divided by the number of ranks before they are summed, as native DDP divides them.

    So they are in float16, whose sums overflow from 65504 on, and wherever dividing changes no bit but those of
    subnormal numbers. Else the sum is divided, which rounds once instead of at every rank; it overflows where the mean
    is above the largest number over ``world``, as of float32 above 3.4e38 / 3.
    """
    return wire == torch.float16 or is_power_of_two(world)


def is_power_of_two(world: int) -> bool:
    """Whether dividing by a number of ranks only moves exponents."""
    return world & (world - 1) == 0


class Dense(Compressor):
    """Everything is sent, in one number format.

    Gradients are divided by the number of ranks before they are summed, or after: see ``divides_first``.

    Attributes:
        dtype: number format on the wire. ``"float32"`` leaves the gradient's own format as it is, also when that has
            16 or 64 bits.
    """

    name: ClassVar[str] = "dense"
    contractive: ClassVar[bool] = True
    one_round: ClassVar[bool] = True
    compresses: ClassVar[bool] = False

    dtype: Literal["float32", "float16", "bfloat16"] = "float32"

    @property
    def cf(self) -> float:
        """The compression factor: 1, or 2 in 16 bit."""
        return 1.0 if self.dtype == "float32" else 2.0

    def profile(self, cf: float, *, world: int = 2, shapes: Sequence[tuple[int, ...]] = ()) -> Profile:
        """A family for each format, as converting costs time; nothing is lost, and tensors lie as they are."""
        coding = Coding(0.0, 0.0) if self.dtype == "float32" else SIXTEEN_BIT
        kind: MethodKind | None = None if self.dtype == "float32" else "16 bit"
        return Profile(family=self.dtype, coding=coding, kind=kind, one_round=True, pad_multiple=1)

    def method_at(self, cf: float) -> str:
        """The number format on the wire, named as dense."""
        return f"dense {self.dtype}"

    def at(self, cf: float) -> "Dense":
        """The format of a CF, 1 or 2: itself where it has that, otherwise bfloat16 for 2 and float32 for 1."""
        return self if cf == self.cf else self(dtype="float32" if cf == 1 else "bfloat16")

    def wire_dtype(self, gradient: torch.dtype) -> torch.dtype:
        """The number format that travels for a gradient of that dtype."""
        return gradient if self.dtype == "float32" else dtype_of(self.dtype, gradient)

    @property
    def magnitudes(self) -> tuple[float, float]:
        """Least and largest magnitude of a gradient that the number format of the values can hold."""
        return magnitudes_in(dtype_of(self.dtype, torch.float32))

    def traffic(self, shape: tuple[int, ...], cf: float, dtype: torch.dtype, world: int = 2) -> tuple[Traffic, ...]:
        """All elements in the wire's number format, in bytes."""
        return (Traffic(AllReduce, torch.Size(shape).numel() * self.wire_dtype(dtype).itemsize),)

    def rounds(self, x: torch.Tensor, cf: float, ctx: Context) -> Rounds:
        """Average flat x by one all-reduce, of each rank's ``x / world`` where ``divides_first``."""
        wire = self.wire_dtype(ctx.dtype)
        if wire.itemsize >= x.element_size():
            if divides_first(ctx.world, wire):
                mean = yield AllReduce(x / ctx.world)
            else:
                mean = (yield AllReduce(x)) / ctx.world
        else:
            mean = (yield AllReduce(share(x, ctx.world, wire))).to(x.dtype)
        return Reduced(mean=mean, sent=x, cf=self.cf)

    def errors(self, x: torch.Tensor, cfs: Sequence[float], ctx: Context) -> list[torch.Tensor]:
        """Zero (0-d, one element) for each CF: rounding is not counted as loss."""
        return [x.new_zeros(()) for _ in cfs]

    @property
    def rounding(self) -> float:
        """The unit roundoff of the wire's number format, in which every addition is done."""
        return unit_roundoff(dtype_of(self.dtype, torch.float32))


dense = Dense()
"""Dense float32; ``dense(dtype="bfloat16")`` makes another."""
