# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Means that are not finite: no anchor takes one, and what becomes of the ranks meanwhile.

One NaN on one rank would be in every anchor for good. The life of a fragment's exchange that is refused:

1. The fragment leaves. The norm of its pseudo-gradient tells this rank whether it sends finite numbers. If not, all
   that leaves with the fragment (buffers with the last one) is NaN on every rank, and no rank changes a residual.
2. The mean arrives. Its norm is the verdict: all ranks have the same mean, so they share the verdict without talking.
   It is also not finite where a sum over the ranks overflowed.
3. A mean that is not finite is not applied. Anchors, the outer optimizer's state and the anchors of buffers stay bit
   for bit as they were, and no controller learns anything of the round. Each fragment has its own verdict.
4. A rank that sent finite numbers keeps its own weights. What it learned is still its distance from the anchor, so the
   next pseudo-gradient has it. Nothing is lost.
5. A rank whose own weights were not finite starts again from the anchor, and zeros take the place of what is not finite
   in its inner optimizer's state (``mend``). It needs no verdict for that, and does not wait for one.
6. The host warns and counts. Three rounds on end in which no fragment was applied end in ``NotFiniteError``, on all
   ranks before the same exchange. The anchor is good then, and a checkpoint can be saved.

Where the host must not look at tensors (GPU streams), the verdict is a 0-d bool tensor and masks do 3 and 4. The host
reads it, and does 5 and 6, when the next round but one begins: the executor has caught up with the device by then.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gravac.modes.outer.buffers import Buffers
from gravac.modes.outer.fragments import Fragment, Journey

ROUNDS_ON_END = 3
"""Number of rounds on end in which no fragment was applied that end training."""

NAMED = 3
"""Most tensors that a warning names."""

COUNT = "step"
"""Name that torch's optimizers give to a count of steps, which stays."""


class NotFiniteError(RuntimeError):
    """The mean over the ranks was not finite, several rounds on end; the anchor is good."""


class Refusals:
    """What one rank knows of exchanges that were refused.

    Args:
        fragments: parts of the model, in the order in which they leave.
        buffers: the model's buffers, which leave with the last fragment.
        inner: optimizers of the rank's own weights.

    Attributes:
        skipped: number of exchanges so far, each of one fragment, whose mean was not applied; the same on all ranks.
    """

    def __init__(self, fragments: Sequence[Fragment], buffers: Buffers, inner: Sequence[torch.optim.Optimizer]) -> None:
        self.skipped = 0
        self._fragments, self._buffers, self._inner = fragments, buffers, inner
        self._verdicts: dict[int, list[bool]] = {}  # of rounds that are not over, by fragment
        self._on_end: list[int] = []
        self._refused: list[int] = []  # rounds in which some fragment was, the last few
        self._warnings: list[str] = []
        self._mended_in = self._counted_from = 0

    # what this rank does about itself

    def mend(self, journey: Journey, now: int) -> None:
        """Make this rank's weights, buffers and inner optimizer finite again after it sent what is not.

        The host looks at all of them, and waits for that.

        Args:
            journey: pseudo-gradient that is not finite.
            now: number of the present round.
        """
        if journey.number < self._mended_in:
            journey.mended = "it left before this rank started again"
        else:
            journey.mended = self._mend(now, far=True)

    def mend_before_saving(self, now: int) -> None:
        """Make this rank finite again if it is not: a state that is not finite could not be loaded. The host looks.

        Args:
            now: number of the present round.
        """
        own = [own for fragment in self._fragments for own in fragment.parameters.values()]
        states = [state for optimizer in self._inner for state in optimizer.state.values()]
        kept = [tensor for state in states for key, tensor in _tensors(state) if key != COUNT]
        if any(map(_spoilt, (*own, *kept))) or self._buffers.spoilt:
            self._warnings.append(f"gravac: round {now}, before it was saved, this rank is {self._mend(now)}")

    def _mend(self, now: int, far: bool = False) -> str:
        """Put anchors and zeros in place of what is not finite; return in words what that was.

        Args:
            now: number of the present round.
            far: whether weights are too far from the anchor if nothing else explains what was sent.
        """
        self._mended_in = now
        weights = [name for fragment in self._fragments for name, own in fragment.parameters.items() if _spoilt(own)]
        buffers = self._buffers.mend()
        again = bool(weights) or (far and not buffers)
        if again:
            self._start_again()
        names = [*weights, *(f"buffer {name}" for name in buffers)]
        said = f"not finite: {_named(names)}" if names else "its distance from the anchor overflowed"
        said += "; it starts again from the anchor" if again else "; the anchor's replaces it"
        if zeroed := self._zero_inner():
            said += f"; zeros replace what is not finite in its inner optimizer: {_named(zeroed)}"
        return said

    def _start_again(self) -> None:
        for fragment in self._fragments:
            fragment.start_again()

    def _zero_inner(self) -> list[str]:
        """Put zeros in place of the inner optimizers' tensors that are not finite; return their names."""
        names = {id(own): name for fragment in self._fragments for name, own in fragment.parameters.items()}
        zeroed: list[str] = []
        for parameter, state in [pair for optimizer in self._inner for pair in optimizer.state.items()]:
            kept = [key for key, tensor in _tensors(state) if key != COUNT and _spoilt(tensor)]
            for key, tensor in _tensors(state):
                if key in kept and _spoilt(tensor):
                    tensor.detach().zero_()
            zeroed += [f"{key} of {names.get(id(parameter), 'a parameter')}" for key in dict.fromkeys(kept)]
        return zeroed

    # what all ranks know

    def learn(self, journey: Journey, position: int, applied: bool, rank: int, world: int) -> None:
        """Take note of a verdict.

        Args:
            journey: what arrived.
            position: place of its fragment.
            applied: verdict.
            rank: number of this rank.
            world: number of ranks.
        """
        self._verdicts.setdefault(journey.number, []).append(applied)
        if applied:
            return
        self.skipped += 1
        where = f"round {journey.number}"
        if len(self._fragments) > 1:
            where += f", fragment {position + 1} of {len(self._fragments)}"
        if journey.mended:
            own = f"rank {rank} is the cause, or a cause: {journey.mended}"
        else:
            others = f"rank {1 - rank}" if world == 2 else "another rank"
            own = (
                f"rank {rank} sent finite numbers, keeps its own weights, and what it learned leaves with the next "
                f"round; the cause is {others}, whose own warning names the tensors, or a sum that overflowed"
            )
        self._warnings.append(f"gravac: {where}: the mean over the ranks is not finite and is not applied; {own}")

    def tell(self) -> None:
        """Warn of what was learned since the last call; called where training may be interrupted."""
        told, self._warnings = self._warnings, []
        for text in told:
            warnings.warn(text, RuntimeWarning, stacklevel=5)

    def check(self, now: int, last: int, behind: int = 0) -> None:
        """Warn, and end training if too many rounds on end were refused.

        Called on all ranks before the same exchange. Whoever catches the error can go on training: what is not finite
        on this rank is mended, and rounds that have left by now do not count again.

        Args:
            now: number of the present round.
            last: number of the newest round whose verdicts all ranks know by now.
            behind: number of rounds after which the host learns of a refusal. A rank starts again then, just before it
                leaves, so that this round is applied without it, and does not show that training gets on.

        Raises:
            NotFiniteError: no fragment was applied in ``ROUNDS_ON_END`` rounds on end.
        """
        self.tell()
        for number in sorted(one for one in self._verdicts if one <= last):
            verdicts = self._verdicts.pop(number)
            if number < self._counted_from:
                continue
            if not all(verdicts):
                self._refused = [*self._refused, number][-ROUNDS_ON_END:]
            if not any(verdicts):
                self._on_end.append(number)
            elif not behind or number - behind not in self._refused:
                self._on_end = []
        if len(self._on_end) < ROUNDS_ON_END:
            return
        numbers, self._on_end, self._counted_from = self._on_end, [], now
        self._mend(now)
        raise NotFiniteError(
            f"gravac: rounds {', '.join(map(str, numbers))}: the mean over the ranks was not finite in any of them, so "
            f"training does not get on. The anchor is finite, and without them: synced(), "
            "state_dict() and gravac.checkpoint.save still work. Lower the learning rate, clip gradients, or scale the "
            "loss (torch.amp.GradScaler, for float16); the warnings before this name rounds, ranks and tensors"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the count, and the refused rounds on end, as plain values."""
        verdicts = [[number, [*them]] for number, them in self._verdicts.items()]
        counts = {"skipped": self.skipped, "counted_from": self._counted_from}
        return {**counts, "on_end": [*self._on_end], "refused": [*self._refused], "verdicts": verdicts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state."""
        self.skipped, self._on_end = state["skipped"], [*state["on_end"]]
        self._refused = [*state["refused"]]
        self._verdicts = {number: [*them] for number, them in state["verdicts"]}
        self._warnings, self._mended_in, self._counted_from = [], 0, state["counted_from"]


def _tensors(kept: Any, key: str = "") -> list[tuple[str, torch.Tensor]]:
    """Return the tensors that an optimizer keeps of a parameter, with their keys, also those within containers."""
    if torch.is_tensor(kept):
        return [(key, kept)]
    if isinstance(kept, Mapping):
        return [pair for name, one in kept.items() for pair in _tensors(one, key or str(name))]
    if isinstance(kept, list | tuple):
        return [pair for one in kept for pair in _tensors(one, key)]
    return []


def _spoilt(tensor: torch.Tensor) -> bool:
    """Whether some number of a tensor is not finite; the host waits."""
    return not bool(torch.isfinite(tensor.detach()).all())


def _named(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
