# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The state of outer steps on one rank, a part of ``RunState``: the present round, the anchor and the buffers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from gravac.modes.outer.anchor import Anchor
from gravac.modes.outer.buffers import Buffers
from gravac.modes.outer.not_finite import Refusals

Phase = Literal["timing", "undecided", "decided", "closing"]
"""Phase of a round.

- ``"timing"``: the rank times its first steps, before the first decision.
- ``"undecided"``: the number of steps of the round is not decided yet.
- ``"decided"``: the number of steps of the round is decided.
- ``"closing"``: the controller chose another mode, so ranks must be made equal before the next step.
"""


@dataclass(slots=True, eq=False)
class RoundState:
    """State of outer steps on one rank.

    Attributes:
        anchor: weights that all ranks share, and this rank's own weights.
        buffers: the model's buffers, which are sent with the pseudo-gradient.
        refusals: record of the exchanges whose mean was not finite, and was not applied.
        outer: optimizer of the anchor.
        inner: optimizers of the rank's own weights.
        phase: phase of the present round.
        ended: number of rounds whose pseudo-gradient has been sent.
        steps: number of steps that this rank made in all rounds.
        in_round: number of steps that this rank made in the present round.
        every: number of steps of the present round; 0 until it is decided.
        delay: number of steps that the round's exchange is in flight.
        late: number of means that arrived, and were applied, after their delay.
    """

    anchor: Anchor
    buffers: Buffers
    refusals: Refusals
    outer: torch.optim.Optimizer
    inner: Sequence[torch.optim.Optimizer]
    phase: Phase = "timing"
    ended: int = 0
    steps: int = 0
    in_round: int = 0
    every: int = 0
    delay: int = 0
    late: int = 0

    @property
    def under_way(self) -> bool:
        """True if an exchange is in flight, or has a mean that is not applied yet."""
        return self.anchor.due_step is not None

    def set_round(self, every: int, delay: int | None = None) -> None:
        """Set the number of steps that was decided for the present round, and its delay.

        Args:
            every: number of steps of the round.
            delay: number of steps that the round's exchange is in flight; ``None``: as in the last round.
        """
        self.phase, self.every = "decided", every
        self.delay = self.delay if delay is None else delay

    def begin_closing(self) -> None:
        """Enter the phase ``"closing"``: the controller chose another mode."""
        self.phase = "closing"

    def end_round(self) -> None:
        """End the present round, whose pseudo-gradient has been sent, and begin the next."""
        self.ended += 1
        self.phase, self.in_round, self.every = "undecided", 0, 0

    def dump(self) -> dict[str, Any]:
        """Return the state as plain values and the tensors themselves, not copies.

        Called while no exchange is in flight.
        """
        phase = "decided" if self.every else "undecided" if self.ended else "timing"
        return {
            "phase": phase,
            "ended": self.ended,
            "steps": self.steps,
            "in_round": self.in_round,
            "every": self.every,
            "delay": self.delay,
            "anchor": self.anchor.state_dict(),
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
        anchor, buffers = dumped["anchor"], dumped["buffers"]
        if merged:
            anchor = {**anchor, "own": anchor["weights"], "due": None, "left": {}}
            buffers = {**buffers, "own": {**buffers["own"], **buffers["anchors"]}}
        self.anchor.load_state_dict(anchor)
        self.buffers.load_state_dict(buffers)
        self.refusals.load_state_dict(dumped["refusals"])
        self.phase, self.ended, self.steps = dumped["phase"], dumped["ended"], dumped["steps"]
        self.in_round, self.every = 0 if merged else dumped["in_round"], dumped["every"]
        self.delay = dumped["delay"]
