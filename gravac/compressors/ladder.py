# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A ladder: several compressors (members) that act as one compressor, which uses one member for each wire ratio.

Gain does not tell which of two methods trains better (``docs/reference/compressors.md``). The user therefore sets the
order: members are sorted by the efficiency of their steps, best first. The first member that reaches a wire ratio is
used for that ratio. The default order comes from record worth.json of commit 43b3fe07. A ladder's CF is a wire ratio.

The best member also depends on the model: low rank is far better on wide fully connected layers, and worse on a
transformer. A ladder therefore reserves some wire ratios for one member each: at such a ratio (a rung), that member is
used, even if an earlier member reaches the ratio. Controllers choose between rungs by the efficiency of their members,
which depends on the model's shapes and on the measured gain.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
from pydantic import Field, field_validator

from gravac.candidate import Span
from gravac.collectives import AllReduce, Traffic
from gravac.compressors.base import Compressor, Context, Rounds
from gravac.compressors.dense import dense
from gravac.compressors.powersgd import powersgd
from gravac.compressors.profile import CostPoints, Profile, coding_at
from gravac.compressors.quantize import quantize
from gravac.compressors.topkc import topkc

RATIO_SHAPE = (1024, 1024)
"""Shape of the tensor for which a ladder's CFs are wire ratios, between two ranks; other tensors have other ratios."""

RUNG_RATIO = 2.0
"""Factor between successive wire ratios that a ladder reserves for a member that supports all CFs."""

HIGHEST_CF = 1e6
"""Highest CF at which a ladder uses a member that supports all CFs."""


class Ladder(Compressor):
    """A ladder: compressors (members) sorted by the efficiency of their steps; a CF of the ladder is a wire ratio.

    A rung is a wire ratio that the ladder reserves for one member: at this ratio, that member is used. At any other
    ratio, the first member that reaches the ratio is used, at the lowest CF that reaches it.

    Attributes:
        members: compressors, best first, at least one; each contractive. ``dense`` may be a member in 16 bit only.

    Raises:
        SettingsError: there is no member, or a member is not contractive, or applies the optimizer's momentum.
    """

    name: ClassVar[str] = "ladder"
    contractive: ClassVar[bool] = True
    exact_cf: ClassVar[bool] = False
    coding_costs: ClassVar[CostPoints] = (
        (2, 1.3, 0.8),  # up to CF 28: costs of dense in 16 bit, then of quantize
        (3.94, 3.48, 2.48),
        (7.76, 4.15, 3.57),
        (15.06, 3.60, 3.56),
        (28.44, 2.89, 2.97),
        (113.78, 1.95, 3.90),
        (910.22, 1.68, 1.82),
    )

    members: Annotated[tuple[Compressor, ...], Field(min_length=1)]

    def __call__(self, *members: Compressor, **changes: Any) -> "Ladder":
        """Return a copy of this ladder with the given members; without members, the copy has the same members."""
        return super().__call__(**({"members": members} if members else {}), **changes)

    @field_validator("members", mode="before")
    @classmethod
    def _check_types(cls, members: Any) -> Any:
        if not isinstance(members, (tuple, list)) or not all(isinstance(member, Compressor) for member in members):
            raise ValueError("give compressors as objects, such as ladder(quantize, powersgd); a file cannot name them")
        return members

    @field_validator("members")
    @classmethod
    def _check_contractive(cls, members: tuple[Compressor, ...]) -> tuple[Compressor, ...]:
        refused_names = [member.name for member in members if not member.contractive or member.owns_momentum]
        if refused_names:
            raise ValueError(
                f"{', '.join(refused_names)} cannot be on a ladder, whose members must be contractive and must not "
                "apply the optimizer's momentum; give other compressors"
            )
        return members

    @property
    def rounding(self) -> float:
        """Largest unit roundoff of any member."""
        return max(member.rounding for member in self.members)

    @property
    def magnitudes(self) -> tuple[float, float]:
        """Smallest and largest magnitude of a gradient's elements that all members can send."""
        smallest_magnitudes, largest_magnitudes = zip(*(member.magnitudes for member in self.members), strict=True)
        return max(smallest_magnitudes), min(largest_magnitudes)

    @property
    def host_waits(self) -> bool:
        """True if any member makes the host wait for a GPU during encoding."""
        return any(member.host_waits for member in self.members)

    def profile(self, cf: float, *, world: int = 2, shapes: Sequence[tuple[int, ...]] = ()) -> Profile:
        """Return the profile of the member used at ``cf``, but with the coding costs of the ladder's own class."""
        member, member_cf = self.member_at(cf)
        return replace(member.profile(member_cf, world=world, shapes=shapes), coding=coding_at(self.coding_costs, cf))

    def method_at(self, cf: float) -> str:
        """Return the name and setting of the member used at ``cf``, such as ``"4 bits"``, for messages and tables."""
        member, member_cf = self.member_at(cf)
        return member.method_at(member_cf)

    def member_at(self, ratio: float) -> tuple[Compressor, float]:
        """Return the member used at a wire ratio, and the member's CF.

        If the ladder reserves the ratio for a member (a rung), that member is used; otherwise the first member that
        reaches the ratio.
        """
        rung = next((rung for rung in _rungs(self.members) if math.isclose(rung.ratio, ratio, rel_tol=1e-6)), None)
        return (rung.member, rung.cf) if rung else _member_reaching(self.members, ratio)

    def candidates(self, cf_range: tuple[float, float]) -> tuple[float, ...]:
        """Return the rungs in the range, ascending: the wire ratios that the ladder reserves for one member each."""
        return tuple(rung.ratio for rung in _rungs(self.members) if cf_range[0] <= rung.ratio <= cf_range[1])

    def traffic(self, shape: tuple[int, ...], cf: float, dtype: torch.dtype, world: int = 2) -> tuple[Traffic, ...]:
        """Return the predicted traffic of the member used at ``cf``, in bytes."""
        member, member_cf = self.member_at(cf)
        return member.traffic(shape, member_cf, dtype, world)

    def rounds(self, x: torch.Tensor, cf: float, ctx: Context) -> Rounds:
        """Average flat x by the collectives of the member used at ``cf``."""
        member, member_cf = self.member_at(cf)
        return (yield from member.rounds(x, member_cf, ctx))

    def errors(self, x: torch.Tensor, cfs: Sequence[float], ctx: Context) -> list[torch.Tensor]:
        """Return the squared error of flat x at each CF, 0-d, by the member used at that CF."""
        return [member.errors(x, [member_cf], ctx)[0] for member, member_cf in map(self.member_at, cfs)]

    def misfit(self, key: str, memory: torch.Tensor, elements: int) -> str:
        """Return what a tensor of a checkpoint should have to fit every member; ``""`` if the tensor fits."""
        return next(filter(None, (member.misfit(key, memory, elements) for member in self.members)), "")

    def kept_aside(self, ctx: Context, elements: int) -> torch.Tensor | None:
        """Return the unsent rest that a member keeps in ``ctx.state``: flat, ``[elements]``.

        ``None`` if no member keeps an unsent rest.
        """
        asides_by_member = (member.kept_aside(ctx, elements) for member in self.members)
        return next((aside for aside in asides_by_member if aside is not None), None)


class Rung(NamedTuple):
    """A wire ratio at which a ladder uses a given member, whatever the order, and the member's CF at that ratio."""

    ratio: float
    member: Compressor
    cf: float


@functools.cache
def _rungs(members: tuple[Compressor, ...]) -> tuple[Rung, ...]:
    """Return the rungs of all members, by ascending ratio; a rung is a wire ratio reserved for one member.

    A member with fixed CFs gets a rung at the wire ratio of each CF. A member that supports all CFs gets a series of
    rungs: ``RUNG_RATIO`` times the highest ratio of earlier members, then ``RUNG_RATIO`` times the previous ratio, and
    so on, as far as the member reaches. If two members would get the same ratio, only the earlier member gets the rung.
    """
    rungs: list[Rung] = []
    for member in members:
        supported_cfs = member.candidates((1.0, HIGHEST_CF))
        if isinstance(supported_cfs, Span):
            highest_ratio = max((rung.ratio for rung in rungs), default=1.0)
            rung_count = math.ceil(math.log(HIGHEST_CF / highest_ratio, RUNG_RATIO))
            ratios = [(highest_ratio * RUNG_RATIO**exponent) for exponent in range(1, rung_count)]
            member_rungs = [
                Rung(ratio, member, cf) for ratio in ratios if (cf := _lowest_cf_reaching(member, ratio)) is not None
            ]
        else:
            member_rungs = [Rung(wire_ratio(member, cf), member, cf) for cf in supported_cfs]
        occupied_ratios = {round(rung.ratio, 6) for rung in rungs}
        rungs += [rung for rung in member_rungs if round(rung.ratio, 6) not in occupied_ratios]
    return tuple(sorted(rungs, key=lambda rung: rung.ratio))


def wire_ratio(compressor: Compressor, cf: float) -> float:
    """Return the wire ratio of a compressor for a tensor of ``RATIO_SHAPE`` and two ranks.

    The wire ratio is the wire bytes of a dense float32 all-reduce / the wire bytes sent.

    Args:
        compressor: compressor of the tensor.
        cf: compression factor of the compressor.
    """
    sent_bytes = sum(traffic.wire_bytes(2) for traffic in compressor.traffic(RATIO_SHAPE, cf, torch.float32, 2))
    return AllReduce.wire_bytes(4 * torch.Size(RATIO_SHAPE).numel(), 2) / sent_bytes


@functools.cache
def _member_reaching(members: tuple[Compressor, ...], ratio: float) -> tuple[Compressor, float]:
    """Return the first member that reaches a wire ratio, with its lowest CF that reaches the ratio.

    If no member reaches the ratio, return the member and the CF with the highest ratio reserved for a member.
    """
    for member in members:
        cf = _lowest_cf_reaching(member, ratio)
        if cf is not None:
            return member, cf
    highest_rung = _rungs(members)[-1]
    return highest_rung.member, highest_rung.cf


def _lowest_cf_reaching(member: Compressor, ratio: float) -> float | None:
    """Return the lowest CF at which a member reaches a wire ratio, within 0.1 %; ``None`` if no CF reaches it."""
    supported_cfs = member.candidates((1.0, HIGHEST_CF))
    if not isinstance(supported_cfs, Span):
        return min((cf for cf in supported_cfs if wire_ratio(member, cf) >= ratio * 0.999), default=None)
    lowest_cf, highest_cf = supported_cfs.low, supported_cfs.high
    if wire_ratio(member, highest_cf) < ratio:
        return None
    while highest_cf / lowest_cf > 1.001:
        middle_cf = (lowest_cf * highest_cf) ** 0.5
        lowest_cf, highest_cf = (
            (lowest_cf, middle_cf) if wire_ratio(member, middle_cf) >= ratio else (middle_cf, highest_cf)
        )
    return highest_cf


ladder = Ladder(
    members=(
        dense(dtype="bfloat16"),
        quantize(8),
        quantize(4),
        quantize(2),
        quantize(1),
        topkc(values=quantize(1)),
        *(powersgd(rank) for rank in (16, 8, 4, 2, 1)),
    )
)
"""Ladder of 16 bit, then 8, 4, 2 and 1 bits, then chunked top-k in 1 bit, and low rank for models that it suits.

``ladder(quantize(2), topkc)`` returns a ladder of these two members.
"""
