# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A source of gradients for models in shards by FSDP2: hooks on parameters hand gradients to the engine in backward.

A model in shards has *units*: the parameters that one ``fully_shard`` call cuts along one mesh. When backward has
passed a unit, torch sets the unit's gradients, and calls the hooks on its parameters. These hooks hand the gradients to
the engine, which averages them over the replicas, unit by unit, while backward continues:

1. The engine's step begins with the first gradient of a backward.
2. A unit's gradients are handed over together, as soon as all have arrived, or when a gradient of another unit arrives.
3. Backward ends, and the engine's step ends. ``.grad`` then holds the mean over the replicas.

``gravac.sources.fsdp2`` finds the model's shards, replicas and gradients.
"""

import functools
import math
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import torch
from torch.autograd import Variable

from gravac.averaging.plan import Piece
from gravac.averaging.recording import StepRecording
from gravac.candidate import Candidate
from gravac.engine.engine import Engine
from gravac.engine.handle import Handle
from gravac.engine.inputs import StepInputs, learning_rate
from gravac.exchange.executor import Mark
from gravac.exchange.reading import Number
from gravac.sources.fsdp2 import PaddedGradient, ShardedModel
from gravac.sources.gradient_hooks import register_own_hook, restore_hooks, watch_hooks
from gravac.sources.hooks import NO_BACKWARD, UncompiledHook, UncopiedHook
from gravac.sources.local_model import LocalModel, innermost
from gravac.sources.local_shards import LocalShards


@dataclass(eq=False, slots=True)
class _Step:
    """State of a step under way: a backward whose gradients are exchanged over the replicas, unit by unit.

    Attributes:
        pending_pieces: gradients of one unit that have arrived, but were not handed to the engine yet.
        gradients: all gradients that have arrived in the step.
        handles: handles of the exchanges in flight.
        deferred_calls: calls of the user's hooks on parameters, to be made when gradients are averaged.
    """

    pending_pieces: list[Piece] = field(default_factory=list)
    gradients: list[PaddedGradient] = field(default_factory=list)
    handles: list[Handle] = field(default_factory=list)
    deferred_calls: list[Callable[[], None]] = field(default_factory=list)


class FSDP2Source:
    """Averages the gradients of a model in shards over its replicas, while backward runs.

    When ``backward()`` returns, each ``.grad`` holds the mean over all ranks, as after torch's own exchange. If torch
    would not exchange over the replicas in a backward (``set_requires_gradient_sync(False)``,
    ``set_requires_all_reduce(False)``), gravac does not either. If the mesh has no replicate dimension, gravac
    exchanges in all backwards except for those within ``no_sync``. In outer steps nobody exchanges over the replicas.

    See ``gravac.modes.source.Source`` for the methods and attributes by which the switch controls the exchange.

    Args:
        engine: object that averages the gradients over the replicas.
        model: the model in shards, with its replicas.
        module: the module that the training loop calls, compiled or not.

    Attributes:
        loss_scale: function that returns the present loss scale, a float or a 0-d tensor; ``None`` without a
            ``GradScaler``.
        refuses_steps_in_backward: whether an error is raised if a user's hook changes a parameter within backward.
    """

    forward_exchanges = True
    in_join = shares_buffers = False

    def __init__(self, engine: Engine, model: ShardedModel, module: torch.nn.Module) -> None:
        self.called_module = self.inner_module = module
        self.decided_candidate: Future[Candidate] | None = None
        self.send_residuals = False
        self.loss_scale: Callable[[], Number] | None = None
        self.refuses_steps_in_backward = False
        self._engine, self._model = engine, model
        self._optimizer: torch.optim.Optimizer | None = None
        self._unit_sizes = Counter(model.units.values())
        self._gradient_accumulated: Callable[[torch.Tensor], None] | None = None
        self._hook_handles: list[torch.utils.hooks.RemovableHandle] = []
        self._hooked_parameters: dict[str, tuple[torch.nn.Parameter, torch.utils.hooks.RemovableHandle]] = {}
        self._is_stopped = False
        self._accumulate_depth = 0
        self._end_callback: weakref.ref[UncompiledHook] | None = None
        self._step: _Step | None = None
        self._forward_began_mark: Mark | None = None
        self._optimizer_ended_mark: Mark | None = None
        engine.know(model.meta_tensors)
        engine.shard_places = model.shard_places
        engine.device = model.device

    def watch(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Register hooks, and let gravac in place of torch average over the replicas from the next backward on.

        Args:
            optimizer: optimizer whose learning rate the engine gets; ``None``: the engine gets none.
        """
        self._hook_handles = [self.called_module.register_forward_hook(UncopiedHook(self._forward_ended))]
        self._hook_parameters()
        self._model.suspend_torch_exchange()
        self._optimizer = optimizer
        if optimizer is not None:
            self._hook_handles.append(optimizer.register_step_pre_hook(UncompiledHook(self._end_open_step)))

    def detach(self) -> None:
        """Remove the hooks, so that torch averages over the replicas again.

        Called on every rank between the same two steps.

        Raises:
            RuntimeError: ``watch`` was not called, or a backward is running; nothing was changed.
        """
        if not self._hook_handles:
            raise RuntimeError("detach: this compressor is not attached to a module; call detach() after attach() only")
        if self._backward_runs or torch._C._current_graph_task_id() != NO_BACKWARD:
            raise RuntimeError("detach: a backward is running; call detach() after the backward, between two steps")
        self._complete_failed_backward()
        self._model.restore_torch_exchange()
        for handle in (*self._hook_handles, *(handle for _, handle in self._hooked_parameters.values())):
            handle.remove()
        for parameter, _ in self._hooked_parameters.values():
            restore_hooks(parameter)
        self._hook_handles.clear()
        self._hooked_parameters.clear()

    def close(self) -> None:
        """Let torch average over the replicas again, from the next backward on; gravac exchanges no more gradients."""
        self._is_stopped = True
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

    # control by the switch

    def local_model(self, optimizers: Sequence[torch.optim.Optimizer]) -> LocalModel:
        """Return the local model: this rank's shards of the parameters and of the optimizers' states."""
        return LocalShards(self._model, innermost(self.inner_module), optimizers)

    @property
    def will_exchange(self) -> bool:
        """True if the next backward is to exchange gradients, not just accumulate them; read when a forward begins."""
        return not self._accumulate_depth and self._model.will_exchange

    def use_hook(self) -> None:
        """Let gravac exchange gradients from the next backward on."""
        self._is_stopped = False

    def use_native(self, cf: float) -> None:
        """Raise, since gravac runs no native steps of a model in shards.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError("native: a model in shards has no native steps; use native=False")

    def stop_exchange(self) -> None:
        """Stop the exchange: from the next backward on, neither gravac nor torch exchanges over the replicas."""
        self._complete_failed_backward()
        self._is_stopped = True
        self._forward_began_mark = self._optimizer_ended_mark = None

    def silence_exchange(self) -> None:
        """Do nothing, since ``stop_exchange`` has already stopped the exchange of all backwards."""

    def restore_exchange(self) -> None:
        """Do nothing, since ``silence_exchange`` changed nothing."""

    def watch_gradients(self, gradient_accumulated: Callable[[torch.Tensor], None] | None) -> None:
        """Call a function with each parameter (any shape) that gets a gradient in a backward; ``None``: no longer.

        Raises:
            SettingsError: the module is a part of a larger model in shards, or ``set_all_reduce_hook`` was called.
        """
        self._gradient_accumulated = gradient_accumulated
        if gradient_accumulated is not None:
            self._prepare_backward()

    def has_averaged(self) -> bool:
        """Return ``False``, since only gravac averages gradients."""
        return False

    def forward_starts(self) -> None:
        """Record that the forward of a hook step begins now.

        Raises:
            SettingsError: the module is a part of a larger model in shards, or ``set_all_reduce_hook`` was called.
        """
        self._prepare_backward()
        if self._forward_began_mark is None:
            self._forward_began_mark = self._engine.mark()

    def step_ended(self) -> None:
        """Record the time at which an optimizer's step ended."""
        self._optimizer_ended_mark = self._engine.mark()

    # hooks

    def _prepare_backward(self) -> None:
        """Complete the step of a failed backward, and register missing hooks. Called when a forward begins.

        Raises:
            SettingsError: the module is a part of a larger model in shards, or ``set_all_reduce_hook`` was called.
        """
        self._model.refuse_part_of_larger_model()
        self._model.refuse_all_reduce_hooks()
        self._complete_failed_backward()
        self._hook_parameters()

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
            handle = register_own_hook(parameter, UncompiledHook(functools.partial(self._gradient_reduced, name)))
            parameter._post_accumulate_grad_hooks.move_to_end(handle.id, last=False)  # before hooks to be deferred
            self._hooked_parameters[name] = parameter, handle
        if replaced_names:
            warnings.warn(
                f"gravac: parameters were replaced since attach ({replaced_names[0]}, {len(replaced_names)} in all), "
                "as load_state_dict(assign=True) does; gravac averages the new parameters' gradients from now on; "
                "to avoid this warning, load before attach",
                RuntimeWarning,
                stacklevel=2,
            )

    def _forward_ended(self, module: object, inputs: object, outputs: object) -> None:
        """Let each output of a forward tell when the backward begins: within the outermost of nested backwards."""
        if torch.is_grad_enabled() and not self._is_stopped:
            for tensor in _tensors_in(outputs):
                if tensor.requires_grad:
                    tensor.register_hook(UncompiledHook(self._watch_backward))

    def _end_open_step(self, *_: object) -> None:
        """End a step of the engine that is still open. Called before the optimizer's step.

        A step stays open after backward if a pipeline schedule left parameters without a gradient.
        """
        if self._step is not None and not self._backward_runs:
            self._end_step(self._step)

    def _gradient_reduced(self, name: str, parameter: torch.nn.Parameter) -> None:
        """Take a gradient that torch has reduced within this replica. Called by a hook on the parameter.

        When all gradients of a unit have arrived, hand them to the engine.
        """
        if self._gradient_accumulated is not None:
            self._gradient_accumulated(parameter)
        watch_hooks(name, parameter, self._defer, self.refuses_steps_in_backward)
        if self._is_stopped or (self._accumulate_depth and not self._model.knows_replicas):
            return
        self._watch_backward()
        step = self._step or self._begin_step()
        unit = self._model.units[name]
        if step.pending_pieces and unit != self._model.units[step.pending_pieces[0].name]:
            self._send_unit(step)
        gradient = self._model.gradient(name, parameter)
        step.gradients.append(gradient)
        step.pending_pieces.append(gradient.piece)
        if len(step.pending_pieces) == self._unit_sizes[unit]:
            self._send_unit(step)
        if self._end_callback is None and len(step.gradients) == len(self._model.units):
            self._end_step(step)

    def _defer(self, call: Callable[[], None]) -> bool:
        """Store a call of a user's hook until this step's gradients are averaged; return False if there is no step."""
        if self._step is not None:
            self._step.deferred_calls.append(call)
        return self._step is not None

    # a backward

    @property
    def _backward_runs(self) -> bool:
        """True if a backward is under way that has neither ended nor failed.

        Autograd holds the callback until it has called it, and drops it without a call if the backward fails.
        """
        return self._end_callback is not None and self._end_callback() is not None

    @property
    def _is_outside_of_autograd(self) -> bool:
        """True if no backward is under way: a pipeline's schedule reduces gradients after its backwards."""
        return not self._backward_runs and torch._C._current_graph_task_id() == NO_BACKWARD

    def _watch_backward(self, *_: object) -> None:
        """Register a callback for the end of the outermost backward, if that backward has just begun.

        If no backward runs, since a pipeline schedule reduces gradients afterwards, register none: the step then ends
        with its last gradient.
        """
        if self._backward_runs or self._is_outside_of_autograd:
            return
        self._complete_failed_backward()
        # the first callback registers another, to run after torch's own, in which torch reduces the units whose inputs
        # need no gradient
        self._call_at_end(lambda: self._call_at_end(self._backward_ended))

    def _call_at_end(self, function: Callable[[], None]) -> None:
        """Let autograd call a function at the end of the backward under way."""
        end_callback = UncompiledHook(function)
        self._end_callback = weakref.ref(end_callback)
        Variable._execution_engine.queue_callback(end_callback)

    def _backward_ended(self) -> None:
        """End the step of a backward that has just ended. Called by autograd."""
        self._end_callback = None
        if self._step is not None:
            self._end_step(self._step)

    def _complete_failed_backward(self) -> None:
        """Complete the step of a backward that ended with an exception, with the gradients that had arrived.

        Do nothing if no backward failed. The means are not written, since gradients may have been zeroed meanwhile.
        """
        if self._step is not None and not self._backward_runs:
            self._end_callback = None
            self._complete_step(self._step)

    # a step

    def _begin_step(self) -> _Step:
        """Begin a step of the engine, which averages gradients; return the step's state."""
        self._engine.open()
        inputs = StepInputs(
            loss_scale=self.loss_scale() if self.loss_scale is not None else None,
            learning_rate=learning_rate(self._optimizer) if self._optimizer is not None else math.nan,
            dense=self.send_residuals,
        )
        self.send_residuals = False
        self.decided_candidate = self._engine.begin(inputs)
        self._step = step = _Step()
        return step

    def _send_unit(self, step: _Step) -> None:
        """Hand the gradients of one unit that have arrived to the engine, which averages them."""
        pieces, step.pending_pieces = step.pending_pieces, []
        step.handles.append(self._engine.submit(pieces, _common_buffer(pieces)))

    def _end_step(self, step: _Step) -> None:
        """End the engine's step, put the means into ``.grad``, and call the users' hooks that wait for the means.

        Raises:
            ExchangeError: a rank did not answer.
        """
        self._complete_step(step)
        candidate = self.decided_candidate
        if candidate is not None and candidate.done() and (failure := candidate.exception()) is not None:
            raise failure  # the engine's step could not begin
        with torch.no_grad():
            for gradient in step.gradients:
                gradient.put_back()
            for call in step.deferred_calls:
                call()

    def _complete_step(self, step: _Step) -> None:
        """Hand the remaining gradients to the engine, end the engine's step, and wait for its exchanges."""
        self._step = None
        forward_began_mark, self._forward_began_mark = self._forward_began_mark, None
        optimizer_ended_mark, backward_ended_mark = self._optimizer_ended_mark, self._engine.mark()

        def add_times(measurement: StepRecording) -> None:
            measurement.forward_began = forward_began_mark
            measurement.optimizer_ended = optimizer_ended_mark
            measurement.backward_ended = backward_ended_mark

        if step.pending_pieces:
            self._send_unit(step)
        self._engine.end(add_times)
        for handle in step.handles:
            handle.wait()


def _tensors_in(outputs: Any) -> list[Any]:
    """Return the tensors, of any shapes, in lists, tuples, dicts and dataclasses, nested or not."""
    if isinstance(outputs, torch.Tensor):
        return [outputs]
    if isinstance(outputs, Mapping):
        outputs = [*outputs.values()]
    elif is_dataclass(outputs) and not isinstance(outputs, type):
        outputs = [getattr(outputs, output_field.name) for output_field in fields(outputs)]
    return [tensor for inner in outputs for tensor in _tensors_in(inner)] if isinstance(outputs, list | tuple) else []


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
