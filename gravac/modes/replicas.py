# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Checks, while ranks exchange gradients in each step, that they hold the same weights; ends the run if they do not.

After some training steps the ranks compare a checksum of all tensors that the exchange keeps the same:

1. The checksum is computed when the first optimizer's step after the exchange ends, outside of any other optimizer's
   step. A program may give ranks different weights at other points, such as within an optimizer's step, or in the
   forward and backward of SAM. If no optimizer's step was seen, it is computed when the next forward begins.
2. When the next forward begins, the ranks begin to sum the checksum's pieces. The sums show whether all ranks have the
   same checksum.
3. One training step later, when a forward begins, each rank reads the sums. All ranks do so at the same point. If
   checksums differ, rank 0 sends its tensors, and the others compare their own (``replica_differences``). The run ends
   by a ``ReplicasDifferError`` on all ranks if a tensor differs by more than the rounding of different processors.

A step is counted when a forward with gradients begins after gradients were exchanged: the same on all ranks, since
each exchange needs all ranks.
"""

import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch._compile import _disable_dynamo

from gravac.engine.engine import Engine
from gravac.engine.handle import RankSums
from gravac.exchange.reading import Number
from gravac.modes.checksum import checksum_of
from gravac.modes.replica_differences import ReplicatedTensor, Verdict, differences_from_first
from gravac.sources.hooks import NO_BACKWARD

FIRST_INTERVAL = 4
"""Number of training steps from the run's start, or from the end of outer steps, to the first check."""

LARGEST_INTERVAL = 1000
"""Largest number of training steps between two checks; each interval is twice the last, up to this number."""

PIECE_BITS = 16
"""Number of bits of each piece that ranks cut a checksum into, so that float64 sums of squares are exact."""

SUMS_PER_CHECKSUM = 2 * 64 // PIECE_BITS
"""Number of numbers that ranks sum for a checksum: the pieces and their squares."""

STATE_KEYS = frozenset({
    "step", "momentum_buffer", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "square_avg", "grad_avg",
    "acc_delta", "sum", "eta", "mu", "ax", "mu_product", "prev", "step_size", "row_var", "col_var", "variance",
})  # fmt: skip
"""Keys of the optimizer states that are compared: those that torch's optimizers compute from averaged gradients. Under
other keys, programs store tensors that may differ between ranks, such as SAM's perturbations."""


class ReplicasDifferError(RuntimeError):
    """Ranks hold different weights or optimizer states, although each step's gradients were averaged.

    Raised on every rank when a forward begins. The message names the number of training steps, the first tensor that
    differs, on which ranks, by how much, and likely causes.
    """


def due_steps(every_step: bool = False) -> Iterator[int]:
    """Yield the numbers of training steps after which ranks compare checksums, without end.

    Args:
        every_step: whether ranks compare after each step.

    Example:
        >>> from itertools import islice
        >>> [*islice(due_steps(), 10)]
        [4, 12, 28, 60, 124, 252, 508, 1020, 2020, 3020]
    """
    step, interval = 0, 1 if every_step else FIRST_INTERVAL
    while True:
        step += interval
        yield step
        interval = 1 if every_step else min(2 * interval, LARGEST_INTERVAL)


def numbers_to_sum(checksum: torch.Tensor) -> torch.Tensor:
    """Return the numbers that ranks sum to compare a checksum: its pieces and their squares.

    Args:
        checksum: 0-d int64 tensor.

    Returns:
        Float64 tensor of shape ``[SUMS_PER_CHECKSUM]`` on the same device.
    """
    shifts = torch.arange(0, 64, PIECE_BITS, dtype=torch.int64, device=checksum.device)
    pieces = ((checksum >> shifts) & ((1 << PIECE_BITS) - 1)).double()
    return torch.cat([pieces, pieces.square()])


def checksums_are_equal(sums: Sequence[float], ranks: int) -> bool:
    """Return whether all ranks have the same checksum.

    Numbers are equal exactly if ``ranks * (sum of their squares) == (their sum) ** 2``.

    Args:
        sums: sums of ``numbers_to_sum`` over the ranks.
        ranks: number of ranks, below 2^20.
    """
    piece_sums, square_sums = sums[: SUMS_PER_CHECKSUM // 2], sums[SUMS_PER_CHECKSUM // 2 :]
    return all(
        ranks * int(square_sum) == int(piece_sum) ** 2
        for piece_sum, square_sum in zip(piece_sums, square_sums, strict=True)
    )


@dataclass(frozen=True, slots=True)
class ReplicaGroup:
    """Which ranks hold the same tensors as this rank, among the ranks that agree on decisions.

    Attributes:
        position: position, among the ranks that agree, of the first rank that holds the same tensors.
        agree_ranks: number of ranks that agree, if only some of them hold the same tensors, as with HSDP; 1 if all of
            them do.
    """

    position: int = 0
    agree_ranks: int = 1

    @classmethod
    def of(cls, group: dist.ProcessGroup | None, agree_group: dist.ProcessGroup | None) -> "ReplicaGroup":
        """Return the replica group of this rank.

        Args:
            group: group of the ranks that average and therefore hold the same tensors; ``None``: the default group.
            agree_group: group of the ranks that agree on decisions; ``None``: those that average.
        """
        if agree_group is None:
            return cls()
        agree_ranks = dist.get_process_group_ranks(agree_group)
        return cls(agree_ranks.index(dist.get_process_group_ranks(group)[0]), len(agree_ranks))


class ReplicaGuard:
    """Compares checksums of weights and optimizer states over the ranks, and ends the run if they differ.

    Args:
        engine: object that sums numbers over the ranks.
        parameters: function that returns the parameters that the exchange keeps the same on all ranks, by name, whether
            they require a gradient or not. They may be ``DTensor``: this rank's shards are compared.
        optimizers: optimizers that train the module, as given to ``attach``.
        replica_group: which ranks hold the same tensors.
        every_step: whether ranks compare after each step, and wait for the result.
    """

    def __init__(
        self,
        engine: Engine,
        parameters: Callable[[], Mapping[str, torch.Tensor]],
        optimizers: Sequence[torch.optim.Optimizer],
        replica_group: ReplicaGroup,
        every_step: bool = False,
    ) -> None:
        self._engine, self._parameters = engine, parameters
        self._replica_group, self._every_step = replica_group, every_step
        self._given_optimizers = [*map(weakref.ref, optimizers)]
        self._further_optimizers: list[weakref.ref[torch.optim.Optimizer]] = []  # not given to ``attach``
        self._initially_trained = {name for name, parameter in parameters().items() if parameter.requires_grad}
        self._uncompared_classes: set[str] = set()  # names of optimizer classes whose states are not compared
        self._samples_at_forward = False  # True: an optimizer's step may end with weights that differ between ranks
        self._has_warned = self._has_made_outer_steps = False
        self._uncounted_steps = 0  # training steps made that the engine's state does not count yet
        self._last_hook_step: Future[Any] | None = None
        self._rank_sums: RankSums | None = None
        self._start_counting()

    def _start_counting(self) -> None:
        """Count steps from now on, since ranks hold the same weights."""
        self._steps = self._steps_when_sent = self._steps_when_equal = 0
        self._due_steps = due_steps(self._every_step)
        self._due_step = next(self._due_steps)
        self._checksum: torch.Tensor | None = None
        self._waits_for_optimizer = self._due_step == 1

    def outer_steps_begin(self) -> None:
        """Finish the check in flight, before ranks train apart. Called on every rank when outer steps begin.

        Raises:
            ReplicasDifferError: ranks hold different tensors.
        """
        self._read_sums()

    def outer_steps_end(self) -> None:
        """Start anew, since ranks hold the same weights. Called on every rank when outer steps end."""
        self._has_made_outer_steps = True
        self._start_counting()

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Add an optimizer that trains parameters of the module; does nothing if the optimizer is known."""
        if not any(known_ref() is optimizer for known_ref in (*self._given_optimizers, *self._further_optimizers)):
            living_references = [known_ref for known_ref in self._further_optimizers if known_ref() is not None]
            self._further_optimizers = [*living_references, weakref.ref(optimizer)]

    @_disable_dynamo
    def optimizer_stepped(self, optimizer: torch.optim.Optimizer) -> None:
        """Compute the checksum if it is due. Called when an optimizer's step has ended, within no other's step."""
        self.add_optimizer(optimizer)
        if not self._waits_for_optimizer or self._samples_at_forward:
            return
        is_captured = self._engine.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        if torch._C._current_graph_task_id() == NO_BACKWARD and not is_captured:
            self._compute_checksum()

    def hook_forward_starts(self, last_step: "Future[Any] | None") -> None:
        """Read whether checksums differed, and send the next checksum if it is due. Called in hook mode.

        Called by all ranks at each forward with gradients.

        Args:
            last_step: future that ``Engine.begin`` returned for the last step; ``None``: the mode has made no step.

        Raises:
            ReplicasDifferError: ranks hold different tensors.
        """
        has_failed = last_step is not None and last_step.done() and last_step.exception() is not None
        exchanged = last_step is not None and last_step is not self._last_hook_step and not has_failed
        self._last_hook_step = last_step
        self._uncounted_steps = 0
        self._forward_starts(exchanged)

    def native_forward_starts(self, exchanged: bool) -> bool:
        """Read whether checksums differed, and send the next checksum if it is due. Called in native mode.

        Called by all ranks at each forward with gradients, before the last step is counted.

        Args:
            exchanged: whether gradients were exchanged since the last call; the same on all ranks.

        Returns:
            Whether the last step took longer than usual, because a checksum was computed.

        Raises:
            ReplicasDifferError: ranks hold different tensors.
        """
        self._uncounted_steps = 1
        return self._forward_starts(exchanged)

    def _forward_starts(self, exchanged: bool) -> bool:
        """Implement ``native_forward_starts`` and ``hook_forward_starts``."""
        if not exchanged or not self._engine.ready_to_run or self._engine.executor.world == 1:
            return False
        self._steps += 1
        self._read_sums()
        is_due = self._steps == self._due_step
        if is_due:
            self._send_checksum()
            self._due_step = next(self._due_steps)
        self._waits_for_optimizer = self._steps + 1 == self._due_step
        return is_due and not self._every_step

    # checksums

    def _compute_checksum(self) -> None:
        """Compute this rank's checksum; the host does not wait for a GPU."""
        self._waits_for_optimizer = False
        tensor_by_label = {label: entry.tensor for label, entry in self._tensors().items() if entry.is_trained}
        with torch.no_grad():
            self._checksum = checksum_of([*tensor_by_label], [*tensor_by_label.values()])

    def _send_checksum(self) -> None:
        """Begin to sum the checksum's pieces over the ranks; compute the checksum if no optimizer's step did."""
        if self._checksum is None:
            self._compute_checksum()
        assert self._checksum is not None
        own_numbers = numbers_to_sum(self._checksum)
        self._checksum, self._steps_when_sent = None, self._steps
        numbers: list[Number] = [0.0] * (SUMS_PER_CHECKSUM * self._replica_group.agree_ranks)
        first_slot = SUMS_PER_CHECKSUM * self._replica_group.position
        numbers[first_slot : first_slot + SUMS_PER_CHECKSUM] = self._engine.executor.numbers([*own_numbers])
        self._rank_sums = self._engine.sum_over_ranks("the ranks' checksums of weights", numbers)
        if self._every_step:
            self._read_sums()

    def _read_sums(self) -> None:
        """Read the sums in flight, if there are any; compare tensors over the ranks if checksums differ."""
        if self._rank_sums is None:
            return
        rank_sums, self._rank_sums = self._rank_sums, None
        sums, world = rank_sums.result(), self._engine.executor.world
        slots = (sums[start : start + SUMS_PER_CHECKSUM] for start in range(0, len(sums), SUMS_PER_CHECKSUM))
        if all(checksums_are_equal(slot, world) for slot in slots if any(slot)):
            self._steps_when_equal = self._steps_when_sent
        else:
            self._compare_tensors()

    def _tensors(self) -> dict[str, ReplicatedTensor]:
        """Return all tensors that are the same on all ranks of the replica group, by a text that names the tensor.

        This rank's shards take the place of each ``DTensor``. Parameters that require no gradient are contained, too,
        since they may require one on another rank.
        """
        parameters = self._parameters()
        name_by_id = {id(parameter): name for name, parameter in parameters.items()}
        entries = {
            f"parameter {name}": ReplicatedTensor(
                _local(parameter), name, is_trained=parameter.requires_grad or name in self._initially_trained
            )
            for name, parameter in parameters.items()
        }
        for optimizer in _living((*self._given_optimizers, *self._further_optimizers)):
            class_name = type(optimizer).__name__
            if class_name in self._uncompared_classes:
                continue
            for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"]):
                name = name_by_id.get(id(parameter))
                if name is None:
                    continue
                states: dict[Any, Any] = optimizer.state.get(parameter, {})
                for key in sorted(STATE_KEYS & states.keys()):
                    if isinstance(states[key], torch.Tensor):
                        entries[f"the state {key!r} of parameter {name} in {class_name}"] = ReplicatedTensor(
                            _local(states[key]),
                            name,
                            is_trained=entries[f"parameter {name}"].is_trained,
                            optimizer_class=class_name,
                            belongs_to_torch=type(optimizer).__module__.startswith("torch.optim"),
                        )
        return {label: entry for label, entry in entries.items() if _is_plain(entry.tensor)}

    # differences

    def _compare_tensors(self) -> None:
        """Compare all tensors with those of the first replica, and act on the differences: end, warn or do nothing.

        Raises:
            ReplicasDifferError: a tensor differs by more than rounding.
        """
        engine = self._engine
        job = differences_from_first(self._tensors(), engine.device, self._steps - self._steps_when_equal)
        verdict = engine.run_between_steps("tensors that should be the same on all ranks", job).result()
        self._uncompared_classes |= verdict.uncompared_classes
        self._samples_at_forward |= not verdict.has_differences
        ends, rounds = self._ranks_with(verdict.ends), self._ranks_with(verdict.is_rounding)
        if ends:
            raise ReplicasDifferError(self._error_text(verdict, ends))
        if rounds and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"gravac: after {self._trained_steps} training steps, {self._differences_text(verdict, rounds)}, which "
                "is no more than rounding, as on processors of different types; training continues, and this warning "
                "is not repeated",
                RuntimeWarning,
                stacklevel=2,
            )

    def _ranks_with(self, is_true: bool) -> list[int]:
        """Return for which of the ranks that agree on decisions a fact is true; the same on all of them."""
        executor = self._engine.executor
        flags = [0.0] * executor.agree_world
        flags[executor.agree_rank] = float(is_true)
        rank_sums = self._engine.sum_over_ranks("which ranks hold other weights", flags)
        return [rank for rank, flag in enumerate(rank_sums.result()) if flag]

    @property
    def _trained_steps(self) -> int:
        """Number of training steps made."""
        return self._engine.state.trained + self._engine.state.native.made + self._uncounted_steps

    def _error_text(self, verdict: Verdict, ranks: Sequence[int]) -> str:
        """Return the message of the error that ends the run.

        Args:
            verdict: differences among the ranks that hold the same tensors as this rank.
            ranks: ranks with differences, among those that agree on decisions.
        """
        name = verdict.first.parameter_name if verdict.first is not None else ""
        unaveraged = name not in self._initially_trained and any(
            parameter.requires_grad for known_name, parameter in self._parameters().items() if known_name == name
        )
        further_classes = sorted({type(optimizer).__name__ for optimizer in _living(self._further_optimizers)})
        known_causes, general_causes = [], ["weights or optimizer states were changed or loaded on one rank only"]
        if unaveraged:
            known_causes.append(
                f"the parameter {name} required no gradient when attach was called, and DistributedDataParallel "
                "averages only gradients of parameters that required one when it was created"
            )
        else:
            general_causes.append("a parameter required no gradient when DistributedDataParallel was created")
        if further_classes and self._has_made_outer_steps:
            known_causes.append(
                f"{', '.join(further_classes)} made steps but was not given to attach, so gravac did not save and "
                "restore its state in outer steps; give attach all optimizers"
            )
        general_causes.append("an optimizer steps in a gradient hook")
        general_causes.append("the optimizer draws random numbers that differ between ranks")
        known_text = f"the cause is probably that {'; and that '.join(known_causes)}; " if known_causes else ""
        return (
            f"gravac: after {self._trained_steps} training steps, {self._differences_text(verdict, ranks)}, although "
            f"gradients were averaged in each step; {known_text}{'other' if known_causes else 'likely'} causes: "
            f"{'; '.join(general_causes)}; set GRAVAC=check in the environment to find the first step after which "
            "ranks differ"
        )

    def _differences_text(self, verdict: Verdict, ranks: Sequence[int]) -> str:
        """Return a clause that says what differs, on which ranks, and by how much.

        Args:
            verdict: differences among the ranks that hold the same tensors as this rank.
            ranks: ranks with differences, among those that agree on decisions.
        """
        difference = verdict.first
        if difference is None:
            return (
                f"ranks {', '.join(map(str, ranks))} hold the same shards, but not the same weights, as the messages "
                "of these ranks say"
            )
        executor = self._engine.executor
        noun = "replica" if executor.agree_world > executor.world else "rank"
        ranks_text = f"{noun}{'s' * (len(difference.ranks) > 1)} {', '.join(map(str, difference.ranks))}"
        return (
            f"{difference.label} on {ranks_text} differs from that on {noun} 0 by up to {difference.distance:.3g} (its "
            f"largest element is {difference.magnitude:.3g}"
            + (
                f"; number of further tensors that differ: {difference.further_tensors})"
                if difference.further_tensors
                else ")"
            )
        )

    # steps without a switch


def _living(references: Iterable["weakref.ref[torch.optim.Optimizer]"]) -> Iterator[torch.optim.Optimizer]:
    """Yield the optimizers that still exist."""
    return (optimizer for reference in references if (optimizer := reference()) is not None)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's shard of a ``DTensor``, detached; the tensor itself, detached, if it is no ``DTensor``."""
    to_local = getattr(tensor, "to_local", None)  # importing DTensor takes long
    return (tensor if to_local is None else to_local()).detach()


def _is_plain(tensor: torch.Tensor) -> bool:
    """True if a tensor is dense, not quantized, and of no subclass, so that its bytes can be compared."""
    is_plain_type = type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    return is_plain_type and tensor.layout == torch.strided and not tensor.is_quantized and not tensor.is_meta
