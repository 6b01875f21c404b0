# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The core operation, free of any framework: average flat tensors over the ranks, compressed, in place.

A compressor selects what to send tensor by tensor; a group of tensors is exchanged together. What is sent therefore
does not depend on how a framework assigns tensors to buckets. Residuals are kept by the tensors' names. Tensors that
are small or have one dimension are averaged dense. No function in this file reads the tensors' numbers: the executor's
``judge`` reads whether all gradients of a group were finite, or leaves the answer on the device.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gravac.averaging.batch import MAX_JOINED_ELEMENTS, Batch, merge_batches
from gravac.averaging.diagnostics import Diagnostics, evaluate_shadow_cfs
from gravac.averaging.folding import fold_in
from gravac.averaging.memory import CompressorMemory
from gravac.averaging.norms import all_elements_finite, unsent_energy
from gravac.averaging.plan import Choice, Form, Piece, Plan
from gravac.averaging.recording import StepRecording, summed
from gravac.averaging.residuals import Residuals, replace_entries, unsent_rest
from gravac.collectives import AllReduce, Traffic
from gravac.compressors.base import Compressor, Context, Reduced, energy
from gravac.compressors.dense import Dense, divide, divides_first
from gravac.compressors.squares import all_finite
from gravac.exchange.executor import Executor, Job, Number, Returning, Verdict, both_true
from gravac.exchange.fuse import fuse


@dataclass(eq=False, repr=False)
class Averager:
    """Averages groups of tensors over the ranks. A rank has one averager per model, and uses it from one thread.

    Args:
        base: compressor of the tensors that are large enough.
        dense: ``Dense`` compressor, which sends every element, in float32 or 16 bit. It sends the smaller tensors in
            each step, and all tensors in a dense step.
        strength: fraction of the unsent rest (gradient plus residual, minus what was sent) that becomes the residual,
            in [0, 1]; ``None``: the fraction in the profile of ``base`` at each CF.
        dense_below: tensors with fewer elements are never compressed.
        residuals: the residuals of this rank.
        seed: seed of the run's random numbers.

    Attributes:
        rank: number of this rank.
        world: number of ranks that average with each other.
        memory: tensors that compressors keep for each parameter from step to step, such as a momentum.
        diagnostics: sums of gradients over steps, if the controller asks for them.
        agreed_shapes: shapes by parameter name that decide which tensors are compressed. Ranks that hold shards of
            different sizes have the same shapes here, and so decide alike. If a name is missing, the tensor's own shape
            decides.
        recording: this rank's record of the present step.
    """

    base: Compressor
    dense: Dense
    strength: float | None
    dense_below: int
    residuals: Residuals = field(default_factory=Residuals)
    seed: int = 0
    rank: int = field(default=0, init=False)
    world: int = field(default=1, init=False)
    memory: CompressorMemory = field(default_factory=CompressorMemory, init=False)
    diagnostics: Diagnostics = field(default_factory=Diagnostics, init=False)
    agreed_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict, init=False)
    recording: StepRecording = field(init=False)
    _cached_choices: dict[tuple[bool, float, int], Choice] = field(default_factory=dict, init=False)
    _executor: Executor | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._adapt_to_executor(bool, finite_in_all_shards=lambda finite: finite, host_looks=True)

    # predictions and plans

    def compresses(self, shape: tuple[int, ...]) -> bool:
        """True if a tensor of a shape may be compressed: 2 or more dimensions, ``dense_below`` or more elements."""
        return len(shape) > 1 and torch.Size(shape).numel() >= self.dense_below

    def _may_compress(self, piece: Piece) -> bool:
        """True if a tensor may be compressed; ranks whose shards of a parameter differ in size get the same answer."""
        return self.compresses(self.agreed_shapes.get(piece.name, piece.shape))

    def traffic(self, forms: Sequence[Form], compressor: Compressor, cf: float) -> list[Traffic]:
        """Return the predicted kind and payload bytes of each collective that averages one step's gradients.

        Tensors that are too small to be compressed are counted as sent dense.

        Args:
            forms: shape and dtype of each gradient.
            compressor: compressor of the tensors that are large enough; a ``Dense`` sends all tensors.
            cf: compression factor of ``compressor``.
        """
        predicted_traffic: list[Traffic] = []
        for shape, dtype in forms:
            is_small = compressor.compresses and not self.compresses(shape)
            sending_compressor, sending_cf = (self.dense, self.dense.cf) if is_small else (compressor, cf)
            predicted_traffic += sending_compressor.traffic(shape, sending_cf, dtype, self.world)
        return predicted_traffic

    def wire_bytes(self, forms: Sequence[Form], compressor: Compressor, cf: float) -> int:
        """Return the predicted wire bytes that each rank sends in a step.

        Args:
            forms: shape and dtype of each gradient.
            compressor: compressor of the tensors that are large enough; a ``Dense`` sends all tensors.
            cf: compression factor of ``compressor``.
        """
        return sum(traffic.wire_bytes(self.world) for traffic in self.traffic(forms, compressor, cf))

    def plan(
        self,
        step: int,
        cf: float | None,
        shadow_cfs: Sequence[float] = (),
        *,
        dense_cf: float | None = None,
        cfs: Mapping[str, float | None] | None = None,
        sums: str = "none",
    ) -> Plan:
        """Return the plan of a step: a compressor and a compression factor (CF) for each tensor.

        Args:
            step: number of the step, counted from 0.
            cf: compression factor of the base compressor; ``None`` sends all tensors dense.
            shadow_cfs: CFs at which the errors of the base compressor are computed without sending, ascending.
            dense_cf: CF of the number format of tensors that are sent dense: 1 for float32, 2 for 16 bit; ``None``: the
                format of ``Averager.dense``.
            cfs: compression factors, by parameter name, of the tensors that have a factor of their own; ``None`` sends
                the tensor dense.
            sums: whether gradients are summed over steps: ``"none"``, ``"add"`` or ``"report"``, see ``Plan``.
        """
        dense_format = self.dense if dense_cf is None else self.dense.for_cf(dense_cf)
        choice_by_name = {name: self._choice(tensor_cf, dense_format) for name, tensor_cf in (cfs or {}).items()}
        small_choice = self._choice(None, self.dense)
        return Plan(step, self._choice(cf, dense_format), small_choice, choice_by_name, tuple(shadow_cfs), sums)

    def _choice(self, cf: float | None, dense_format: Dense) -> Choice:
        """Return how a tensor is sent at a CF: by the base compressor; by ``dense_format`` if the CF is ``None``.

        Results are cached.
        """
        compressor, choice_cf = (dense_format, dense_format.cf) if cf is None else (self.base, cf)
        cache_key = (compressor.compresses, choice_cf, self.world)
        if cache_key not in self._cached_choices:
            profile = compressor.profile(choice_cf, world=self.world)
            strength = profile.error_feedback if self.strength is None else self.strength
            self._cached_choices[cache_key] = Choice(
                compressor, choice_cf, profile, strength if compressor.compresses else 0.0
            )
        return self._cached_choices[cache_key]

    def one_round(self, plan: Plan) -> bool:
        """True if each compressor of a plan needs only one collective for a tensor."""
        return all(choice.profile.one_round for choice in plan.choices)

    def coding_bytes_per_element(self, plan: Plan) -> int:
        """Return the most memory that averaging takes besides gradients and residuals, in bytes per element."""
        return max(choice.profile.coding_bytes_per_element for choice in plan.choices)

    def kept_aside(self, name: str) -> torch.Tensor | None:
        """Return the part of a parameter's unsent rest that is not in the residual, but in the compressor's memory.

        Args:
            name: the parameter's name.

        Returns:
            A flat tensor of the parameter's length; ``None`` if the compressor keeps nothing, or the parameter has no
            residual.
        """
        residual, memory = self.residuals.by_name.get(name), self.memory.stored.get(name)
        if residual is None or memory is None:
            return None
        context = Context(name, rank=self.rank, world=self.world, seed=self.seed, state=memory, error_feedback=1.0)
        return self.base.kept_aside(context, residual.numel())

    # a step

    def measure(self, recording: StepRecording, executor: Executor | None = None) -> None:
        """Begin a step: later calls of ``average`` add what they send, and what compression loses, to ``recording``.

        Args:
            recording: this rank's record of the step: counts of sent elements, energies (squared norms), errors.
            executor: executor that runs this step and later steps. ``None``: the executor of the last step. Without any
                executor so far, averaging assumes that the host may read tensors.
        """
        self.recording = recording
        if executor is not None and executor is not self._executor:
            self._executor = executor
            self._adapt_to_executor(executor.judge, executor.everywhere, executor.host_looks)

    def _adapt_to_executor(
        self,
        judge: Callable[[torch.Tensor], Verdict],
        finite_in_all_shards: Callable[[Verdict], Verdict],
        host_looks: bool,
    ) -> None:
        """Set what depends on the executor: how to check whether gradients are finite, and how to batch tensors.

        If the host must not read tensors, as on a GPU, kernel launches cost most. Tensors of any size are then
        compressed in batches.

        Args:
            judge: function that converts a 0-d bool tensor to a bool, or returns the tensor itself if the host must not
                read it.
            finite_in_all_shards: function that combines verdicts of ranks that hold different shards of the model. It
                gets whether all gradients were finite on the ranks that average with this rank. It returns whether all
                gradients were finite on all ranks that hold the model.
            host_looks: whether the host may read tensors.
        """
        self._judge = judge
        self._finite_in_all_shards: Callable[[Verdict], Verdict] = finite_in_all_shards
        self._max_joined_elements = MAX_JOINED_ELEMENTS if host_looks else math.inf
        self.residuals.host_looks = host_looks

    @property
    def tensors(self) -> dict[str, Any]:
        """Residuals, compressors' memory, and sums of gradients over steps, for checkpoints.

        Each is a dict by parameter name, which later steps change in place.
        """
        return {"residual": self.residuals.by_name, "memory": self.memory.stored, "sums": self.diagnostics.sums}

    def load(self, state: Mapping[str, Any]) -> None:
        """Replace residuals, compressors' memory, and sums of gradients over steps by copies of saved tensors.

        Args:
            state: the saved tensors, under the keys of the property ``tensors``.
        """
        self.residuals.load(state["residual"])
        self.memory.load(state["memory"])
        replace_entries(self.diagnostics.sums, {name: total.clone() for name, total in state["sums"].items()})

    def forget(self) -> None:
        """Drop residuals, compressors' memory, and sums of gradients over steps.

        Called when the run begins to average another quantity, such as pseudo-gradients in place of gradients.
        """
        self.load({name: {} for name in self.tensors})

    def to_device(self, device: torch.device) -> None:
        """Move residuals, compressors' memory, and sums of gradients over steps to a device."""
        for tensor_holder in (self.residuals, self.memory, self.diagnostics):
            tensor_holder.to_device(device)

    def commit(self, finite_in_all_shards: Callable[[Verdict], Verdict] = lambda finite: finite) -> None:
        """End a step: store the changed residuals and the changed memory of compressors.

        With overflow safety, drop the changes if any gradient of the step was not finite.

        Args:
            finite_in_all_shards: function that combines verdicts of ranks that hold different shards of the model. It
                gets whether all gradients were finite on the ranks that average with this rank. It returns whether all
                gradients were finite on all ranks that hold the model. Called only with overflow safety, and then on
                all ranks that hold the model.
        """
        finite = finite_in_all_shards(self.recording.finite) if self.residuals.wait_for_step else True
        self.residuals.commit(finite)
        self.memory.commit(finite)
        self.diagnostics.commit()

    def rescale(self, factor: Number) -> None:
        """Multiply residuals, and sums of gradients over steps, by the factor by which the loss scale changed."""
        self.residuals.rescale(factor)
        self.diagnostics.rescale(factor)

    def average(
        self, pieces: Sequence[Piece], plan: Plan, buffer: torch.Tensor | None = None, inputs_finite: Verdict = True
    ) -> Job:
        """Average one group of tensors, in place: return a job, a generator that yields lists of collectives.

        If any rank's gradient was not finite, every rank gets NaN in all tensors of the group, and its residuals do not
        change.

        Args:
            pieces: tensors, with the same names in the same order on every rank.
            plan: plan of the step, the same on every rank.
            buffer: flat tensor, ``[elements]``, of which the pieces are consecutive views without gaps; ``None`` if
                there is none.
            inputs_finite: whether all inputs from which this rank computed the pieces are finite: a bool, or a 0-d bool
                tensor; True if the caller does not know.
        """
        self.recording.elements += sum(piece.flat.numel() for piece in pieces)
        if plan.sums == "none":
            self.diagnostics.sums.clear()
        else:
            finite = self._judge(all_finite([energy(piece.flat) for piece in pieces]))
            compressible = [piece for piece in pieces if self._may_compress(piece)]
            self.diagnostics.add_gradients(compressible, plan, finite, self.recording)
        return (
            self._compressed(pieces, plan, inputs_finite)
            if plan.compresses
            else self._average_dense(pieces, plan, buffer)
        )

    # compressed

    def _compressed(self, pieces: Sequence[Piece], plan: Plan, inputs_finite: Verdict) -> Job:
        """Average a group in which at least one tensor may be compressed.

        1. Merge tensors to batches.
        2. Check whether gradients are finite, and add residuals.
        3. Run the compressors of all batches together, so that they share collectives.
        4. Store residuals, and overwrite gradients with their means.
        """
        batches = merge_batches([self._batch(piece, plan) for piece in pieces])
        finite = fold_in(batches, self.residuals, self._judge, inputs_finite)
        generators = [batch.rounds(self._context_of_batch(batch, plan)) for batch in batches]
        outcome = yield from fuse(generators, finite, self._judge)
        verdict: Verdict = False if outcome is None else outcome.finite
        checks_group_means = self.residuals.checks_group_means
        if outcome is not None:
            self._count_energies(batches, outcome.reduced)
        if checks_group_means:  # a sum may overflow, so the means are checked before residuals are stored
            if outcome is not None:
                for batch, reduced in zip(batches, outcome.reduced, strict=True):
                    batch.write(reduced.mean, torch.empty_like(batch.x))
                verdict = both_true(verdict, self._judge(all_elements_finite([piece.flat for piece in pieces])))
            verdict = self._finite_in_all_shards(verdict)
        if outcome is None or verdict is False:
            self._discard_group(pieces)
            return
        for batch, reduced in zip(batches, outcome.reduced, strict=True):
            if batch.changes_residuals:
                rest = unsent_rest(batch.x, reduced.sent, batch.choice.strength, reduced.aside)
                for name in batch.names:
                    self.residuals.pend(name, rest)
            if not checks_group_means:
                batch.write(reduced.mean, batch.x)
        self._commit_group(pieces, verdict)
        if isinstance(verdict, torch.Tensor):
            self._discard_group_on_device(pieces, verdict)

    def _batch(self, piece: Piece, plan: Plan) -> Batch:
        """Return a batch of one tensor, with a key: batches whose keys are equal may be merged.

        To join tensors is to concatenate them to one long tensor. A tensor is not joined if it has error feedback, if
        its errors at shadow CFs are computed, or if it is too large.
        """
        compressible = piece.flat.numel() > 0 and self._may_compress(piece)
        choice, elements = plan.of(piece.name, compressible), piece.flat.numel()
        is_separate = choice.strength > 0 or (compressible and plan.shadow_cfs) or elements > self._max_joined_elements
        if choice.profile.pad_multiple and not is_separate:
            merge_key = (choice.compresses, choice.cf, piece.flat.dtype)
            return Batch([piece], choice, merge_key, choice.profile.pad_multiple)
        return Batch([piece], choice, piece.name)

    def _context_of_batch(self, batch: Batch, plan: Plan) -> Context:
        """Return the ``Context`` of a batch, for the compressor.

        Also compute the compression errors at the CFs in ``plan.shadow_cfs``, which need the context.
        """
        piece = batch.pieces[0]
        if len(batch.pieces) > 1:
            return self._context(piece, plan, batch.choice.strength, (batch.x.numel(),))
        context = self._context(piece, plan, batch.choice.strength)
        self._evaluate_shadow_cfs(piece, batch.x, plan, context)
        return context

    def _count_energies(self, batches: Sequence[Batch], reduced_batches: Sequence[Reduced]) -> None:
        """Add the energies (squared norms), squared errors and sent elements of batches to the step's measurement."""
        energies: list[torch.Tensor] = []
        errors: list[torch.Tensor] = []
        for batch, reduced in zip(batches, reduced_batches, strict=True):
            target = batch.x if reduced.target is None else reduced.target
            energies.append(batch.energy if batch.energy is not None and target is batch.x else energy(target))
            if reduced.error is not None:
                errors.append(reduced.error)
            elif reduced.sent is not target:
                errors.append(unsent_energy(target, energies[-1], reduced.sent))
            if batch.choice.compresses:
                elements = sum(piece.flat.numel() for piece in batch.pieces)
                self.recording.compressed += elements
                self.recording.sent += elements / reduced.cf
        self.recording.energies.append(summed(energies))
        self.recording.errors.append(summed(errors))

    def _commit_group(self, pieces: Sequence[Piece], finite: Verdict) -> None:
        """Commit a group's residuals after its exchange, unless they wait for the end of the step."""
        if not self.residuals.wait_for_step:
            self.residuals.commit(finite, (piece.name for piece in pieces))

    # dense: as plain DDP does, without a copy if the tensors are contiguous in one buffer and have no residuals

    def _average_dense(self, pieces: Sequence[Piece], plan: Plan, buffer: torch.Tensor | None) -> Job:
        """Average a group dense, by one all-reduce; the sum is finite only if every rank's gradient was finite.

        Residuals from earlier compressed steps are added first. A rank may have residuals that another rank lacks.
        Therefore the all-reduce is the same with and without residuals.
        """
        has_residuals = any(piece.name in self.residuals.by_name for piece in pieces)
        gradients_with_residuals = self._add_residuals_dense(pieces, plan) if has_residuals or plan.shadow_cfs else []
        if gradients_with_residuals and has_residuals:
            flat = torch.cat(
                [x.to(piece.flat.dtype) for x, piece in zip(gradients_with_residuals, pieces, strict=True)]
            )
        else:
            flat = buffer if buffer is not None else torch.cat([piece.flat for piece in pieces])
        flat = yield from self._dense_mean(flat, plan.choice.compressor.wire_dtype(flat.dtype))
        finite: Verdict = True
        if has_residuals or self.residuals.wait_for_step:
            finite = self._judge(all_finite([energy(flat)]))
            if finite is False:
                self._discard_group(pieces)
                return
        for piece, x in zip(pieces, gradients_with_residuals, strict=False):
            if x is not piece.flat:
                self.residuals.pend(piece.name, None)
        self._commit_group(pieces, finite)
        if flat is not buffer:
            for piece, mean in zip(pieces, torch.split(flat, [piece.flat.numel() for piece in pieces]), strict=True):
                piece.flat.copy_(mean)
        if isinstance(finite, torch.Tensor):
            self._discard_group_on_device(pieces, finite)

    def _dense_mean(self, flat: torch.Tensor, wire_dtype: torch.dtype) -> Returning[torch.Tensor]:
        """Return a flat tensor's mean over the ranks, summed in ``wire_dtype``. May overwrite ``flat``."""
        if wire_dtype == flat.dtype:
            divides_before_sum = divides_first(self.world, wire_dtype)
            if divides_before_sum:
                flat.mul_(1 / self.world)
            (flat,) = yield [AllReduce(flat)]
            if not divides_before_sum:
                flat.mul_(1 / self.world)
        else:
            (total,) = yield [AllReduce(divide(flat, self.world, wire_dtype))]
            flat.copy_(total)
        return flat

    def _add_residuals_dense(self, pieces: Sequence[Piece], plan: Plan) -> list[torch.Tensor]:
        """Return each gradient plus its residual, flat, and add their energies (squared norms) to the measurement.

        Return ``[]`` if the host knows that a gradient is not finite.
        """
        energies = [energy(piece.flat) for piece in pieces]
        finite = self._judge(all_finite(energies))
        if finite is False:
            return []
        gradients_with_residuals: list[torch.Tensor] = []
        for piece, gradient_energy in zip(pieces, energies, strict=True):
            x = self.residuals.added_to(piece.name, piece.flat, keeps_unsent=False)
            finite_sum = x if finite is True else torch.where(finite, x, torch.zeros_like(x))
            self._evaluate_shadow_cfs(piece, finite_sum, plan, self._context(piece, plan, 0.0))
            self.recording.energies.append(
                (gradient_energy if finite_sum is piece.flat else energy(finite_sum)).double()
            )
            gradients_with_residuals.append(x)
        return gradients_with_residuals

    # compressed and dense

    def _context(
        self,
        piece: Piece,
        plan: Plan,
        strength: float,
        joined_shape: tuple[int, ...] | None = None,
    ) -> Context:
        """Return the facts about a tensor that its compressor gets, as a ``Context``.

        Args:
            piece: the tensor; if several tensors are joined, the first of them.
            plan: plan of the step.
            strength: fraction of the unsent rest that becomes the residual, 0 to 1.
            joined_shape: shape of the long tensor that several tensors are joined to; ``None``: the tensor's own shape.
        """
        return Context(
            name=piece.name,
            step=plan.step,
            rank=self.rank,
            world=self.world,
            seed=self.seed,
            shape=piece.shape if joined_shape is None else joined_shape,
            dtype=piece.flat.dtype,
            state=self.memory.of(piece.name) if joined_shape is None else {},
            error_feedback=strength,
        )

    def _evaluate_shadow_cfs(self, piece: Piece, x: torch.Tensor, plan: Plan, context: Context) -> None:
        """Compute the compression error of a tensor, flat x, at each shadow CF of a plan, if it may be compressed."""
        if plan.shadow_cfs and self._may_compress(piece):
            evaluate_shadow_cfs(piece, x, self.base, plan, context, self.recording)

    def _discard_group(self, pieces: Sequence[Piece]) -> None:
        """Restore a group's residuals, and overwrite its gradients with NaN: some rank's gradient was not finite."""
        self.recording.verdicts.append(False)
        for piece in pieces:
            self.residuals.undo(piece.name, piece.flat)
        self.memory.undo(piece.name for piece in pieces)
        for piece in pieces:
            piece.flat.fill_(float("nan"))

    def _discard_group_on_device(self, pieces: Sequence[Piece], finite: torch.Tensor) -> None:
        """Unless ``finite``, overwrite a group's gradients with NaN, and undo the changes to compressors' memory.

        ``finite`` is a 0-d bool tensor that only the device reads: whether all gradients of the group were finite.
        """
        if not self.residuals.wait_for_step:
            self.memory.undo_on_device((piece.name for piece in pieces), finite)
        one_or_nan = torch.div(finite, finite)  # 1 / 1 or 0 / 0
        for dtype in dict.fromkeys(piece.flat.dtype for piece in pieces):
            same_dtype_flats = [piece.flat for piece in pieces if piece.flat.dtype == dtype]
            torch._foreach_mul_(same_dtype_flats, one_or_nan.to(dtype))
        self.recording.verdicts.append(finite)
