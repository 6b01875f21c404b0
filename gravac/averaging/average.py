# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The core operation, free of any framework: average flat tensors over the ranks, compressed, in place.

Selection is per tensor and exchange per group, so that the sent numbers do not depend on how a framework assigns
tensors to buckets. Residuals are kept by the tensors' names. Tensors that are small or have one dimension are averaged
dense. Nothing here looks at the tensors' numbers: the executor's ``judge`` says whether a group was finite.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gravac.averaging.batch import LARGEST, Batch, goes_alone, merged
from gravac.averaging.diagnostics import Diagnostics, evaluate
from gravac.averaging.feedback import Feedback
from gravac.averaging.folding import fold_in
from gravac.averaging.memory import CompressorMemory
from gravac.averaging.norms import all_fit, unsent_energy
from gravac.averaging.plan import Choice, Form, Piece, Plan
from gravac.averaging.residuals import replace, unsent
from gravac.collectives import AllReduce, Traffic
from gravac.compressors.base import Compressor, Context, Fold, Reduced, energy
from gravac.compressors.dense import Dense, divide, divides_first
from gravac.compressors.squares import all_finite
from gravac.exchange.executor import Executor, Job, Number, Returning, Verdict, both
from gravac.exchange.fuse import fuse
from gravac.measurement import LocalMeasurement, summed


@dataclass(eq=False, repr=False)
class Averager:
    """Averages groups of tensors over the ranks. One per rank and model; used from one thread.

    Args:
        base: compressor of the tensors that are large enough.
        dense: number format of all other tensors, and of all tensors if a plan is dense and names no other format.
        strength: fraction of the unsent rest that is kept, in [0, 1]; ``None``: the fraction in the profile of ``base``
            at each CF.
        dense_below: number of elements below which tensors are never compressed.
        feedback: the residuals.
        seed: the run's seed.

    Attributes:
        rank: number of this rank.
        world: number of ranks.
        memory: the compressors' memory.
        diagnostics: sums of gradients, if the controller asks for them.
        measurement: this rank's numbers of the present step.
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
    _executor: Executor | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._use(bool, host_looks=True)

    # predictions and plans

    def compresses(self, shape: tuple[int, ...]) -> bool:
        """True if a tensor of that shape may be compressed."""
        return len(shape) > 1 and torch.Size(shape).numel() >= self.dense_below

    def traffic(self, forms: Sequence[Form], compressor: Compressor, cf: float) -> list[Traffic]:
        """Predict the traffic of a step's collectives with a compressor.

        Args:
            forms: shapes and dtypes of the gradients.
            compressor: base compressor, or a dense format for all tensors.
            cf: compression factor of ``compressor``.
        """
        predicted: list[Traffic] = []
        for shape, dtype in forms:
            small = compressor.compresses and not self.compresses(shape)
            sender, sender_cf = (self.dense, self.dense.cf) if small else (compressor, cf)
            predicted += sender.traffic(shape, sender_cf, dtype, self.world)
        return predicted

    def wire_bytes(self, forms: Sequence[Form], compressor: Compressor, cf: float) -> int:
        """Predict the bytes that each rank sends in a step; arguments as for ``traffic``."""
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
            cf: compression factor of the base compressor; ``None`` sends all tensors dense.
            shadow: see ``Plan``.
            dense_cf: CF, 1 or 2, of the dense format of tensors whose CF is ``None``; ``None``: the averager's format.
            cfs: compression factors, by name, of the tensors that have a factor of their own; ``None`` sends dense.
            sums: see ``Plan``.
        """
        form = self.dense if dense_cf is None else self.dense.for_cf(dense_cf)
        by_name = {name: self._choice(tensor_cf, form) for name, tensor_cf in (cfs or {}).items()}
        small = self._choice(None, self.dense)
        return Plan(step, self._choice(cf, form), small, by_name, tuple(shadow), sums)

    def _choice(self, cf: float | None, form: Dense) -> Choice:
        """Return the base compressor at a CF, or for ``None`` a dense format; cached for each number of ranks."""
        compressor, choice_cf = (form, form.cf) if cf is None else (self.base, cf)
        key = (compressor.compresses, choice_cf, self.world)
        if key not in self._choices:
            profile = compressor.profile(choice_cf, world=self.world)
            strength = profile.error_feedback if self.strength is None else self.strength
            self._choices[key] = Choice(compressor, choice_cf, profile, strength if compressor.compresses else 0.0)
        return self._choices[key]

    def one_round(self, plan: Plan) -> bool:
        """True if the collectives of a plan need a single round."""
        return all(choice.profile.one_round for choice in plan.choices)

    def coding_bytes(self, plan: Plan) -> int:
        """Return the largest memory that averaging by a plan takes, in bytes per element."""
        settling = self.feedback.settling_bytes
        return max(choice.profile.coding_bytes + settling * (choice.strength > 0) for choice in plan.choices)

    def kept_aside(self, name: str) -> torch.Tensor | None:
        """Return the unsent rest of a tensor that the compressor itself keeps, flat, ``[elements]``; or ``None``."""
        residual, memory = self.feedback.residual.get(name), self.memory.stored.get(name)
        if residual is None or memory is None:
            return None
        context = Context(name, rank=self.rank, world=self.world, seed=self.seed, state=memory, error_feedback=1.0)
        return self.base.kept_aside(context, residual.numel())

    # a step

    def measure(self, measurement: LocalMeasurement, executor: Executor | None = None) -> None:
        """Begin a step: add sent elements, energies and errors of groups to the step's numbers from here on.

        Args:
            measurement: this rank's numbers of the step.
            executor: runs this step and later steps; ``None``: the last step's executor, before the first step an
                executor whose host may look at data.
        """
        self.measurement = measurement
        if executor is not None and executor is not self._executor:
            self._executor = executor
            self._use(executor.judge, executor.host_looks)

    def _use(self, judge: Callable[[torch.Tensor], Verdict], host_looks: bool) -> None:
        """Choose which tensors are batched, who adds residuals, and when residuals change, for an executor.

        If the host must not look at data, as on a GPU, launches cost most. Tensors of any size are batched then, and
        compressors that can add residuals do so.
        """
        self._judge = judge
        self._largest = LARGEST if host_looks else math.inf
        self._compressors_fold = not host_looks
        self.feedback.use(judge, host_looks)

    @property
    def tensors(self) -> dict[str, Any]:
        """Residuals, compressors' memory and gradient sums, in dicts that change in place; see ``RunState``."""
        feedback = {"residual": self.feedback.residual, "releasing": self.feedback.releasing}
        return {**feedback, "memory": self.memory.stored, "sums": self.diagnostics.sums}

    def load(self, state: Mapping[str, Any]) -> None:
        """Replace residuals, compressors' memory and gradient sums by copies; ``state`` has the keys of ``tensors``."""
        self.feedback.load(state["residual"], state["releasing"])
        self.memory.load(state["memory"])
        replace(self.diagnostics.sums, {name: total.clone() for name, total in state["sums"].items()})

    def forget(self) -> None:
        """Drop residuals, compressors' memory and gradient sums: later tensors are in other units."""
        self.load({name: {} for name in self.tensors})

    def to_device(self, device: torch.device) -> None:
        """Move residuals, compressors' memory and gradient sums to a device."""
        for keeper in (self.feedback, self.memory, self.diagnostics):
            keeper.to_device(device)

    def commit(self, everywhere: Callable[[Verdict], Verdict] = lambda finite: finite) -> None:
        """End a step: store changed residuals and memory; under overflow safety only if all gradients were finite.

        Args:
            everywhere: returns whether a verdict is true on all ranks that hold a part of the model, if they are more
                than those that average; called under overflow safety, on all of these ranks.
        """
        finite = everywhere(self.measurement.finite) if self.feedback.commits.by_step else True
        self.feedback.commits.commit(finite)
        self.memory.commit(finite)
        self.diagnostics.commit()

    def rescale(self, factor: Number) -> None:
        """Multiply residuals and gradient sums by ``factor``, since the loss scale was multiplied by it."""
        self.feedback.rescale(factor)
        self.diagnostics.rescale(factor)

    def average(
        self, pieces: Sequence[Piece], plan: Plan, buffer: torch.Tensor | None = None, inputs_finite: Verdict = True
    ) -> Job:
        """Average one group of tensors, in place.

        If any rank's gradient was not finite, every rank gets NaN everywhere and keeps its residuals.

        Args:
            pieces: tensors, with the same names in the same order on every rank.
            plan: plan of the step, the same on every rank.
            buffer: flat tensor, ``[elements]``, that the pieces cover without gaps, in order, if there is one.
            inputs_finite: whether all inputs from which this rank computed the pieces are finite; True if the caller
                does not know.
        """
        self.measurement.elements += sum(piece.flat.numel() for piece in pieces)
        if plan.sums == "none":
            self.diagnostics.sums.clear()
        else:
            finite = self._judge(all_finite([energy(piece.flat) for piece in pieces]))
            compressible = [piece for piece in pieces if self.compresses(piece.shape)]
            self.diagnostics.add_up(compressible, plan, finite, self.measurement)
        return self._compressed(pieces, plan, inputs_finite) if plan.compresses else self._dense(pieces, plan, buffer)

    # compressed: 1. merge tensors  2. judge, fold residuals in  3. run all rounds  4. settle residuals, write means

    def _compressed(self, pieces: Sequence[Piece], plan: Plan, inputs_finite: Verdict) -> Job:
        batches = merged([self._batch(piece, plan) for piece in pieces])
        by_compressors = self._compressors_fold and not plan.shadow  # shadow CFs are evaluated on folded tensors
        finite = fold_in(batches, self.feedback, self._judge, inputs_finite, by_compressors)
        rounds = [batch.rounds(self._contexts(batch, plan)) for batch in batches]
        folds = [batch.fold for batch in batches if batch.fold is not None]
        outcome = yield from fuse(rounds, finite, self._judge, folds)
        if outcome is None:
            self._refuse(pieces)
            return
        for batch in batches:
            batch.unfold()
        self._count(batches, outcome.reduced, outcome.finite)
        verdict, by_group = outcome.finite, self.feedback.commits.by_group
        if by_group:  # a sum may overflow, so the means are judged before residuals are settled
            for batch, reduced in zip(batches, outcome.reduced, strict=True):
                batch.write(reduced.mean, torch.empty_like(batch.x))
            verdict = both(verdict, self._judge(all_fit([piece.flat for piece in pieces])))
            if verdict is False:
                self._refuse(pieces)
                return
        for batch, reduced in zip(batches, outcome.reduced, strict=True):
            if batch.settles:
                self._settle(batch, reduced, plan.step, verdict)
            if not by_group:
                batch.write(reduced.mean, batch.x)
        if isinstance(verdict, torch.Tensor):
            self._mask(pieces, verdict)

    def _batch(self, piece: Piece, plan: Plan) -> Batch:
        """Return a batch of one tensor, with a key: batches of equal keys may be merged.

        A tensor that is evaluated at shadow CFs, or whose unsent rest is kept, is never joined with others to a long
        tensor.
        """
        compressible = self.compresses(piece.shape)
        choice, size = plan.of(piece.name, compressible), piece.flat.numel()
        kind = (choice.compresses, choice.cf, piece.flat.dtype)
        alone = choice.strength > 0 or (compressible and plan.shadow) or size > self._largest
        if choice.profile.pad_multiple and not alone:
            return Batch([piece], choice, (*kind, None), choice.profile.pad_multiple)
        if not goes_alone(piece.flat):
            row = choice.compressor.batch_key(choice.cf, self._context(piece, plan, choice.strength))
            if row is not None:
                return Batch([piece], choice, (*kind, (size, row)))
        return Batch([piece], choice, piece.name)

    def _contexts(self, batch: Batch, plan: Plan) -> list[Context]:
        """Return a context for each row, or a single context for the whole batch; evaluate shadow CFs with them."""
        strength, fold = batch.choice.strength, batch.fold
        if len(batch.pieces) > 1 and not batch.rows:
            return [self._context(batch.pieces[0], plan, strength, fold, (batch.x.numel(),))]
        contexts = [self._context(piece, plan, strength, fold) for piece in batch.pieces]
        if plan.shadow:
            xs = batch.x.view(len(contexts), -1).unbind() if batch.rows else [batch.x]
            for piece, x, context in zip(batch.pieces, xs, contexts, strict=True):
                self._evaluate(piece, x, plan, context)
        return contexts

    def _count(self, batches: Sequence[Batch], results: Sequence[Reduced], finite: Verdict) -> None:
        """Add the energies and errors of batches to the step's numbers.

        If a compressor added residuals itself and some gradient was not finite, energies and errors count as 0.
        """
        energies: list[torch.Tensor] = []
        errors: list[torch.Tensor] = []
        for batch, reduced in zip(batches, results, strict=True):
            target = batch.x if reduced.target is None else reduced.target
            energies.append(batch.energy if batch.energy is not None and target is batch.x else energy(target))
            if reduced.error is not None:
                errors.append(reduced.error)
            elif reduced.sent is not target:
                errors.append(unsent_energy(target, energies[-1], reduced.sent))
            if batch.choice.compresses:
                elements = sum(piece.flat.numel() for piece in batch.pieces)
                self.measurement.compressed += elements
                self.measurement.sent += elements / reduced.cf
        any_folded = any(batch.fold is not None for batch in batches)
        spoilt = ~finite if any_folded and isinstance(finite, torch.Tensor) else None
        for squares, of_groups in ((energies, self.measurement.energies), (errors, self.measurement.errors)):
            total = summed(squares)
            if spoilt is not None and isinstance(total, torch.Tensor):
                total = total.masked_fill(spoilt, 0.0)
            of_groups.append(total)

    def _settle(self, batch: Batch, reduced: Reduced, step: int, finite: Verdict) -> None:
        """Set the residuals of a batch's tensors to the unsent rest; overwrites the batch's x."""
        keys = [f"{self.seed}\0residual\0{name}\0{step}\0{self.rank}" for name in batch.names]
        residual = unsent(batch.x, reduced.sent, batch.choice.strength, reduced.aside)
        self.feedback.settle(batch.names, residual, finite, keys)

    # dense: as plain DDP does, without a copy if the tensors are contiguous in one buffer and have no residuals

    def _dense(self, pieces: Sequence[Piece], plan: Plan, buffer: torch.Tensor | None) -> Job:
        """Average a group dense, by one all-reduce; its sum is finite only if every rank's gradient was finite.

        A rank may have residuals that another rank lacks, so the collective must not depend on residuals.
        """
        has_residuals = any(self.feedback.has(piece.name) for piece in pieces)
        xs = self._dense_folded(pieces, plan) if has_residuals or plan.shadow else []
        if xs and has_residuals:
            flat = torch.cat([x.to(piece.flat.dtype) for x, piece in zip(xs, pieces, strict=True)])
        else:
            flat = buffer if buffer is not None else torch.cat([piece.flat for piece in pieces])
        flat = yield from self._dense_mean(flat, plan.choice.compressor.wire_dtype(flat.dtype))
        finite: Verdict = True
        if has_residuals or self.feedback.commits.by_step:
            finite = self._judge(all_finite([energy(flat)]))
            if finite is False:
                self._refuse(pieces)
                return
        for piece, x in zip(pieces, xs, strict=False):
            if x is not piece.flat:
                self.feedback.settle([piece.name], None, finite)
        if flat is not buffer:
            for piece, mean in zip(pieces, torch.split(flat, [piece.flat.numel() for piece in pieces]), strict=True):
                piece.flat.copy_(mean)
        if isinstance(finite, torch.Tensor):
            self._mask(pieces, finite)

    def _dense_mean(self, flat: torch.Tensor, wire: torch.dtype) -> Returning[torch.Tensor]:
        """Return the mean of a flat tensor over the ranks, in its memory, summed in the number format of the wire."""
        if wire == flat.dtype:
            first = divides_first(self.world, wire)
            if first:
                flat.mul_(1 / self.world)
            (flat,) = yield [AllReduce(flat)]
            if not first:
                flat.mul_(1 / self.world)
        else:
            (total,) = yield [AllReduce(divide(flat, self.world, wire))]
            flat.copy_(total)
        return flat

    def _dense_folded(self, pieces: Sequence[Piece], plan: Plan) -> list[torch.Tensor]:
        """Return gradients plus residuals, and count their energies; no tensors if some gradient is not finite."""
        energies = [energy(piece.flat) for piece in pieces]
        finite = self._judge(all_finite(energies))
        if finite is False:
            return []
        xs: list[torch.Tensor] = []
        for piece, size in zip(pieces, energies, strict=True):
            x = self.feedback.fold(piece.name, piece.flat, keep=False)
            masked = x if finite is True else torch.where(finite, x, torch.zeros_like(x))
            self._evaluate(piece, masked, plan, self._context(piece, plan, 0.0))
            self.measurement.energies.append((size if masked is piece.flat else energy(masked)).double())
            xs.append(x)
        return xs

    # compressed and dense

    def _context(
        self, piece: Piece, plan: Plan, strength: float, fold: Fold | None = None, shape: tuple[int, ...] | None = None
    ) -> Context:
        """Return a compressor's context of a tensor; with ``shape``, of several joined tensors, without memory."""
        return Context(
            name=piece.name,
            step=plan.step,
            rank=self.rank,
            world=self.world,
            seed=self.seed,
            shape=piece.shape if shape is None else shape,
            dtype=piece.flat.dtype,
            state=self.memory.of(piece.name) if shape is None else {},
            error_feedback=strength,
            fold=fold,
        )

    def _evaluate(self, piece: Piece, x: torch.Tensor, plan: Plan, context: Context) -> None:
        """Compute a tensor's compression error at each shadow CF, if there are any; see ``evaluate``."""
        if plan.shadow and self.compresses(piece.shape):
            evaluate(piece, x, self.base, plan, context, self.measurement)

    def _refuse(self, pieces: Sequence[Piece]) -> None:
        """Restore residuals, and overwrite gradients with NaN: some rank's gradient was not finite."""
        self.measurement.verdicts.append(False)
        for piece in pieces:
            self.feedback.commits.undo(piece.name, piece.flat)
        self.memory.forget(piece.name for piece in pieces)
        for piece in pieces:
            piece.flat.fill_(float("nan"))

    def _mask(self, pieces: Sequence[Piece], finite: torch.Tensor) -> None:
        """Overwrite the gradients with NaN if some rank's gradient was not finite, which only the device knows."""
        if not self.feedback.commits.by_step:
            self.memory.mask((piece.name for piece in pieces), finite)
        one_or_nan = torch.div(finite, finite)  # 1 / 1 or 0 / 0
        for dtype in dict.fromkeys(piece.flat.dtype for piece in pieces):
            flats = [piece.flat for piece in pieces if piece.flat.dtype == dtype]
            torch._foreach_mul_(flats, one_or_nan.to(dtype))
        self.measurement.verdicts.append(finite)
