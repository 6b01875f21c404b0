# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A source of gradients for models in shards by FSDP2: hooks on parameters hand gradients to the engine in backward.

torch sets the gradients of a *unit*, the parameters that one ``fully_shard`` call holds, when backward has left that
unit, and then calls their hooks. From these hooks the gradients go to the engine, unit by unit, while backward goes on:

1. The engine's step begins with the first gradient of a backward.
2. A unit's gradients are handed over together as soon as all have arrived, or when those of another unit arrive.
3. Backward ends, and the engine's step ends. ``.grad`` then holds the mean over the replicas.

``gravac.sources.fsdp2`` has all that is known of torch's shards and replicas.
"""

import functools
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd import Variable

from gravac.averaging.plan import Piece
from gravac.engine.engine import Engine
from gravac.engine.handle import Handle
from gravac.sources.ddp import NO_BACKWARD
from gravac.sources.ddp_private import UncopiedHook
from gravac.sources.fsdp2 import PaddedGradient, ShardedModel
from gravac.sources.hooked import AtEnd, HookedSource


@dataclass(eq=False, slots=True)
class _Step:
    """A step under way.

    Attributes:
        unit: number of the unit whose gradients arrive.
        pending: gradients that have arrived and were not handed over.
        gradients: all gradients that have arrived.
        handles: handles of the exchanges in flight.
    """

    unit: int = -1
    pending: list[Piece] = field(default_factory=list)
    gradients: list[PaddedGradient] = field(default_factory=list)
    handles: list[Handle] = field(default_factory=list)


class FSDP2Source(HookedSource):
    """Averages the gradients of a model in shards over its replicas, while backward runs.

    When ``backward()`` returns, each ``.grad`` holds the mean over all ranks, as after torch's own exchange. Backwards
    after which torch would not exchange over the replicas (``set_requires_gradient_sync(False)``,
    ``set_requires_all_reduce(False)``) are no steps. Where torch does not know the replicas, only ``accumulate`` tells.

    Args:
        engine: averages over the replicas.
        model: the model in shards.
    """

    def __init__(self, engine: Engine, model: ShardedModel) -> None:
        super().__init__(engine)
        self._model = model
        units = [*model.units.values()]
        self._unit_sizes = {unit: units.count(unit) for unit in units}
        self._hooked: dict[str, tuple[torch.nn.Parameter, torch.utils.hooks.RemovableHandle]] = {}
        self._accumulating = 0
        self._backward: weakref.ref[AtEnd] | None = None
        self._step: _Step | None = None
        engine.know(model.forms)
        engine.device = model.device

    @property
    def accumulating(self) -> bool:
        """True if a backward that begins now exchanges nothing over the replicas, by ``accumulate`` or by torch."""
        return self._accumulating > 0 or not self._model.exchanges

    def watch(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        """Average gradients over the replicas by gravac, beginning with the next backward.

        Args:
            module: the module that the training loop calls, compiled or not.
            optimizer: optimizer whose steps and learning rate the engine learns; ``None``: neither is known.
        """
        starts, ended = UncopiedHook(self._forward_starts), UncopiedHook(self._forward_ended)
        self._watched = [module.register_forward_pre_hook(starts), module.register_forward_hook(ended)]
        self._hook_parameters()
        self._model.swallow()
        self.optimizer = optimizer
        if optimizer is not None:
            self._watched.append(optimizer.register_step_pre_hook(self._step_starts))
            self._watched.append(optimizer.register_step_post_hook(self._step_ended))

    def detach(self) -> None:
        """Undo ``watch``: torch averages over the replicas again. Called on every rank between the same two steps.

        Raises:
            RuntimeError: no module is being watched, or a backward is running; nothing was changed.
        """
        self._refuse_to_detach(backward_runs=self._running)
        self._complete()
        self._model.restore()
        for handle in (*self._watched, *(handle for _, handle in self._hooked.values())):
            handle.remove()
        self._watched.clear()
        self._hooked.clear()
        self.optimizer = self.loss_scale = None
        self._inputs = self._optimized = self._backward = None

    def rest(self) -> None:
        """Exchange nothing from the next backward on; torch averages over the replicas again, if it knows them."""
        super().rest()
        self._model.restore()

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """Return a context whose backwards exchange nothing over the replicas; the next one outside exchanges the sum.

        All ranks must enter the context for the same backwards.
        """
        self._accumulating += 1
        self._model.require_exchange(False)
        try:
            yield
        finally:
            self._accumulating -= 1
            if not self._accumulating:
                self._model.require_exchange(True)

    # hooks

    def _hook_parameters(self) -> None:
        """Hook the present parameters, also those that took the place of others since."""
        replaced = []
        for name, parameter in self._model.parameters.items():
            hooked, handle = self._hooked.get(name, (None, None))
            if parameter is hooked:
                continue
            if handle is not None:
                handle.remove()
                replaced.append(name)
            hookable: Any = parameter
            handle = hookable.register_post_accumulate_grad_hook(functools.partial(self._reduced, name))
            self._hooked[name] = parameter, handle
        if replaced:
            warnings.warn(
                f"gravac: parameters were replaced since attach ({replaced[0]}, {len(replaced)} in all), as "
                "load_state_dict(assign=True) does, and lost their hooks; the new parameters are hooked from here on",
                RuntimeWarning,
                stacklevel=2,
            )

    def _forward_starts(self, *_: object) -> None:
        if not torch.is_grad_enabled() or torch._C._current_graph_task_id() != NO_BACKWARD:
            return  # evaluation, or activation checkpointing, which computes a forward again
        self._complete()
        self._hook_parameters()
        if self._inputs is None and not self.quiet:
            self._inputs = self._engine.mark()

    def _backward_starts(self, gradient: torch.Tensor) -> None:
        self._enter()

    def _step_starts(self, *_: object) -> None:
        """End a step of a pipeline schedule that left parameters without a gradient."""
        if self._step is not None and not self._running:
            self._end(self._step)

    def _reduced(self, name: str, parameter: torch.nn.Parameter) -> None:
        """Take a gradient that torch has reduced within this replica, and hand its unit over if that is complete."""
        if self.quiet or (self._accumulating and not self._model.knows_replicas):
            return
        self._enter()
        step = self._step or self._begin()
        unit = self._model.units[name]
        if step.pending and unit != step.unit:
            self._hand_over(step)
        gradient = self._model.gradient(name, parameter)
        step.unit = unit
        step.gradients.append(gradient)
        step.pending.append(gradient.piece)
        if len(step.pending) == self._unit_sizes[unit]:
            self._hand_over(step)
        if self._backward is None and len(step.gradients) == len(self._model.units):
            self._end(step)

    # a backward

    @property
    def _running(self) -> bool:
        """True if a backward is under way that has neither ended nor failed."""
        return self._backward is not None and self._backward() is not None

    def _enter(self) -> None:
        """Register a callback for the end of the outermost backward, if it has just begun.

        A pipeline schedule reduces gradients after its backwards, outside of autograd: then there is no callback, and a
        step ends with its last gradient.
        """
        if self._running or torch._C._current_graph_task_id() == NO_BACKWARD:
            return
        self._complete()
        self._call_at_end(AtEnd(self._backward_ends))

    def _backward_ends(self) -> None:
        """Let the step end after torch's callback, which reduces units whose inputs require no gradient."""
        self._call_at_end(AtEnd(self._backward_ended))

    def _call_at_end(self, at_end: AtEnd) -> None:
        self._backward = weakref.ref(at_end)
        Variable._execution_engine.queue_callback(at_end)

    def _backward_ended(self) -> None:
        self._backward = None
        if self._step is not None:
            self._end(self._step)

    def _complete(self) -> None:
        """Complete the step of a backward that ended with an exception, with the gradients that had arrived.

        Their means are not written: gradients may have been zeroed since.
        """
        if self._step is not None and not self._running:
            self._backward = None
            self._send_rest(self._step)

    # a step

    def _begin(self) -> _Step:
        self._engine.open()
        self._begin_engines_step()
        self._step = step = _Step()
        return step

    def _hand_over(self, step: _Step) -> None:
        """Hand the pending gradients over to the engine."""
        pieces, step.pending = step.pending, []
        buffer = _common_buffer(pieces)
        if self._model.factor != 1:
            flats = [piece.flat for piece in pieces] if buffer is None else [buffer]
            torch._foreach_mul_(flats, self._model.factor)
        step.handles.append(self._engine.exchange(pieces, buffer))

    def _end(self, step: _Step) -> None:
        """End the engine's step, and put the means into ``.grad``.

        Raises:
            ExchangeError: a rank did not answer.
        """
        self._send_rest(step)
        self._raise_failure_of_begin()
        with torch.no_grad():
            for gradient in step.gradients:
                gradient.put_back()

    def _send_rest(self, step: _Step) -> None:
        """Hand over the remaining gradients, end the engine's step, and wait for its exchanges."""
        self._step = None
        fill = self._take_moments()
        if step.pending:
            self._hand_over(step)
        self._engine.flush()
        self._engine.end(fill)
        for handle in step.handles:
            handle.wait()


def _common_buffer(pieces: list[Piece]) -> torch.Tensor | None:
    """Return one flat view over pieces that lie in memory one after the other; ``None`` if they do not."""
    first = pieces[0].flat
    end = first.storage_offset()
    for piece in pieces:
        same_storage = piece.flat.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        if not same_storage or piece.flat.storage_offset() != end:
            return None
        end += piece.flat.numel()
    return first.as_strided((end - first.storage_offset(),), (1,), first.storage_offset())
