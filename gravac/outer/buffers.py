# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What is in a module and no parameter, such as BatchNorm's running statistics: its mean over the ranks, each round.

Buffers travel beside the pseudo-gradient, dense, as their distance from what all ranks had after the round before.
"""

from collections.abc import Collection, Mapping
from typing import Any

import torch

from gravac.averaging.plan import Piece

PREFIX = "buffer:"
"""Beginning of the names that buffers travel by, so that none is taken for a parameter."""


class Buffers:
    """The floating-point buffers of a module; others, such as counters, are each rank's own.

    Args:
        module: has them.
        left_alone: names of buffers, or of modules whose buffers, are each rank's own.

    Raises:
        ValueError: a name is of no buffer and of no module that has one.
    """

    def __init__(self, module: torch.nn.Module, left_alone: Collection[str] = ()) -> None:
        named = dict(module.named_buffers())
        for name in left_alone:
            if not any(_within(one, name) for one in named):
                raise ValueError(
                    f"local_buffers: {name!r} is no buffer of the module; it has {', '.join(named) or 'none'}"
                )
        self._live = {
            name: buffer
            for name, buffer in named.items()
            if buffer.is_floating_point() and not any(_within(name, one) for one in left_alone)
        }
        self.anchors = {name: buffer.detach().clone() for name, buffer in self._live.items()}
        self._pieces: tuple[Piece, ...] = ()
        self._own = 0.0
        self._local = {name: buffer for name, buffer in named.items() if name not in self._live}

    @property
    def own(self) -> dict[str, torch.Tensor]:
        """What the rank has, by name, of any shapes: buffers that are averaged, and those that are not."""
        return {**self._live, **self._local}

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        """What travels, by the name it travels by: flat, so that it is sent dense."""
        return {PREFIX + name: anchor.reshape(-1) for name, anchor in self.anchors.items()}

    def leave(self, weight: float = 1.0, own: float = 0.0) -> tuple[Piece, ...]:
        """Return how far each is from its anchor, times a weight, as flat pieces.

        Args:
            weight: factor.
            own: share of each that the rank keeps where it takes up the anchors.
        """
        self._own = own
        self._pieces = tuple(
            Piece(PREFIX + name, (self.anchors[name] - live).mul_(weight).reshape(-1), (live.numel(),))
            for name, live in self._live.items()
        )
        return self._pieces

    def arrive(self) -> None:
        """Move the anchors to the mean that came, once."""
        for piece, anchor in zip(self._pieces, self.anchors.values(), strict=False):
            anchor.sub_(piece.flat.view_as(anchor))
        self._pieces = ()

    def take_up(self) -> None:
        """Have the anchors take the place of each, but for the share that the rank keeps."""
        for name, live in self._live.items():
            live.lerp_(self.anchors[name], 1 - self._own) if self._own else live.copy_(self.anchors[name])

    def swap(self) -> None:
        """Have the module hold the anchors, and the anchors what it held; twice changes nothing."""
        for name, live in self._live.items():
            held = live.clone()
            live.copy_(self.anchors[name])
            self.anchors[name].copy_(held)

    def state_dict(self) -> dict[str, Any]:
        """Return anchors and what the rank has."""
        own = {name: buffer.detach() for name, buffer in self.own.items()}
        return {"anchors": dict(self.anchors), "own": own, "keeps": self._own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        for name, anchor in self.anchors.items():
            anchor.copy_(state["anchors"][name])
        for name, live in self.own.items():
            live.copy_(state["own"][name])
        self._own = state.get("keeps", 0.0)


def _within(name: str, whole: str) -> bool:
    return name == whole or name.startswith(f"{whole}.")
