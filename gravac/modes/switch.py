# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Switches between the three modes of a step, as the controller decides: native, hook and outer.

The modes differ in who exchanges: DDP itself (native), gravac in each step (hook), or gravac once in H steps (outer).

The switch is called by hooks on the module and the optimizers, on the training loop's thread. A step is a synced
backward: a backward in which DDP would exchange gradients. The mode changes at the forward that begins a step, at the
same step on all ranks. Which event decides the change depends on the present mode:

- native: the ranks have averaged the times of a stretch, a number of successive steps (``gravac.modes.native``).
- hook: the engine chose the next candidate when the last step began.
- outer: the controller decided at the end of the last round (H steps, and the exchange that follows them). No exchange
  synchronizes the ranks within a round, so each rank counts its own steps (``gravac.modes.counting``). A step is
  counted when all optimizers have stepped after a synced backward. If a scaler skipped the optimizers, or weights are
  changed without an optimizer, the step is counted when the next forward begins. A step that an exception ended is not
  counted, so that the rank makes one more step in that round. The next round counts from 0 again.

The mode never changes within an optimizer's step, in which a closure may run forwards.
"""

import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from gravac.candidate import Candidate, Mode
from gravac.engine.engine import Engine
from gravac.engine.inputs import learning_rate
from gravac.modes import equalizing
from gravac.modes.counting import StepCounter, TrainedParameters
from gravac.modes.forward_clock import ForwardClock
from gravac.modes.native import NativeWatch
from gravac.modes.outer.outer_steps import OuterSteps
from gravac.modes.replicas import ReplicaGuard
from gravac.modes.source import Source
from gravac.policy import Policy
from gravac.settings import SettingsError
from gravac.sources.hooks import UncompiledHook, UncopiedHook, takes_hooks
from gravac.sources.local_model import innermost, with_inner_optimizers
from gravac.sources.parameters import ignored_buffers
from gravac.sources.pipelines import is_in_schedule
from gravac.telemetry.records import ModeRecord


class Switch:
    """Runs each step in the mode that the controller chose.

    Args:
        engine: object that asks the controller for decisions, and exchanges gradients.
        source: object that determines whether DDP, gravac or nobody exchanges the module's gradients.
        policy: compressor, controller and other settings of the run.
        optimizers: all optimizers that train the module.
        replicas: object that checks that ranks hold the same weights in native and hook mode.
        scaler: gradient scaler of the loss; ``None`` if there is none.

    Attributes:
        mode: mode of the present step; ``None`` before the first forward with gradients.
        outer: object that runs this rank's outer steps; ``None`` in other modes.
        changes: records of all changes of mode so far, oldest first.
        exclude_native: function that removes native steps from the controller's candidates; called before the first
            decision if ranks may run out of inputs (``join()``).
    """

    def __init__(
        self,
        engine: Engine,
        source: Source,
        policy: Policy,
        optimizers: Sequence[torch.optim.Optimizer],
        replicas: ReplicaGuard,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        self.mode: Mode | None = None
        self.outer: OuterSteps | None = None
        self.changes: list[ModeRecord] = []
        self.exclude_native: Callable[[], None] = lambda: None
        self._engine, self._source, self._policy, self._replicas = engine, source, policy, replicas
        self._optimizers, self._scaler = tuple(optimizers), scaler
        self._local_model = source.local_model(optimizers)
        self._native_watch = NativeWatch(engine, lambda: learning_rate(*optimizers))
        self._native_cf = 1.0
        self._forward_clock = ForwardClock()
        self._optimizers_in_step: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()  # amid their step
        self._unknown_optimizers: list[torch.optim.Optimizer] = []  # not given to ``attach``, but have made steps
        self._trained = TrainedParameters(source.inner_module.parameters)
        self._counter = StepCounter(self._optimizers, self._trained)
        self._known_optimizers = with_inner_optimizers(self._optimizers)
        self._residuals_to_add: dict[str, torch.Tensor] = {}
        self._hook_handles: list[Any] = []

    # hooks

    def register_hooks(self) -> None:
        """Register hooks on the module and the optimizers, so that the switch sees steps begin and end."""
        called_module, inner_module = self._source.called_module, self._source.inner_module
        self._hook_handles = [  # prepended hooks run before FSDP2's hook, which gathers parameters
            called_module.register_forward_pre_hook(UncopiedHook(self._forward_starts), prepend=True),
            called_module.register_forward_hook(UncopiedHook(self._forward_ended), always_call=True),
            register_optimizer_step_pre_hook(_weak_step_hook(self, Switch.step_begins)),
            register_optimizer_step_post_hook(_weak_step_hook(self, Switch.step_ended)),
        ]
        for optimizer in self._optimizers:
            self._hook_handles.append(optimizer.register_step_pre_hook(UncompiledHook(self._step_starts)))
        model: Any = innermost(inner_module)
        if takes_hooks(model):  # otherwise it makes no outer steps, which need them
            self._hook_handles += [
                inner_module.register_forward_pre_hook(UncopiedHook(self._inner_forward_starts), prepend=True),
                model.register_state_dict_post_hook(UncopiedHook(self._state_dict_taken)),
                model.register_load_state_dict_pre_hook(UncopiedHook(self._state_dict_loads)),
            ]

    def remove_hooks(self) -> None:
        """Remove the hooks from the module and the optimizers: the mode no longer changes."""
        for handle in self._hook_handles:
            handle.remove()
        self._hook_handles.clear()

    def _inner_forward_starts(self, *_: object) -> None:
        """Prepare an evaluation if the forward that begins computes no gradients: in outer steps, load shared weights.

        If it computes gradients, begin to time it. Called as a forward pre-hook of the module inside DDP, so that the
        time does not contain DDP's broadcast of buffers.
        """
        if torch.is_grad_enabled():
            self._forward_clock.start()
            return
        self._native_watch.pause()
        if self.outer is not None and not self._counter.backward_is_pending:
            self.outer.prepare_to_evaluate()

    def _forward_starts(self, *_: object) -> None:
        """Begin the forward of a step; first change the mode if the controller decided so.

        Called as a forward pre-hook. In a forward without gradients, only stops DDP from sending rank 0's buffers in
        outer steps: the buffers of the last exchange are equal on all ranks, and a rank may evaluate alone.
        """
        if not torch.is_grad_enabled():
            if self.mode == "outer":
                self._source.silence_exchange()
            return
        if self._source.in_join and self._policy.every != (1, 1):
            raise RuntimeError(
                f"every: {self._policy.every} allows outer steps, but in join() a rank that runs out of inputs would "
                "miss their exchanges; use every=1, or train equally many steps on all ranks, without join()"
            )
        if self._policy.every != (1, 1) and is_in_schedule():
            raise SettingsError(
                f"every: {self._policy.every} allows outer steps, but the module is a stage of a pipeline, whose "
                "schedule exchanges in each step; use every=1"
            )
        if self.mode is None:
            self._set_first_mode()
        previous_mode = self.mode
        if self.mode == "native":
            self._native_step_starts()
        elif self.mode == "outer":
            self._outer_step_starts()
        if self.mode == "hook":
            self._hook_step_starts()
        if self.mode == "outer" and previous_mode != "outer":  # the mode has just changed
            self._outer_step_starts()

    def _set_first_mode(self) -> None:
        """Set the first step's mode.

        Outer if a checkpoint restored outer steps or if ``every`` does not allow 1; otherwise as the controller
        decides.
        """
        if self._source.in_join:
            self.exclude_native()
        if self.outer is not None:  # restored from a checkpoint
            self._set_mode("outer")
            self._source.stop_exchange()
        elif self._policy.every[0] > 1:
            self._start_outer_steps(None)
        else:
            self._change_to(self._engine.decide_first().result())

    def _native_step_starts(self) -> None:
        """Begin a forward in native mode; change the mode if the controller decided so."""
        if self._source.in_join:  # a rank without inputs has no forward to count
            return
        will_exchange = self._source.will_exchange
        if not will_exchange and not is_in_schedule():
            return
        has_step_to_count = self._has_averaged()
        if not will_exchange and not has_step_to_count:  # a further microbatch of a pipeline's step
            return
        if self._replicas.native_forward_starts(has_step_to_count):
            self._native_watch.pause()
        candidate = self._native_watch.forward_starts(has_step_to_count)
        if candidate is not None and (candidate.mode, candidate.cf) != ("native", self._native_cf):
            self._change_to(candidate)

    def _has_averaged(self) -> bool:
        """Return whether a native step ended: whether DDP has averaged gradients since the last call.

        Also true for the last step before the run was saved, if the saved number of steps lacks that step.
        """
        native_state = self._engine.state.native
        has_step_to_count, native_state.uncounted = self._source.has_averaged() or native_state.uncounted, False
        return has_step_to_count

    def prepare_to_save(self) -> None:
        """Finish sums and exchanges in flight, so that the state can be saved. Called between steps, on every rank."""
        if self.mode == "native":
            self._native_watch.prepare_to_save()
            self._engine.state.native.uncounted = self._has_averaged()
        if self.outer is not None:
            self.outer.prepare_to_save()

    def _hook_step_starts(self) -> None:
        """Begin a forward in hook mode; change the mode if the controller decided so when the last step began."""
        candidate_future = None if self._source.in_join else self._source.decided_candidate
        self._replicas.hook_forward_starts(candidate_future)
        if candidate_future is not None and candidate_future.done() and candidate_future.exception() is None:
            candidate = candidate_future.result()
            if candidate.mode != "hook" and self._may_leave_hook(candidate):
                self._change_to(candidate)
                return
        self._source.forward_starts()

    def _outer_step_starts(self) -> None:
        """Begin a forward in outer mode: count the last step, and end outer steps if the controller decided so."""
        assert self.outer is not None
        outer, counter = self.outer, self._counter
        outer.restore_local()
        if not self._optimizers_in_step and counter.step_was_skipped(lambda: outer.program_moved_weights):
            self._count_outer_step()
        if not counter.is_within_step and outer.is_closing:
            self._change_to(self._engine.settled_candidate)
            if self.mode != "outer":
                return
        self.outer.forward_starts(between_steps=not counter.is_within_step)
        counter.forward_starts(self._source.will_exchange)
        self._source.watch_gradients(counter.gradient_accumulated)
        self._source.silence_exchange()

    def _forward_ended(self, module: object, inputs: object, output: object = None) -> None:
        """Pass on the forward's time; in outer steps, restore DDP's exchange setting.

        Called as a forward hook. DDP reads the setting in the forward only, so that this forward's backward exchanges
        nothing.
        """
        self._pass_on_forward_time()
        if self.mode == "outer":
            self._source.restore_exchange()

    def _pass_on_forward_time(self) -> None:
        """Pass on the time of the forward that has just ended, if that time tells how fast the machine is.

        It does not tell that if ranks exchanged in the forward, or if the host did not wait for the device.
        """
        forward_s = self._forward_clock.stop()
        if forward_s is None or self._source.forward_exchanges or self._engine.executor.lag:
            return
        if self.mode == "native":
            self._native_watch.forward_ended(forward_s)
        elif self.mode == "hook":
            self._engine.forward_s = forward_s
        elif self.outer is not None:
            self.outer.forward_ended(forward_s)

    def _step_starts(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        """Add residuals of earlier hook steps to this rank's gradients, in the first outer step after hook steps.

        Called before an optimizer's step. If that step has a closure, which computes the gradients, the residuals are
        added after the closure.

        Returns:
            Arguments of the optimizer's step, with the closure wrapped; ``None`` without a closure.
        """
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._add_residuals(optimizer)
            return None

        def closure_and_residuals() -> Any:
            loss = closure()  # outer steps may begin in the closure's forward
            self._add_residuals(optimizer)
            return loss

        return args[:1], {**kwargs, "closure": closure_and_residuals}

    def step_begins(self, optimizer: torch.optim.Optimizer) -> None:
        """Store that an optimizer of the module is amid its step. Called before each step of any optimizer."""
        if self._is_known(optimizer) or self._trained.of(optimizer):
            self._optimizers_in_step.add(optimizer)  # already in the set if the optimizer's last step failed

    def step_ended(self, optimizer: torch.optim.Optimizer) -> None:
        """Count the training step if an optimizer's step ends it. Called after each step of any optimizer."""
        self._optimizers_in_step.discard(optimizer)
        is_known = self._is_known(optimizer)
        if not is_known and not self._trained.of(optimizer):
            return  # trains another model
        if not is_known and not any(optimizer is unknown for unknown in self._unknown_optimizers):
            self._add_unknown(optimizer)
        if self.mode == "hook" and is_known:
            self._source.step_ended()
        if self.outer is None or self.mode != "outer":
            if not self._optimizers_in_step:
                self._replicas.optimizer_stepped(optimizer)
            return
        self.outer.optimizer_stepped()
        if self._counter.optimizer_stepped(optimizer, is_within_other=bool(self._optimizers_in_step)):
            self._count_outer_step()

    def _is_known(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether an optimizer was given to ``attach``, or is one that a given optimizer wraps."""
        return any(optimizer is known_optimizer for known_optimizer in self._known_optimizers)

    def _add_unknown(self, optimizer: torch.optim.Optimizer) -> None:
        """Store an optimizer that trains the module but was not given to ``attach``; warn if ranks may train apart.

        An optimizer whose state is that of a known one, as a wrapper's may be, is none of its own.
        """
        if any(optimizer.state is known_optimizer.state for known_optimizer in self._known_optimizers):
            return
        self._unknown_optimizers.append(optimizer)
        if self._policy.every != (1, 1):
            warnings.warn(
                f"gravac: {type(optimizer).__name__} trains the model, but was not given to attach; gravac counts its "
                "steps and averages its state from now on, but does not know its learning rate, nor save its state in "
                "outer steps; give all optimizers to attach, as in attach(ddp, [first, second])",
                RuntimeWarning,
                stacklevel=2,
            )

    def _count_outer_step(self) -> None:
        """Count a training step of this rank in outer mode, and start an exchange if one is due."""
        assert self.outer is not None
        self._residuals_to_add.clear()
        self.outer.step()

    # changes of mode

    def _may_leave_hook(self, candidate: Candidate) -> bool:
        """Return whether hook mode may end now; if not, let the next hook step send all residuals first.

        Hook mode may not end yet if native steps follow, the last hook step was compressed, and all optimizers are SGD.
        The residuals (unsent parts of gradients) would otherwise not be sent.
        """
        last_candidate = self._engine.state.candidate
        if candidate.mode != "native" or last_candidate is None or last_candidate.dense or not self._residuals_help:
            return True
        self._source.send_residuals = True
        return False

    @property
    def _residuals_help(self) -> bool:
        """True if all optimizers are SGD: residuals (unsent gradients) of earlier steps harm adaptive optimizers."""
        return bool(self._optimizers) and all(isinstance(optimizer, torch.optim.SGD) for optimizer in self._optimizers)

    def _change_to(self, candidate: Candidate) -> None:
        """Change to a candidate's mode, beginning with the present step. Called on every rank at the same step."""
        self._engine.drain()
        previous_mode, began_s, bytes_at_start = self.mode, time.perf_counter(), self._engine.ledger.wire_bytes
        keeps_residuals = previous_mode != "hook" or (candidate.mode == "outer" and self._residuals_help)
        dropped_norm = 0.0 if keeps_residuals else self._engine.residual_norm()
        if candidate.mode == "outer":
            self._replicas.outer_steps_begin()
        if previous_mode == "outer":
            self.end_outer_steps()
            self._replicas.outer_steps_end()
        elif previous_mode == "native":
            self._native_watch.stop()
        if candidate.mode == "outer":
            self._start_outer_steps(candidate)
        elif candidate.mode == "native":
            self._engine.change_mode()
            self._source.use_native(candidate.cf)
            self._native_cf = candidate.cf
            self._source.has_averaged()
            self._native_watch.start(may_resume=previous_mode is None)
            self._set_mode("native")
        else:
            if previous_mode is not None:
                self._engine.change_mode()
                self._source.use_hook()
            self._set_mode("hook")
        if previous_mode is not None:
            self._engine.drain()
            seconds, wire_bytes = time.perf_counter() - began_s, self._engine.ledger.wire_bytes - bytes_at_start
            mode_record = ModeRecord(
                self._engine.state.trained, previous_mode, candidate.mode, seconds, wire_bytes, dropped_norm
            )
            self.changes.append(mode_record)
            self._engine.deciding.emit(mode_record)

    def _set_mode(self, mode: Mode) -> None:
        """Set the mode of the present step, and reset the counters and flags of the previous mode."""
        if self.mode == "outer" and mode != "outer":
            self._source.watch_gradients(None)
        self.mode = mode
        self._counter.reset()
        self._source.decided_candidate = None

    def _start_outer_steps(self, candidate: Candidate | None) -> None:
        """Begin outer steps with the present step. Called on every rank at the same step.

        Args:
            candidate: candidate that the controller chose; ``None`` before the first decision.
        """
        self._engine.drain()
        if self.mode == "hook" and self._residuals_help:
            self._residuals_to_add = self._engine.residuals()
        self._engine.change_mode()
        self._copy_buffers_from_first()
        self.outer = self._make_outer_steps()
        self._engine.state.outer = self.outer.state
        if candidate is not None:
            self.outer.set_first_round(candidate)
        self._source.stop_exchange()
        self._set_mode("outer")

    def _copy_buffers_from_first(self) -> None:
        """Copy the buffers that ranks average from rank 0, as DDP would do in its next forward."""
        local_buffer_names = self._local_buffer_names
        averaged_buffers = [
            buffer
            for name, buffer in self._local_model.module.named_buffers()
            if torch.is_floating_point(buffer) and name not in local_buffer_names
        ]
        if averaged_buffers:
            job = equalizing.copy_from_first(averaged_buffers, (), self._engine.device)
            self._engine.run_between_steps("copying buffers from rank 0 before outer steps", job).result()

    @property
    def _local_buffer_names(self) -> tuple[str, ...]:
        """Names of the buffers that DDP does not make equal on all ranks."""
        module = self._local_model.module
        return ignored_buffers(module) if self._source.shares_buffers else tuple(dict(module.named_buffers()))

    def _make_outer_steps(self) -> OuterSteps:
        """Create an object that runs outer steps from the current weights, equal on all ranks. No collective runs."""
        settings = self._policy.outer
        if local_buffer_names := self._local_buffer_names:
            settings = settings(local_buffers=tuple({*settings.local_buffers, *local_buffer_names}))
        return OuterSteps(self._engine, self._local_model, settings, self._policy.every)

    def outer_steps_from(self, dumped: Mapping[str, Any]) -> OuterSteps:
        """Create an object that runs outer steps, and check that it can restore a dumped state. No collective runs.

        The state has all buffers, so that none has to be copied from rank 0.

        Args:
            dumped: the state, as ``RoundState.dump`` returned it; not restored yet.

        Raises:
            SettingsError: the state does not fit the model or the settings.
        """
        outer = self._make_outer_steps()
        outer.check_saved_state(dumped)
        return outer

    def continue_from(self, outer: OuterSteps) -> None:
        """Continue with outer steps that a checkpoint restored. Called before the first forward with gradients.

        Args:
            outer: object that runs outer steps, with its state restored.
        """
        self.outer = outer
        self._engine.state.outer = outer.state

    def end_outer_steps(self) -> None:
        """End outer steps, if they run: make weights, optimizer states and loss scale the same on all ranks.

        Called on every rank between the same two steps.
        """
        if self.outer is None:
            return
        self.outer.close_rounds()
        equal_tensors = self.outer.equal_tensors
        self.outer = self._engine.state.outer = None
        unknown_optimizers = self._source.local_model(self._unknown_optimizers).optimizers
        optimizers = (*self._local_model.optimizers, *unknown_optimizers)
        job = equalizing.equalize_ranks(equal_tensors, optimizers, self._scaler, self._engine.device)
        differing_ranks = self._engine.run_between_steps("making ranks equal after outer steps", job).result()
        if differing_ranks:
            warnings.warn(
                f"gravac: ranks {differing_ranks} differed from rank 0 after outer steps, which is a bug of gravac; "
                "they got copies of rank 0's weights and optimizer states, and training continues; please report this",
                RuntimeWarning,
                stacklevel=2,
            )

    def _add_residuals(self, optimizer: torch.optim.Optimizer) -> None:
        """Add residuals (unsent parts of gradients in hook steps) to this rank's gradients, in the first outer step.

        Args:
            optimizer: optimizer that is about to step; only its parameters' residuals are added.
        """
        if not self._residuals_to_add or self.outer is None:
            return
        name_by_id = {id(parameter): name for name, parameter in self.outer.state.anchor.parameters.items()}
        local_optimizer = self._local_model.optimizers[self._optimizers.index(optimizer)]
        for group in local_optimizer.param_groups:
            for parameter in group["params"]:
                residual = self._residuals_to_add.pop(name_by_id.get(id(parameter), ""), None)
                gradient = None if residual is None else self._local_model.gradient(parameter)
                if residual is not None and gradient is not None:
                    flat_gradient = gradient.as_strided((gradient.numel(),), (1,))
                    flat_gradient.add_(residual[: flat_gradient.numel()].to(flat_gradient))

    # saving and loading

    def _state_dict_taken(self, module: torch.nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
        """In outer steps, replace this rank's own weights by the shared weights in a state dict of the module.

        Called as a hook of ``Module.state_dict``. All ranks share these weights since the last exchange.
        """
        self._native_watch.pause()
        if self.outer is None or self.outer.holds_anchors or self.outer.program_replaced_weights:
            return
        self.outer.wait_before_saving()
        shared_tensors = self.outer.shared_tensors_of(module)
        state.update({prefix + name: tensor for name, tensor in shared_tensors.items() if prefix + name in state})

    def _state_dict_loads(self, *_: object) -> None:
        """In outer steps, prepare for weights that ``load_state_dict`` is about to load; called as its hook."""
        if self.outer is not None:
            self.outer.loading_starts()

    @contextmanager
    def shared_weights(self) -> Iterator[None]:
        """Return a context in which the module has the weights and buffers of the last exchange, equal on all ranks.

        Outside outer steps, the module has them anyway.
        """
        self._native_watch.pause()
        if self.outer is None:
            yield
            return
        with self.outer.shared_weights():
            yield


def _weak_step_hook(switch: Switch, method: Callable[[Switch, torch.optim.Optimizer], None]) -> Callable[..., None]:
    """Return a hook for the steps of all optimizers that calls a method of the switch, and does not keep the switch."""
    switch_ref = weakref.ref(switch)

    def hook(optimizer: torch.optim.Optimizer, *_: object) -> None:
        if (switch := switch_ref()) is not None:
            method(switch, optimizer)

    return UncompiledHook(hook)
