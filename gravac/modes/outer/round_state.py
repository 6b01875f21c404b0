# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The state of outer steps on one rank: the present round, fragments and buffers. Part of ``RunState``."""

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
- ``"decided"``: the number of steps of the round, of a rank on average, is decided.
- ``"training"``: the number of steps that this rank makes in the round is known, too.
- ``"closing"``: the controller decided for another mode, so ranks are to be made equal before the next step.
"""


@dataclass(slots=True, eq=False)
class RoundState:
    """State of outer steps on one rank.

    Attributes:
        fragments: fragments of the model, with their anchors, in the order in which they are sent.
        buffers: the model's buffers, which are sent with the last fragment.
        shares: each rank's share of a round: step times and samples.
        refusals: exchanges whose mean was not finite.
        outer: optimizer of the anchors.
        inner: optimizers of the rank's own weights.
        phase: phase of the present round.
        ended: number of rounds whose last fragment has been sent.
        steps: number of steps that this rank made.
        in_round: number of steps that this rank made in the present round.
        every: number of steps of the present round, of a rank on average; 0 until that is decided.
        own_steps: number of steps that this rank makes in the present round; 0 before the phase ``"training"``.
        delay: number of steps that the round's exchange is in flight, of a rank on average.
        late: number of fragments whose means had not arrived when they were due; each was applied later.
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
        """True if a fragment is in flight, or its mean is not applied yet."""
        return any(fragment.due is not None for fragment in self.fragments)

    def decide(self, every: int, delay: int | None = None) -> None:
        """Set the decided number of steps of the present round.

        Args:
            every: number of steps of the round, of a rank on average.
            delay: number of steps that the round's exchange is in flight; ``None``: as before.
        """
        self.phase, self.every = "decided", every
        self.delay = self.delay if delay is None else delay

    def train(self, own_steps: int) -> None:
        """Set the number of steps that this rank makes in the present round."""
        self.phase, self.own_steps = "training", own_steps

    def close(self) -> None:
        """Enter the phase ``"closing"``: the controller decided for another mode."""
        self.phase = "closing"

    def end_round(self) -> None:
        """End the present round, whose last fragment has been sent, and begin the next."""
        self.ended += 1
        self.phase, self.in_round, self.every, self.own_steps = "undecided", 0, 0, 0

    def dump(self) -> dict[str, Any]:
        """Return tensors, which are no copies, and plain values; nothing is in flight."""
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
        """Restore a dumped state, except for the optimizers, which have loaded their states already.

        Args:
            dumped: the state, as ``dump`` returned it.
            merged: whether the state was merged from another number of ranks: then all begin a round at the anchor.
        """
        holders: tuple[Fragment | Buffers, ...] = (*self.fragments, self.buffers)
        for holder, saved in zip(holders, (*dumped["fragments"], dumped["buffers"]), strict=True):
            at_anchor = {"own": {**saved["own"], **saved["anchors"]}, "due": None, "left": {}} if merged else {}
            holder.load_state_dict({**saved, **at_anchor})
        self.refusals.load_state_dict(dumped["refusals"])
        self.shares.load_state_dict(None if merged else dumped["shares"])
        self.phase, self.ended, self.steps = dumped["phase"], dumped["ended"], dumped["steps"]
        self.in_round, self.every = 0 if merged else dumped["in_round"], dumped["every"]
        self.delay = dumped["delay"]
