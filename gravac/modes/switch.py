# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Switches between the three modes of a step, as the controller decides: native, hook and outer.

The switch is called by hooks on the module and the optimizers, on the training loop's thread. A step is a synced
backward: a backward in which DDP would exchange gradients. The mode changes at the forward that begins a step, at the
same step on all ranks. Which event decides the change depends on the present mode:

- native: the ranks have averaged the times of a stretch of steps (``gravac.modes.native``).
- hook: the engine published the next candidate when the last step began.
- outer: the last round ended with a decision. No exchange synchronizes the ranks between rounds, so each rank counts
  its steps. A step counts when all optimizers have stepped after a synced backward. If a scaler skipped the optimizers,
  or weights are changed without an optimizer, the step counts when the next forward begins. Each round counts from 0,
  so a rank that lost a step by an exception makes one more step in that round.

The mode never changes within an optimizer's step, in which a closure may run forwards.
"""

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from gravac.candidate import Candidate, Mode
from gravac.engine.engine import Engine
from gravac.modes import equalizing
from gravac.modes.native import NativeWatch
from gravac.modes.outer.outer_steps import OuterSteps
from gravac.modes.probe import Probe, ProbeLoss
from gravac.policy import Policy
from gravac.sources.ddp import learning_rate
from gravac.sources.ddp_private import UncopiedHook, left_out_buffers
from gravac.sources.hooked import tensors_in
from gravac.telemetry.records import ModeRecord


class Source(Protocol):
    """A source of gradients, as the switch sees it.

    Attributes:
        outside: module that the training loop calls; its forwards begin steps.
        inside: module without wrappers, whose weights are trained.
    """

    outside: torch.nn.Module
    inside: torch.nn.Module

    @property
    def decided(self) -> "Future[Candidate] | None":
        """Candidate that the controller had chosen when the last hook step began; ``None`` before the first."""

    @decided.setter
    def decided(self, decided: "Future[Candidate] | None") -> None: ...

    @property
    def send_residuals(self) -> bool:
        """True if the next hook step sends all residuals, dense."""

    @send_residuals.setter
    def send_residuals(self, send_residuals: bool) -> None: ...

    @property
    def in_join(self) -> bool:
        """True if ranks may run out of inputs (``join()``), and would then miss exchanges of outer steps."""

    @property
    def shares_buffers(self) -> bool:
        """True if ranks copy rank 0's buffers in each training step."""

    @property
    def synced(self) -> bool:
        """True if ranks will exchange gradients in the backward that follows the forward that now begins."""

    def use_hook(self) -> None:
        """Exchange by gravac from the next forward on."""

    def use_native(self, cf: float) -> None:
        """Exchange by DDP itself from the next forward on, in float32 (``cf`` 1) or float16 (``cf`` 2)."""

    def stop_exchange(self) -> None:
        """Exchange nothing from the next forward on."""

    def silence(self) -> None:
        """Stop the exchange of a forward that begins in outer steps, and of its backward."""

    def restore(self) -> None:
        """Undo ``silence``, since the forward has ended."""

    def has_averaged(self) -> bool:
        """True if DDP itself has averaged gradients since the last call."""

    def forward_starts(self) -> None:
        """Record that a forward with gradients begins, in a hook step."""

    def step_ended(self) -> None:
        """Record that an optimizer's step has ended, in a hook step."""


class Switch:
    """Runs each step in the mode that the controller chose.

    Args:
        engine: asks the controller for decisions, and exchanges gradients.
        source: source of the gradients.
        policy: settings of the run.
        optimizers: all optimizers that train the module.
        scaler: scaler of the loss; ``None`` if there is none.
        probe: computes the loss on this rank's fixed batches; ``None`` if the run has no probe.

    Attributes:
        mode: mode of the present step; ``None`` before the first forward with gradients.
        outer: outer steps under way; ``None`` in other modes.
        changes: changes of mode so far.
        earlier_rounds: number of rounds that ended in earlier periods of outer steps.
        without_native: function called before the first decision if native steps are impossible.
    """

    def __init__(
        self,
        engine: Engine,
        source: Source,
        policy: Policy,
        optimizers: Sequence[torch.optim.Optimizer],
        scaler: torch.amp.GradScaler | None = None,
        probe: ProbeLoss | None = None,
    ) -> None:
        self.mode: Mode | None = None
        self.outer: OuterSteps | None = None
        self.changes: list[ModeRecord] = []
        self.earlier_rounds = 0
        self.without_native: Callable[[], None] = lambda: None
        self._engine, self._source, self._policy = engine, source, policy
        self._optimizers, self._scaler = tuple(optimizers), scaler
        self._watch = NativeWatch(engine, self._learning_rate)
        self._probe = None if probe is None else Probe(probe, innermost(source.inside))
        self._probed: Future[Candidate] | None = None  # last decision of a hook step that was checked for a probe
        self._native_cf = 1.0
        # since the last outer step was counted: a synced forward began, its backward began
        self._synced_forward = self._synced_backward = False
        self._in_step: set[int] = set()  # optimizers in the middle of their step
        self._stepped: set[int] = set()
        self._residuals: dict[str, torch.Tensor] = {}
        self._handles: list[Any] = []

    # hooks

    def listen(self) -> None:
        """Register hooks on the module and the optimizers."""
        outside, inside = self._source.outside, self._source.inside
        model: Any = innermost(inside)
        self._handles = [
            inside.register_forward_pre_hook(UncopiedHook(self._module_starts)),
            outside.register_forward_pre_hook(UncopiedHook(self._forward_starts)),
            outside.register_forward_hook(UncopiedHook(self._forward_ended), always_call=True),
            model.register_state_dict_post_hook(UncopiedHook(self._saved)),
            model.register_load_state_dict_post_hook(UncopiedHook(self._loaded)),
        ]
        for optimizer in self._optimizers:
            self._handles.append(optimizer.register_step_pre_hook(self._step_starts))
            self._handles.append(optimizer.register_step_post_hook(self._step_ended))

    def unlisten(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _module_starts(self, *_: object) -> None:
        """Prepare an evaluation, when a forward without gradients begins of the module without DDP."""
        if torch.is_grad_enabled():
            return
        self._watch.pause()
        if self.outer is not None:
            self.outer.prepare_to_evaluate()

    def _forward_starts(self, *_: object) -> None:
        """Change the mode if the controller decided so, and begin a step's forward."""
        if not torch.is_grad_enabled():
            return
        if self._source.in_join and self._policy.every != (1, 1):
            raise RuntimeError(
                f"every: {self._policy.every}, but in join() a rank that runs out of inputs would miss exchanges; use "
                "every=1, or train equally many steps on all ranks"
            )
        if self.mode is None:
            self._begin()
        if self.mode == "native":
            self._native_starts()
        elif self.mode == "outer":
            self._outer_starts()
        if self.mode == "hook":
            self._hook_starts()

    def _begin(self) -> None:
        """Set the mode of the first step."""
        if self._source.in_join:
            self.without_native()
        if self.outer is not None:  # restored from a checkpoint
            self._set_mode("outer")
            self._source.stop_exchange()
        elif self._policy.every[0] > 1:
            self._start_outer(None)
        else:
            self._change_to(self._engine.decide_first().result())

    def _native_starts(self) -> None:
        """Begin a forward in native mode; change the mode if the controller decided so."""
        if not self._source.synced or self._source.in_join:  # a rank without inputs has no forward to count
            return
        candidate = self._watch.forward_starts(self._has_averaged())
        if candidate is not None:
            self._read_probe()
        if candidate is not None and (candidate.mode, candidate.cf) != ("native", self._native_cf):
            self._change_to(candidate)

    def _read_probe(self) -> None:
        """Compute the loss on fixed batches, if the newest decision requests it."""
        if self._probe is None or not self._engine.probe_follows:
            return
        self._watch.pause()
        self._engine.probes.add(self._probe.read())

    def _has_averaged(self) -> bool:
        """Return whether DDP has averaged since the last call, or in a step that a checkpoint did not count."""
        native = self._engine.state.native
        averaged, native.uncounted = self._source.has_averaged() or native.uncounted, False
        return averaged

    def prepare_to_save(self) -> None:
        """Complete the state, between two steps, so that it can be saved. Called on every rank."""
        if self.mode == "native":
            self._watch.prepare_to_save()
            self._engine.state.native.uncounted = self._has_averaged()
        if self.outer is not None:
            self.outer.prepare_to_save()

    def _hook_starts(self) -> None:
        """Begin a forward in hook mode, or change the mode if the decision was made when the last step began."""
        decided = None if self._source.in_join else self._source.decided
        if decided is not None and decided.done() and decided.exception() is None:
            candidate = decided.result()
            if decided is not self._probed:
                self._probed = decided
                self._read_probe()
            if candidate.mode != "hook" and self._may_leave_hook(candidate):
                self._change_to(candidate)
                return
        self._source.forward_starts()

    def _outer_starts(self) -> None:
        """Begin a forward in outer steps; count the last step, and end outer steps if the controller decided so."""
        assert self.outer is not None
        self.outer.restore_local()
        between_steps = not (self._synced_backward or self._synced_forward)
        if self._synced_backward and not self._in_step:
            self._count()
            between_steps = True
        if between_steps and self.outer.closing:
            self._change_to(self._engine.settled_candidate)
            if self.mode != "outer":
                return
        self._synced_forward = self._synced_forward or self._source.synced
        self._source.silence()

    def _forward_ended(self, module: object, inputs: object, output: object = None) -> None:
        if self.mode != "outer" or not torch.is_grad_enabled():
            return
        self._source.restore()
        if self._synced_forward:
            outputs: Iterator[Any] = tensors_in(output)
            for tensor in outputs:
                if tensor.requires_grad:
                    tensor.register_hook(self._backward_began)

    def _backward_began(self, gradient: torch.Tensor) -> None:
        self._synced_backward = True

    def _step_starts(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        """Add old residuals to the gradients, at once or when the optimizer's closure has computed the gradients."""
        self._in_step.add(id(optimizer))  # already in the set if the optimizer's last step failed
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._add_residuals(optimizer)
            return None

        def closure_and_residuals() -> Any:
            loss = closure()  # in its forward outer steps may begin
            self._add_residuals(optimizer)
            return loss

        return args[:1], {**kwargs, "closure": closure_and_residuals}

    def _step_ended(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        self._in_step.discard(id(optimizer))
        if self.mode == "hook":
            self._source.step_ended()
        if self.mode != "outer":
            return
        self._stepped.add(id(optimizer))
        synced = self._synced_backward or self._synced_forward
        if synced and len(self._stepped) == len(self._optimizers) and not self._in_step:
            self._count()

    def _count(self) -> None:
        """Count a step of outer steps."""
        assert self.outer is not None
        self._synced_forward = self._synced_backward = False
        self._stepped.clear()
        self._residuals.clear()
        self.outer.step()

    # changes of mode

    def _may_leave_hook(self, candidate: Candidate) -> bool:
        """Return whether hook mode may end now; if residuals must be sent first, let the next hook step send them."""
        last_candidate = self._engine.state.candidate
        if candidate.mode != "native" or last_candidate is None or last_candidate.dense or not self._uses_residuals:
            return True
        self._source.send_residuals = True
        return False

    @property
    def _uses_residuals(self) -> bool:
        """True if all optimizers are SGD, which residuals of earlier steps help; they harm adaptive optimizers."""
        return bool(self._optimizers) and all(isinstance(optimizer, torch.optim.SGD) for optimizer in self._optimizers)

    def _change_to(self, candidate: Candidate) -> None:
        """Run steps in a candidate's mode, beginning with the present step. Called on every rank at the same step."""
        self._engine.drain()
        previous_mode, began, bytes_at_start = self.mode, time.perf_counter(), self._engine.ledger.wire_bytes
        if previous_mode == "outer":
            self.end_outer()
        elif previous_mode == "native":
            self._watch.leave()
        if candidate.mode == "outer":
            self._start_outer(candidate)
        elif candidate.mode == "native":
            self._engine.change_mode("native")
            self._source.use_native(candidate.cf)
            self._native_cf = candidate.cf
            self._source.has_averaged()
            self._watch.start(may_resume=previous_mode is None)
            self._set_mode("native")
        else:
            if previous_mode is not None:
                self._engine.change_mode("hook")
                self._source.use_hook()
            self._set_mode("hook")
        if previous_mode is not None:
            self._engine.drain()
            seconds, sent = time.perf_counter() - began, self._engine.ledger.wire_bytes - bytes_at_start
            change = ModeRecord(self._engine.state.trained, previous_mode, candidate.mode, seconds, sent)
            self.changes.append(change)
            self._engine.deciding.emit(change)

    def _set_mode(self, mode: Mode) -> None:
        self.mode = mode
        self._synced_forward = self._synced_backward = False
        self._stepped.clear()
        self._source.decided = None

    def _start_outer(self, candidate: Candidate | None) -> None:
        """Begin outer steps with the present step.

        Args:
            candidate: candidate that the controller chose; ``None`` before the first decision.
        """
        self._engine.drain()
        if self.mode == "hook" and self._uses_residuals:
            self._residuals = self._engine.residuals()
        self._engine.change_mode("outer")
        self.outer = self.make_outer()
        self._engine.state.outer = self.outer.state
        if candidate is not None:
            self.outer.follow(candidate)
        self._source.stop_exchange()
        self._set_mode("outer")

    def make_outer(self) -> OuterSteps:
        """Return new outer steps that begin at the current weights, which are the same on all ranks."""
        policy, inside = self._policy, innermost(self._source.inside)
        left_out = left_out_buffers(inside) if self._source.shares_buffers else tuple(dict(inside.named_buffers()))
        buffers = {
            name: buffer
            for name, buffer in inside.named_buffers()
            if torch.is_floating_point(buffer) and name not in left_out
        }
        settings = policy.outer
        if left_out:
            settings = settings(local_buffers=tuple({*settings.local_buffers, *left_out}))
        if buffers:  # copied from rank 0, as DDP would do in its next forward
            job = equalizing.copy_from_first(list(buffers.values()), (), self._engine.device)
            self._engine.run_between_steps("the buffers that ranks part with", job).result()
        return OuterSteps(self._engine, inside, self._optimizers, settings, policy.every, policy.seed)

    def outer_from(self, dumped: Mapping[str, Any], world: int | None) -> OuterSteps:
        """Return new outer steps, after a check that they can restore a dumped state.

        Args:
            dumped: the state, as ``RoundState.dump`` returned it.
            world: number of ranks that saved the state; ``None``: it was merged from all ranks' states.

        Raises:
            SettingsError: the state does not fit.
        """
        outer = self.make_outer()
        outer.check(dumped, world)
        return outer

    def adopt(self, outer: OuterSteps) -> None:
        """Continue with outer steps that a checkpoint restored; called before the first forward with gradients."""
        self.outer = outer
        self._engine.state.outer = outer.state

    def end_outer(self) -> None:
        """End outer steps, if they run: make weights, optimizers' states and loss scale the same on all ranks.

        Called on every rank before the same step.
        """
        if self.outer is None:
            return
        self.outer.close_rounds()
        self.earlier_rounds += self.outer.state.ended
        tensors = self.outer.tensors
        self.outer = self._engine.state.outer = None
        job = equalizing.equalize_ranks(tensors, self._optimizers, self._scaler, self._engine.device)
        differing = self._engine.run_between_steps("what ranks share after outer steps", job).result()
        if differing:
            warnings.warn(
                f"gravac: ranks {differing} differed from rank 0 after outer steps, and got copies of rank 0's weights "
                "and optimizer state; please report this",
                RuntimeWarning,
                stacklevel=2,
            )

    def _add_residuals(self, optimizer: torch.optim.Optimizer) -> None:
        """Add the residuals that hook steps left before outer steps to this rank's gradients, once."""
        if not self._residuals or self.outer is None:
            return
        names = {
            id(parameter): name
            for fragment in self.outer.state.fragments
            for name, parameter in fragment.parameters.items()
        }
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                residual = self._residuals.pop(names.get(id(parameter), ""), None)
                if residual is not None and parameter.grad is not None:
                    flat = parameter.grad.as_strided((parameter.grad.numel(),), (1,))
                    flat.add_(residual.to(flat))

    def _learning_rate(self) -> float:
        rates = [rate for optimizer in self._optimizers if (rate := learning_rate(optimizer)) == rate]
        return max(rates, default=float("nan"))

    # saving and loading

    def _saved(self, module: torch.nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
        """Put the weights that all ranks share into a state dict that the user asks the module for."""
        self._watch.pause()
        if self.outer is None or self.outer.holds_anchors:
            return
        self.outer.settle_to_save()
        shared = self.outer.shared_of(module)
        state.update({prefix + name: tensor for name, tensor in shared.items() if prefix + name in state})

    def _loaded(self, *_: object) -> None:
        """In outer steps, begin a new round from the weights that the user loaded into the module."""
        if self.outer is not None:
            self.outer.start_from_module()

    @contextmanager
    def synced(self) -> Iterator[None]:
        """Return a context in which the module has the weights and buffers that all ranks share."""
        self._watch.pause()
        if self.outer is None:
            yield
            return
        with self.outer.synced():
            yield


def innermost(module: torch.nn.Module) -> torch.nn.Module:
    """Return a module without the wrapper of ``torch.compile``."""
    inner = getattr(module, "_orig_mod", module)
    assert isinstance(inner, torch.nn.Module)
    return inner
