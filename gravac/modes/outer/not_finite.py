# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Refuses means that are not finite: anchors stay as they are, and the ranks that caused the mean are reset.

Otherwise a NaN on one rank would stay in every anchor for good. How a fragment's exchange is refused:

1. The fragment is sent. The norm of its pseudo-gradient tells this rank whether it sends finite numbers. If not,
   everything that is sent with the fragment (also buffers, with the last fragment) becomes NaN on every rank, and no
   rank changes a residual.
2. The mean arrives. Its norm tells whether it is finite (the verdict). All ranks have the same mean, so all have the
   same verdict without another exchange. The mean is also not finite if a sum over the ranks overflowed.
3. A mean that is not finite is not applied. Anchors, the outer optimizer's state and the anchors of buffers stay bit
   for bit as they were, and no controller learns anything of the round. Each fragment has its own verdict.
4. A rank that sent finite numbers keeps its own weights. What the rank learned is still the distance from the anchor,
   so the next pseudo-gradient contains it. Nothing is lost.
5. A rank whose own weights were not finite starts again from the anchor. Zeros replace what is not finite in its inner
   optimizer's state (``mend``). The rank needs no verdict for that, and does not wait for one.
6. The host warns and counts. If no fragment was applied in three consecutive rounds, ``NotFiniteError`` is raised, on
   all ranks before the same exchange. The anchor is finite then, and a checkpoint can be saved.

If the host must not look at tensors (GPU streams), the verdict is a 0-d bool tensor, by which the device itself does 3
and 4. The host reads the verdict, and does 5 and 6, when the next round but one begins: the device has computed it by
then.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gravac.modes.outer.buffers import Buffers
from gravac.modes.outer.fragments import Fragment, PendingFragment

ROUNDS_ON_END = 3
"""Number of consecutive rounds without an applied fragment after which training ends."""

MAX_NAMED = 3
"""Largest number of tensors that a warning names."""

COUNT_KEY = "step"
"""Key of the count of steps in the states of torch's optimizers, which is not reset."""


class NotFiniteError(RuntimeError):
    """The mean over the ranks was not finite in several consecutive rounds; the anchor is finite."""


class Refusals:
    """Record of the refused exchanges on one rank.

    Args:
        fragments: fragments of the model, in the order in which they are sent.
        buffers: the model's buffers, which are sent with the last fragment.
        inner: optimizers of the rank's own weights.

    Attributes:
        skipped: number of exchanges so far, each of one fragment, whose mean was not applied; the same on all ranks.
    """

    def __init__(self, fragments: Sequence[Fragment], buffers: Buffers, inner: Sequence[torch.optim.Optimizer]) -> None:
        self.skipped = 0
        self._fragments, self._buffers, self._inner = fragments, buffers, inner
        self._verdicts: dict[int, list[bool]] = {}  # of rounds that are not over, by fragment
        self._consecutive: list[int] = []  # newest consecutive rounds without an applied fragment
        self._refused: list[int] = []  # newest few rounds with a refused fragment
        self._warnings: list[str] = []
        self._mended_in = self._counted_from = 0

    # this rank's tensors

    def mend(self, pending: PendingFragment, current: int) -> None:
        """Make this rank's weights, buffers and inner optimizer finite again, after it sent numbers that were not.

        The host looks at all of these tensors, and waits for them.

        Args:
            pending: pseudo-gradient that is not finite.
            current: number of the present round.
        """
        if pending.number < self._mended_in:
            pending.mended = "it left before this rank started again"
        else:
            pending.mended = self._mend(current, far=True)

    def mend_before_saving(self, current: int) -> None:
        """Make this rank's tensors finite, since a state that is not finite could not be loaded. The host waits.

        Args:
            current: number of the present round.
        """
        weights = [weight for fragment in self._fragments for weight in fragment.parameters.values()]
        states = [state for optimizer in self._inner for state in optimizer.state.values()]
        moments = [tensor for state in states for key, tensor in _tensors(state) if key != COUNT_KEY]
        if any(map(_spoilt, (*weights, *moments))) or self._buffers.spoilt:
            self._warnings.append(f"gravac: round {current}, before it was saved, this rank is {self._mend(current)}")

    def _mend(self, current: int, far: bool = False) -> str:
        """Replace tensors that are not finite by anchors and zeros; return a text that says which they were.

        Args:
            current: number of the present round.
            far: whether, if all tensors are finite, the text says that weights were too far from the anchor.
        """
        self._mended_in = current
        weights = [
            name for fragment in self._fragments for name, weight in fragment.parameters.items() if _spoilt(weight)
        ]
        buffers = self._buffers.mend()
        resets = bool(weights) or (far and not buffers)
        if resets:
            self._reset_to_anchors()
        names = [*weights, *(f"buffer {name}" for name in buffers)]
        text = f"not finite: {_listed(names)}" if names else "its distance from the anchor overflowed"
        text += "; it starts again from the anchor" if resets else "; the anchor's replaces it"
        if zeroed := self._zero_inner():
            text += f"; zeros replace what is not finite in its inner optimizer: {_listed(zeroed)}"
        return text

    def _reset_to_anchors(self) -> None:
        for fragment in self._fragments:
            fragment.reset_to_anchors()

    def _zero_inner(self) -> list[str]:
        """Overwrite what is not finite in the inner optimizers' tensors with zeros; return the tensors' names."""
        names = {id(weight): name for fragment in self._fragments for name, weight in fragment.parameters.items()}
        zeroed: list[str] = []
        for parameter, state in [pair for optimizer in self._inner for pair in optimizer.state.items()]:
            spoilt_keys = [key for key, tensor in _tensors(state) if key != COUNT_KEY and _spoilt(tensor)]
            for key, tensor in _tensors(state):
                if key in spoilt_keys and _spoilt(tensor):
                    tensor.detach().zero_()
            zeroed += [f"{key} of {names.get(id(parameter), 'a parameter')}" for key in dict.fromkeys(spoilt_keys)]
        return zeroed

    # verdicts, the same on all ranks

    def record(self, pending: PendingFragment, position: int, applied: bool, rank: int, world: int) -> None:
        """Record whether a fragment's mean was applied, and prepare a warning if not.

        Args:
            pending: fragment that arrived.
            position: position of the fragment in the order in which fragments are sent.
            applied: verdict.
            rank: number of this rank.
            world: number of ranks.
        """
        self._verdicts.setdefault(pending.number, []).append(applied)
        if applied:
            return
        self.skipped += 1
        location = f"round {pending.number}"
        if len(self._fragments) > 1:
            location += f", fragment {position + 1} of {len(self._fragments)}"
        if pending.mended:
            cause = f"rank {rank} is the cause, or a cause: {pending.mended}"
        else:
            others = f"rank {1 - rank}" if world == 2 else "another rank"
            cause = (
                f"rank {rank} sent finite numbers, keeps its own weights, and what it learned leaves with the next "
                f"round; the cause is {others}, whose own warning names the tensors, or a sum that overflowed"
            )
        self._warnings.append(f"gravac: {location}: the mean over the ranks is not finite and is not applied; {cause}")

    def warn(self) -> None:
        """Issue all prepared warnings; called at points of training at which an exception does no harm."""
        texts, self._warnings = self._warnings, []
        for text in texts:
            warnings.warn(text, RuntimeWarning, stacklevel=5)

    def check(self, current: int, newest: int, verdict_delay: int = 0) -> None:
        """Warn, and end training if too many consecutive rounds were refused.

        Called on all ranks before the same exchange. Training can continue if the caller catches the error: this rank's
        tensors are finite again, and rounds that have been sent do not count again.

        Args:
            current: number of the present round.
            newest: number of the newest round whose verdicts all ranks know.
            verdict_delay: number of rounds after which the host learns of a refusal. Only then the rank that caused the
                refusal restarts from the anchor, just before it sends a round. That round does not count as a success,
                since the rank contributed nothing to it.

        Raises:
            NotFiniteError: no fragment was applied in ``ROUNDS_ON_END`` consecutive rounds.
        """
        self.warn()
        for number in sorted(recorded for recorded in self._verdicts if recorded <= newest):
            verdicts = self._verdicts.pop(number)
            if number < self._counted_from:
                continue
            if not all(verdicts):
                self._refused = [*self._refused, number][-ROUNDS_ON_END:]
            if not any(verdicts):
                self._consecutive.append(number)
            elif not verdict_delay or number - verdict_delay not in self._refused:
                self._consecutive = []
        if len(self._consecutive) < ROUNDS_ON_END:
            return
        numbers, self._consecutive, self._counted_from = self._consecutive, [], current
        self._mend(current)
        raise NotFiniteError(
            f"gravac: rounds {', '.join(map(str, numbers))}: the mean over the ranks was not finite in any of them, so "
            "training makes no progress. The anchor is finite, since it excludes these rounds: synced(), "
            "state_dict() and gravac.checkpoint.save still work. Lower the learning rate, clip gradients, or scale the "
            "loss (torch.amp.GradScaler, for float16); the warnings before this name rounds, ranks and tensors"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state: counts, and the numbers of refused rounds, as plain values."""
        verdicts = [[number, [*of_round]] for number, of_round in self._verdicts.items()]
        counts = {"skipped": self.skipped, "counted_from": self._counted_from}
        return {**counts, "on_end": [*self._consecutive], "refused": [*self._refused], "verdicts": verdicts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state."""
        self.skipped, self._consecutive = state["skipped"], [*state["on_end"]]
        self._refused = [*state["refused"]]
        self._verdicts = {number: [*of_round] for number, of_round in state["verdicts"]}
        self._warnings, self._mended_in, self._counted_from = [], 0, state["counted_from"]


def _tensors(state: Any, key: str = "") -> list[tuple[str, torch.Tensor]]:
    """Return the tensors in an optimizer's state of a parameter, with their keys, including those in containers."""
    if torch.is_tensor(state):
        return [(key, state)]
    if isinstance(state, Mapping):
        return [pair for name, entry in state.items() for pair in _tensors(entry, key or str(name))]
    if isinstance(state, list | tuple):
        return [pair for entry in state for pair in _tensors(entry, key)]
    return []


def _spoilt(tensor: torch.Tensor) -> bool:
    """True if a tensor has a number that is not finite; the host waits."""
    return not bool(torch.isfinite(tensor.detach()).all())


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
