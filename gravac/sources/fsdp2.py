# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What gravac knows of models in shards by FSDP2: torch's private names, DTensors, replicas, shapes and gradients.

A mesh of two dimensions holds several *replicas* of the model, each cut into shards (HSDP). torch sums gradients over
the ranks of a replica, which leaves each rank with the gradient of its shard, and then averages over the replicas.
gravac does the second of these two: it puts a process group that exchanges nothing in the place of torch's.

Ranks that hold different shards have gradients of different shapes, and must decide alike. So every gradient is
exchanged in its *padded* shape, the largest over all ranks: rows of zeros stand where a rank has fewer.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from gravac.averaging.plan import Piece
from gravac.settings import SettingsError
from gravac.sources.ddp import canonical
from gravac.sources.hooked import refuse_other_hooks

T = TypeVar("T")


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


@dataclass(frozen=True, slots=True)
class PaddedGradient:
    """This rank's gradient of a parameter, as it is exchanged.

    Attributes:
        piece: gradient in its padded shape.
        shard: gradient in the shape of this rank's shard.
        copied: whether ``piece`` has memory of its own, since there is no room for the padding behind ``shard``.
    """

    piece: Piece
    shard: torch.Tensor
    copied: bool

    def put_back(self) -> None:
        """Copy the mean from ``piece`` into ``shard``, if they have different memory."""
        if self.copied:
            padded = self.piece.flat.view(self.piece.shape)
            self.shard.copy_(padded[tuple(slice(size) for size in self.shard.shape)])


class ShardedModel:
    """A model in shards, and its replicas. Created on every rank.

    Args:
        module: the model.
        process_group: ranks that hold the same shard, for a mesh of one dimension; ``None``: those along the mesh's
            replicate dimension.

    Attributes:
        replicas: process group of the ranks that hold the same shard.
        everyone: process group of all ranks that hold a part of the model; ``None``: those of ``replicas``.
        units: number of the unit of each parameter that is averaged, by name.

    Raises:
        SettingsError: the mesh has no replicate dimension and no group was given, or a group of other ranks than those
            along it; units have different replicas, ranks hold different parameters, or this torch lacks a private
            name.
        TypeError: the model, or a part of it, is in shards by FSDP1.
        ValueError: no parameter that requires a gradient is in shards.
        RuntimeError: another hook uses gradients as soon as they are accumulated, such as that of an optimizer that
            steps within backward.
    """

    def __init__(self, module: torch.nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        _refuse_fsdp1(module)
        self._wrapped = [child for child in module.modules() if isinstance(child, FSDPModule)]
        for child in self._wrapped:
            child.reshard()  # after a forward without a backward, gathered parameters stand where shards belong
        self._groups = _groups_with_replicas(self._wrapped, required=process_group is None)
        if process_group is None and not self._groups:
            raise SettingsError(
                "process_group: the model is in shards on a mesh of one dimension, without replicas to average over; "
                "use a mesh of two dimensions, init_device_mesh(..., mesh_dim_names=('replicate', 'shard')), or give "
                "AdaptiveCompressor(process_group=...) the ranks that hold the same shard"
            )
        averaged_ids = {id(parameter) for group in self._groups for parameter in _trained(group)}
        self._holders = dict(_holders(module, averaged_ids if self._groups else None))
        if not self._holders:
            raise ValueError("module: no parameter that requires a gradient is in shards; give a module to train")
        refuse_other_hooks(self.parameters)
        replicas = _only_replicas(self._groups, process_group) if self._groups else process_group
        assert replicas is not None
        self.replicas: dist.ProcessGroup = replicas
        self.everyone: dist.ProcessGroup | None = None
        self.units = {name: holder.unit for name, holder in self._holders.items()}
        self._native = [(group.mesh_info, group.mesh_info.replicate_process_group) for group in self._groups]
        self._swallowed = SwallowedAllReduce(replicas.rank(), replicas.size()) if self._groups else None
        self._padded: dict[str, torch.Size] = {}
        self._padded_by_torch: set[str] = set()
        self._find_shapes()

    def _find_shapes(self) -> None:
        """Find the ranks that hold the model, and the padded shapes, which are the same on all of them."""
        meshes = {rank for holder in self._holders.values() for rank in _mesh_of(holder).mesh.flatten().tolist()}
        ranks = sorted(set().union(*_gathered(meshes, self.replicas)))
        if ranks != sorted(dist.get_process_group_ranks(self.replicas)):
            self.everyone = dist.group.WORLD if len(ranks) == dist.get_world_size() else _new_group(ranks)
        shapes = {name: tuple(_local(holder).shape) for name, holder in self._holders.items()}
        of_ranks = dict(zip(ranks, _gathered(shapes, self.everyone or self.replicas), strict=True))
        for rank, others in of_ranks.items():
            if differing := sorted(shapes.keys() ^ others.keys()):
                raise SettingsError(
                    f"module: rank {dist.get_rank()} and rank {rank} do not both train parameter {differing[0]} in "
                    "shards; wrap the same model on all ranks"
                )
        shard_ranks = _shard_ranks(self._groups)
        for name in shapes:
            self._padded[name] = _largest(others[name] for others in of_ranks.values())
            if shard_ranks and self._padded[name] == _largest(of_ranks[rank][name] for rank in shard_ranks):
                self._padded_by_torch.add(name)

    @property
    def forms(self) -> dict[str, torch.Tensor]:
        """Tensors of the padded shapes and dtypes, by name, without memory."""
        return {
            name: torch.empty(self._padded[name], dtype=_local(holder).dtype, device="meta")
            for name, holder in self._holders.items()
        }

    @property
    def device(self) -> torch.device:
        """Device of the gradients."""
        return next(_local(holder).device for holder in self._holders.values())

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """The present parameters in shards, by name; without those that are gathered at the moment."""
        present = {name: holder.parameter for name, holder in self._holders.items()}
        return {name: parameter for name, parameter in present.items() if parameter is not None}

    @property
    def knows_replicas(self) -> bool:
        """True if torch averages over the replicas by itself, unless gravac does."""
        return bool(self._groups)

    @property
    def exchanges(self) -> bool:
        """True if torch was not told to leave the replicas' exchange out of the next backward."""
        return not self._groups or any(group.reduce_grads and group.all_reduce_grads for group in self._groups)

    @property
    def factor(self) -> float:
        """Factor on the mean over the replicas that gives what torch's exchange would: their number for a sum, or 1."""
        return float(self.replicas.size()) if self._swallowed is not None and self._swallowed.sums else 1.0

    def swallow(self) -> None:
        """Let torch's exchange over the replicas do nothing, from the next backward on."""
        for mesh_info, _ in self._native:
            mesh_info.replicate_process_group = self._swallowed

    def restore(self) -> None:
        """Let torch average over the replicas again, from the next backward on."""
        for mesh_info, group in self._native:
            mesh_info.replicate_process_group = group

    def require_exchange(self, required: bool) -> None:
        """Tell torch whether the next backward ends with an exchange over the replicas, if torch knows of them."""
        for child in self._wrapped if self._groups else ():
            child.set_requires_all_reduce(required, recurse=False)

    def broadcast_weights(self) -> None:
        """Copy the first replica's weights to all replicas. Called on every rank."""
        first = dist.get_global_rank(self.replicas, 0)
        for holder in self._holders.values():
            shard = _local(holder)
            if shard.numel():
                contiguous = shard.contiguous()
                dist.broadcast(contiguous.view(-1).view(torch.uint8), first, group=self.replicas)
                if contiguous.data_ptr() != shard.data_ptr():
                    shard.copy_(contiguous)

    def gradient(self, name: str, parameter: torch.nn.Parameter) -> PaddedGradient:
        """Return the gradient of a parameter as it is exchanged: in torch's memory, or in a padded copy.

        Args:
            name: the parameter's name.
            parameter: the parameter in shards, of any shape.
        """
        gradient: Any = parameter.grad
        shard: torch.Tensor = gradient.to_local().detach()
        padded = self._padded[name]
        number = padded.numel()
        available = shard.untyped_storage().nbytes() // shard.element_size() - shard.storage_offset()
        in_place = shard.shape == padded or (name in self._padded_by_torch and available >= number)
        if in_place and shard.is_contiguous():
            flat = shard.as_strided((number,), (1,), shard.storage_offset())
            return PaddedGradient(Piece(name, flat, tuple(padded)), shard, copied=False)
        copy = shard.new_zeros(padded)
        copy[tuple(slice(size) for size in shard.shape)] = shard
        return PaddedGradient(Piece(name, copy.view(-1), tuple(padded)), shard, copied=True)


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
    return torch.Size(torch.tensor(list(shapes), dtype=torch.int64).amax(0).tolist())


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


def _groups_with_replicas(wrapped: Iterable[Any], required: bool) -> list[Any]:
    """Return the parameter groups of all units whose mesh has a replicate dimension.

    Args:
        wrapped: modules that ``fully_shard`` or ``replicate`` was called with.
        required: whether a missing private name of torch is an error; otherwise there are no such groups then.

    Raises:
        SettingsError: this torch lacks a private name, and ``required``.
    """
    try:
        groups = [group for child in wrapped for group in _parameter_groups(child._get_fsdp_state())]
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


def _refuse_fsdp1(module: torch.nn.Module) -> None:
    for path, child in module.named_modules():
        if any(kind.__name__ == "FullyShardedDataParallel" for kind in type(child).__mro__):
            raise TypeError(
                f"module: {path or 'the whole module'} is in shards by FullyShardedDataParallel (FSDP1), which cuts "
                "through matrices; use fully_shard (FSDP2)"
            )
