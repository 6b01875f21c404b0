# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The state of outer steps on one rank: where the present round is, and what its parts keep. Part of ``RunState``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from gravac.modes.outer.buffers import Buffers
from gravac.modes.outer.fragments import Fragment
from gravac.modes.outer.refusing import Refusals
from gravac.modes.outer.shares import Shares

Phase = Literal["timing", "undecided", "decided", "training", "closing"]
"""Where a round is: the rank times its first steps, before the first decision; how many steps the round has is not
decided yet; that is decided; and so is how many of them this rank makes; or another mode was decided, so that the ranks
are to be one again before the next step."""


@dataclass(slots=True, eq=False)
class RoundState:
    """What outer steps leave behind, on one rank.

    Attributes:
        fragments: parts of the model, with their anchors, in the order in which they leave.
        buffers: the model's buffers, which leave with the last fragment.
        shares: what each rank does of a round: step times and samples.
        refusals: what this rank knows of means that were not finite.
        outer: optimizer of the anchors.
        inner: optimizers of the rank's own weights.
        phase: where the present round is.
        ended: number of rounds whose last fragment has left.
        steps: number of steps that this rank made.
        in_round: number of these in the present round.
        every: number of steps of the present round, of a rank on average; 0 until that is decided.
        own_steps: number of them that this rank makes; 0 before the phase ``"training"``.
        delay: number of steps behind which the round's exchange travels, of a rank on average.
        late: number of fragments that had not come when they were due; each was applied later.
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
        """Whether a fragment is in flight, or not applied yet."""
        return any(fragment.due is not None for fragment in self.fragments)

    def decide(self, every: int, delay: int | None = None) -> None:
        """The present round has so many steps; its exchange travels behind ``delay`` steps, if that was decided too."""
        self.phase, self.every = "decided", every
        self.delay = self.delay if delay is None else delay

    def train(self, own_steps: int) -> None:
        """This rank makes so many steps of the present round."""
        self.phase, self.own_steps = "training", own_steps

    def end_apart(self) -> None:
        """Another mode was decided."""
        self.phase = "closing"

    def end_round(self) -> None:
        """The round's last fragment left."""
        self.ended += 1
        self.phase, self.in_round, self.every, self.own_steps = "undecided", 0, 0, 0

    def dump(self) -> dict[str, Any]:
        """Return tensors, which are the live ones, and plain values; nothing is in flight."""
        phase = "decided" if self.every else "undecided" if self.ended else "timing"
        return {
            "phase": phase,  # the steps that this rank makes of a round follow from its shares
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

    def restore(self, plain: Mapping[str, Any], of_other_ranks: bool) -> None:
        """Restore what ``dump`` gave, but for the optimizers, which have loaded theirs.

        Args:
            plain: what was dumped.
            of_other_ranks: whether it was merged from another number of ranks: then all begin a round at the anchor.
        """
        parts: tuple[Fragment | Buffers, ...] = (*self.fragments, self.buffers)
        for part, its in zip(parts, (*plain["fragments"], plain["buffers"]), strict=True):
            fresh = {"own": {**its["own"], **its["anchors"]}, "due": None, "left": {}} if of_other_ranks else {}
            part.load_state_dict({**its, **fresh})
        self.refusals.load_state_dict(plain["refusals"])
        self.shares.load_state_dict(None if of_other_ranks else plain["shares"])
        self.phase, self.ended, self.steps = plain["phase"], plain["ended"], plain["steps"]
        self.in_round, self.every = 0 if of_other_ranks else plain["in_round"], plain["every"]
        self.delay = plain["delay"]
