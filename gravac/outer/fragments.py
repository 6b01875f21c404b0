# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A part of the model between two exchanges: the anchor that all ranks share, what leaves, and what comes back.

1. The rank trains.  2. Its pseudo-gradient is under way.  3. The mean has arrived, and the anchor made its outer step.
4. The rank takes up the anchor, and trains on. The anchor changes in 3 alone, by what all ranks sent, so that it is the
same on all of them whenever each of them gets to 4.
"""

import itertools
import threading
from collections.abc import Mapping
from typing import Any

import torch

from gravac.averaging.plan import Piece
from gravac.stepping.door import flat, memory_shape

SIXTEEN_BIT = (torch.float16, torch.bfloat16)
"""Number formats whose anchors are kept in float32: an outer step is small beside the weights."""


class Journey:
    """A fragment's pseudo-gradient on its way.

    Args:
        fragment: whose anchors less weights it is.

    Attributes:
        pieces: pseudo-gradients of its parameters, flat; their means over the ranks, once it is ``here``.
        whole: flat tensor that the pieces are views of, one after the other.
        own: squared norm of what this rank sends, 0-d, float64.
        mean: squared norm of the mean that came, 0-d, float64.
    """

    def __init__(self, fragment: "Fragment") -> None:
        anchors = [flat(name, anchor) for name, anchor in fragment.anchors.items()]
        self.whole = torch.cat(anchors)
        parts = self.whole.tensor_split(list(itertools.accumulate(anchor.numel() for anchor in anchors))[:-1])
        for part, (name, parameter) in zip(parts, fragment.parameters.items(), strict=True):
            part.sub_(flat(name, parameter))
        shaped = zip(fragment.parameters.items(), parts, strict=True)
        self.pieces = tuple(Piece(name, part, memory_shape(parameter)) for (name, parameter), part in shaped)
        self.own = self.mean = _square(self.whole)
        self._came = threading.Event()
        self._failure: BaseException | None = None

    def came(self, failure: BaseException | None) -> None:
        """Take note that the pieces hold their means, or of what went wrong; called by the executor."""
        self._failure = failure
        if failure is None:
            self.mean = _square(self.whole)
        self._came.set()

    @property
    def here(self) -> bool:
        """Whether the means are there."""
        return self._came.is_set()

    def wait(self) -> None:
        """Wait for the means.

        Raises:
            ExchangeError: a rank did not answer.
        """
        self._came.wait()
        if self._failure is not None:
            raise self._failure


class Fragment:
    """Some parameters of a module, exchanged together.

    Args:
        parameters: trained on this rank, by name; dense in memory.

    Attributes:
        parameters: those given.
        anchors: weights that all ranks share, by name; the outer optimizer trains them.
        journey: pseudo-gradient that is under way; ``None`` where none is.
        due: number of the rank's step from which on what was under way is taken up; ``None`` where nothing is to be.
    """

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter]) -> None:
        self.parameters = dict(parameters)
        self.anchors = {name: anchor_of(parameter) for name, parameter in parameters.items()}
        self.journey: Journey | None = None
        self.due: int | None = None

    def leave(self, due: int) -> Journey:
        """Set out with anchors less weights; ``due`` is the attribute."""
        self.journey, self.due = Journey(self), due
        return self.journey

    def arrive(self, outer: torch.optim.Optimizer) -> None:
        """Have the outer optimizer make its step on the anchors with the means, which are here; only once."""
        if self.journey is None:
            return
        for piece, anchor in zip(self.journey.pieces, self.anchors.values(), strict=True):
            anchor.grad = piece.flat.as_strided(anchor.shape, anchor.stride())
        outer.step()
        for anchor in self.anchors.values():
            anchor.grad = None
        self.journey = None

    @torch.no_grad()
    def take_up(self, own: float) -> None:
        """Go on from the anchors, which take the place of all but a share of the rank's own weights.

        Args:
            own: that share, in [0, 1).
        """
        for name, parameter in self.parameters.items():
            anchor = self.anchors[name].to(parameter.dtype)
            if own:
                parameter.lerp_(anchor, 1 - own)
            else:
                parameter.copy_(anchor)
        self.due = None

    def state_dict(self) -> dict[str, Any]:
        """Return anchors, the rank's own weights, and when anchors are due that it has not taken up.

        Nothing is under way.
        """
        return {
            "anchors": {name: anchor.detach() for name, anchor in self.anchors.items()},
            "own": {name: parameter.detach() for name, parameter in self.parameters.items()},
            "due": self.due,
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        for name, anchor in self.anchors.items():
            anchor.copy_(state["anchors"][name])
            self.parameters[name].copy_(state["own"][name])
        self.journey, self.due = None, state["due"]


def anchor_of(parameter: torch.Tensor) -> torch.nn.Parameter:
    """Return a copy for the outer optimizer: the same shape and strides, in float32 where the dtype has 16 bit."""
    dtype = torch.float32 if parameter.dtype in SIXTEEN_BIT else parameter.dtype
    return torch.nn.Parameter(parameter.detach().to(dtype, copy=True), requires_grad=True)


def in_fragments(parameters: Mapping[str, torch.nn.Parameter], number: int) -> list[Fragment]:
    """Cut a model's parameters, in order, into fragments of about as many elements each.

    Args:
        parameters: parameters by name, at least as many as fragments.
        number: number of fragments.

    Example:
        >>> sizes = {"a": 10, "b": 10, "c": 20, "d": 5}
        >>> model = {name: torch.nn.Parameter(torch.zeros(size)) for name, size in sizes.items()}
        >>> [list(fragment.parameters) for fragment in in_fragments(model, 2)]
        [['a', 'b'], ['c', 'd']]
    """
    total = sum(parameter.numel() for parameter in parameters.values())
    parts: list[dict[str, torch.nn.Parameter]] = [{}]
    so_far, left = 0, len(parameters)
    for name, parameter in parameters.items():
        missing = number - len(parts)
        full = so_far + parameter.numel() / 2 > total * len(parts) / number
        if parts[-1] and missing and (full or left <= missing):
            parts.append({})
        parts[-1][name] = parameter
        so_far, left = so_far + parameter.numel(), left - 1
    return [Fragment(part) for part in parts]


def _square(whole: torch.Tensor) -> torch.Tensor:
    norm: torch.Tensor = torch.linalg.vector_norm(whole, dtype=torch.float64)
    return norm.square()
