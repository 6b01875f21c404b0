# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A fragment of the model between two exchanges: its anchors, which all ranks share, and its pseudo-gradient.

1. The rank trains.
2. Its pseudo-gradient is in flight.
3. The mean has arrived, and the outer optimizer makes its step on the anchors.
4. The rank applies the anchors to its weights, and continues to train.

Anchors change in 3 only, by the mean over all ranks, so they are the same on all ranks, even if ranks reach 4 at
different times. ``gravac.modes.outer.not_finite`` says what happens in 3 and 4 if the mean is not finite.
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
from gravac.modes.outer.anchors import AnchorStorage, State, exchange_dtype

DEFAULT_STORAGE = AnchorStorage()
"""Default storage of anchors: on their parameters' device, in the number format of pseudo-gradients."""


class PendingFragment:
    """A fragment's pseudo-gradient in flight.

    Args:
        fragment: fragment whose pseudo-gradient, anchors minus weights, is exchanged.
        weight: factor on the pseudo-gradient.
        number: number of the round.

    Attributes:
        pieces: pseudo-gradients of the parameters, flat; once ``arrived``, their means over the ranks.
        flat: flat tensor that the pieces are views of, one after the other.
        number: number of the round.
        local_square: squared norm of the pseudo-gradient that this rank sends, 0-d, float64.
        mean_square: squared norm of the mean over the ranks, 0-d, float64.
        local_finite: whether this rank sends finite numbers, in the pseudo-gradient and in buffers sent with it.
        applied: once ``arrived``, whether all means are finite, so that they are applied: the same on all ranks.
        verdicts: ``[applied, local_finite]``, bool, which the host may read later; ``None`` unless ``arrived``.
        mended: text that says which tensors the rank reset after it sent numbers that are not finite; empty otherwise.
        waited_since: moment since which training waits for the exchange; ``None`` if it does not wait.
    """

    def __init__(self, fragment: "Fragment", weight: float, number: int) -> None:
        self.number = number
        sizes = [parameter.numel() for parameter in fragment.parameters.values()]
        like = next(iter(fragment.parameters.values()))
        self.flat = torch.empty(sum(sizes), dtype=fragment.exchange_dtype, device=like.device)
        views = self.flat.tensor_split(list(itertools.accumulate(sizes))[:-1])
        for view, (name, parameter) in zip(views, fragment.parameters.items(), strict=True):
            view.copy_(flat(name, fragment.anchors[name])).sub_(flat(name, parameter))
        if weight != 1:
            self.flat.mul_(weight)
        shaped = zip(fragment.parameters.items(), views, strict=True)
        self.pieces = tuple(Piece(name, view, memory_shape(parameter)) for (name, parameter), view in shaped)
        self.local_square = self.mean_square = _square(self.flat)
        self.local_finite: Verdict = True
        self.applied: Verdict = True
        self.verdicts: torch.Tensor | None = None
        self.mended = ""
        self._buffers: tuple[Piece, ...] = ()
        self._engine: Engine | None = None
        self.waited_since: Mark | None = None
        self._arrival: Future[None] = Future()

    def judge_local(self, engine: Engine, buffers: Sequence[Piece] = ()) -> Verdict:
        """Check whether this rank's numbers are finite; set and return ``local_finite``.

        Args:
            engine: exchanges the pseudo-gradient.
            buffers: pieces of buffers that are sent with the pseudo-gradient.
        """
        self._engine, self._buffers = engine, tuple(buffers)
        self.local_finite = engine.executor.judge(_finite(self.local_square, self._buffers))
        return self.local_finite

    def complete(self, failure: BaseException | None) -> None:
        """Record that the pieces hold their means, or that the exchange failed; called by the executor."""
        try:
            if failure is not None:
                raise failure
            self._judge_mean()
        except BaseException as error:
            fail(self._arrival, error)
        else:
            self._arrival.set_result(None)
        finally:
            self._buffers = ()

    def _judge_mean(self) -> None:
        """Compute the norm of the mean, and whether all means are finite."""
        self.mean_square = _square(self.flat)
        if self._engine is not None:
            finite = _finite(self.mean_square, self._buffers)
            self.applied = self._engine.executor.judge(finite)
            if isinstance(self.applied, torch.Tensor):
                local_finite = torch.as_tensor(self.local_finite)
                self.verdicts = self._engine.executor.to_host(torch.stack([finite, local_finite]))

    def free_means(self) -> None:
        """Free the memory of the means, once they have been applied; their norm is kept."""
        self.flat, self.pieces = self.flat.new_empty(0), ()

    @property
    def arrived(self) -> bool:
        """True if the means have arrived, or the exchange failed."""
        return self._arrival.done()

    def result(self) -> None:
        """Wait until the pieces hold their means.

        Raises:
            ExchangeError: a rank did not answer.
        """
        self._arrival.result()


class Fragment:
    """Some parameters of a module, exchanged together.

    Args:
        parameters: parameters trained on this rank, by name; dense in memory.
        storage: number format and device of the anchors.

    Attributes:
        parameters: parameters trained on this rank, by name.
        exchange_dtype: number format of the pseudo-gradients.
        anchors: weights that all ranks share, by name; the outer optimizer trains them.
        storage: number format and device of the anchors.
        pending: pseudo-gradient in flight; ``None`` if none is.
        due: number of the rank's step from which on the anchors are applied to its weights; ``None`` if nothing is to
            be applied.
        weights_sent: the rank's weights when its pseudo-gradient was sent, by name. Empty unless the rank keeps what it
            learns while the pseudo-gradient is in flight.
        local_fraction: fraction of its weights that the rank keeps when it applies the anchors, in [0, 1).
        applied: whether the newest mean was applied to the anchors; if not, the rank keeps its weights.
    """

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], storage: AnchorStorage = DEFAULT_STORAGE) -> None:
        self.parameters = dict(parameters)
        self.anchors = {name: storage.anchor(name, parameter) for name, parameter in parameters.items()}
        self.exchange_dtype = functools.reduce(torch.promote_types, map(exchange_dtype, parameters.values()))
        self.storage = storage
        self.pending: PendingFragment | None = None
        self.due: int | None = None
        self.weights_sent: dict[str, torch.Tensor] = {}
        self.local_fraction = 0.0
        self.applied: Verdict = True

    @property
    def like_pieces(self) -> dict[str, torch.Tensor]:
        """Tensors of the pseudo-gradients' shapes, strides, number formats and devices, by name, with any content."""
        return {
            name: parameter
            if parameter.dtype == self.exchange_dtype
            else torch.empty_like(parameter, dtype=self.exchange_dtype)
            for name, parameter in self.parameters.items()
        }

    def send(
        self, due: int, weight: float = 1.0, number: int = 0, local_fraction: float | None = 0.0
    ) -> PendingFragment:
        """Return the pseudo-gradient to exchange: anchors minus weights, multiplied by a weight.

        Args:
            due: number of the rank's step from which on the anchors are applied.
            weight: factor on the pseudo-gradient.
            number: number of the round.
            local_fraction: fraction of its weights that the rank keeps when it applies the anchors; ``None``: the rank
                keeps what it learns while the pseudo-gradient is in flight.
        """
        self.pending, self.due = PendingFragment(self, weight, number), due
        self.local_fraction = local_fraction or 0.0
        keeps_learned = local_fraction is None
        self.weights_sent = (
            {name: parameter.detach().clone() for name, parameter in self.parameters.items()} if keeps_learned else {}
        )
        return self.pending

    def apply_mean(self, outer: torch.optim.Optimizer) -> None:
        """Make the outer optimizer's step on the anchors, with the means over the ranks, which have arrived.

        Means that are not finite leave anchors and the outer optimizer's state as they were.
        """
        if self.pending is None:
            return
        self.applied = applied = self.pending.applied
        if self.storage.offload and isinstance(applied, torch.Tensor):
            self.applied = applied = bool(applied)  # the host waits for the means anyway, to copy them to its memory
        if isinstance(applied, torch.Tensor):
            self.applied = applied = applied.clone()  # so that no stream reads a tensor which another stream made
            self.pending.flat.masked_fill_(~applied, 0.0)
            unchanged = _keeps_anchors_at_zero(outer)
            with nullcontext() if unchanged else undone_unless(applied, [*self.anchors.values()], outer.state):
                self._step(self.pending, outer)
        elif applied:
            self._step(self.pending, outer)
        self.pending.free_means()
        self.pending = None

    def _step(self, pending: PendingFragment, outer: torch.optim.Optimizer) -> None:
        with self.storage.in_exchange_dtype(self.anchors, pending.number, outer.state):
            for piece, anchor in zip(pending.pieces, self.anchors.values(), strict=True):
                anchor.grad = piece.flat.as_strided(anchor.shape, anchor.stride()).to(anchor)
            outer.step()
            for anchor in self.anchors.values():
                anchor.grad = None

    @torch.no_grad()
    def apply_anchors(self) -> None:
        """Move the rank's weights to the anchors; keep what it learned meanwhile, or a fraction of its weights.

        If the newest mean was not applied, the rank keeps its weights.
        """
        for name, parameter in self.parameters.items():
            if self.applied is True:
                self._apply_anchor(name, parameter)
            elif isinstance(self.applied, torch.Tensor):
                moved = parameter.clone()
                self._apply_anchor(name, moved)
                parameter.copy_(torch.where(self.applied, moved, parameter))
        self.due, self.weights_sent = None, {}

    def _apply_anchor(self, name: str, weights: torch.Tensor) -> None:
        if self.local_fraction:
            weights.lerp_(self.anchors[name].to(weights), 1 - self.local_fraction)
        elif name in self.weights_sent:
            weights.sub_(self.weights_sent[name]).add_(self.anchors[name].to(weights))
        else:
            weights.copy_(self.anchors[name])

    @torch.no_grad()
    def reset_to_anchors(self) -> None:
        """Overwrite the rank's weights with the anchors; what the rank learned since the last exchange is lost."""
        for name, parameter in self.parameters.items():
            parameter.copy_(self.anchors[name])
            if name in self.weights_sent:
                self.weights_sent[name].copy_(parameter)

    @torch.no_grad()
    def set_anchors(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Overwrite the anchors with weights of their shapes, the same on all ranks, by parameter name.

        Nothing is in flight.
        """
        for name, anchor in self.anchors.items():
            anchor.copy_(weights[name])
        self.due, self.weights_sent = None, {}

    def state_dict(self) -> dict[str, Any]:
        """Return anchors, the rank's own weights, and the step at which it will apply the anchors, if it has not.

        Nothing is in flight.
        """
        return {
            "anchors": {name: anchor.detach() for name, anchor in self.anchors.items()},
            "own": {name: parameter.detach() for name, parameter in self.parameters.items()},
            "due": self.due,
            "left": self.weights_sent,
            "keeps": self.local_fraction,
            "applied": bool(self.applied),
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state."""
        for name, anchor in self.anchors.items():
            anchor.copy_(state["anchors"][name])
            self.parameters[name].copy_(state["own"][name])
        self.pending, self.due, self.local_fraction = None, state["due"], state["keeps"]
        self.applied = state["applied"]
        sent = state["left"].items()
        self.weights_sent = {name: torch.empty_like(self.parameters[name]).copy_(weights) for name, weights in sent}


def in_fragments(
    parameters: Mapping[str, torch.nn.Parameter], number: int, storage: AnchorStorage = DEFAULT_STORAGE
) -> list[Fragment]:
    """Divide a model's parameters, in order, into fragments of about equally many elements.

    Args:
        parameters: parameters by name, at least as many as fragments.
        number: number of fragments.
        storage: number format and device of the anchors.

    Example:
        >>> sizes = {"a": 10, "b": 10, "c": 20, "d": 5}
        >>> model = {name: torch.nn.Parameter(torch.zeros(size)) for name, size in sizes.items()}
        >>> [list(fragment.parameters) for fragment in in_fragments(model, 2)]
        [['a', 'b'], ['c', 'd']]
    """
    total = sum(parameter.numel() for parameter in parameters.values())
    fragments: list[dict[str, torch.nn.Parameter]] = [{}]
    elements, remaining = 0, len(parameters)
    for name, parameter in parameters.items():
        missing = number - len(fragments)
        full = elements + parameter.numel() / 2 > total * len(fragments) / number
        if fragments[-1] and missing and (full or remaining <= missing):
            fragments.append({})
        fragments[-1][name] = parameter
        elements, remaining = elements + parameter.numel(), remaining - 1
    return [Fragment(fragment, storage) for fragment in fragments]


def _finite(square: torch.Tensor, buffers: Sequence[Piece]) -> torch.Tensor:
    """Return whether a squared norm, and all numbers of buffers' pieces, are finite, as a 0-d bool tensor."""
    finite = torch.isfinite(square)
    return finite & all_fit([piece.flat for piece in buffers]).to(finite.device) if buffers else finite


def _keeps_anchors_at_zero(outer: torch.optim.Optimizer) -> bool:
    """True if a step with zero gradients leaves the anchors as they are: with SGD without momentum and weight decay."""
    is_sgd = isinstance(outer, torch.optim.SGD)
    return is_sgd and not any(group["momentum"] or group["weight_decay"] for group in outer.param_groups)


@contextmanager
def undone_unless(applied: torch.Tensor, anchors: Sequence[torch.nn.Parameter], state: State) -> Iterator[None]:
    """Return a context in which an outer step is undone bit for bit unless ``applied``, which only the device knows.

    Tensors that the optimizer creates in this step stay, since its gradients were zeros. A step count that the
    optimizer keeps on the host, as torch's Adam does for GPU parameters, is not undone.

    Args:
        applied: whether the step is to be applied, 0-d bool tensor.
        anchors: anchors that the optimizer changes, of any shapes.
        state: the outer optimizer's state, by anchor and by name.
    """
    saved = [(anchor, anchor.data.clone(), _copies_on_device(applied, state.get(anchor, {}))) for anchor in anchors]
    yield
    for anchor, previous, previous_state in saved:
        anchor.data = torch.where(applied, anchor.data, previous)
        for key, old_tensor in previous_state.items():
            state[anchor][key] = torch.where(applied, state[anchor][key], old_tensor)


def _copies_on_device(applied: torch.Tensor, state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return copies of an optimizer's tensors that are on the device of the verdict, by name."""
    tensors = {key: entry for key, entry in state.items() if torch.is_tensor(entry)}
    return {key: tensor.clone() for key, tensor in tensors.items() if tensor.device == applied.device}


def _square(flat: torch.Tensor) -> torch.Tensor:
    norm: torch.Tensor = torch.linalg.vector_norm(flat, dtype=torch.float64)
    return norm.square()
