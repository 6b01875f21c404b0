# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The core operation, free of any framework: average flat tensors over the ranks, compressed, in place.

Selection is per tensor and exchange per group, so that what is sent does not depend on how a framework lays tensors
into buckets. What was not sent is remembered by the tensor's name. Tensors that are small or have one dimension are
averaged dense.
"""

import math
from collections.abc import Generator, Sequence
from typing import Any

import torch

from gravac.averaging.feedback import Feedback
from gravac.averaging.fused_tensors import FusedTensors, fuse_small
from gravac.averaging.norms import all_finite, energy_of, lost, summed
from gravac.averaging.plan import Form, Piece, Plan, StepStats
from gravac.collectives import AllReduce, Collective, Traffic
from gravac.compressors.base import Compressor, Context, Reduced, Rounds, energy
from gravac.compressors.dense import Dense, share
from gravac.compressors.dtypes import working
from gravac.compressors.profile import Profile
from gravac.exchange.fuse import fuse


class Averager:
    """Averages groups of tensors over the ranks. One per rank and model; used from one thread.

    Args:
        base: compresses what is large enough.
        dense: averages the rest, and everything when a plan says so and names no other format.
        strength: of error feedback for ``base``, in [0, 1]; ``None`` is its own at each CF.
        dense_below: tensors with fewer elements are never compressed.
        feedback: where residuals are kept.
        seed: of the run.
    """

    def __init__(
        self,
        base: Compressor,
        dense: Dense,
        strength: float | None,
        dense_below: int,
        feedback: Feedback,
        seed: int = 0,
    ) -> None:
        self.base = base
        self.dense = dense
        self.strength = strength
        self.dense_below = dense_below
        self.feedback = feedback
        self.seed = seed
        self.rank = 0
        self.world = 1
        self.state: dict[str, dict[str, torch.Tensor]] = {}
        self.sums: dict[str, torch.Tensor] = {}
        self._changed: dict[str, dict[str, torch.Tensor]] = {}
        self._profiles: dict[tuple[float, int], Profile] = {}
        self.stats = StepStats()

    def compresses(self, shape: tuple[int, ...]) -> bool:
        """Whether a tensor of that shape is compressed at all."""
        return len(shape) > 1 and torch.Size(shape).numel() >= self.dense_below

    def traffic(self, forms: Sequence[Form], compressor: Compressor, cf: float) -> list[Traffic]:
        """What one step will hand to collectives with the base compressor at a CF, or with all in a dense format."""
        return [
            traffic
            for shape, dtype in forms
            for traffic in (
                compressor.traffic(shape, cf, dtype, self.world)
                if isinstance(compressor, Dense) or self.compresses(shape)
                else self.dense.traffic(shape, self.dense.cf, dtype, self.world)
            )
        ]

    def wire_bytes(self, forms: Sequence[Form], compressor: Compressor, cf: float) -> int:
        """The same in bytes that each rank sends."""
        return sum(traffic.wire_bytes(self.world) for traffic in self.traffic(forms, compressor, cf))

    def strength_at(self, cf: float | None) -> float:
        """The error feedback that applies at a CF of the base compressor; none when all is dense."""
        if cf is None:
            return 0.0
        return self._profile(cf).error_feedback if self.strength is None else self.strength

    def _profile(self, cf: float) -> Profile:
        """What is known of the base compressor at a CF: looked up, as it is asked for with every tensor."""
        if (cf, self.world) not in self._profiles:
            self._profiles[cf, self.world] = self.base.profile(cf, world=self.world)
        return self._profiles[cf, self.world]

    def one_round(self, plan: Plan) -> bool:
        """Whether averaging a group by that plan takes a single round of collectives."""
        cfs = {plan.cf, *plan.cfs.values()}
        return all(cf is None or self._profile(cf).one_round for cf in cfs)

    def kept_aside(self, name: str) -> torch.Tensor | None:
        """What the compressor itself keeps of a tensor that was not sent; flat, like the residual. None for nothing."""
        residual = self.feedback.residual.get(name)
        if residual is None or name not in self.state:
            return None
        context = Context(
            name, rank=self.rank, world=self.world, seed=self.seed, state=self.state[name], error_feedback=1.0
        )
        return self.base.kept_aside(context, residual.numel())

    def begin(self) -> None:
        """Start a step's stats."""
        self.stats = StepStats()

    def commit(self) -> None:
        """End of a step: what it changed is kept; under overflow safety only when every gradient was finite."""
        self.feedback.commit(self.stats.finite)
        if self.stats.finite or not self.feedback.safe:
            self.state.update(self._changed)
        self._changed.clear()

    def rescale(self, factor: float) -> None:
        """Multiply all that is kept: the loss scale changed by ``factor``."""
        self.feedback.rescale(factor)
        for total in self.sums.values():
            total.mul_(factor)

    def average(
        self, pieces: Sequence[Piece], plan: Plan, whole: torch.Tensor | None = None
    ) -> Generator[list[Collective], list[Any], None]:
        """Average one group of tensors, in place.

        If any rank's gradient was not finite, every rank gets NaN everywhere and keeps its residuals.

        Args:
            pieces: the same names in the same order on every rank.
            plan: the same on every rank.
            whole: the flat tensor that the pieces cover without gaps, in order, where there is one.
        """
        self.stats.elements += sum(piece.flat.numel() for piece in pieces)
        self._add_up(pieces, plan)
        for piece in pieces if plan.survey else ():
            if self.compresses(piece.shape):
                self.stats.forms[piece.name] = (piece.shape, piece.flat.dtype)
                self.stats.curves[piece.name] = [math.nan] * (1 + len(plan.survey))
        if plan.uncompressed:
            yield from self._average_dense(pieces, plan, whole)
        else:
            yield from self._average_compressed(pieces, plan)

    def _add_up(self, pieces: Sequence[Piece], plan: Plan) -> None:
        """Do with gradients what the plan says of sums; where one is not finite, nothing is added."""
        if plan.sums == "none":
            self.sums.clear()
            return
        finite = all_finite([energy_of(piece.flat) for piece in pieces])
        for piece in pieces:
            if not self.compresses(piece.shape):
                continue
            total = self.sums.pop(piece.name, None)
            if total is None:
                total = torch.zeros_like(piece.flat, dtype=working(piece.flat.dtype))
            if finite:
                total.add_(piece.flat)
            if plan.sums == "report":
                self.stats.sums[piece.name] = energy(total)
            else:
                self.sums[piece.name] = total

    def _cf(self, piece: Piece, plan: Plan) -> float | None:
        """At which the base compresses a tensor; ``None`` where it is sent dense."""
        return plan.cf_of(piece.name) if self.compresses(piece.shape) else None

    def _average_compressed(self, pieces: Sequence[Piece], plan: Plan) -> Generator[list[Collective], list[Any], None]:
        all_fused = fuse_small(pieces, lambda piece: self._cf(piece, plan), lambda piece: self._multiple(piece, plan))
        plain = [self._plain(fused) for fused in all_fused]
        sizes = [None if x is None else energy(x) for x in plain]
        finite = all_finite(
            size
            for fused, known in zip(all_fused, sizes, strict=True)
            for size in ([energy_of(piece.flat) for piece in fused.pieces] if known is None else [known])
        )
        folded: list[tuple[Piece, torch.Tensor]] = []
        xs: list[torch.Tensor] = []
        rounds: list[Rounds] = []
        for fused, gradients in zip(all_fused, plain, strict=True):
            if not finite:
                x = torch.zeros(fused.length, dtype=working(fused.dtype), device=fused.device)
            elif gradients is None:
                own = [self._fold(piece, self.strength_at(fused.cf) > 0) for piece in fused.pieces]
                folded += zip(fused.pieces, own, strict=True)
                x = fused.join(own)
            else:
                x = gradients
            context = self._context(fused, plan)
            self._evaluate(fused, x, plan, context)
            xs.append(x)
            rounds.append(
                self.dense.rounds(x, self.dense.cf, context)
                if fused.cf is None
                else self.base.rounds(x, fused.cf, context)
            )
        reduced = yield from fuse(rounds, finite)
        if reduced is None:
            self._refuse(pieces, folded)
            return
        self._count(all_fused, xs, sizes, reduced)
        of = {piece.name: x for piece, x in folded}
        for fused, x, came in zip(all_fused, xs, reduced, strict=True):
            for piece in fused.pieces:
                if piece.name in of:
                    own_x = of[piece.name]
                    sent = came.sent if own_x is x else own_x  # of several all is sent, or what is not is not kept
                    self.feedback.settle(piece.name, own_x, sent, self.strength_at(fused.cf), came.aside)
            fused.write(came.mean, x)

    def _plain(self, fused: FusedTensors) -> torch.Tensor | None:
        """Its gradients, joined; ``None`` where there is something to add to them or to keep of them."""
        if self.strength_at(fused.cf) > 0 or any(self.feedback.has(piece.name) for piece in fused.pieces):
            return None
        return fused.join([piece.flat.to(working(piece.flat.dtype)) for piece in fused.pieces])

    def _average_dense(
        self, pieces: Sequence[Piece], plan: Plan, whole: torch.Tensor | None
    ) -> Generator[list[Collective], list[Any], None]:
        """What plain DDP does, without a copy where the tensors lie side by side and nothing is kept for them.

        Ranks may differ in what they still keep, so what travels must not depend on it: the sum alone, which itself
        shows whether every rank's gradient was finite.
        """
        kept = any(self.feedback.has(piece.name) for piece in pieces)
        folded: list[tuple[Piece, torch.Tensor]] = []
        if kept or plan.shadow or plan.survey:
            energies = [energy_of(piece.flat) for piece in pieces]
            if all_finite(energies):
                for piece, size in zip(pieces, energies, strict=True):
                    x = self._fold(piece, keep=False)
                    folded.append((piece, x))
                    fused = FusedTensors((piece,), None)
                    self._evaluate(fused, x, plan, self._context(fused, plan))
                    self.stats.energy = self.stats.energy + (size if x is piece.flat else energy(x)).double()
        if folded and kept:
            flat = torch.cat([x.to(piece.flat.dtype) for piece, x in folded])
        else:
            flat = whole if whole is not None else torch.cat([piece.flat for piece in pieces])
        wire = (plan.dense or self.dense).wire_dtype(flat.dtype)
        if wire == flat.dtype:
            (flat,) = yield [AllReduce(flat)]
            flat.mul_(1 / self.world)
        else:
            (total,) = yield [AllReduce(share(flat, self.world, wire))]
            flat.copy_(total)
        if (kept or self.feedback.safe) and not all_finite([energy_of(flat)]):
            self._refuse(pieces, folded)
            return
        for piece, x in folded:
            if x is not piece.flat:
                self.feedback.settle(piece.name, x, x, 0.0)
        if flat is not whole:
            for piece, part in zip(pieces, torch.split(flat, [piece.flat.numel() for piece in pieces]), strict=True):
                piece.flat.copy_(part)

    def _fold(self, piece: Piece, keep: bool) -> torch.Tensor:
        return self.feedback.fold(piece.name, piece.flat, keep)

    def _multiple(self, piece: Piece, plan: Plan) -> int:
        """What tensors that are to go together must be padded to; 0 where each goes by itself."""
        compresses = self.compresses(piece.shape)
        if compresses and (plan.shadow or plan.survey):
            return 0
        cf = self._cf(piece, plan)
        if cf is None:
            return 1
        return 0 if self.strength_at(cf) > 0 else self._profile(cf).pad_multiple

    def _context(self, fused: FusedTensors, plan: Plan) -> Context:
        piece, several = fused.pieces[0], len(fused.pieces) > 1
        return Context(
            name=piece.name,
            step=plan.step,
            rank=self.rank,
            world=self.world,
            seed=self.seed,
            shape=fused.shape,
            dtype=piece.flat.dtype,
            state={} if several else self._changed.setdefault(piece.name, dict(self.state.get(piece.name, {}))),
            error_feedback=self.strength_at(plan.cf_of(piece.name)),
        )

    def _evaluate(self, fused: FusedTensors, x: torch.Tensor, plan: Plan, context: Context) -> None:
        """Find what each shadow and survey CF would lose of a tensor; selections are kept for the real one."""
        piece = fused.pieces[0]  # what is compressed goes by itself where there is something to evaluate
        if not (plan.shadow or plan.survey) or not self.compresses(piece.shape):
            return
        if not self.stats.shadow:
            self.stats.shadow = [0.0] * len(plan.shadow)
        cf = plan.cf_of(piece.name)
        running = () if cf is None else (cf,)
        cfs = sorted({*plan.shadow, *plan.survey, *running})
        errors = dict(zip(cfs, self.base.errors(x, cfs, context), strict=True))
        self.stats.shadow = [
            so_far + errors[cf].double() for so_far, cf in zip(self.stats.shadow, plan.shadow, strict=True)
        ]
        if plan.survey:
            self.stats.curves[piece.name] = [energy(x), *(errors[cf] for cf in plan.survey)]

    def _count(
        self,
        all_fused: Sequence[FusedTensors],
        xs: Sequence[torch.Tensor],
        sizes: Sequence[torch.Tensor | None],
        reduced: Sequence[Reduced],
    ) -> None:
        """Add to the stats; sizes are ``‖x‖²`` where known."""
        energies: list[torch.Tensor] = []
        errors: list[torch.Tensor] = []
        for fused, x, size, came in zip(all_fused, xs, sizes, reduced, strict=True):
            target = x if came.target is None else came.target
            energies.append(size if size is not None and target is x else energy(target))
            if came.error is not None:
                errors.append(came.error)
            elif came.sent is not target:
                errors.append(lost(target, energies[-1], came.sent))
            if fused.cf is not None:
                self.stats.compressed += fused.elements
                self.stats.sent += fused.elements / came.cf
        self.stats.energy = self.stats.energy + summed(energies)
        self.stats.error = self.stats.error + summed(errors)

    def _refuse(self, pieces: Sequence[Piece], folded: Sequence[tuple[Piece, torch.Tensor]]) -> None:
        self.stats.finite = False
        for piece, x in folded:
            self.feedback.undo(piece.name, x, piece.flat)
        for piece in pieces:
            self._changed.pop(piece.name, None)
            piece.flat.fill_(float("nan"))
