# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Switches between the three ways to run a step, as decided: native, hook and outer.

The switch sees forwards and optimizer steps through hooks on the module and the optimizers, and runs where the training
loop does. A step is a synced backward: one that DDP would exchange gradients in. The mode changes at the forward that
begins a step, at the same step on all ranks:

- native: the ranks agreed on a stretch of steps (``gravac.modes.native``).
- hook: the engine told, when the last step began, what was decided.
- outer: the round that ended told. Here no exchange keeps the ranks in step, so that steps are counted. A step counts
  when all optimizers have stepped after a synced backward; or, if a scaler skipped that or weights are changed by hand,
  when the next forward begins. Rounds count from their own beginning, so that a rank that lost a step by an exception
  makes it up within the round.

Nothing changes within an optimizer's step, since a closure runs forwards there.
"""

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any, Protocol

import torch

from gravac.candidate import Candidate, Mode
from gravac.engine.engine import Engine
from gravac.modes import together
from gravac.modes.native import NativeWatch
from gravac.modes.outer.apart import OuterSteps
from gravac.modes.probe import Probe, ProbeLoss
from gravac.policy import Policy
from gravac.sources.ddp import learning_rate
from gravac.sources.ddp_private import LeftBehind, left_out_buffers
from gravac.telemetry.records import ModeRecord


class Source(Protocol):
    """Where gradients come from, as the switch sees it.

    Attributes:
        outside: module that the training loop calls; its forwards begin steps.
        inside: module without wrappers, whose weights are trained.
    """

    outside: torch.nn.Module
    inside: torch.nn.Module

    @property
    def decided(self) -> "Future[Candidate] | None":
        """Candidate that was decided when the last step by the hook began; ``None`` before the first."""

    @decided.setter
    def decided(self, decided: "Future[Candidate] | None") -> None: ...

    @property
    def send_whole(self) -> bool:
        """Whether the next step by the hook sends all residuals, dense."""

    @send_whole.setter
    def send_whole(self, send_whole: bool) -> None: ...

    @property
    def in_join(self) -> bool:
        """Whether ranks may run out of inputs, and then answer no round."""

    @property
    def shares_buffers(self) -> bool:
        """Whether all ranks take rank 0's buffers as they train."""

    @property
    def synced(self) -> bool:
        """Whether the backward of a forward that begins now is one that ranks exchange gradients in."""

    def use_hook(self) -> None:
        """Exchange by gravac from the next forward on."""

    def use_native(self, cf: float) -> None:
        """Exchange by DDP itself from the next forward on, in float32 (1) or float16 (2)."""

    def part(self) -> None:
        """Exchange nothing from the next forward on."""

    def silence(self) -> None:
        """A forward begins, of ranks that train apart."""

    def restore(self) -> None:
        """That forward has ended."""

    def averaged(self) -> bool:
        """Whether DDP itself has averaged gradients since the last call."""

    def forward_starts(self) -> None:
        """A forward with gradients begins, of a step by the hook."""

    def step_ended(self) -> None:
        """An optimizer's step has ended, of a step by the hook."""


class Switch:
    """Runs each step in the mode that was decided.

    Args:
        engine: decides, and exchanges.
        source: gives gradients.
        policy: settings of the run.
        optimizers: all that train the module.
        scaler: scales the loss, if there is one.
        probe: returns the loss on this rank's fixed batches; ``None``: there is none.

    Attributes:
        mode: who exchanges in the present step; ``None`` before the first forward with gradients.
        outer: what ranks do that train apart; ``None`` unless they do.
        changes: changes of mode so far.
        without_native: called before the first decision if no native steps may be decided.
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
        self.rounds_before = 0
        self.without_native: Callable[[], None] = lambda: None
        self._engine, self._source, self._policy = engine, source, policy
        self._optimizers, self._scaler = tuple(optimizers), scaler
        self._watch = NativeWatch(engine, self._learning_rate)
        self._probe = None if probe is None else Probe(probe, innermost(source.inside))
        self._looked_at: Future[Candidate] | None = None  # of the decisions by the hook, whether they ask for the probe
        self._native_cf = 1.0
        self._opened = self._owed = False
        self._within: set[int] = set()  # optimizers in the middle of their step
        self._stepped: set[int] = set()
        self._residuals: dict[str, torch.Tensor] = {}
        self._handles: list[Any] = []

    # what is seen of training

    def listen(self) -> None:
        """Register the hooks."""
        outside, inside = self._source.outside, self._source.inside
        model: Any = innermost(inside)
        self._handles = [
            inside.register_forward_pre_hook(LeftBehind(self._module_starts)),
            outside.register_forward_pre_hook(LeftBehind(self._forward_starts)),
            outside.register_forward_hook(LeftBehind(self._forward_ended), always_call=True),
            model.register_state_dict_post_hook(LeftBehind(self._saved)),
            model.register_load_state_dict_post_hook(LeftBehind(self._loaded)),
        ]
        for optimizer in self._optimizers:
            self._handles.append(optimizer.register_step_pre_hook(self._step_starts))
            self._handles.append(optimizer.register_step_post_hook(self._step_ended))

    def unlisten(self) -> None:
        """Take the hooks off again."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _module_starts(self, *_: object) -> None:
        """A forward of the module itself begins: without gradients it is an evaluation."""
        if torch.is_grad_enabled():
            return
        self._watch.pause()
        if self.outer is not None:
            self.outer.evaluate()

    def _forward_starts(self, *_: object) -> None:
        if not torch.is_grad_enabled():
            return
        if self._source.in_join and self._policy.every != (1, 1):
            raise RuntimeError(
                f"every: {self._policy.every}, and under join() ranks run out of inputs and then answer no round; use "
                "every=1, or train as many steps on all ranks"
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
        """Begin as decided, before the first step."""
        if self._source.in_join:
            self.without_native()
        if self.outer is not None:  # a checkpoint brought it
            self._set_mode("outer")
            self._source.part()
        elif self._policy.every[0] > 1:
            self._part(None)
        else:
            self._change_to(self._engine.decide_first().result())

    def _native_starts(self) -> None:
        if not self._source.synced or self._source.in_join:  # a rank without inputs has no forward to count
            return
        candidate = self._watch.forward_starts(self._has_averaged())
        if candidate is not None:
            self._read_probe()
        if candidate is not None and (candidate.mode, candidate.cf) != ("native", self._native_cf):
            self._change_to(candidate)

    def _read_probe(self) -> None:
        """Read the loss on fixed batches, if it was decided that ranks do so now."""
        if self._probe is None or not self._engine.probe_follows:
            return
        self._watch.pause()
        self._engine.probes.add(self._probe.read())

    def _has_averaged(self) -> bool:
        """Tell whether DDP has averaged since the last call, or had when a checkpoint was saved."""
        native = self._engine.state.native
        averaged, native.uncounted = self._source.averaged() or native.uncounted, False
        return averaged

    def prepare_to_save(self) -> None:
        """Have the state tell all that was done, at a point between two steps. Called on every rank."""
        if self.mode == "native":
            self._watch.prepare_to_save()
            self._engine.state.native.uncounted = self._has_averaged()
        if self.outer is not None:
            self.outer.prepare_to_save()

    def _hook_starts(self) -> None:
        decided = None if self._source.in_join else self._source.decided
        if decided is not None and decided.done() and decided.exception() is None:
            candidate = decided.result()
            if decided is not self._looked_at:
                self._looked_at = decided
                self._read_probe()
            if candidate.mode != "hook" and self._may_leave_hook(candidate):
                self._change_to(candidate)
                return
        self._source.forward_starts()

    def _outer_starts(self) -> None:
        assert self.outer is not None
        self.outer.release()
        between = not (self._owed or self._opened)
        if self._owed and not self._within:
            self._count()
            between = True
        if between and self.outer.closing:
            self._change_to(self._engine.settled_candidate)
            if self.mode != "outer":
                return
        self._opened = self._opened or self._source.synced
        self._source.silence()

    def _forward_ended(self, module: object, inputs: object, output: object = None) -> None:
        if self.mode != "outer" or not torch.is_grad_enabled():
            return
        self._source.restore()
        if self._opened:
            found: list[Any] = tensors_in(output)
            for tensor in found:
                if tensor.requires_grad:
                    tensor.register_hook(self._backward_began)

    def _backward_began(self, gradient: torch.Tensor) -> None:
        self._owed = True

    def _step_starts(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        """Add residuals to the gradients: now, or when they are there if the step gets them of a closure."""
        self._within.add(id(optimizer))  # which is there already if its last step failed
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._add_residuals(optimizer)
            return None

        def closure_and_residuals() -> Any:
            loss = closure()  # whose forward may be the one in which the ranks part
            self._add_residuals(optimizer)
            return loss

        return args[:1], {**kwargs, "closure": closure_and_residuals}

    def _step_ended(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        self._within.discard(id(optimizer))
        if self.mode == "hook":
            self._source.step_ended()
        if self.mode != "outer":
            return
        self._stepped.add(id(optimizer))
        if (self._owed or self._opened) and len(self._stepped) == len(self._optimizers) and not self._within:
            self._count()

    def _count(self) -> None:
        """A step was made, of ranks that train apart."""
        assert self.outer is not None
        self._opened = self._owed = False
        self._stepped.clear()
        self._residuals.clear()
        self.outer.step()

    # changes of mode

    def _may_leave_hook(self, candidate: Candidate) -> bool:
        """Whether nothing is left of residuals that plain SGD needs: under it they are sent before native steps."""
        ran = self._engine.state.candidate
        if candidate.mode != "native" or ran is None or ran.dense or not self._sends_residuals:
            return True
        self._source.send_whole = True
        return False

    @property
    def _sends_residuals(self) -> bool:
        """Whether the optimizers profit from residuals of earlier steps: SGD does, adaptive ones take harm."""
        return bool(self._optimizers) and all(isinstance(one, torch.optim.SGD) for one in self._optimizers)

    def _change_to(self, candidate: Candidate) -> None:
        """Run steps in a candidate's mode from this one on. Called on every rank before the same step."""
        self._engine.drain()
        before, since, sent_before = self.mode, time.perf_counter(), self._engine.ledger.wire_bytes
        if before == "outer":
            self.come_together()
        elif before == "native":
            self._watch.leave()
        if candidate.mode == "outer":
            self._part(candidate)
        elif candidate.mode == "native":
            self._engine.change_mode("native")
            self._source.use_native(candidate.cf)
            self._native_cf = candidate.cf
            self._source.averaged()
            self._watch.start(taken_up=before is None)
            self._set_mode("native")
        else:
            if before is not None:
                self._engine.change_mode("hook")
                self._source.use_hook()
            self._set_mode("hook")
        if before is not None:
            self._engine.drain()
            seconds, sent = time.perf_counter() - since, self._engine.ledger.wire_bytes - sent_before
            change = ModeRecord(self._engine.state.trained, before, candidate.mode, seconds, sent)
            self.changes.append(change)
            self._engine.deciding.emit(change)

    def _set_mode(self, mode: Mode) -> None:
        self.mode = mode
        self._opened = self._owed = False
        self._stepped.clear()
        self._source.decided = None

    def _part(self, candidate: Candidate | None) -> None:
        """Train apart from this step on; ``candidate``: what was decided, if something was."""
        self._engine.drain()
        if self.mode == "hook" and self._sends_residuals:
            self._residuals = self._engine.residuals()
        self._engine.change_mode("outer")
        self.outer = self.make_outer()
        self._engine.state.outer = self.outer.state
        if candidate is not None:
            self.outer.follow(candidate)
        self._source.part()
        self._set_mode("outer")

    def make_outer(self) -> OuterSteps:
        """Return what ranks do that train apart, from the weights that they all have now."""
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
        if buffers:  # rank 0's, as the next forward of DDP would have them
            job = together.copy_from_first(list(buffers.values()), (), self._engine.device)
            self._engine.run_between_steps("the buffers that ranks part with", job).result()
        return OuterSteps(self._engine, inside, self._optimizers, settings, policy.every, policy.seed)

    def outer_from(self, dumped: Mapping[str, Any], world: int | None) -> OuterSteps:
        """Return outer steps that a dumped state fits, to be restored and adopted.

        Args:
            dumped: the state, as ``OuterSteps`` dumped it.
            world: number of ranks that it is of; ``None``: it was merged of all ranks' states.

        Raises:
            SettingsError: the state does not fit.
        """
        outer = self.make_outer()
        outer.check(dumped, world)
        return outer

    def adopt(self, outer: OuterSteps) -> None:
        """Go on from outer steps that a checkpoint brought; called before the first forward with gradients."""
        self.outer = outer
        self._engine.state.outer = outer.state

    def come_together(self) -> None:
        """Have all ranks be one again, if they train apart: weights, optimizers' states, and the loss scale.

        Called on every rank before the same step.
        """
        if self.outer is None:
            return
        self.outer.close_rounds()
        self.rounds_before += self.outer.state.ended
        tensors = self.outer.tensors
        self.outer = self._engine.state.outer = None
        job = together.come_together(tensors, self._optimizers, self._scaler, self._engine.device)
        differing = self._engine.run_between_steps("what ranks share again after they trained apart", job).result()
        if differing:
            warnings.warn(
                f"gravac: ranks {differing} differed from rank 0 when ranks that had trained apart came together, and "
                "took over rank 0's weights and optimizer state; please report this",
                RuntimeWarning,
                stacklevel=2,
            )

    def _add_residuals(self, optimizer: torch.optim.Optimizer) -> None:
        """Add what was not sent before the ranks parted to this rank's own gradients, once, if there is any."""
        if not self._residuals or self.outer is None:
            return
        names = {id(p): name for part in self.outer.state.fragments for name, p in part.parameters.items()}
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
        """A state dict of the module was made: it is to hold what all ranks share."""
        self._watch.pause()
        if self.outer is None or self.outer.held:
            return
        self.outer.settle_to_save()
        shared = self.outer.shared_of(module)
        state.update({prefix + name: tensor for name, tensor in shared.items() if prefix + name in state})

    def _loaded(self, *_: object) -> None:
        """The module loaded a state dict: ranks that train apart begin a round there."""
        if self.outer is not None:
            self.outer.start_from_module()

    @contextmanager
    def synced(self) -> Iterator[None]:
        """Have the module hold what all ranks share."""
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


def tensors_in(output: object) -> list[torch.Tensor]:
    """Return the tensors, of any shapes, of a forward's output: a tensor, or lists, dicts and dataclasses of such."""
    if isinstance(output, torch.Tensor):
        return [output]
    if isinstance(output, Mapping):
        return [tensor for part in output.values() for tensor in tensors_in(part)]
    if isinstance(output, list | tuple):
        return [tensor for part in output for tensor in tensors_in(part)]
    if is_dataclass(output):
        return [tensor for field in fields(output) for tensor in tensors_in(getattr(output, field.name))]
    return []
