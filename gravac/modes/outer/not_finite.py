# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Refuses means of pseudo-gradients that are not finite: the anchor stays, and ranks that caused the mean are reset.

Otherwise a NaN on one rank would stay in the anchor of all ranks for good. How an exchange is refused:

1. The rank sends its pseudo-gradient, whose norm tells this rank whether it sends finite numbers. If not, the mean
   becomes NaN on every rank, and no rank changes a residual. Buffers are exchanged apart (``buffer_exchange.py``), so
   that a buffer that is not finite refuses no mean.
2. The mean arrives, with a flag that tells whether it is finite; the flag is the same on all ranks, also on those that
   hold other shards of the model. The mean is also not finite if a sum over the ranks overflowed.
3. A mean that is not finite is not applied: it is refused. The anchor, the outer optimizer's state and the anchors of
   buffers stay bit for bit as they were, and no controller learns anything of the round.
4. A rank that sent finite numbers keeps its own weights. What the rank learned is still the distance from the anchor,
   so the next pseudo-gradient contains it. Nothing is lost.
5. A rank whose own weights were not finite starts again from the anchor. Zeros replace what is not finite in its inner
   optimizer's state (``reset_rank``). The rank does so without waiting for the mean.
6. The host issues a warning, and counts the refused exchange. If no mean was applied in three consecutive rounds,
   ``NotFiniteError`` is raised, on all ranks before the same exchange. The anchor is finite then, and a checkpoint can
   be saved.

If the host must not look at tensors (GPU streams), whether the mean is finite is in a 0-d bool tensor. By this tensor
the device selects between old and new tensors in 3 and 4. The host reads the tensor, and does 5 and 6, two rounds
later: the device has computed the tensor by then.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gravac.modes.outer.anchor import Anchor, PendingMean

MAX_REFUSED_ROUNDS = 3
"""Number of consecutive rounds without an applied mean after which ``NotFiniteError`` is raised."""

MAX_NAMED = 3
"""Largest number of tensors that a warning names."""

COUNT_KEY = "step"
"""Key of the count of steps in the states of torch's optimizers; the count is not reset."""


class NotFiniteError(RuntimeError):
    """Error: the mean over the ranks was not finite in several consecutive rounds. The anchor is finite."""


class Refusals:
    """Record of a rank's refused exchanges: their mean was not finite, and was not applied.

    Args:
        anchor: weights that all ranks share, and this rank's own weights.
        inner: optimizers of the rank's own weights.

    Attributes:
        skipped: number of exchanges so far whose mean was not applied; the same on all ranks.
    """

    def __init__(self, anchor: Anchor, inner: Sequence[torch.optim.Optimizer]) -> None:
        self.skipped = 0
        self._anchor, self._inner_optimizers = anchor, inner
        self._applied_by_round: dict[int, bool] = {}
        """Whether the mean was applied, in rounds that ``check`` has not counted yet, by number of the round."""
        self._consecutive_rounds: list[int] = []  # numbers of the newest consecutive rounds without an applied mean
        self._refused_rounds: list[int] = []  # numbers of the newest few rounds whose mean was refused
        self._prepared_warnings: list[str] = []
        self._last_reset_round = self._counted_from_round = 0

    # this rank's tensors

    def reset_rank(self, pending: PendingMean, current_round: int) -> None:
        """Make this rank's weights and inner optimizer finite, after the rank sent NaN or infinities.

        The host looks at all of these tensors, and waits for them.

        Args:
            pending: pseudo-gradient that is not finite; its ``reset_text`` is set.
            current_round: number of the present round.
        """
        if pending.round_number < self._last_reset_round:
            pending.reset_text = "it sent its numbers before its weights restarted from the anchor"
        else:
            pending.reset_text = self._reset_not_finite(current_round, also_if_finite=True)

    def reset_before_saving(self, current_round: int) -> None:
        """Make this rank's weights and inner optimizers' states finite before they are saved.

        A saved state that is not finite could not be loaded again. The host waits for the device.

        Args:
            current_round: number of the present round.
        """
        weights = self._anchor.parameters.values()
        states = [state for optimizer in self._inner_optimizers for state in optimizer.state.values()]
        state_tensors = [tensor for state in states for key, tensor in _tensors_in(state) if key != COUNT_KEY]
        if any(map(_is_not_finite, (*weights, *state_tensors))):
            reset_text = self._reset_not_finite(current_round)
            self._prepared_warnings.append(
                f"gravac: round {current_round}: before the state was saved, gravac repaired this rank: {reset_text}"
            )

    def _reset_not_finite(self, current_round: int, also_if_finite: bool = False) -> str:
        """Make this rank's tensors finite; return a text that names the tensors that were not finite.

        If any weight is not finite, all weights are reset to the anchor. A tensor of an inner optimizer that is not
        finite is filled with zeros.

        Args:
            current_round: number of the present round.
            also_if_finite: whether to reset the weights also if all weights are finite. Set after this rank
                sent numbers that are not finite: the difference between weights and anchor then overflowed.
        """
        self._last_reset_round = current_round
        weight_names = [name for name, weight in self._anchor.parameters.items() if _is_not_finite(weight)]
        resets_weights = bool(weight_names) or also_if_finite
        if resets_weights:
            self._anchor.reset_parameters()
        zeroed_names = self._zero_inner_states()
        if not resets_weights:
            return (
                f"zeros replace tensors of its inner optimizer that are not finite: {_first_names_text(zeroed_names)}"
            )
        reset_text = (
            f"some of its tensors are not finite: {_first_names_text(weight_names)}"
            if weight_names
            else "the distance of its weights from the anchor overflowed"
        )
        reset_text += "; its weights restart from the anchor"
        if zeroed_names:
            reset_text += (
                f"; zeros replace tensors of its inner optimizer that are not finite: {_first_names_text(zeroed_names)}"
            )
        return reset_text

    def _zero_inner_states(self) -> list[str]:
        """Overwrite the inner optimizers' tensors that are not finite with zeros; return the tensors' names."""
        name_by_id = {id(weight): name for name, weight in self._anchor.parameters.items()}
        zeroed_names: list[str] = []
        for parameter, state in [entry for optimizer in self._inner_optimizers for entry in optimizer.state.items()]:
            keys_not_finite = [key for key, tensor in _tensors_in(state) if key != COUNT_KEY and _is_not_finite(tensor)]
            for key, tensor in _tensors_in(state):
                if key in keys_not_finite and _is_not_finite(tensor):
                    tensor.detach().zero_()
            zeroed_names += [
                f"{key} of {name_by_id.get(id(parameter), 'a parameter')}" for key in dict.fromkeys(keys_not_finite)
            ]
        return zeroed_names

    # applied or refused means, the same on all ranks

    def record(self, pending: PendingMean, applied: bool, rank: int, world: int) -> None:
        """Record whether a mean was applied, and prepare a warning if not.

        Args:
            pending: pseudo-gradient whose mean has arrived.
            applied: whether the mean was finite, and therefore applied.
            rank: number of this rank.
            world: number of ranks.
        """
        self._applied_by_round[pending.round_number] = applied
        if applied:
            return
        self.skipped += 1
        if pending.reset_text:
            cause = f"rank {rank} is a cause: {pending.reset_text}"
        else:
            causing_rank = f"rank {1 - rank}" if world == 2 else "another rank"
            cause = (
                f"rank {rank} sent finite numbers and keeps its own weights, whose changes it sends again in the next "
                f"round; the cause is {causing_rank}, whose own warning names the tensors, or a sum that overflowed"
            )
        self._prepared_warnings.append(
            f"gravac: round {pending.round_number}: the mean over the ranks is not finite and is not applied; {cause}"
        )

    def add_warnings(self, pending: PendingMean, texts: Sequence[str], rank: int) -> None:
        """Prepare warnings about the buffers that were sent with a pseudo-gradient.

        Args:
            pending: pseudo-gradient whose mean has arrived.
            texts: text of each warning.
            rank: number of this rank.
        """
        self._prepared_warnings += [f"gravac: round {pending.round_number}: rank {rank}: {text}" for text in texts]

    def warn(self) -> None:
        """Issue all prepared warnings. Called at points of training at which an exception does no harm."""
        texts, self._prepared_warnings = self._prepared_warnings, []
        for text in texts:
            warnings.warn(text, RuntimeWarning, stacklevel=5)

    def check(self, current_round: int, newest_round: int, delay_rounds: int = 0) -> None:
        """Issue warnings, and raise if too many consecutive rounds applied no mean.

        Called on all ranks before the same exchange. Training can continue if the caller catches the error: this rank's
        tensors are finite again, and the count of rounds begins anew with the present round.

        Args:
            current_round: number of the present round.
            newest_round: number of the newest round for which all ranks know whether its mean was applied.
            delay_rounds: number of rounds after which the host learns that a mean was refused; 0: at once. If round t
                was refused, the rank that caused this restarts from the anchor just before it sends round t +
                ``delay_rounds``, to which it contributes nothing. If that round is applied, the count of consecutive
                rounds does not start again from 0.

        Raises:
            NotFiniteError: no mean was applied in ``MAX_REFUSED_ROUNDS`` consecutive rounds.
        """
        self.warn()
        for round_number in sorted(
            round_number for round_number in self._applied_by_round if round_number <= newest_round
        ):
            applied = self._applied_by_round.pop(round_number)
            if round_number < self._counted_from_round:
                continue
            if not applied:
                self._refused_rounds = [*self._refused_rounds, round_number][-MAX_REFUSED_ROUNDS:]
                self._consecutive_rounds.append(round_number)
            elif not delay_rounds or round_number - delay_rounds not in self._refused_rounds:
                self._consecutive_rounds = []
        if len(self._consecutive_rounds) < MAX_REFUSED_ROUNDS:
            return
        round_numbers, self._consecutive_rounds, self._counted_from_round = self._consecutive_rounds, [], current_round
        self._reset_not_finite(current_round)
        raise NotFiniteError(
            f"gravac: rounds {', '.join(map(str, round_numbers))}: the mean of the ranks' weight changes was not "
            "finite in any of them, so training makes no progress. The weights that all ranks share (shared_weights(), "
            "state_dict(), gravac.checkpoint.save) are finite: they exclude these rounds. Lower the learning rate, "
            "clip gradients, or scale the loss (torch.amp.GradScaler, for float16); earlier "
            "warnings name rounds, ranks and tensors"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain values: number of refused exchanges, and which rounds were applied or refused."""
        applied_by_round = [[number, applied] for number, applied in self._applied_by_round.items()]
        counts = {"skipped": self.skipped, "counted_from": self._counted_from_round}
        return {
            **counts,
            "on_end": [*self._consecutive_rounds],
            "refused": [*self._refused_rounds],
            "verdicts": applied_by_round,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that ``state_dict`` returned."""
        self.skipped, self._consecutive_rounds = state["skipped"], [*state["on_end"]]
        self._refused_rounds = [*state["refused"]]
        self._applied_by_round = dict(state["verdicts"])
        self._prepared_warnings, self._last_reset_round, self._counted_from_round = [], 0, state["counted_from"]


def _tensors_in(state: Any, key: str = "") -> list[tuple[str, torch.Tensor]]:
    """Return ``(key, tensor)`` for each tensor in a parameter's optimizer state.

    Tensors within a list, tuple or dict of the state have the key of that container.
    """
    if torch.is_tensor(state):
        return [(key, state)]
    if isinstance(state, Mapping):
        return [named_tensor for name, entry in state.items() for named_tensor in _tensors_in(entry, key or str(name))]
    if isinstance(state, list | tuple):
        return [named_tensor for entry in state for named_tensor in _tensors_in(entry, key)]
    return []


def _is_not_finite(tensor: torch.Tensor) -> bool:
    """True if a tensor has a number that is not finite. The host waits for the tensor."""
    return not bool(torch.isfinite(tensor.detach()).all())


def _first_names_text(names: Sequence[str]) -> str:
    """Return a text with the first ``MAX_NAMED`` names, and the number of further names."""
    unnamed_count = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {unnamed_count} more" if unnamed_count > 0 else "")
