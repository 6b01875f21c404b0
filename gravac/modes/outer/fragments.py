# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A part of the model between two exchanges: the anchor that all ranks share, what leaves, and what comes back.

1. The rank trains.  2. Its pseudo-gradient is under way.  3. The mean has arrived, and the anchor made its outer step.
4. The rank takes up the anchor, and trains on. The anchor changes in 3 alone, by what all ranks sent, so that it is the
same on all of them whenever each of them gets to 4. What 3 and 4 are if the mean is not finite is told in
``gravac.modes.outer.refusing``.
"""

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from gravac.averaging.norms import all_fit
from gravac.averaging.plan import Piece
from gravac.averaging.tensors import flat, memory_shape
from gravac.engine.engine import Engine
from gravac.engine.handle import fail
from gravac.exchange.executor import Mark, Verdict
from gravac.modes.outer.anchors import Keeping, State, travels_in

IN_PLACE = Keeping()
"""Anchors lie beside their parameters, in the number format that pseudo-gradients have."""


class Journey:
    """A fragment's pseudo-gradient on its way.

    Args:
        fragment: whose anchors less weights it is.
        weight: factor on them.
        number: number of the round.

    Attributes:
        pieces: pseudo-gradients of its parameters, flat; their means over the ranks, once it is ``here``.
        flat: flat tensor that the pieces are views of, one after the other.
        number: number of the round.
        own: squared norm of what this rank sends, 0-d, float64.
        mean: squared norm of the mean that came, 0-d, float64.
        sound: whether this rank sends finite numbers, buffers that leave with them included.
        applied: whether all that came is finite, so that it is applied, once it is ``here``: the same on all ranks.
        verdicts: ``[applied, sound]``, bool, which the host may read later; ``None`` before it is ``here``.
        mended: what the rank did about itself where it did not send finite numbers, in words; empty otherwise.
        awaited: moment since which training stands still for it; ``None``: it does not.
    """

    def __init__(self, fragment: "Fragment", weight: float, number: int) -> None:
        self.number = number
        sizes = [parameter.numel() for parameter in fragment.parameters.values()]
        like = next(iter(fragment.parameters.values()))
        self.flat = torch.empty(sum(sizes), dtype=fragment.travels_in, device=like.device)
        parts = self.flat.tensor_split(list(itertools.accumulate(sizes))[:-1])
        for part, (name, parameter) in zip(parts, fragment.parameters.items(), strict=True):
            part.copy_(flat(name, fragment.anchors[name])).sub_(flat(name, parameter))
        if weight != 1:
            self.flat.mul_(weight)
        shaped = zip(fragment.parameters.items(), parts, strict=True)
        self.pieces = tuple(Piece(name, part, memory_shape(parameter)) for (name, parameter), part in shaped)
        self.own = self.mean = _square(self.flat)
        self.sound: Verdict = True
        self.applied: Verdict = True
        self.verdicts: torch.Tensor | None = None
        self.mended = ""
        self._beside: tuple[Piece, ...] = ()
        self._engine: Engine | None = None
        self.awaited: Mark | None = None
        self._came: Future[None] = Future()

    def sets_out(self, engine: Engine, beside: Sequence[Piece] = ()) -> Verdict:
        """Judge what this rank sends; return ``sound``.

        Args:
            engine: exchanges it.
            beside: pieces of buffers that leave with it.
        """
        self._engine, self._beside = engine, tuple(beside)
        self.sound = engine.executor.judge(_finite(self.own, self._beside))
        return self.sound

    def came(self, failure: BaseException | None) -> None:
        """Take note that the pieces hold their means, or of what went wrong; called by the executor."""
        try:
            if failure is not None:
                raise failure
            self._judge_mean()
        except BaseException as error:
            fail(self._came, error)
        else:
            self._came.set_result(None)
        finally:
            self._beside = ()

    def _judge_mean(self) -> None:
        """Find the norm of the mean, and whether all that came is finite."""
        self.mean = _square(self.flat)
        if self._engine is not None:
            finite = _finite(self.mean, self._beside)
            self.applied = self._engine.executor.judge(finite)
            if isinstance(self.applied, torch.Tensor):
                self.verdicts = self._engine.executor.to_host(torch.stack([finite, torch.as_tensor(self.sound)]))

    def ends(self) -> None:
        """Let go of the means, which nobody needs any more; their norm stays."""
        self.flat, self.pieces = self.flat.new_empty(0), ()

    @property
    def here(self) -> bool:
        """Whether the means are there."""
        return self._came.done()

    def result(self) -> None:
        """Wait for the means.

        Raises:
            ExchangeError: a rank did not answer.
        """
        self._came.result()


class Fragment:
    """Some parameters of a module, exchanged together.

    Args:
        parameters: trained on this rank, by name; dense in memory.
        keeping: how anchors are kept.

    Attributes:
        parameters: those given.
        travels_in: number format of the pseudo-gradients.
        anchors: weights that all ranks share, by name; the outer optimizer trains them.
        journey: pseudo-gradient that is under way; ``None`` where none is.
        due: number of the rank's step from which on what was under way is taken up; ``None`` where nothing is to be.
        left: the rank's weights when it left, by name, where it trains on meanwhile and keeps what it learns.
        own: share of its weights that the rank keeps where it takes up the anchors.
        applied: whether the mean that arrived last was applied; if not, there is nothing to take up.
    """

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], keeping: Keeping = IN_PLACE) -> None:
        self.parameters = dict(parameters)
        self.anchors = {name: keeping.anchor(name, parameter) for name, parameter in parameters.items()}
        self.travels_in = functools.reduce(torch.promote_types, map(travels_in, parameters.values()))
        self.keeping = keeping
        self.journey: Journey | None = None
        self.due: int | None = None
        self.left: dict[str, torch.Tensor] = {}
        self.own = 0.0
        self.applied: Verdict = True

    @property
    def like_pieces(self) -> dict[str, torch.Tensor]:
        """Tensors of the shapes, strides, number formats and device of what travels, by name; of any values."""
        return {
            name: p if p.dtype == self.travels_in else torch.empty_like(p, dtype=self.travels_in)
            for name, p in self.parameters.items()
        }

    def leave(self, due: int, weight: float = 1.0, number: int = 0, own: float | None = 0.0) -> Journey:
        """Set out with anchors less weights.

        Args:
            due: the attribute.
            weight: factor on what sets out.
            number: number of the round.
            own: the attribute; ``None``: the rank trains on before it takes up the anchors, and keeps what it learns.
        """
        self.journey, self.due, self.own = Journey(self, weight, number), due, own or 0.0
        self.left = {name: p.detach().clone() for name, p in self.parameters.items()} if own is None else {}
        return self.journey

    def arrive(self, outer: torch.optim.Optimizer) -> None:
        """Have the outer optimizer make its step on the anchors with the means over the ranks; they are here.

        Means that are not finite leave anchors and the outer optimizer's state as they were.
        """
        if self.journey is None:
            return
        self.applied = applied = self.journey.applied
        if self.keeping.offload and isinstance(applied, torch.Tensor):
            self.applied = applied = bool(applied)  # the host waits for what it copies to its memory anyway
        if isinstance(applied, torch.Tensor):
            self.applied = applied = applied.clone()  # made by another stream than the one that reads it from here on
            self.journey.flat.masked_fill_(~applied, 0.0)
            stays = _stays(outer)
            with nullcontext() if stays else undone_unless(applied, [*self.anchors.values()], outer.state):
                self._step(self.journey, outer)
        elif applied:
            self._step(self.journey, outer)
        self.journey.ends()
        self.journey = None

    def _step(self, journey: Journey, outer: torch.optim.Optimizer) -> None:
        with self.keeping.in_full(self.anchors, journey.number, outer.state):
            for piece, anchor in zip(journey.pieces, self.anchors.values(), strict=True):
                anchor.grad = piece.flat.as_strided(anchor.shape, anchor.stride()).to(anchor)
            outer.step()
            for anchor in self.anchors.values():
                anchor.grad = None

    @torch.no_grad()
    def take_up(self) -> None:
        """Go on from the anchors, and from what the rank learned since it ``left``, or its ``own`` weights in part.

        Where no mean was applied there is nothing to go on from: the rank keeps its weights.
        """
        for name, parameter in self.parameters.items():
            if self.applied is True:
                self._take_up(name, parameter)
            elif isinstance(self.applied, torch.Tensor):
                taken = parameter.clone()
                self._take_up(name, taken)
                parameter.copy_(torch.where(self.applied, taken, parameter))
        self.due, self.left = None, {}

    def _take_up(self, name: str, weights: torch.Tensor) -> None:
        if self.own:
            weights.lerp_(self.anchors[name].to(weights), 1 - self.own)
        elif name in self.left:
            weights.sub_(self.left[name]).add_(self.anchors[name].to(weights))
        else:
            weights.copy_(self.anchors[name])

    @torch.no_grad()
    def start_again(self) -> None:
        """Put the anchors in place of the rank's weights; what it learned before does not count."""
        for name, parameter in self.parameters.items():
            parameter.copy_(self.anchors[name])
            if name in self.left:
                self.left[name].copy_(parameter)

    @torch.no_grad()
    def start_at(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Replace the anchors by weights of their shapes, which all ranks share, by parameter name.

        Nothing is under way.
        """
        for name, anchor in self.anchors.items():
            anchor.copy_(weights[name])
        self.due, self.left = None, {}

    def state_dict(self) -> dict[str, Any]:
        """Return anchors, the rank's own weights, and when anchors are due that it has not taken up.

        Nothing is under way.
        """
        return {
            "anchors": {name: anchor.detach() for name, anchor in self.anchors.items()},
            "own": {name: parameter.detach() for name, parameter in self.parameters.items()},
            "due": self.due,
            "left": self.left,
            "keeps": self.own,
            "applied": bool(self.applied),
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        for name, anchor in self.anchors.items():
            anchor.copy_(state["anchors"][name])
            self.parameters[name].copy_(state["own"][name])
        self.journey, self.due, self.own = None, state["due"], state["keeps"]
        self.applied = state["applied"]
        self.left = {name: torch.empty_like(self.parameters[name]).copy_(one) for name, one in state["left"].items()}


def in_fragments(
    parameters: Mapping[str, torch.nn.Parameter], number: int, keeping: Keeping = IN_PLACE
) -> list[Fragment]:
    """Cut a model's parameters, in order, into fragments of about as many elements each.

    Args:
        parameters: parameters by name, at least as many as fragments.
        number: number of fragments.
        keeping: how anchors are kept.

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
    return [Fragment(part, keeping) for part in parts]


def _finite(square: torch.Tensor, beside: Sequence[Piece]) -> torch.Tensor:
    """Return whether a squared norm, and all numbers of some pieces, are finite, ``[]`` bool."""
    finite = torch.isfinite(square)
    return finite & all_fit([piece.flat for piece in beside]).to(finite.device) if beside else finite


def _stays(outer: torch.optim.Optimizer) -> bool:
    """Whether gradients of zeros leave the anchors as they are: SGD without momentum and decay keeps nothing."""
    plain = isinstance(outer, torch.optim.SGD)
    return plain and not any(group["momentum"] or group["weight_decay"] for group in outer.param_groups)


@contextmanager
def undone_unless(applied: torch.Tensor, anchors: Sequence[torch.nn.Parameter], state: State) -> Iterator[None]:
    """Have an outer step undone bit for bit unless the device finds that it is to be applied; the host does not look.

    What the optimizer first keeps in this step stays: its gradients were zeros. A count that it keeps on the host, as
    torch's Adam does for parameters on a GPU, goes on.

    Args:
        applied: 0-d bool tensor.
        anchors: those that make a step, of any shapes.
        state: what the outer optimizer keeps, by anchor and by name.
    """
    before = [(anchor, anchor.data.clone(), _beside(applied, state.get(anchor, {}))) for anchor in anchors]
    yield
    for anchor, old, kept in before:
        anchor.data = torch.where(applied, anchor.data, old)
        for key, old_tensor in kept.items():
            state[anchor][key] = torch.where(applied, state[anchor][key], old_tensor)


def _beside(applied: torch.Tensor, kept: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return copies of an optimizer's tensors that lie where the verdict does, by name."""
    tensors = {key: one for key, one in kept.items() if torch.is_tensor(one)}
    return {key: one.clone() for key, one in tensors.items() if one.device == applied.device}


def _square(flat: torch.Tensor) -> torch.Tensor:
    norm: torch.Tensor = torch.linalg.vector_norm(flat, dtype=torch.float64)
    return norm.square()
