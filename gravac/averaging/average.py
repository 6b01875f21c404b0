# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The core operation, free of any framework: average flat tensors over the ranks, compressed, in place.

A compressor selects what to send tensor by tensor; a group of tensors is exchanged together. What is sent therefore
does not depend on how a framework assigns tensors to buckets. Residuals are kept by the tensors' names. Tensors that
are small or have one dimension are averaged dense. No function in this file reads the tensors' numbers: ``Reads`` says
whether the host may read if all gradients of a group were finite, or leaves that to the device.
"""

from collections.abc import Mapping, Sequence
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
from gravac.compressors.codes import coding_error
from gravac.compressors.dense import Dense, divide, divides_first
from gravac.compressors.squares import all_finite
from gravac.exchange.executor import Executor, Job, Round, everywhere
from gravac.exchange.fuse import fuse
from gravac.exchange.reading import AT_ONCE, Finite, Number, Reads, both


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
            for reader in (self.residuals, self.memory, self.diagnostics):
                reader.reads = executor

    @property
    def reads(self) -> Reads:
        """When the host may read numbers: as the executor says; at once without an executor."""
        return AT_ONCE if self._executor is None else self._executor

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

    def commit(self, finite: Finite = None) -> None:
        """End a step: store the changed residuals and the changed memory of compressors.

        Args:
            finite: whether all gradients of the step were finite on all ranks. If they were not, the changes are
                dropped.
        """
        self.residuals.commit(finite)
        self.memory.commit(finite)
        self.diagnostics.commit()

    def rescale(self, factor: Number) -> None:
        """Multiply residuals, and sums of gradients over steps, by the factor by which the loss scale changed."""
        self.residuals.rescale(factor)
        self.diagnostics.rescale(factor)

    def average(
        self, pieces: Sequence[Piece], plan: Plan, buffer: torch.Tensor | None = None, inputs_finite: Finite = None
    ) -> Job[Finite]:
        """Average one group of tensors, in place: return a job, a generator that yields lists of collectives.

        If any rank's gradient was not finite, every rank gets NaN in all tensors of the group, and its residuals do not
        change.

        Args:
            pieces: tensors, with the same names in the same order on every rank.
            plan: plan of the step, the same on every rank.
            buffer: flat tensor, ``[elements]``, of which the pieces are consecutive views without gaps; ``None`` if
                there is none.
            inputs_finite: whether all inputs from which this rank computed the pieces are finite.

        Returns:
            Job that returns whether all gradients were finite; in outer steps, whether all means are.
        """
        self.recording.elements += sum(piece.flat.numel() for piece in pieces)
        if plan.sums == "none":
            self.diagnostics.sums.clear()
        else:
            finite = all_finite([energy(piece.flat) for piece in pieces])
            compressible = [piece for piece in pieces if self._may_compress(piece)]
            self.diagnostics.add_gradients(compressible, plan, finite, self.recording)
        return (
            self._compressed(pieces, plan, inputs_finite)
            if plan.compresses
            else self._average_dense(pieces, plan, buffer)
        )

    # compressed

    def _compressed(self, pieces: Sequence[Piece], plan: Plan, inputs_finite: Finite) -> Job[Finite]:
        """Average a group in which at least one tensor may be compressed.

        1. Merge tensors to batches.
        2. Check whether gradients are finite, and add residuals.
        3. Run the compressors of all batches together, so that they share collectives.
        4. Store residuals, and overwrite gradients with their means.
        """
        batches = merge_batches([self._batch(piece, plan) for piece in pieces])
        finite = fold_in(batches, self.residuals, self.reads, inputs_finite)
        generators = [batch.rounds(self._context_of_batch(batch, plan)) for batch in batches]
        checks_group_means = self.residuals.checks_group_means
        one_round = self.one_round(plan) and not self._asks_other_shards
        outcome = yield from fuse(generators, finite, self.reads, one_round, self.rank, self.world)
        finite = torch.zeros((), dtype=torch.bool, device=pieces[0].flat.device) if outcome is None else outcome.finite
        if outcome is not None:
            self._count_energies(batches, outcome.reduced)
        if checks_group_means:  # a sum may overflow, so the means are checked before residuals are stored
            if outcome is not None:
                for batch, reduced in zip(batches, outcome.reduced, strict=True):
                    batch.write(reduced.mean, torch.empty_like(batch.x))
                finite = both(finite, all_elements_finite([piece.flat for piece in pieces]))
            finite = yield from everywhere(self._executor, finite)
        if outcome is None or self.reads.known(finite) is False:
            self._discard_group(pieces)
            return self._end_group(pieces, finite)
        for batch, reduced in zip(batches, outcome.reduced, strict=True):
            if batch.changes_residuals:
                rest = unsent_rest(batch.x, reduced.sent, batch.choice.strength, reduced.aside)
                for name in batch.names:
                    self.residuals.pend(name, rest)
            if not checks_group_means:
                batch.write(reduced.mean, batch.x)
        return self._end_group(pieces, finite)

    def _batch(self, piece: Piece, plan: Plan) -> Batch:
        """Return a batch of one tensor, with a key: batches whose keys are equal may be merged.

        To join tensors is to concatenate them to one long tensor. A tensor is not joined if it has error feedback, if
        its errors at shadow CFs are computed, or if it is too large.
        """
        compressible = piece.flat.numel() > 0 and self._may_compress(piece)
        choice, elements = plan.of(piece.name, compressible), piece.flat.numel()
        is_large = elements > MAX_JOINED_ELEMENTS and piece.flat.is_cpu  # on a GPU, kernel launches cost most
        is_separate = choice.strength > 0 or (compressible and plan.shadow_cfs) or is_large
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
        coded_batches = [reduced.coded for reduced in reduced_batches if reduced.coded is not None]
        if coded_batches:
            errors.append(coding_error(coded_batches))
        for batch, reduced in zip(batches, reduced_batches, strict=True):
            target = batch.x if reduced.target is None else reduced.target
            known_energy = batch.energy if reduced.energy is None and target is batch.x else reduced.energy
            energies.append(energy(target) if known_energy is None else known_energy)
            if reduced.error is not None:
                errors.append(reduced.error)
            elif reduced.coded is None and reduced.sent is not target:
                errors.append(unsent_energy(target, energies[-1], reduced.sent))
            if batch.choice.compresses:
                elements = sum(piece.flat.numel() for piece in batch.pieces)
                self.recording.compressed += elements
                self.recording.sent += elements / reduced.cf
        self.recording.energies.append(summed(energies))
        self.recording.errors.append(summed(errors))

    @property
    def _asks_other_shards(self) -> bool:
        """True if averaging a group ends with a collective over the ranks that hold other shards of the model."""
        executor = self._executor
        return self.residuals.checks_group_means and executor is not None and executor.agree_world > executor.world

    def _end_group(self, pieces: Sequence[Piece], finite: Finite) -> Finite:
        """End the exchange of a group; return ``finite``, whether its gradients were finite on all ranks.

        Commit the group's residuals, unless they wait for the end of the step, and overwrite its means with NaN if
        they were not finite.
        """
        if not self.residuals.wait_for_step:
            self.residuals.commit(finite, (piece.name for piece in pieces))
            self.memory.keep_if(finite, (piece.name for piece in pieces))
        self.reads.spoil(finite, [piece.flat for piece in pieces])
        if finite is not None:
            self.recording.verdicts.append(finite)
        return finite

    def _discard_group(self, pieces: Sequence[Piece]) -> None:
        """Restore a group's residuals, since some rank's gradient was not finite."""
        for piece in pieces:
            self.residuals.undo(piece.name, piece.flat)

    # dense: as plain DDP does, without a copy if the tensors are contiguous in one buffer and have no residuals

    def _average_dense(self, pieces: Sequence[Piece], plan: Plan, buffer: torch.Tensor | None) -> Job[Finite]:
        """Average a group dense, by one all-reduce; the sum is finite only if every rank's gradient was finite.

        Residuals from earlier compressed steps are added first. A rank may have residuals that another rank lacks.
        Therefore the all-reduce is the same with and without residuals.
        """
        has_residuals = any(piece.name in self.residuals.by_name for piece in pieces)
        gradients_with_residuals = self._add_residuals_dense(pieces, plan) if has_residuals or plan.shadow_cfs else []
        if gradients_with_residuals and has_residuals:
            buffer = None
            tensors = [x.to(piece.flat.dtype) for x, piece in zip(gradients_with_residuals, pieces, strict=True)]
        else:
            tensors = [piece.flat for piece in pieces]
        mean = yield from self._dense_mean(tensors, buffer, plan.choice.compressor.wire_dtype(pieces[0].flat.dtype))
        finite: Finite = None
        if has_residuals or self.residuals.wait_for_step or self.residuals.checks_group_means:
            finite = all_finite([energy(mean)])
        if self.residuals.checks_group_means:
            finite = yield from everywhere(self._executor, finite)
        if self.reads.known(finite) is False:
            self._discard_group(pieces)
            return self._end_group(pieces, finite)
        for piece, x in zip(pieces, gradients_with_residuals, strict=False):
            if x is not piece.flat:
                self.residuals.pend(piece.name, None)
        if buffer is None:
            for piece, part in zip(pieces, torch.split(mean, [piece.flat.numel() for piece in pieces]), strict=True):
                piece.flat.copy_(part)
        elif mean is not buffer:
            buffer.copy_(mean)
        return self._end_group(pieces, finite)

    def _dense_mean(
        self, tensors: Sequence[torch.Tensor], buffer: torch.Tensor | None, wire_dtype: torch.dtype
    ) -> Job[torch.Tensor]:
        """Return the mean over the ranks of flat tensors, joined to a flat tensor in ``wire_dtype``.

        Args:
            tensors: the tensors, all of one dtype; not changed.
            buffer: the tensors, joined, which may be overwritten; ``None``: they are not joined yet.
            wire_dtype: number format in which they are sent and summed.
        """
        is_last = not self._asks_other_shards
        flat = torch.cat([*tensors]) if buffer is None else buffer
        divides_before_sum = wire_dtype != flat.dtype or divides_first(self.world, wire_dtype)
        if wire_dtype != flat.dtype:
            wire_numbers = divide(flat, self.world, wire_dtype)
        else:
            wire_numbers = flat.mul_(1 / self.world) if divides_before_sum else flat
        del flat  # if it was converted, it is not needed while the sum is in flight
        results: list[torch.Tensor] = yield Round([AllReduce(wire_numbers)], is_last)
        return results[0] if divides_before_sum else results[0].mul_(1 / self.world)

    def _add_residuals_dense(self, pieces: Sequence[Piece], plan: Plan) -> list[torch.Tensor]:
        """Return each gradient plus its residual, flat, and add their energies (squared norms) to the measurement.

        Return ``[]`` if the host knows that a gradient is not finite.
        """
        energies = [energy(piece.flat) for piece in pieces]
        finite = all_finite(energies)
        known_finite = self.reads.known(finite)
        if known_finite is False:
            return []
        gradients_with_residuals: list[torch.Tensor] = []
        for piece, gradient_energy in zip(pieces, energies, strict=True):
            x = self.residuals.added_to(piece.name, piece.flat, keeps_unsent=False)
            finite_sum = x if known_finite else self.reads.choose(finite, x, torch.zeros_like(x))
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
