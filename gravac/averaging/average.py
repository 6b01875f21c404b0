# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The core operation, free of any framework: average flat tensors over the ranks, compressed, in place.

Selection is per tensor and exchange per group, so that what is sent does not depend on how a framework lays tensors
into buckets. What was not sent is remembered by the tensor's name. Tensors that are small or have one dimension are
averaged dense. Nothing here looks at data: what must know whether a group was finite asks the executor's ``judge``.
"""

from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gravac.averaging.diagnostics import Diagnostics, evaluate
from gravac.averaging.feedback import Feedback
from gravac.averaging.folding import Folding
from gravac.averaging.fused_tensors import FusedTensors, Part, grouped
from gravac.averaging.memory import CompressorMemory
from gravac.averaging.norms import all_finite, all_fit, lost
from gravac.averaging.plan import Choice, Form, Piece, Plan
from gravac.averaging.residuals import replace
from gravac.collectives import AllReduce, Collective, Traffic
from gravac.compressors.base import Compressor, Context, Fold, Reduced, energy
from gravac.compressors.dense import Dense, divides_first, share
from gravac.exchange.executor import Executor, Number, Verdict, both
from gravac.exchange.fuse import fuse
from gravac.measurement import LocalMeasurement, summed

Requests = Generator[list[Collective], list[Any], None]


@dataclass(eq=False, repr=False)
class Averager:
    """Averages groups of tensors over the ranks. One per rank and model; used from one thread.

    Args:
        base: what compresses tensors that are large enough.
        dense: what averages the rest, and everything when a plan says so and names no other format.
        strength: share of what ``base`` does not send that is kept, in [0, 1]; ``None``: its own share at each CF.
        dense_below: number of elements below which tensors are never compressed.
        feedback: where residuals are kept.
        seed: the run's seed.
    """

    base: Compressor
    dense: Dense
    strength: float | None
    dense_below: int
    feedback: Feedback
    seed: int = 0
    rank: int = field(default=0, init=False)
    world: int = field(default=1, init=False)
    memory: CompressorMemory = field(default_factory=CompressorMemory, init=False)
    diagnostics: Diagnostics = field(default_factory=Diagnostics, init=False)
    measurement: LocalMeasurement = field(init=False)
    _choices: dict[tuple[bool, float, int], Choice] = field(default_factory=dict, init=False)
    _judge: Callable[[torch.Tensor], Verdict] = field(default=bool, init=False)

    # what will be sent

    def compresses(self, shape: tuple[int, ...]) -> bool:
        """Tell whether a tensor of that shape is compressed at all."""
        return len(shape) > 1 and torch.Size(shape).numel() >= self.dense_below

    def traffic(self, forms: Sequence[Form], compressor: Compressor, cf: float) -> list[Traffic]:
        """Predict what one step will hand to collectives with the base compressor at a CF, or all in a dense format."""
        predicted: list[Traffic] = []
        for shape, dtype in forms:
            small = compressor.compresses and not self.compresses(shape)
            sender, at = (self.dense, self.dense.cf) if small else (compressor, cf)
            predicted += sender.traffic(shape, at, dtype, self.world)
        return predicted

    def wire_bytes(self, forms: Sequence[Form], compressor: Compressor, cf: float) -> int:
        """Predict the same in bytes that each rank sends."""
        return sum(traffic.wire_bytes(self.world) for traffic in self.traffic(forms, compressor, cf))

    def plan(
        self,
        step: int,
        cf: float | None,
        shadow: Sequence[float] = (),
        *,
        dense_cf: float | None = None,
        cfs: Mapping[str, float | None] | None = None,
        sums: str = "none",
    ) -> Plan:
        """Make a step's plan of compression factors.

        Args:
            step: number of the step, counted from 0.
            cf: compression factor of the base compressor; ``None`` sends everything dense.
            shadow: see ``Plan``.
            dense_cf: what is sent dense where ``cf`` is ``None`` has this CF, 1 or 2; ``None``: the averager's own.
            cfs: compression factors, by name, of the tensors that have one of their own; ``None`` as above.
            sums: see ``Plan``.
        """
        small = self._at(self.dense, self.dense.cf)
        form = self.dense if dense_cf is None else self.dense.at(dense_cf)

        def choice(at: float | None) -> Choice:
            return self._at(form, form.cf) if at is None else self._at(self.base, at)

        own = {name: choice(at) for name, at in (cfs or {}).items()}
        return Plan(step, choice(cf), small, own, tuple(shadow), sums)

    def _at(self, compressor: Compressor, cf: float) -> Choice:
        """A choice, its profile looked up once for as long as the number of ranks stays."""
        key = (compressor.compresses, cf, self.world)
        if key not in self._choices:
            self._choices[key] = Choice(compressor, cf, compressor.profile(cf, world=self.world))
        return self._choices[key]

    def strength_at(self, choice: Choice) -> float:
        """Return the error feedback that applies to a choice; none where nothing is left out."""
        if not choice.compresses:
            return 0.0
        return choice.profile.error_feedback if self.strength is None else self.strength

    def one_round(self, plan: Plan) -> bool:
        """Tell whether averaging a group by that plan takes a single round of collectives."""
        return all(choice.profile.one_round for choice in plan.choices)

    def coding_bytes(self, plan: Plan) -> int:
        """Bytes that averaging by a plan takes for each element at most; see ``Profile``."""
        settling = self.feedback.settling_bytes
        return max(one.profile.coding_bytes + settling * (self.strength_at(one) > 0) for one in plan.choices)

    def kept_aside(self, name: str) -> torch.Tensor | None:
        """Return what the compressor itself keeps of a tensor that was not sent; flat, ``[elements]``; or ``None``."""
        residual, memory = self.feedback.residual.get(name), self.memory.kept.get(name)
        if residual is None or memory is None:
            return None
        context = Context(name, rank=self.rank, world=self.world, seed=self.seed, state=memory, error_feedback=1.0)
        return self.base.kept_aside(context, residual.numel())

    # a step

    def measure(self, measurement: LocalMeasurement, executor: Executor | None = None) -> None:
        """Add what groups send and leave out to the numbers of a step from here on.

        Args:
            measurement: this rank's numbers of the step.
            executor: runs the step; ``None``: a host that may look at data.
        """
        self.measurement = measurement
        if executor is not None:
            self._judge = self.feedback.judge = executor.judge
            self.feedback.masked = not executor.host_looks

    @property
    def tensors(self) -> dict[str, Any]:
        """What is kept from step to step, in the dicts that this averager changes in place; see ``RunState``."""
        kept = {"residual": self.feedback.residual, "releasing": self.feedback.held}
        return {**kept, "memory": self.memory.kept, "sums": self.diagnostics.sums}

    def load(self, plain: Mapping[str, Any]) -> None:
        """Replace all that is kept by copies of tensors, by the names of ``tensors``."""
        self.feedback.load(plain["residual"], plain["releasing"])
        self.memory.load(plain["memory"])
        replace(self.diagnostics.sums, {name: total.clone() for name, total in plain["sums"].items()})

    def place(self, device: torch.device) -> None:
        """Move all that is kept from step to step to a device."""
        for keeper in (self.feedback, self.memory, self.diagnostics):
            keeper.place(device)

    def commit(self) -> None:
        """End of a step: what it changed is kept; under overflow safety only when every gradient was finite."""
        finite = self.measurement.finite if self.feedback.safe else True
        self.feedback.commit(finite)
        self.memory.commit(finite)
        self.diagnostics.commit()

    def rescale(self, factor: Number) -> None:
        """Multiply all that is kept: the loss scale changed by ``factor``."""
        self.feedback.rescale(factor)
        self.diagnostics.rescale(factor)

    def average(
        self, pieces: Sequence[Piece], plan: Plan, whole: torch.Tensor | None = None, known: Verdict = True
    ) -> Requests:
        """Average one group of tensors, in place.

        If any rank's gradient was not finite, every rank gets NaN everywhere and keeps its residuals.

        Args:
            pieces: the same names in the same order on every rank.
            plan: the same on every rank.
            whole: the flat tensor ``[elements]`` that the pieces cover without gaps, in order, where there is one.
            known: whether all that travels with them on this rank is finite, as far as whoever hands them over knows.
        """
        self.measurement.elements += sum(piece.flat.numel() for piece in pieces)
        if plan.sums == "none":
            self.diagnostics.sums.clear()
        else:
            finite = self._judge(all_finite(energy(piece.flat) for piece in pieces))
            self.diagnostics.add_up(self._compressible(pieces), plan, finite, self.measurement)
        return self._compressed(pieces, plan, known) if plan.compresses else self._dense(pieces, plan, whole)

    def _compressible(self, pieces: Sequence[Piece]) -> list[Piece]:
        return [piece for piece in pieces if self.compresses(piece.shape)]

    # compressed: 1. lay small tensors side by side  2. judge  3. fold residuals in  4. run all rounds  5. settle

    def _compressed(self, pieces: Sequence[Piece], plan: Plan, known: Verdict) -> Requests:
        fused = grouped(
            pieces,
            lambda piece: self._choice(piece, plan),
            lambda piece: self._multiple(piece, plan),
            lambda piece: self._key(piece, plan),
            of_any_size=self.feedback.masked,
        )
        folding = Folding(self.feedback, self._judge, self.strength_at, bool(plan.shadow))
        parts, finite = folding.parts(fused, known)
        contexts = [self._contexts(part, plan) for part in parts]
        outcome = yield from fuse(
            [part.rounds(own) for part, own in zip(parts, contexts, strict=True)], finite, self._judge
        )
        if outcome is None:
            self._refuse(pieces, parts)
            return
        for part in parts:
            part.unfold()
        self._count(parts, outcome.reduced, outcome.finite)
        verdict = outcome.finite
        if self.feedback.exact_undo:  # a sum may overflow, so that the means decide before anything is settled
            for part, reduced in zip(parts, outcome.reduced, strict=True):
                part.tensors.write(reduced.mean, torch.empty_like(part.x))
            verdict = both(verdict, self._judge(all_fit([piece.flat for piece in pieces])))
            if verdict is False:
                self._refuse(pieces, parts)
                return
        for part, reduced in zip(parts, outcome.reduced, strict=True):
            self._settle(part, reduced, plan, verdict)
            if not self.feedback.exact_undo:
                part.tensors.write(reduced.mean, part.x)
        self._mask(pieces, verdict)

    def _contexts(self, part: Part, plan: Plan) -> list[Context]:
        """What the compressor may know: of each row, else of all as one; with what is looked up beforehand."""
        if not part.tensors.rows:
            contexts, xs = [self._context(part.tensors, plan, part.fold)], [part.x]
        else:
            choice = part.tensors.choice
            contexts = [self._context(FusedTensors((piece,), choice), plan, part.fold) for piece in part.tensors.pieces]
            xs = [*part.x.view(len(contexts), -1)]
        for piece, x, context in zip(part.tensors.pieces, xs, contexts, strict=False):
            self._evaluate(piece, x, plan, context)
        return contexts

    def _count(self, parts: Sequence[Part], reduced: Sequence[Reduced], finite: Verdict) -> None:
        """Add what was to be sent of some tensors, and what was not.

        What a compressor coded unseen does not count if some gradient was not finite.
        """
        energies: list[torch.Tensor] = []
        errors: list[torch.Tensor] = []
        for part, result in zip(parts, reduced, strict=True):
            target = part.x if result.target is None else result.target
            energies.append(part.energy if part.energy is not None and target is part.x else energy(target))
            if result.error is not None:
                errors.append(result.error)
            elif result.sent is not target:
                errors.append(lost(target, energies[-1], result.sent))
            if part.tensors.choice.compresses:
                self.measurement.compressed += part.tensors.elements
                self.measurement.sent += part.tensors.elements / result.cf
        unseen = any(part.fold is not None for part in parts)
        spoilt = ~finite if unseen and isinstance(finite, torch.Tensor) else None
        for squares, of_groups in ((energies, self.measurement.energies), (errors, self.measurement.errors)):
            total = summed(squares)
            if spoilt is not None and isinstance(total, torch.Tensor):
                total = total.masked_fill(spoilt, 0.0)
            of_groups.append(total)

    def _settle(self, part: Part, reduced: Reduced, plan: Plan, finite: Verdict) -> None:
        """Keep what was not sent."""
        strength, keep = self.strength_at(part.tensors.choice), self.feedback
        keys = [f"{self.seed}\0residual\0{name}\0{plan.step}\0{self.rank}" for name in part.tensors.names]
        if part.tensors.rows and part.folded:
            keep.settle_rows(part.tensors.names, part.x, reduced.sent, strength, reduced.aside, finite, keys)
            return
        for name, x, key in zip(part.tensors.names, part.folded, keys, strict=False):
            sent = reduced.sent if x is part.x else x  # of several all is sent, or what is not is not kept
            keep.settle(name, x, sent, strength, reduced.aside, finite, key)

    def _choice(self, piece: Piece, plan: Plan) -> Choice:
        return plan.of(piece.name, self.compresses(piece.shape))

    def _multiple(self, piece: Piece, plan: Plan) -> int:
        """What tensors that are to go together must be padded to; 0 where each goes by itself."""
        if plan.shadow and self.compresses(piece.shape):
            return 0
        choice = self._choice(piece, plan)
        return 0 if self.strength_at(choice) > 0 else choice.profile.pad_multiple

    def _key(self, piece: Piece, plan: Plan) -> Hashable | None:
        """What tensors that are to be averaged as rows of a matrix have in common."""
        choice = self._choice(piece, plan)
        return choice.compressor.batch_key(choice.cf, self._context(FusedTensors((piece,), choice), plan))

    # dense: what plain DDP does, without a copy where tensors lie side by side and nothing is kept for them

    def _dense(self, pieces: Sequence[Piece], plan: Plan, whole: torch.Tensor | None) -> Requests:
        """Ranks may differ in what they still keep, so what travels must not depend on it.

        That is the sum alone, which itself shows whether every rank's gradient was finite.
        """
        kept = any(self.feedback.has(piece.name) for piece in pieces)
        parts = list(self._looked_into(pieces, plan)) if kept or plan.shadow else []
        if parts and kept:
            flat = torch.cat([part.x.to(part.tensors.pieces[0].flat.dtype) for part in parts])
        else:
            flat = whole if whole is not None else torch.cat([piece.flat for piece in pieces])
        wire = plan.choice.compressor.wire_dtype(flat.dtype)
        if wire == flat.dtype:
            first = divides_first(self.world, wire)
            if first:
                flat.mul_(1 / self.world)
            (flat,) = yield [AllReduce(flat)]
            if not first:
                flat.mul_(1 / self.world)
        else:
            (total,) = yield [AllReduce(share(flat, self.world, wire))]
            flat.copy_(total)
        finite: Verdict = True
        if kept or self.feedback.safe:
            finite = self._judge(all_finite([energy(flat)]))
            if finite is False:
                self._refuse(pieces, parts)
                return
        for part in parts:
            (piece,) = part.tensors.pieces
            if part.x is not piece.flat:
                self.feedback.settle(piece.name, part.x, part.x, 0.0, finite=finite)
        if flat is not whole:
            for piece, own in zip(pieces, torch.split(flat, [piece.flat.numel() for piece in pieces]), strict=True):
                piece.flat.copy_(own)
        self._mask(pieces, finite)

    def _looked_into(self, pieces: Sequence[Piece], plan: Plan) -> Iterator[Part]:
        """Tensors with what is fed back to them, counted and evaluated; none, where some gradient is not finite."""
        energies = [energy(piece.flat) for piece in pieces]
        finite = self._judge(all_finite(energies))
        if finite is False:
            return
        for piece, size in zip(pieces, energies, strict=True):
            tensors = FusedTensors((piece,), plan.of(piece.name))
            x = self.feedback.fold(piece.name, piece.flat, keep=False)
            seen = x if finite is True else torch.where(finite, x, torch.zeros_like(x))
            self._evaluate(piece, seen, plan, self._context(tensors, plan))
            self.measurement.energies.append((size if seen is piece.flat else energy(seen)).double())
            yield Part(tensors, x, folded=[x])

    # both

    def _context(self, tensors: FusedTensors, plan: Plan, fold: Fold | None = None) -> Context:
        piece, several = tensors.pieces[0], len(tensors.pieces) > 1
        return Context(
            name=piece.name,
            step=plan.step,
            rank=self.rank,
            world=self.world,
            seed=self.seed,
            shape=tensors.shape,
            dtype=piece.flat.dtype,
            state={} if several else self.memory.of(piece.name),
            error_feedback=self.strength_at(plan.of(piece.name)),
            fold=fold,
        )

    def _evaluate(self, piece: Piece, x: torch.Tensor, plan: Plan, context: Context) -> None:
        """See ``evaluate``; what may be compressed goes by itself where there is something to evaluate."""
        if plan.shadow and self.compresses(piece.shape):
            evaluate(piece, x, self.base, plan, context, self.measurement)

    def _refuse(self, pieces: Sequence[Piece], parts: Sequence[Part]) -> None:
        """Some rank's gradient was not finite, and the host knows it: take everything back, give NaN."""
        self.measurement.verdicts.append(False)
        for part in parts:
            for piece, x in zip(part.tensors.pieces, part.folded, strict=False):
                self.feedback.undo(piece.name, x, piece.flat)
        self.memory.forget(piece.name for piece in pieces)
        for piece in pieces:
            piece.flat.fill_(float("nan"))

    def _mask(self, pieces: Sequence[Piece], finite: Verdict) -> None:
        """Where only the device knows whether all gradients were finite: give NaN where they were not."""
        if isinstance(finite, bool):
            return
        if not self.feedback.safe:
            self.memory.mask((piece.name for piece in pieces), finite)
        same = torch.div(finite, finite)  # 1, or 0 / 0: what all is multiplied by at once
        for dtype in dict.fromkeys(piece.flat.dtype for piece in pieces):
            flats = [piece.flat for piece in pieces if piece.flat.dtype == dtype]
            torch._foreach_mul_(flats, same.to(dtype))
        self.measurement.verdicts.append(finite)
