# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Dense averaging by all-reduce, in a number format: float32 (CF 1), float16 or bfloat16 (CF 2)."""

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch

from gravac.beliefs import MethodKind
from gravac.collectives import AllReduce, Traffic
from gravac.compressors.base import Compressor, Context, Reduced, Rounds
from gravac.compressors.dtypes import dtype_of, magnitudes_in, unit_roundoff
from gravac.compressors.profile import Coding, Profile

SIXTEEN_BIT_CODING = Coding(1.24, 0.78)
"""Cost of converting a tensor to 16 bit and back, in units of the time that a copy of the tensor takes.

Source: record compressors.json of commit 43b3fe07, ``torch fp16``.
"""


def divide(x: torch.Tensor, world: int, wire: torch.dtype) -> torch.Tensor:
    """Return ``x / world`` in the number format ``wire``, in the shape of x, to be summed over ``world`` ranks.

    Dividing before the sum avoids overflow. For bfloat16 and a power of two, x is converted before it is divided, which
    is faster and gives the same numbers.
    """
    if wire == torch.bfloat16 and is_power_of_two(world):
        return x.to(wire).mul_(1 / world)
    return (x / world).to(wire)


def divides_first(world: int, wire: torch.dtype) -> bool:
    """True if each rank divides its gradients by ``world`` before they are summed; False if the sum is divided.

    Gradients in float16 are divided first, since their sum overflows above 65504. Gradients in any format are divided
    first if ``world`` is a power of two, as dividing then changes only the exponent. Otherwise the sum is divided, so
    that only one division rounds. Such a sum overflows if the mean exceeds the format's largest number divided by
    ``world``: for float32 and 3 ranks, 3.4e38 / 3.
    """
    return wire == torch.float16 or is_power_of_two(world)


def is_power_of_two(world: int) -> bool:
    """True if ``world``, the number of ranks, is a power of two: dividing by it then changes only exponents."""
    return world & (world - 1) == 0


class Dense(Compressor):
    """No compression: all numbers are sent, in one number format.

    Gradients are divided by the number of ranks before they are summed, or after: see ``divides_first``.

    Attributes:
        dtype: number format on the wire: ``"float32"`` (the default), ``"float16"`` or ``"bfloat16"``. ``"float32"``
            sends gradients in their own format, even if that has 16 or 64 bits.

    Raises:
        SettingsError: a setting is unknown, of the wrong type, or out of its range.
    """

    name: ClassVar[str] = "dense"
    contractive: ClassVar[bool] = True
    one_round: ClassVar[bool] = True
    compresses: ClassVar[bool] = False

    dtype: Literal["float32", "float16", "bfloat16"] = "float32"

    @property
    def cf(self) -> float:
        """Compression factor: 1, or 2 in 16 bit."""
        return 1.0 if self.dtype == "float32" else 2.0

    def profile(self, cf: float, *, world: int = 2, shapes: Sequence[tuple[int, ...]] = ()) -> Profile:
        """Return expected costs: the costs of converting gradients to ``dtype`` and back.

        The profile's ``family`` is the number format, so that step times are compared only within one format.
        """
        coding = Coding(0.0, 0.0) if self.dtype == "float32" else SIXTEEN_BIT_CODING
        kind: MethodKind | None = None if self.dtype == "float32" else "16 bit"
        return Profile(family=self.dtype, coding=coding, kind=kind, one_round=True, pad_multiple=1)

    def method_at(self, cf: float) -> str:
        """Return a name with the number format on the wire, such as ``"dense bfloat16"``, for messages and tables."""
        return f"dense {self.dtype}"

    def for_cf(self, cf: float) -> "Dense":
        """Return a dense compressor with a CF of 1 or 2.

        The result is this compressor if it has that CF, otherwise a copy in float32 (CF 1) or bfloat16 (CF 2).
        """
        return self if cf == self.cf else self(dtype="float32" if cf == 1 else "bfloat16")

    def wire_dtype(self, gradient: torch.dtype) -> torch.dtype:
        """Return the number format in which gradients of dtype ``gradient`` are sent."""
        return gradient if self.dtype == "float32" else dtype_of(self.dtype, gradient)

    @property
    def magnitudes(self) -> tuple[float, float]:
        """Smallest and largest magnitude of a gradient's elements that can be sent in the number format ``dtype``."""
        return magnitudes_in(dtype_of(self.dtype, torch.float32))

    def traffic(self, shape: tuple[int, ...], cf: float, dtype: torch.dtype, world: int = 2) -> tuple[Traffic, ...]:
        """Return the predicted traffic: one all-reduce of all elements in the wire's number format, in bytes."""
        return (Traffic(AllReduce, torch.Size(shape).numel() * self.wire_dtype(dtype).itemsize),)

    def rounds(self, x: torch.Tensor, cf: float, ctx: Context) -> Rounds:
        """Average flat x by one all-reduce; ``divides_first`` says whether x or the sum is divided by ``world``."""
        wire_dtype = self.wire_dtype(ctx.dtype)
        if wire_dtype.itemsize >= x.element_size():
            if divides_first(ctx.world, wire_dtype):
                mean = yield AllReduce(x / ctx.world)
            else:
                mean = (yield AllReduce(x)) / ctx.world
        else:
            mean = (yield AllReduce(divide(x, ctx.world, wire_dtype))).to(x.dtype)
        return Reduced(mean=mean, sent=x, cf=self.cf)

    def errors(self, x: torch.Tensor, cfs: Sequence[float], ctx: Context) -> list[torch.Tensor]:
        """Return zero (0-d, one element) for each CF: rounding does not count as loss."""
        return [x.new_zeros(()) for _ in cfs]

    @property
    def rounding(self) -> float:
        """Unit roundoff of the wire's number format, in which every addition is done."""
        return unit_roundoff(dtype_of(self.dtype, torch.float32))


dense = Dense()
"""Dense averaging in float32; ``dense(dtype="bfloat16")`` sends gradients in bfloat16."""
