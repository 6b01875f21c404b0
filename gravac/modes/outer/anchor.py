# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The anchor: the weights that all ranks shared last; and the pseudo-gradient, the anchor minus a rank's weights.

In a round:

1. The rank trains.
2. The pseudo-gradient is in flight.
3. The mean over the ranks has arrived, and the outer optimizer makes its step on the anchor.
4. The rank applies the anchor to its weights, and continues to train.

Only 3 changes the anchor, by the mean over all ranks. So all ranks have the same anchor, even if ranks reach 4 at
different times. ``gravac.modes.outer.not_finite`` describes 3 and 4 for a mean that is not finite.
"""

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from gravac.averaging.plan import Piece
from gravac.averaging.tensors import flat, memory_shape
from gravac.engine.engine import Engine
from gravac.engine.handle import Averaged
from gravac.exchange.executor import Executor, Mark, fail
from gravac.exchange.reading import AT_ONCE, Finite, HostCopy, Reads, both
from gravac.modes.outer.buffer_exchange import BufferExchange

SIXTEEN_BIT_FORMATS = (torch.float16, torch.bfloat16)
"""Number formats of weights whose anchor and pseudo-gradient are in float32, since weights change little in a round."""

State = Mapping[torch.Tensor, dict[str, Any]]
"""State of an optimizer: for each parameter, a dictionary of entries by name, such as ``"momentum_buffer"``."""


class PendingMean:
    """A pseudo-gradient in flight.

    Args:
        anchor: anchor whose distance from the rank's weights is exchanged.
        round_number: number of the round.

    Attributes:
        pieces: pseudo-gradients of the parameters, one flat tensor each; once ``has_arrived``, their means over the
            ranks.
        flat: flat tensor of which all pieces are views, one after the other.
        round_number: number of the round.
        local_squared_norm: squared norm of the pseudo-gradient that this rank sends, 0-d, float64.
        mean_squared_norm: squared norm of the mean over the ranks, 0-d, float64.
        local_finite: whether all numbers that this rank sends are finite.
        mean_finite: once ``has_arrived``, whether all means are finite, and therefore applied: the same on all ranks.
        finite_flags_on_host: ``[mean_finite, local_finite]``, on their way to the host, to be read two rounds later;
            ``None`` before the means have arrived, or if the host may read both at once.
        reset_text: text that says which tensors this rank reset after it sent numbers that are not finite; or empty.
        buffers: exchange of the model's buffers, in flight at the same time; ``None`` if there are none to average.
        waits_since: time since which training waits for the exchange; ``None`` if training does not wait.
    """

    def __init__(self, anchor: "Anchor", round_number: int) -> None:
        self.round_number = round_number
        sizes = [torch.Size(shape).numel() for shape in anchor.exchange_shapes.values()]
        device = next(iter(anchor.parameters.values())).device
        self.flat = torch.empty(sum(sizes), dtype=anchor.exchange_dtype, device=device)
        views = self.flat.tensor_split(list(itertools.accumulate(sizes))[:-1])
        for view, (name, parameter) in zip(views, anchor.parameters.items(), strict=True):
            view[: parameter.numel()].copy_(flat(name, anchor.weights[name])).sub_(flat(name, parameter))
            view[parameter.numel() :].zero_()
        shapes_and_views = zip(anchor.exchange_shapes.items(), views, strict=True)
        self.pieces = tuple(Piece(name, view, shape) for (name, shape), view in shapes_and_views)
        self.local_squared_norm = self.mean_squared_norm = _squared_norm(self.flat)
        self.local_finite: Finite = None
        self.mean_finite: Finite = None
        self.finite_flags_on_host: HostCopy | None = None
        self.reset_text = ""
        self.buffers: BufferExchange | None = None
        self._executor: Executor | None = None
        self.waits_since: Mark | None = None
        self._arrival_future: Future[None] = Future()

    @property
    def reads(self) -> Reads:
        """When the host may read whether the means are finite."""
        return AT_ONCE if self._executor is None else self._executor

    def check_local_finite(self, engine: Engine) -> torch.Tensor:
        """Compute and return ``local_finite``: whether all numbers that this rank sends are finite.

        Args:
            engine: exchanges the pseudo-gradient.
        """
        self._executor = engine.executor
        self.local_finite = torch.isfinite(self.local_squared_norm)
        return self.local_finite

    def complete_exchange(self, averaged: Averaged) -> None:
        """Record that ``pieces`` hold the means over the ranks, or that the exchange failed. Called by the executor.

        Args:
            averaged: future of the exchange, which has ended.
        """
        try:
            self.mean_finite = functools.reduce(both, averaged.result(), None)
            if self.mean_finite is None:
                raise RuntimeError("nobody checked whether the mean of a round of outer steps is finite")
            self.mean_squared_norm = _squared_norm(self.flat)
            if self._executor is not None and self._executor.lag:
                assert self.local_finite is not None
                flags = torch.stack([self.mean_finite, self.local_finite])
                self.finite_flags_on_host = self._executor.to_host(flags)
        except BaseException as error:
            fail(self._arrival_future, error)
        else:
            self._arrival_future.set_result(None)

    @property
    def inverse_drift(self) -> torch.Tensor:
        """Norm of this rank's pseudo-gradient / norm of the mean, 0-d: the inverse of drift; once ``has_arrived``."""
        return (self.local_squared_norm / self.mean_squared_norm).sqrt()

    def free_means(self) -> None:
        """Free the memory of the means, which have been applied; keep their norm."""
        self.flat, self.pieces = self.flat.new_empty(0), ()

    @property
    def has_arrived(self) -> bool:
        """True if the means have arrived, also those of ``buffers``, or the exchange failed."""
        return self._arrival_future.done() and (self.buffers is None or self.buffers.has_arrived)

    def wait(self) -> None:
        """Wait until ``pieces`` hold the means over the ranks, and those of ``buffers`` have arrived.

        Raises:
            ExchangeError: a rank did not answer.
        """
        self._arrival_future.result()
        if self.buffers is not None:
            self.buffers.wait()


class Anchor:
    """The weights that all ranks share, and this rank's own weights.

    Args:
        parameters: parameters trained on this rank, by name; dense in memory.
        exchange_shapes: shapes in which pseudo-gradients are exchanged, by name; a name may lack, and the shape is then
            the parameter's own. Zeros are appended to a pseudo-gradient if its exchange shape has more elements than
            its parameter.

    Attributes:
        parameters: parameters trained on this rank, by name.
        exchange_shapes: shape in which each pseudo-gradient is exchanged, by name, dimensions in memory order.
        exchange_dtype: number format of the pseudo-gradients.
        weights: weights that all ranks share, by name; the outer optimizer trains them.
        pending: pseudo-gradient in flight; ``None`` if none is.
        due_step: number of the rank's step from which on the anchor is applied to its weights; ``None`` if nothing is
            to be applied.
        weights_when_sent: the rank's weights when its pseudo-gradient was sent, by name. Empty unless the rank keeps
            what it learns while the pseudo-gradient is in flight.
        local_fraction: fraction of its weights that the rank keeps when it applies the anchor, in [0, 1).
        mean_applied: whether the newest mean was applied to the anchor; if not, the rank keeps its weights.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        exchange_shapes: Mapping[str, tuple[int, ...]],
    ) -> None:
        self.parameters = dict(parameters)
        self.exchange_shapes = {
            name: exchange_shapes[name] if name in exchange_shapes else memory_shape(parameter)
            for name, parameter in parameters.items()
        }
        self.weights = {
            name: torch.nn.Parameter(parameter.detach().to(exchange_dtype(parameter), copy=True))
            for name, parameter in parameters.items()
        }
        self.exchange_dtype = functools.reduce(torch.promote_types, map(exchange_dtype, parameters.values()))
        self.pending: PendingMean | None = None
        self.due_step: int | None = None
        self.weights_when_sent: dict[str, torch.Tensor] = {}
        self.local_fraction = 0.0
        self.mean_applied: Finite = None
        self._reads: Reads = AT_ONCE

    @property
    def piece_templates(self) -> dict[str, torch.Tensor]:
        """Tensors of the pseudo-gradients' shapes, strides, number formats and devices, by name, with any content."""
        return {
            name: parameter
            if parameter.dtype == self.exchange_dtype
            else torch.empty_like(parameter, dtype=self.exchange_dtype)
            for name, parameter in self.parameters.items()
        }

    def compute_pseudo_gradient(self, due_step: int, round_number: int, local_fraction: float | None) -> PendingMean:
        """Return the pseudo-gradient to exchange: anchor minus weights.

        Args:
            due_step: number of the rank's step from which on the anchor is applied to its weights.
            round_number: number of the round.
            local_fraction: fraction of its weights that the rank keeps when it applies the anchor; ``None``: the rank
                keeps what it learns while the pseudo-gradient is in flight.
        """
        self.pending, self.due_step = PendingMean(self, round_number), due_step
        self.local_fraction = local_fraction or 0.0
        keeps_learned = local_fraction is None
        self.weights_when_sent = (
            {name: parameter.detach().clone() for name, parameter in self.parameters.items()} if keeps_learned else {}
        )
        return self.pending

    def apply_mean(self, outer: torch.optim.Optimizer) -> None:
        """Make the outer optimizer's step on the anchor, by the means over the ranks, which have arrived.

        If a mean is not finite, the anchor and the outer optimizer's state stay as they were.

        Args:
            outer: the outer optimizer, which trains the anchor.
        """
        pending = self.pending
        assert pending is not None
        finite, self._reads = pending.mean_finite, pending.reads
        known_finite = self._reads.known(finite)
        if known_finite or finite is None:
            self.mean_applied = None
            self._step_outer_optimizer(pending, outer)
        else:
            self.mean_applied = finite = finite.clone()  # so that no stream reads a tensor which another stream made
        if known_finite is None and finite is not None:
            pending.flat.masked_fill_(~finite, 0.0)
            unchanged = _keeps_anchor_at_zero_gradient(outer)
            with nullcontext() if unchanged else undone_unless_finite(finite, [*self.weights.values()], outer.state):
                self._step_outer_optimizer(pending, outer)
        pending.free_means()
        self.pending = None

    def _step_outer_optimizer(self, pending: PendingMean, outer: torch.optim.Optimizer) -> None:
        """Make a step of the outer optimizer, with the means as the anchor's gradients."""
        for piece, weight in zip(pending.pieces, self.weights.values(), strict=True):
            weight.grad = piece.flat.as_strided(weight.shape, weight.stride()).to(weight)
        outer.step()
        for weight in self.weights.values():
            weight.grad = None

    @torch.no_grad()
    def apply(self) -> None:
        """Move the rank's weights to the anchor.

        The rank keeps a fraction of its weights (``local_fraction``), or what it learned since it sent the
        pseudo-gradient (``weights_when_sent``). If the newest mean was not applied, the rank keeps its weights.
        """
        known_applied = self._reads.known(self.mean_applied)
        for name, parameter in self.parameters.items():
            if known_applied:
                self._apply_to(name, parameter)
            elif known_applied is None:
                moved_weights = parameter.clone()
                self._apply_to(name, moved_weights)
                parameter.copy_(self._reads.choose(self.mean_applied, moved_weights, parameter))
        self.due_step, self.weights_when_sent = None, {}

    def _apply_to(self, name: str, weights: torch.Tensor) -> None:
        """Move weights to the anchor of a parameter, in place; see ``apply``."""
        if self.local_fraction:
            weights.lerp_(self.weights[name].to(weights), 1 - self.local_fraction)
        elif name in self.weights_when_sent:
            weights.sub_(self.weights_when_sent[name]).add_(self.weights[name].to(weights))
        else:
            weights.copy_(self.weights[name])

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Overwrite the rank's weights with the anchor, and so lose what the rank learned since the last exchange."""
        for name, parameter in self.parameters.items():
            parameter.copy_(self.weights[name])
            if name in self.weights_when_sent:
                self.weights_when_sent[name].copy_(parameter)

    @torch.no_grad()
    def start_from_parameters(self) -> None:
        """Overwrite the anchor with the rank's weights, which are the same on all ranks.

        Called while no exchange is in flight.
        """
        for name, weight in self.weights.items():
            weight.copy_(self.parameters[name])
        self.due_step, self.weights_when_sent = None, {}

    def state_dict(self) -> dict[str, Any]:
        """Return the anchor, the rank's own weights, and when and how the rank will apply the anchor to its weights.

        Called while no exchange is in flight.
        """
        return {
            "weights": {name: weight.detach() for name, weight in self.weights.items()},
            "own": {name: parameter.detach() for name, parameter in self.parameters.items()},
            "due": self.due_step,
            "left": self.weights_when_sent,
            "keeps": self.local_fraction,
            "applied": self.mean_applied is None or bool(self.mean_applied),
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that ``state_dict`` returned."""
        for name, weight in self.weights.items():
            weight.copy_(state["weights"][name])
            self.parameters[name].copy_(state["own"][name])
        self.pending, self.due_step, self.local_fraction = None, state["due"], state["keeps"]
        self.mean_applied = None if state["applied"] else torch.zeros((), dtype=torch.bool, device="cpu")
        self.weights_when_sent = {
            name: torch.empty_like(self.parameters[name]).copy_(weights) for name, weights in state["left"].items()
        }


def exchange_dtype(parameter: torch.Tensor) -> torch.dtype:
    """Return the number format of a parameter's anchor and pseudo-gradient; the parameter may have any shape."""
    return torch.float32 if parameter.dtype in SIXTEEN_BIT_FORMATS else parameter.dtype


def _keeps_anchor_at_zero_gradient(outer: torch.optim.Optimizer) -> bool:
    """True if a step with zero gradients changes no weight: for SGD without momentum and weight decay."""
    is_sgd = isinstance(outer, torch.optim.SGD)
    return is_sgd and not any(group["momentum"] or group["weight_decay"] for group in outer.param_groups)


@contextmanager
def undone_unless_finite(finite: torch.Tensor, weights: Sequence[torch.nn.Parameter], state: State) -> Iterator[None]:
    """Return a context for an outer step, which is undone on exit, bit for bit, if the mean was not finite.

    The host does not wait for the device, which alone knows whether the mean was finite. If the mean was not finite,
    the caller has made the step's gradients zero, so tensors that the optimizer creates in the step may stay. A step
    count that the optimizer keeps on the host, as torch's Adam does for GPU parameters, is not undone.

    Args:
        finite: whether the mean was finite, 0-d bool tensor.
        weights: weights of the anchor, which the optimizer changes, of any shapes.
        state: the outer optimizer's state, by weight and by name.
    """
    copies_before_step = [
        (weight, weight.data.clone(), _copies_on_device(finite.device, state.get(weight, {}))) for weight in weights
    ]
    yield
    for weight, previous_weight, previous_tensors in copies_before_step:
        weight.data = torch.where(finite, weight.data, previous_weight)
        for key, previous_tensor in previous_tensors.items():
            state[weight][key] = torch.where(finite, state[weight][key], previous_tensor)


def _copies_on_device(device: torch.device, state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return copies, by name, of an optimizer's tensors that are on a device."""
    tensors = {key: entry for key, entry in state.items() if torch.is_tensor(entry)}
    return {key: tensor.clone() for key, tensor in tensors.items() if tensor.device == device}


def _squared_norm(flat: torch.Tensor) -> torch.Tensor:
    """Return the squared L2 norm of a flat tensor, 0-d, float64."""
    norm: torch.Tensor = torch.linalg.vector_norm(flat, dtype=torch.float64)
    return norm.square()
