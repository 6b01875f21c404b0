# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A source of gradients for models in shards by FSDP2: hooks on parameters hand gradients to the engine in backward.

A model in shards has *units*: the parameters that one ``fully_shard`` call holds. When backward has passed a unit,
torch sets the unit's gradients, and then calls the hooks on its parameters. These hooks hand the gradients to the
engine, which averages them over the replicas, unit by unit, while backward continues:

1. The engine's step begins with the first gradient of a backward.
2. A unit's gradients are handed over together, as soon as all have arrived, or when a gradient of another unit arrives.
3. Backward ends, and the engine's step ends. ``.grad`` then holds the mean over the replicas.

``gravac.sources.fsdp2`` finds the model's shards, replicas and gradients.
"""

import functools
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd import Variable

from gravac.averaging.plan import Piece
from gravac.engine.engine import Engine
from gravac.engine.handle import Handle
from gravac.settings import SettingsError
from gravac.sources.ddp import NO_BACKWARD
from gravac.sources.ddp_private import UncompiledHook, UncopiedHook
from gravac.sources.fsdp2 import PaddedGradient, ShardedModel
from gravac.sources.gradient_hooks import register_own_hook, restore_hooks, watch_hooks
from gravac.sources.hooked import EndCallback, HookedSource


@dataclass(eq=False, slots=True)
class _Step:
    """State of a step under way: a backward whose gradients are exchanged over the replicas, unit by unit.

    Attributes:
        present_unit: number of the unit whose gradients arrive; -1 before the first gradient.
        pending_pieces: gradients that have arrived, but were not handed to the engine yet.
        gradients: all gradients that have arrived in the step.
        handles: handles of the exchanges in flight.
        deferred_calls: calls of the user's hooks on parameters, to be made when gradients are averaged.
    """

    present_unit: int = -1
    pending_pieces: list[Piece] = field(default_factory=list)
    gradients: list[PaddedGradient] = field(default_factory=list)
    handles: list[Handle] = field(default_factory=list)
    deferred_calls: list[Callable[[], None]] = field(default_factory=list)


class FSDP2Source(HookedSource):
    """Averages the gradients of a model in shards over its replicas, while backward runs.

    When ``backward()`` returns, each ``.grad`` holds the mean over all ranks, as after torch's own exchange. If torch
    would not exchange over the replicas in a backward (``set_requires_gradient_sync(False)``,
    ``set_requires_all_reduce(False)``), gravac does not either. If the mesh has no replicate dimension, gravac
    exchanges in all backwards except for those within ``no_sync``.

    Args:
        engine: object that averages the gradients over the replicas.
        model: the model in shards, with its replicas.

    Attributes:
        reason_against_pipelines: error message that says why a pipeline schedule cannot run the module, and what to do;
            empty if a schedule can.
        refuses_steps_in_backward: whether an error is raised if a user's hook changes a parameter within backward.
    """

    def __init__(self, engine: Engine, model: ShardedModel) -> None:
        super().__init__(engine)
        self.reason_against_pipelines = ""
        self.refuses_steps_in_backward = False
        self._model = model
        unit_of_parameters = [*model.units.values()]
        self._unit_sizes = {unit: unit_of_parameters.count(unit) for unit in unit_of_parameters}
        self._hooked_parameters: dict[str, tuple[torch.nn.Parameter, torch.utils.hooks.RemovableHandle]] = {}
        self._accumulate_depth = 0
        self._backward_callback: weakref.ref[EndCallback] | None = None
        self._step: _Step | None = None
        engine.know(model.meta_tensors)
        engine.shard_places = model.shard_places
        engine.device = model.device

    @property
    def is_accumulating(self) -> bool:
        """True if a backward that begins now exchanges nothing over replicas, by ``no_sync`` or torch's flags."""
        return self._accumulate_depth > 0 or not self._model.will_exchange

    def watch(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        """Register hooks, and let gravac in place of torch average over the replicas from the next backward on.

        Args:
            module: the module that the training loop calls, compiled or not.
            optimizer: optimizer whose step times and learning rate the engine gets; ``None``: it gets neither.
        """
        start_hook, end_hook = UncopiedHook(self._forward_starts), UncopiedHook(self._forward_ended)
        self._hook_handles = [module.register_forward_pre_hook(start_hook), module.register_forward_hook(end_hook)]
        self._hook_parameters()
        self._model.suspend_torch_exchange()
        self.optimizer = optimizer
        if optimizer is not None:
            self._hook_handles.append(optimizer.register_step_pre_hook(UncompiledHook(self._end_open_step)))
            self._hook_handles.append(optimizer.register_step_post_hook(UncompiledHook(self._step_ended)))

    def detach(self) -> None:
        """Remove the hooks, so that torch averages over the replicas again.

        Called on every rank between the same two steps.

        Raises:
            RuntimeError: ``watch`` was not called, or a backward is running; nothing was changed.
        """
        self._refuse_to_detach(backward_runs=self._backward_runs)
        self._complete_failed_backward()
        self._model.restore_torch_exchange()
        for handle in (*self._hook_handles, *(handle for _, handle in self._hooked_parameters.values())):
            handle.remove()
        for parameter, _ in self._hooked_parameters.values():
            restore_hooks(parameter)
        self._hook_handles.clear()
        self._hooked_parameters.clear()
        self.optimizer = self.loss_scale = None
        self._forward_began_mark = self._optimizer_ended_mark = self._backward_callback = None

    def stop_exchange(self) -> None:
        """Stop gravac's exchange from the next backward on.

        If the mesh has a replicate dimension, torch averages over the replicas again.
        """
        super().stop_exchange()
        self._model.restore_torch_exchange()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Return a context whose backwards exchange nothing over the replicas; the next backward exchanges the sum.

        All ranks must enter the context for the same backwards.
        """
        self._accumulate_depth += 1
        self._model.require_exchange(False)
        try:
            yield
        finally:
            self._accumulate_depth -= 1
            if not self._accumulate_depth:
                self._model.require_exchange(True)

    # hooks

    def _hook_parameters(self) -> None:
        """Register a hook on each parameter that has none; warn if parameters were replaced.

        ``load_state_dict(assign=True)`` replaces parameters.
        """
        replaced_names = []
        for name, parameter in self._model.parameters.items():
            hooked_parameter, handle = self._hooked_parameters.get(name, (None, None))
            if parameter is hooked_parameter:
                continue
            if handle is not None:
                handle.remove()
                replaced_names.append(name)
            hookable: Any = parameter
            hook = UncompiledHook(functools.partial(self._gradient_reduced, name))
            handle = register_own_hook(parameter, hook)
            hookable._post_accumulate_grad_hooks.move_to_end(handle.id, last=False)  # before hooks to be deferred
            self._hooked_parameters[name] = parameter, handle
        if replaced_names:
            warnings.warn(
                f"gravac: parameters were replaced since attach ({replaced_names[0]}, {len(replaced_names)} in all), "
                "as load_state_dict(assign=True) does; gravac averages the new parameters' gradients from now on; "
                "to avoid this warning, load before attach",
                RuntimeWarning,
                stacklevel=2,
            )

    def _forward_starts(self, *_: object) -> None:
        """Complete the step of a failed backward, register missing hooks, and record that a forward begins now.

        Raises:
            SettingsError: the module is a part of a larger model in shards, or ``set_all_reduce_hook`` was called.
        """
        if not torch.is_grad_enabled() or torch._C._current_graph_task_id() != NO_BACKWARD:
            return  # evaluation, or activation checkpointing, which computes a forward again
        self._model.refuse_part_of_larger_model()
        self._model.refuse_all_reduce_hooks()
        self._complete_failed_backward()
        self._hook_parameters()
        if self._forward_began_mark is None and not self.is_stopped:
            self._forward_began_mark = self._engine.mark()

    def _backward_starts(self, gradient: torch.Tensor) -> None:
        self._watch_backward()

    def _end_open_step(self, *_: object) -> None:
        """End a step of the engine that is still open. Called before the optimizer's step.

        A step stays open after backward if a pipeline schedule left parameters without a gradient.
        """
        if self._step is not None and not self._backward_runs:
            self._end_step(self._step)

    def _gradient_reduced(self, name: str, parameter: torch.nn.Parameter) -> None:
        """Take a gradient that torch has reduced within this replica. Called by a hook on the parameter.

        When all gradients of a unit (the parameters of one ``fully_shard`` call) have arrived, hand them to the engine.

        Raises:
            SettingsError: a pipeline schedule runs the module, and ``reason_against_pipelines`` is not empty.
        """
        if self.reason_against_pipelines and self._is_outside_of_autograd:
            raise SettingsError(self.reason_against_pipelines)
        if self.gradient_accumulated is not None:
            self.gradient_accumulated(parameter)
        watch_hooks(name, parameter, self._defer, self.refuses_steps_in_backward)
        if self.is_stopped or (self._accumulate_depth and not self._model.knows_replicas):
            return
        self._watch_backward()
        step = self._step or self._begin_step()
        unit = self._model.units[name]
        if step.pending_pieces and unit != step.present_unit:
            self._send_unit(step)
        gradient = self._model.gradient(name, parameter)
        step.present_unit = unit
        step.gradients.append(gradient)
        step.pending_pieces.append(gradient.piece)
        if len(step.pending_pieces) == self._unit_sizes[unit]:
            self._send_unit(step)
        if self._backward_callback is None and len(step.gradients) == len(self._model.units):
            self._end_step(step)

    def _defer(self, call: Callable[[], None]) -> bool:
        """Store a call of a user's hook until this step's gradients are averaged; return False if there is no step."""
        if self._step is not None:
            self._step.deferred_calls.append(call)
        return self._step is not None

    # a backward

    @property
    def _backward_runs(self) -> bool:
        """True if a backward is under way that has neither ended nor failed."""
        return self._backward_callback is not None and self._backward_callback() is not None

    @property
    def _is_outside_of_autograd(self) -> bool:
        """True if no backward is under way: a pipeline's schedule reduces gradients after its backwards."""
        return not self._backward_runs and torch._C._current_graph_task_id() == NO_BACKWARD

    def _watch_backward(self) -> None:
        """Register a callback for the end of the outermost backward, if that backward has just begun.

        If no backward runs, since a pipeline schedule reduces gradients afterwards, register none: the step then ends
        with its last gradient.
        """
        if self._backward_runs or self._is_outside_of_autograd:
            return
        self._complete_failed_backward()
        self._call_at_end(EndCallback(self._register_last_callback))

    def _register_last_callback(self) -> None:
        """Register a callback that ends the step. Called by autograd when a backward has ended.

        The callback runs after torch's own callback, in which torch reduces units whose inputs need no gradient.
        """
        self._call_at_end(EndCallback(self._backward_ended))

    def _call_at_end(self, end_callback: EndCallback) -> None:
        """Let autograd call a callback at the end of the backward under way."""
        self._backward_callback = weakref.ref(end_callback)
        Variable._execution_engine.queue_callback(end_callback)

    def _backward_ended(self) -> None:
        """End the step of a backward that has just ended. Called by autograd."""
        self._backward_callback = None
        if self._step is not None:
            self._end_step(self._step)

    def _complete_failed_backward(self) -> None:
        """Complete the step of a backward that ended with an exception, with the gradients that had arrived.

        Do nothing if no backward failed. The means are not written, since gradients may have been zeroed meanwhile.
        """
        if self._step is not None and not self._backward_runs:
            self._backward_callback = None
            self._complete_step(self._step)

    # a step

    def _begin_step(self) -> _Step:
        """Begin a step of the engine, which averages gradients; return the step's state."""
        self._engine.open()
        self._begin_engines_step()
        self._step = step = _Step()
        return step

    def _send_unit(self, step: _Step) -> None:
        """Hand the gradients of one ``fully_shard`` call that have arrived to the engine, which averages them."""
        pieces, step.pending_pieces = step.pending_pieces, []
        buffer = _common_buffer(pieces)
        step.handles.append(self._engine.submit(pieces, buffer))

    def _end_step(self, step: _Step) -> None:
        """End the engine's step, put the means into ``.grad``, and call the users' hooks that wait for the means.

        Raises:
            ExchangeError: a rank did not answer.
        """
        self._complete_step(step)
        self._raise_failure_of_begin()
        with torch.no_grad():
            for gradient in step.gradients:
                gradient.put_back()
            for call in step.deferred_calls:
                call()

    def _complete_step(self, step: _Step) -> None:
        """Hand the remaining gradients to the engine, end the engine's step, and wait for its exchanges."""
        self._step = None
        add_times = self._times_writer()
        if step.pending_pieces:
            self._send_unit(step)
        self._engine.end(add_times)
        for handle in step.handles:
            handle.wait()


def _common_buffer(pieces: list[Piece]) -> torch.Tensor | None:
    """Return one flat view over gradients that lie in memory one after the other; ``None`` if they do not."""
    first_flat = pieces[0].flat
    end_offset = first_flat.storage_offset()
    for piece in pieces:
        same_storage = piece.flat.untyped_storage().data_ptr() == first_flat.untyped_storage().data_ptr()
        if not same_storage or piece.flat.storage_offset() != end_offset:
            return None
        end_offset += piece.flat.numel()
    return first_flat.as_strided((end_offset - first_flat.storage_offset(),), (1,), first_flat.storage_offset())
