# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A source of gradients for models that ``fully_shard`` or ``replicate`` wrapped (FSDP2), averaged over replicas.

A mesh of two dimensions holds several *replicas* of the model, each cut into shards (HSDP). torch sums gradients over
the ranks of a replica, which leaves each rank with the gradient of its shard, and then averages over the replicas,
often on a slower link. gravac does the second of these two. Torch's own all-reduce is swallowed: a process group that
exchanges nothing stands in its place. All else is torch's: shards, accumulation, clipping, checkpoints.

torch sets the gradients of a *unit*, the parameters that one ``fully_shard`` call holds, when backward has left that
unit, and then calls their hooks. From these hooks the gradients go to the engine, unit by unit, while backward goes on:

1. The engine's step begins with the first gradient of a backward.
2. A unit's gradients are handed over together as soon as all have arrived, or when those of another unit arrive.
3. Backward ends, and the engine's step ends. ``.grad`` then holds the mean over the replicas.

On a mesh of one dimension, with the replicas as a process group of their own, torch knows nothing of them: the hooks do
the same, and nothing is swallowed.

Ranks that hold different shards of a replica have gradients of different shapes, and must decide alike. So every
gradient has its *padded* shape, the largest over these ranks: rows of zeros stand where a rank has fewer.
"""

import functools
import math
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.autograd import Variable
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from gravac.averaging.plan import Piece
from gravac.candidate import Candidate
from gravac.engine.engine import Engine
from gravac.engine.handle import Handle
from gravac.engine.inputs import StepInputs
from gravac.exchange.executor import Mark, Number
from gravac.measurement import LocalMeasurement
from gravac.settings import SettingsError
from gravac.sources.backward import AtEnd, tensors_in
from gravac.sources.ddp import canonical, learning_rate
from gravac.sources.ddp_private import UncopiedHook

T = TypeVar("T")

NO_BACKWARD = -1
"""Number that autograd gives outside of a backward; pipeline schedules reduce gradients there."""


class _Done(dist.Work):
    """Work that has ended."""

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return at once."""
        return True


class SwallowedAllReduce(dist.ProcessGroup):
    """A process group of replicas whose all-reduce leaves tensors as they are.

    Args:
        rank: number of this rank's replica.
        world: number of replicas.

    Attributes:
        sums: whether torch asked for the sum over the replicas, and not for their mean: a divide factor was set, or
            gradients are reduced in float16.
    """

    def __init__(self, rank: int, world: int) -> None:
        super().__init__(rank, world)  # type: ignore[call-arg]
        self.sums = False

    def allreduce(self, tensors: Any, opts: Any = None) -> dist.Work:  # type: ignore[override]
        """Note what torch asked for, and return at once; must not raise."""
        self.sums = opts is not None and opts.reduceOp == dist.ReduceOp.SUM
        return _Done()

    def getBackendName(self) -> str:  # noqa: N802
        """Return a name for messages of torch."""
        return "gravac"


@dataclass(frozen=True, slots=True)
class _Holder:
    """Where the model holds a parameter, which ``load_state_dict(assign=True)`` may replace there.

    Attributes:
        owner: module that has the parameter.
        attribute: name of the parameter in that module.
        unit: number of the parameter's unit.
    """

    owner: torch.nn.Module
    attribute: str
    unit: int

    @property
    def parameter(self) -> "torch.nn.Parameter | None":
        """The parameter in shards; ``None`` while torch has put the gathered parameter into its place."""
        present = self.owner._parameters.get(self.attribute)
        return present if isinstance(present, DTensor) else None


@dataclass(eq=False, slots=True)
class _Step:
    """A step under way.

    Attributes:
        unit: number of the unit whose gradients arrive.
        pieces: gradients that have arrived and were not handed over.
        arrived: number of gradients so far.
        handles: handles of the exchanges in flight.
        copies: gradients without memory for their padding, each with the padded copy that is exchanged.
    """

    unit: int = -1
    pieces: list[Piece] = field(default_factory=list)
    arrived: int = 0
    handles: list[Handle] = field(default_factory=list)
    copies: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)


class FSDP2Source:
    """Averages the gradients of a sharded model over its replicas, while backward runs.

    When ``backward()`` returns, each ``.grad`` holds the mean over all ranks, as after torch's own exchange. Backwards
    that torch does not reduce over the replicas (``set_requires_gradient_sync(False)``,
    ``set_requires_all_reduce(False)``) are no steps.

    Args:
        engine: averages over the replicas.
        waits: whether backward calls ``wait`` at its end.

    Attributes:
        quiet: whether gradients stay those of this rank's replica, and nothing is exchanged, as in outer steps.
        loss_scale: returns the factor that gradients were multiplied by; ``None`` without a scaler.
        optimizer: optimizer that applies the gradients.
        decided: future of the candidate of the last step that began; ``None`` before the first.
        send_residuals: whether the next step sends all residuals, dense, whatever the controller decided.
        replicas: process group of the ranks that hold the same shard; ``None`` before ``bind``.
        everyone: process group of all ranks that hold a part of the model; ``None``: those of ``replicas``.
    """

    def __init__(self, engine: Engine, *, waits: bool = True) -> None:
        self.quiet = self.send_residuals = False
        self.loss_scale: Callable[[], Number] | None = None
        self.optimizer: torch.optim.Optimizer | None = None
        self.decided: Future[Candidate] | None = None
        self.replicas: dist.ProcessGroup | None = None
        self.everyone: dist.ProcessGroup | None = None
        self._engine, self._waits = engine, waits
        self._module: weakref.ref[torch.nn.Module] | None = None
        self._holders: dict[str, _Holder] = {}
        self._padded: dict[str, torch.Size] = {}
        self._in_buffer: dict[str, torch.Size] = {}
        self._unit_sizes: list[int] = []
        self._swallowed: SwallowedAllReduce | None = None
        self._groups: list[Any] = []
        self._native_groups: list[tuple[Any, dist.ProcessGroup]] = []
        self._hooked: dict[str, tuple[torch.nn.Parameter, torch.utils.hooks.RemovableHandle]] = {}
        self._watched: list[torch.utils.hooks.RemovableHandle] = []
        self._accumulating = 0
        self._averages_natively = False
        self._backward: weakref.ref[AtEnd] | None = None
        self._step: _Step | None = None
        self._ended: _Step | None = None
        self._inputs: Mark | None = None
        self._optimized: Mark | None = None

    # the model

    def bind(self, module: torch.nn.Module, replicas: dist.ProcessGroup | None = None) -> None:
        """Find the parameters to average, their padded shapes, and the ranks. Called on every rank.

        Args:
            module: the model.
            replicas: group of the ranks that hold the same shard, for a mesh of one dimension; ``None``: the mesh's
                replicate dimension.

        Raises:
            SettingsError: the mesh has no replicate dimension and no group was given, or a group of other ranks than
                the mesh's replicas; units have different replicas, ranks hold different parameters, or this torch lacks
                a private name.
            TypeError: the model, or a part of it, is in shards by FSDP1; or a parameter to train is complex.
            ValueError: the model has no parameter to average over replicas.
            RuntimeError: another hook uses gradients as soon as they are accumulated, such as an optimizer that steps
                within backward.
        """
        _refuse_fsdp1(module)
        for child in module.modules():
            if isinstance(child, FSDPModule):
                child.reshard()  # after a forward without a backward, gathered parameters stand where shards belong
        groups = _groups_with_replicas(module, required=replicas is None)
        if replicas is None and not groups:
            raise SettingsError(
                "process_group: the model is in shards on a mesh of one dimension, without replicas to average over; "
                "use a mesh of two dimensions, init_device_mesh(..., mesh_dim_names=('replicate', 'shard')), or give "
                "AdaptiveCompressor(process_group=...) the ranks that hold the same shard"
            )
        averaged_ids = {id(parameter) for group in groups for parameter in _trained(group)} if groups else None
        self._holders = dict(_holders(module, averaged_ids))
        if not self._holders:
            raise ValueError("module: no parameter that requires a gradient is in shards; give a module to train")
        self._refuse_other_hooks()
        self.replicas = _only_replicas(groups, replicas) if groups else replicas
        assert self.replicas is not None
        self._groups = groups
        self._native_groups = [(group.mesh_info, group.mesh_info.replicate_process_group) for group in groups]
        self._swallowed = SwallowedAllReduce(self.replicas.rank(), self.replicas.size()) if groups else None
        self._find_shapes(_shard_ranks(groups))
        count = 1 + max(holder.unit for holder in self._holders.values())
        units = [holder.unit for holder in self._holders.values()]
        self._unit_sizes = [units.count(unit) for unit in range(count)]
        local = {name: _local(holder) for name, holder in self._holders.items()}
        forms = {
            name: torch.empty(self._padded[name], dtype=shard.dtype, device="meta") for name, shard in local.items()
        }
        self._engine.know(forms)
        self._engine.device = next(shard.device for shard in local.values())

    def _refuse_other_hooks(self) -> None:
        for name, holder in self._holders.items():
            if getattr(holder.parameter, "_post_accumulate_grad_hooks", None):
                raise RuntimeError(
                    f"module: parameter {name} has a hook after accumulation already, which would see the gradient of "
                    "this replica and not the mean: that of an optimizer that makes its steps within backward, or of "
                    "another compressor; remove it first"
                )

    def _find_shapes(self, shard_ranks: frozenset[int]) -> None:
        """Find the ranks that hold the model, and the padded shapes, which are the same on all of them.

        Args:
            shard_ranks: ranks among which torch cuts a parameter; empty: not known.
        """
        assert self.replicas is not None
        meshes = {rank for holder in self._holders.values() for rank in _mesh_of(holder).mesh.flatten().tolist()}
        ranks = sorted(set().union(*_gathered(meshes, self.replicas)))
        if ranks != sorted(dist.get_process_group_ranks(self.replicas)):
            self.everyone = dist.group.WORLD if len(ranks) == dist.get_world_size() else _new_group(ranks)
        shapes = {name: tuple(_local(holder).shape) for name, holder in self._holders.items()}
        everyones = dict(zip(ranks, _gathered(shapes, self.everyone or self.replicas), strict=True))
        for rank, others in everyones.items():
            if differing := sorted(shapes.keys() ^ others.keys()):
                raise SettingsError(
                    f"module: rank {dist.get_rank()} and rank {rank} do not both train parameter {differing[0]} in "
                    "shards; wrap the same model on all ranks"
                )
        within = [others for rank, others in everyones.items() if rank in shard_ranks]
        for name in shapes:
            self._padded[name] = _largest(others[name] for others in everyones.values())
            self._in_buffer[name] = _largest(others[name] for others in within) if within else torch.Size(shapes[name])

    def broadcast_weights(self) -> None:
        """Copy the first replica's weights to all replicas. Called on every rank."""
        assert self.replicas is not None
        first = dist.get_global_rank(self.replicas, 0)
        for holder in self._holders.values():
            shard = _local(holder)
            if shard.numel():
                contiguous = shard.contiguous()
                dist.broadcast(contiguous.view(-1).view(torch.uint8), first, group=self.replicas)
                if contiguous.data_ptr() != shard.data_ptr():
                    shard.copy_(contiguous)

    @property
    def module(self) -> torch.nn.Module | None:
        """The module being watched; ``None`` if there is none, or if it was deleted."""
        return self._module() if self._module is not None else None

    @property
    def accumulating(self) -> bool:
        """True if torch, or ``accumulate``, keeps gradients from the other replicas in a backward that begins now."""
        exchanging = (group.reduce_grads and group.all_reduce_grads for group in self._groups)
        return bool(self._accumulating or (self._groups and not any(exchanging)))

    def watch(self, module: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        """Average the gradients of a module from the next backward on; ``bind`` was called with it.

        Args:
            module: the module, compiled or not.
            optimizer: optimizer whose steps and learning rate the engine learns; ``None``: neither is known.
        """
        self._module = weakref.ref(module)
        starts, ended = UncopiedHook(self._forward_starts), UncopiedHook(self._forward_ended)
        self._watched = [module.register_forward_pre_hook(starts), module.register_forward_hook(ended)]
        self._hook_parameters()
        self.use_hook()
        self.optimizer = optimizer
        if optimizer is not None:
            self._watched.append(optimizer.register_step_pre_hook(self._step_starts))
            self._watched.append(optimizer.register_step_post_hook(self._step_ended))

    def detach(self) -> None:
        """Undo ``watch``: torch averages over the replicas again. Called on every rank between the same two steps.

        Raises:
            RuntimeError: no module is being watched, or a backward is running; nothing was changed.
        """
        if not self._watched:
            raise RuntimeError("detach: this compressor is not attached to a module")
        if torch._C._current_graph_task_id() != NO_BACKWARD:
            raise RuntimeError("detach: a backward is running; detach after it, between two steps")
        self._complete()
        self.use_native()
        for handle in (*self._watched, *(handle for _, handle in self._hooked.values())):
            handle.remove()
        self._watched.clear()
        self._hooked.clear()
        self._module = self.optimizer = self.loss_scale = None
        self._inputs = self._optimized = self._backward = None

    def use_hook(self) -> None:
        """Average over the replicas by gravac, from the next backward on."""
        self._averages_natively = self.quiet = False
        self._set_groups(native=False)

    def use_native(self) -> None:
        """Let torch average over the replicas, from the next backward on."""
        self._averages_natively, self.quiet = True, False
        self._set_groups(native=True)

    def rest(self) -> None:
        """Exchange nothing from now on; if the mesh has replicas, torch averages over them again."""
        if self._swallowed is not None:
            self.use_native()
        else:
            self.quiet = True

    def _set_groups(self, native: bool) -> None:
        for mesh_info, group in self._native_groups:
            mesh_info.replicate_process_group = group if native else self._swallowed

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """Return a context whose backwards exchange nothing over the replicas; the next one outside exchanges the sum.

        All ranks must enter the context for the same backwards.
        """
        module = self.module
        self._accumulating += 1
        if self._swallowed is not None and module is not None:
            _require_all_reduce(module, False)
        try:
            yield
        finally:
            self._accumulating -= 1
            if self._swallowed is not None and module is not None and not self._accumulating:
                _require_all_reduce(module, True)

    def wait(self) -> None:
        """Wait for the step whose backward ended last, and put the means into ``.grad``.

        Raises:
            ExchangeError: a rank did not answer.
        """
        step, self._ended = self._ended, None
        if step is None:
            return
        for handle in step.handles:
            handle.wait()
        if self.decided is not None and self.decided.done() and (failure := self.decided.exception()) is not None:
            raise failure
        with torch.no_grad():
            for shard, copy in step.copies:
                shard.copy_(copy[tuple(slice(size) for size in shard.shape)])

    # hooks

    def _hook_parameters(self) -> None:
        """Hook the present parameters, also those that took the place of others since."""
        lost = []
        for name, holder in self._holders.items():
            parameter = holder.parameter
            hooked, handle = self._hooked.get(name, (None, None))
            if parameter is None or parameter is hooked:
                continue
            if handle is not None:
                handle.remove()
                lost.append(name)
            hookable: Any = parameter
            handle = hookable.register_post_accumulate_grad_hook(functools.partial(self._reduced, name))
            self._hooked[name] = parameter, handle
        if lost:
            warnings.warn(
                f"gravac: parameter {lost[0]} and {len(lost) - 1} others were replaced since attach, as "
                "load_state_dict(assign=True) does, and lost their hooks; the new parameters are hooked from here on",
                RuntimeWarning,
                stacklevel=2,
            )

    def _forward_starts(self, *_: object) -> None:
        if not torch.is_grad_enabled() or torch._C._current_graph_task_id() != NO_BACKWARD:
            return  # evaluation, or activation checkpointing, which computes a forward again
        self._complete()
        self._hook_parameters()
        if self._inputs is None and not (self.quiet or self._averages_natively):
            self._inputs = self._engine.mark()

    def _forward_ended(self, module: object, inputs: object, outputs: object) -> None:
        if torch.is_grad_enabled() and not (self.quiet or self._averages_natively):
            tensors: Iterator[Any] = tensors_in(outputs)
            for tensor in tensors:
                if tensor.requires_grad:
                    tensor.register_hook(self._backward_starts)

    def _backward_starts(self, gradient: torch.Tensor) -> None:
        self._enter()

    def _step_starts(self, *_: object) -> None:
        """End a step of a pipeline schedule that left parameters without a gradient."""
        if self._step is not None and not self._running:
            self._end()

    def _step_ended(self, *_: object) -> None:
        self._optimized = self._engine.mark()

    def _reduced(self, name: str, parameter: torch.nn.Parameter) -> None:
        """Take a gradient that torch has reduced within this replica, and hand its unit over if it is complete."""
        if self.quiet or self._averages_natively or (self._accumulating and self._swallowed is None):
            return
        self._enter()
        step = self._step or self._begin()
        unit = self._holders[name].unit
        if step.pieces and unit != step.unit:
            self._hand_over(step)
        step.unit, step.arrived = unit, step.arrived + 1
        step.pieces.append(self._piece(step, name, parameter))
        if len(step.pieces) == self._unit_sizes[unit]:
            self._hand_over(step)
        if self._backward is None and step.arrived == len(self._holders):
            self._end()

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
        at_end = AtEnd(self._backward_ends)
        self._backward = weakref.ref(at_end)
        Variable._execution_engine.queue_callback(at_end)

    def _backward_ends(self) -> None:
        """Let the step end after torch's callback, which reduces units whose inputs require no gradient."""
        at_end = AtEnd(self._backward_ended)
        self._backward = weakref.ref(at_end)
        Variable._execution_engine.queue_callback(at_end)

    def _backward_ended(self) -> None:
        self._backward = None
        if self._step is not None:
            self._end()

    def _complete(self) -> None:
        """Complete the step of a backward that ended with an exception, with the gradients that had arrived."""
        if self._step is None or self._running:
            return
        self._backward = None
        waits, self._waits = self._waits, False
        self._end()
        self._waits = waits
        ended, self._ended = self._ended, None
        for handle in ended.handles if waits and ended is not None else ():
            handle.wait()

    # a step

    def _begin(self) -> _Step:
        engine = self._engine
        engine.open()
        inputs = StepInputs(
            loss_scale=self.loss_scale() if self.loss_scale is not None else None,
            learning_rate=learning_rate(self.optimizer) if self.optimizer is not None else math.nan,
            dense=self.send_residuals,
        )
        self.send_residuals = False
        self.decided = engine.begin(inputs)
        self._step = step = _Step()
        return step

    def _piece(self, step: _Step, name: str, parameter: torch.nn.Parameter) -> Piece:
        """Return a gradient of its padded shape: the memory where it lies, or a padded copy."""
        gradient: Any = parameter.grad
        shard: torch.Tensor = gradient.to_local().detach()
        padded = self._padded[name]
        number = padded.numel()
        available = shard.untyped_storage().nbytes() // shard.element_size() - shard.storage_offset()
        in_place = shard.shape == padded or (self._in_buffer[name] == padded and available >= number)
        if in_place and shard.is_contiguous():
            return Piece(name, shard.as_strided((number,), (1,), shard.storage_offset()), tuple(padded))
        copy = shard.new_zeros(padded)
        copy[tuple(slice(size) for size in shard.shape)] = shard
        step.copies.append((shard, copy))
        return Piece(name, copy.view(-1), tuple(padded))

    def _hand_over(self, step: _Step) -> None:
        """Hand the gradients that have arrived over to the engine."""
        pieces, step.pieces = step.pieces, []
        buffer = _common_buffer(pieces)
        if self._swallowed is not None and self._swallowed.sums:
            flats = [piece.flat for piece in pieces] if buffer is None else [buffer]
            torch._foreach_mul_(flats, float(self._swallowed.size()))
        step.handles.append(self._engine.exchange(pieces, buffer))

    def _end(self) -> None:
        """Hand over the remaining gradients, and end the engine's step."""
        step, self._step = self._step, None
        assert step is not None
        inputs, optimized, backward = self._inputs, self._optimized, self._engine.mark()
        self._inputs = None

        def fill(measurement: LocalMeasurement) -> None:
            measurement.inputs, measurement.optimized, measurement.backward = inputs, optimized, backward

        if step.pieces:
            self._hand_over(step)
        self._engine.flush()
        self._engine.end(fill)
        self._ended = step
        if self._waits:
            self.wait()


def _common_buffer(pieces: list[Piece]) -> torch.Tensor | None:
    """Return one flat view over pieces that lie in memory one after the other; ``None`` if they do not."""
    first = pieces[0].flat
    end = first.storage_offset()
    for piece in pieces:
        if piece.flat.untyped_storage().data_ptr() != first.untyped_storage().data_ptr() or (
            piece.flat.storage_offset() != end
        ):
            return None
        end += piece.flat.numel()
    return first.as_strided((end - first.storage_offset(),), (1,), first.storage_offset())


def _holders(module: torch.nn.Module, averaged_ids: "set[int] | None") -> Iterator[tuple[str, _Holder]]:
    """Yield the holders of the parameters to average, by name.

    Args:
        module: the model.
        averaged_ids: ``id`` of the parameters to take; ``None``: all in shards.
    """
    units: dict[int, int] = {}
    unit_of: dict[int, int] = {}
    seen: set[int] = set()
    for path, child in module.named_modules():
        parent = unit_of.get(id(module.get_submodule(path.rpartition(".")[0])), -1) if path else -1
        unit_of[id(child)] = units.setdefault(id(child), len(units)) if isinstance(child, FSDPModule) else parent
        for attribute, parameter in child.named_parameters(recurse=False):
            is_averaged = isinstance(parameter, DTensor) and (averaged_ids is None or id(parameter) in averaged_ids)
            if parameter.requires_grad and is_averaged and id(parameter) not in seen:
                seen.add(id(parameter))
                name = canonical(f"{path}.{attribute}" if path else attribute)
                yield name, _Holder(child, attribute, unit_of[id(child)])


def _local(holder: _Holder) -> torch.Tensor:
    """Return this rank's shard of a parameter, without its graph."""
    parameter: Any = holder.parameter
    shard: torch.Tensor = parameter.to_local().detach()
    return shard


def _mesh_of(holder: _Holder) -> Any:
    parameter: Any = holder.parameter
    return parameter.device_mesh


def _largest(shapes: Iterable[tuple[int, ...]]) -> torch.Size:
    """Return the largest size of each dimension."""
    return torch.Size(map(max, zip(*shapes, strict=True)))


def _gathered(local: T, group: dist.ProcessGroup | None) -> list[T]:
    """Return the objects of all ranks of a group, by rank."""
    gathered: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, local, group=group)
    return gathered


def _new_group(ranks: list[int]) -> dist.ProcessGroup:
    """Return a group of some ranks, all of which call this function."""
    group: dist.ProcessGroup = dist.new_group(ranks, use_local_synchronization=True, group_desc="gravac")
    return group


# private names of torch


def _groups_with_replicas(module: torch.nn.Module, required: bool = True) -> list[Any]:
    """Return the parameter groups of all units whose mesh has a replicate dimension.

    Args:
        module: model in shards.
        required: whether a missing private name of torch is an error; otherwise there are no such groups then.

    Raises:
        SettingsError: this torch lacks a private name, and ``required``.
    """
    try:
        units = [child._get_fsdp_state() for child in module.modules() if isinstance(child, FSDPModule)]
        groups = [group for unit in units for group in _parameter_groups(unit)]
        return [group for group in groups if getattr(group.mesh_info, "replicate_process_group", None) is not None]
    except AttributeError as error:
        if not required:
            return []
        raise SettingsError(
            f"module: torch {torch.__version__} keeps the replicas of a model in shards elsewhere ({error}); use a "
            "mesh of the shard dimension alone, and give AdaptiveCompressor(process_group=...) the ranks that hold "
            "the same shard"
        ) from error


def _parameter_groups(unit: Any) -> list[Any]:
    """Return the parameter groups of a unit; torch before 2.11 has at most one."""
    groups = getattr(unit, "_fsdp_param_groups", None)
    if groups is not None:
        return list(groups)
    return [] if unit._fsdp_param_group is None else [unit._fsdp_param_group]


def _trained(group: Any) -> list[torch.nn.Parameter]:
    return [parameter.sharded_param for parameter in group.fsdp_params if parameter.sharded_param.requires_grad]


def _only_replicas(groups: list[Any], requested: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """Return the group of replicas that all units have.

    Args:
        groups: parameter groups whose mesh has a replicate dimension.
        requested: group that the user gave; ``None``: none.

    Raises:
        SettingsError: units have different replicas, or the user gave a group of other ranks.
    """
    by_ranks = {
        tuple(dist.get_process_group_ranks(group.mesh_info.replicate_process_group)): group.mesh_info
        for group in groups
    }
    if len(by_ranks) > 1:
        raise SettingsError(
            f"module: its units are replicated over different ranks ({', '.join(map(str, by_ranks))}), and gravac "
            "averages over one group; use one mesh for all units that are replicated"
        )
    ((ranks, mesh_info),) = by_ranks.items()
    if requested is not None and tuple(dist.get_process_group_ranks(requested)) != ranks:
        raise SettingsError(
            f"process_group: ranks {dist.get_process_group_ranks(requested)}, but the model's mesh has replicas on "
            f"ranks {list(ranks)}, over which gravac averages; leave process_group out"
        )
    replicas: dist.ProcessGroup = mesh_info.replicate_process_group
    return replicas


def _shard_ranks(groups: list[Any]) -> frozenset[int]:
    """Return the ranks among which torch cuts the parameters; empty: not known, or not the same for all units."""
    of_groups = {
        frozenset(
            [dist.get_rank()]
            if getattr(group.mesh_info, "shard_process_group", None) is None
            else dist.get_process_group_ranks(group.mesh_info.shard_process_group)
        )
        for group in groups
    }
    return next(iter(of_groups)) if len(of_groups) == 1 else frozenset()


def _require_all_reduce(module: torch.nn.Module, required: bool) -> None:
    """Tell torch whether the next backward ends with an exchange over the replicas."""
    for child in module.modules():
        if isinstance(child, FSDPModule):
            child.set_requires_all_reduce(required, recurse=False)


def _refuse_fsdp1(module: torch.nn.Module) -> None:
    for path, child in module.named_modules():
        if any(kind.__name__ == "FullyShardedDataParallel" for kind in type(child).__mro__):
            raise TypeError(
                f"module: {path or 'the whole module'} is in shards by FullyShardedDataParallel (FSDP1), which cuts "
                "through matrices; use fully_shard (FSDP2)"
            )
