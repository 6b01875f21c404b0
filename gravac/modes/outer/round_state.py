# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The state of outer steps on one rank, a part of ``RunState``: the present round, fragments and buffers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from gravac.modes.outer.buffers import Buffers
from gravac.modes.outer.fragments import Fragment
from gravac.modes.outer.not_finite import Refusals
from gravac.modes.outer.shares import Shares

Phase = Literal["timing", "undecided", "decided", "training", "closing"]
"""Phase of a round.

- ``"timing"``: the rank times its first steps, before the first decision.
- ``"undecided"``: the number of steps of the round is not decided yet.
- ``"decided"``: the number of steps of the round, on average over the ranks, is decided.
- ``"training"``: the number of steps that this rank makes in the round is known, too.
- ``"closing"``: the controller chose another mode, so ranks must be made equal before the next step.
"""


@dataclass(slots=True, eq=False)
class RoundState:
    """State of outer steps on one rank.

    Attributes:
        fragments: fragments of the model, with their anchors, in the order in which they are sent.
        buffers: the model's buffers, which are sent with the last fragment.
        shares: computes each rank's number of steps in a round, and the weight of its pseudo-gradient.
        refusals: record of the exchanges whose mean was not finite, and was not applied.
        outer: optimizer of the anchors.
        inner: optimizers of the rank's own weights.
        phase: phase of the present round.
        ended: number of rounds whose last fragment has been sent.
        steps: number of steps that this rank made in all rounds.
        in_round: number of steps that this rank made in the present round.
        every: number of steps of the present round, on average over the ranks; 0 until it is decided.
        own_steps: number of steps that this rank makes in the present round; 0 before the phase ``"training"``.
        delay: number of steps that the round's exchange is in flight, on average over the ranks.
        late: number of fragments whose means arrived, and were applied, after their delay.
    """

    fragments: Sequence[Fragment]
    buffers: Buffers
    shares: Shares
    refusals: Refusals
    outer: torch.optim.Optimizer
    inner: Sequence[torch.optim.Optimizer]
    phase: Phase = "timing"
    ended: int = 0
    steps: int = 0
    in_round: int = 0
    every: int = 0
    own_steps: int = 0
    delay: int = 0
    late: int = 0

    @property
    def under_way(self) -> bool:
        """True if a fragment is in flight, or has a mean that is not applied yet."""
        return any(fragment.due_step is not None for fragment in self.fragments)

    def set_round(self, every: int, delay: int | None = None) -> None:
        """Set the number of steps that was decided for the present round, and its delay.

        Args:
            every: number of steps of the round, on average over the ranks.
            delay: number of steps that the round's exchange is in flight; ``None``: as in the last round.
        """
        self.phase, self.every = "decided", every
        self.delay = self.delay if delay is None else delay

    def set_own_steps(self, own_steps: int) -> None:
        """Set the number of steps that this rank makes in the present round."""
        self.phase, self.own_steps = "training", own_steps

    def begin_closing(self) -> None:
        """Enter the phase ``"closing"``: the controller chose another mode."""
        self.phase = "closing"

    def end_round(self) -> None:
        """End the present round, whose last fragment has been sent, and begin the next."""
        self.ended += 1
        self.phase, self.in_round, self.every, self.own_steps = "undecided", 0, 0, 0

    def dump(self) -> dict[str, Any]:
        """Return the state as plain values and the tensors themselves, not copies.

        Called while no exchange is in flight.
        """
        phase = "decided" if self.every else "undecided" if self.ended else "timing"
        return {
            "phase": phase,  # the number of steps that this rank makes in a round is computed anew, from its shares
            "ended": self.ended,
            "steps": self.steps,
            "in_round": self.in_round,
            "every": self.every,
            "delay": self.delay,
            "shares": self.shares.state_dict(),
            "fragments": [fragment.state_dict() for fragment in self.fragments],
            "buffers": self.buffers.state_dict(),
            "optimizer": self.outer.state_dict(),
            "inner": [optimizer.state_dict() for optimizer in self.inner],
            "refusals": self.refusals.state_dict(),
        }

    def restore(self, dumped: Mapping[str, Any], merged: bool) -> None:
        """Restore a dumped state; the states of the optimizers have been loaded by ``OuterSteps.restoring``.

        Args:
            dumped: the state, as ``dump`` returned it.
            merged: whether the state was merged from the states of another number of ranks; all ranks then begin a
                round at the anchors.
        """
        averaged_groups: tuple[Fragment | Buffers, ...] = (*self.fragments, self.buffers)
        for averaged_group, saved_state in zip(averaged_groups, (*dumped["fragments"], dumped["buffers"]), strict=True):
            fields_at_anchors = (
                {"own": {**saved_state["own"], **saved_state["anchors"]}, "due": None, "left": {}} if merged else {}
            )
            averaged_group.load_state_dict({**saved_state, **fields_at_anchors})
        self.refusals.load_state_dict(dumped["refusals"])
        self.shares.load_state_dict(None if merged else dumped["shares"])
        self.phase, self.ended, self.steps = dumped["phase"], dumped["ended"], dumped["steps"]
        self.in_round, self.every = 0 if merged else dumped["in_round"], dumped["every"]
        self.delay = dumped["delay"]
