# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Finds shards, replicas and gradients of models in shards by FSDP2, and turns torch's exchange of replicas off and on.

A mesh of two dimensions holds several *replicas* of the model, each cut into shards (HSDP). torch sums gradients over
the ranks of a replica, which leaves each rank with the gradient of its shard, and then averages over the replicas.
gravac averages over the replicas in place of torch: it replaces torch's process group of the replicas by a group that
exchanges nothing (`idle_group.py`). torch's private names that this needs are all in this file.

Ranks that hold different shards have gradients of different shapes, but must make the same decisions. So every gradient
is exchanged in its *padded* shape, which has the largest size over all ranks in each dimension. A rank that has fewer
rows adds rows of zeros.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from gravac.averaging.plan import Piece, ShardPlace
from gravac.exchange.comparing import gather_objects
from gravac.settings import SettingsError
from gravac.sources.ddp import canonical_name
from gravac.sources.hooked import refuse_other_hooks
from gravac.sources.idle_group import IdleAllReduceGroup

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _ParameterSlot:
    """Module and name by which a model refers to a parameter, since the tensor itself may be replaced.

    ``load_state_dict(assign=True)`` replaces parameters, and torch replaces them by gathered parameters in forward.

    Attributes:
        owner: module that has the parameter.
        parameter_key: name of the parameter in that module.
        unit: number of the parameter's unit: the parameters that one ``fully_shard`` call holds.
        mesh: device mesh of the parameter in shards.
        torch_state: torch's record of the parameter, which holds the gathered parameter, too; ``None`` if not known.
    """

    owner: torch.nn.Module
    parameter_key: str
    unit: int
    mesh: DeviceMesh
    torch_state: Any

    @property
    def parameter(self) -> "torch.nn.Parameter | None":
        """The parameter in shards; ``None`` while torch has replaced it by the gathered parameter, as in forward.

        With tensor parallelism, the gathered parameter is a ``DTensor``, too, but on a mesh of fewer dimensions; with
        ``dp_mesh_dims``, it is a ``DTensor`` on the same mesh.
        """
        tensor = self.owner._parameters.get(self.parameter_key)
        if not isinstance(tensor, DTensor) or tensor is getattr(self.torch_state, "_unsharded_param", None):
            return None
        return tensor if tensor.device_mesh == self.mesh else None


@dataclass(frozen=True, slots=True)
class PaddedGradient:
    """This rank's gradient of a parameter, padded with zeros to the shape that all ranks exchange.

    Attributes:
        piece: gradient in its padded shape, as one flat tensor to average.
        shard_gradient: gradient in the shape of this rank's shard.
        is_copy: whether ``piece`` has memory of its own. False: ``piece`` and ``shard_gradient`` share memory.
    """

    piece: Piece
    shard_gradient: torch.Tensor
    is_copy: bool

    def put_back(self) -> None:
        """Copy the mean from ``piece`` to ``shard_gradient``, unless both share memory."""
        if self.is_copy:
            padded_gradient = self.piece.flat.view(self.piece.shape)
            self.shard_gradient.copy_(padded_gradient[tuple(slice(size) for size in self.shard_gradient.shape)])


class ShardedModel:
    """A model in shards by FSDP2, with the process groups of its replicas. Created on every rank.

    Args:
        module: the model.
        process_group: process group of the ranks that hold the same shard; needed if the mesh has one dimension.
            ``None``: the ranks along the mesh's replicate dimension.

    Attributes:
        replicas: process group of the ranks that hold the same shard.
        all_model_ranks: process group of all ranks that hold a part of the model; ``None``: these are the ranks of
            ``replicas``.
        units: index of the unit (the parameters that one ``fully_shard`` call holds) of each averaged parameter, by
            name.

    Raises:
        SettingsError: no part of the model is in shards by FSDP2; or the mesh has no replicate dimension, and no
            ``process_group`` was given; or ``process_group`` has other ranks than the replicate dimension; or units
            have different replicas; or ranks hold different parameters; or this version of torch lacks a private
            attribute that gravac uses; or the model is a part of a larger model in shards; or ``set_all_reduce_hook``
            was called.
        TypeError: the model, or a part of it, is in shards by FSDP1.
        ValueError: no parameter that requires a gradient is in shards.
        RuntimeError: another hook uses gradients as soon as they are accumulated, such as that of an optimizer that
            steps within backward.
    """

    def __init__(self, module: torch.nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        _refuse_fsdp1(module)
        self._fsdp_modules = [child for child in module.modules() if isinstance(child, FSDPModule)]
        if not self._fsdp_modules:
            raise SettingsError(
                "module: its parameters are DTensors, but neither fully_shard nor replicate was called with it; for "
                "tensor parallelism, call DistributedDataParallel(module, device_mesh=...) with the data parallel "
                "dimension of the mesh, or fully_shard"
            )
        self.refuse_part_of_larger_model()
        self.reshard()  # after a forward without a backward, the module has gathered parameters in place of shards
        self._fsdp_groups = _fsdp_groups_with_replicas(self._fsdp_modules, raise_if_missing=process_group is None)
        if process_group is None and not self._fsdp_groups:
            raise SettingsError(
                "process_group: the model is in shards on a mesh of one dimension, without replicas to average over; "
                "use a mesh of two dimensions, init_device_mesh(..., mesh_dim_names=('replicate', 'shard')), or give "
                "AdaptiveCompressor(process_group=...) the ranks that hold the same shard"
            )
        self.refuse_all_reduce_hooks()
        averaged_parameter_ids = {
            id(parameter) for fsdp_group in self._fsdp_groups for parameter in _trained_parameters(fsdp_group)
        }
        self._parameter_slots = dict(
            _slots_to_average(
                module, averaged_parameter_ids if self._fsdp_groups else None, _torch_states(self._fsdp_modules)
            )
        )
        if not self._parameter_slots:
            raise ValueError(
                "module: no parameter in shards requires a gradient; call fully_shard on the layers that you train"
            )
        refuse_other_hooks(self.parameters)
        replica_group = _replica_group(self._fsdp_groups, process_group) if self._fsdp_groups else process_group
        assert replica_group is not None
        self.replicas: dist.ProcessGroup = replica_group
        self.all_model_ranks: dist.ProcessGroup | None = None
        self.units = {name: slot.unit for name, slot in self._parameter_slots.items()}
        self._mesh_infos_and_groups = [
            (fsdp_group.mesh_info, fsdp_group.mesh_info.replicate_process_group) for fsdp_group in self._fsdp_groups
        ]
        self._idle_group = IdleAllReduceGroup(replica_group.rank(), replica_group.size()) if self._fsdp_groups else None
        self._padded_shapes: dict[str, torch.Size] = {}
        self._names_padded_by_torch: set[str] = set()
        self._gather_shapes()

    def refuse_part_of_larger_model(self) -> None:
        """Raise an error if torch trains the module as a part of a larger model in shards.

        The reason for the error: torch would average the other parts itself, so that ranks might start torch's
        exchanges and gravac's in different orders. Only after the larger model's first forward does torch know that
        the module is a part.

        Raises:
            SettingsError: the module is a part of a larger model in shards.
        """
        are_roots = [_is_root(child) for child in self._fsdp_modules]
        if False in are_roots and True not in are_roots:
            raise SettingsError(
                "module: torch trains it as a part of a larger model in shards, and would average the other parts "
                "itself; attach to the larger model, whose forward the training loop calls"
            )

    def refuse_all_reduce_hooks(self) -> None:
        """Raise an error if torch is to call a function of the user with gradients that torch has averaged.

        The reason for the error: torch would call the function before gravac averages over the replicas.

        Raises:
            SettingsError: ``set_all_reduce_hook`` was called, and the mesh has a replicate dimension.
        """
        if any(getattr(fsdp_group, "_all_reduce_hook", None) is not None for fsdp_group in self._fsdp_groups):
            raise SettingsError(
                "module: set_all_reduce_hook was called, but torch would call its hook before gravac averages the "
                "gradients over the replicas; change averaged gradients in optimizer.register_step_pre_hook instead"
            )

    def _gather_shapes(self) -> None:
        """Set ``all_model_ranks``, and each gradient's padded shape, the same on these ranks. Called on every rank.

        Raises:
            SettingsError: ranks train different parameters.
        """
        mesh_ranks = {rank for slot in self._parameter_slots.values() for rank in slot.mesh.mesh.flatten().tolist()}
        model_ranks = sorted(set().union(*gather_objects(mesh_ranks, self.replicas)))
        if model_ranks != sorted(dist.get_process_group_ranks(self.replicas)):
            self.all_model_ranks = (
                dist.group.WORLD if len(model_ranks) == dist.get_world_size() else _new_group(model_ranks)
            )
        shape_by_name = {name: tuple(_local_shard(slot).shape) for name, slot in self._parameter_slots.items()}
        shapes_by_rank = dict(
            zip(model_ranks, gather_objects(shape_by_name, self.all_model_ranks or self.replicas), strict=True)
        )
        for rank, rank_shapes in shapes_by_rank.items():
            if differing_names := sorted(shape_by_name.keys() ^ rank_shapes.keys()):
                raise SettingsError(
                    f"module: rank {dist.get_rank()} and rank {rank} do not both train parameter {differing_names[0]} "
                    "in shards; wrap the same model on all ranks"
                )
        own_replica_ranks = _ranks_of_own_replica(self._fsdp_groups)
        for name in shape_by_name:
            self._padded_shapes[name] = _largest_sizes(rank_shapes[name] for rank_shapes in shapes_by_rank.values())
            if own_replica_ranks and self._padded_shapes[name] == _largest_sizes(
                shapes_by_rank[rank][name] for rank in own_replica_ranks
            ):
                self._names_padded_by_torch.add(name)

    @property
    def meta_tensors(self) -> dict[str, torch.Tensor]:
        """Tensors without memory (device ``meta``) of the gradients' padded shapes and dtypes, by name."""
        return {
            name: torch.empty(self._padded_shapes[name], dtype=_local_shard(slot).dtype, device="meta")
            for name, slot in self._parameter_slots.items()
        }

    @property
    def device(self) -> torch.device:
        """Device of the gradients."""
        return next(_local_shard(slot).device for slot in self._parameter_slots.values())

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """The parameters in shards, by name, without those that are gathered at present, as in forward."""
        parameter_by_name = {name: slot.parameter for name, slot in self._parameter_slots.items()}
        return {name: parameter for name, parameter in parameter_by_name.items() if parameter is not None}

    @property
    def knows_replicas(self) -> bool:
        """True if torch itself would average over the replicas, because the mesh has a replicate dimension."""
        return bool(self._fsdp_groups)

    @property
    def will_exchange(self) -> bool:
        """True unless the user told torch to exchange nothing over the replicas in the next backward.

        The user does so by ``set_requires_all_reduce(False)`` or ``set_requires_gradient_sync(False)``.
        """
        return not self._fsdp_groups or any(
            fsdp_group.reduce_grads and fsdp_group.all_reduce_grads for fsdp_group in self._fsdp_groups
        )

    def suspend_torch_exchange(self) -> None:
        """Make torch's exchange over the replicas do nothing, from the next backward on."""
        for mesh_info, _ in self._mesh_infos_and_groups:
            mesh_info.replicate_process_group = self._idle_group

    def restore_torch_exchange(self) -> None:
        """Let torch average over the replicas again, from the next backward on."""
        for mesh_info, group in self._mesh_infos_and_groups:
            mesh_info.replicate_process_group = group

    def require_exchange(self, required: bool) -> None:
        """Tell torch whether to exchange over the replicas in the next backwards.

        Do nothing if the mesh has no replicate dimension: torch then has no such exchange.

        Args:
            required: whether to exchange.
        """
        for child in self._fsdp_modules if self._fsdp_groups else ():
            child.set_requires_all_reduce(required, recurse=False)

    def reshard(self) -> None:
        """Free the parameters that torch gathered for a forward, so that the model has its shards again."""
        for child in self._fsdp_modules:
            child.reshard()

    @property
    def shards(self) -> dict[str, torch.Tensor]:
        """This rank's shards of the parameters, by name, detached. Valid only while no parameter is gathered."""
        return {name: _local_shard(slot) for name, slot in self._parameter_slots.items()}

    @property
    def ranks_of_replica(self) -> int:
        """Number of ranks that together hold one replica."""
        rank_count: int = dist.get_world_size(self.all_model_ranks or self.replicas) // self.replicas.size()
        return rank_count

    @property
    def padded_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape in which ranks exchange a parameter's gradient or pseudo-gradient, by the parameter's name.

        In each dimension, the shape has the largest size of all ranks' shards of the parameter.
        """
        return {name: tuple(shape) for name, shape in self._padded_shapes.items()}

    @property
    def shard_places(self) -> dict[str, ShardPlace]:
        """Offset and shapes of this rank's shard in each whole parameter, by name.

        Empty if this torch lacks the private function that computes offsets.
        """
        offsets = {name: _offset_in_whole(slot) for name, slot in self._parameter_slots.items()}
        if any(offset is None for offset in offsets.values()):
            return {}
        return {
            name: ShardPlace(offsets[name] or (), tuple(_local_shard(slot).shape), tuple(self._padded_shapes[name]))
            for name, slot in self._parameter_slots.items()
        }

    def broadcast_weights(self) -> None:
        """Copy the first replica's weights to all replicas, bit for bit. Called on every rank."""
        first_rank = dist.get_global_rank(self.replicas, 0)
        for slot in self._parameter_slots.values():
            shard = _local_shard(slot)
            if shard.numel():
                contiguous_shard = shard.contiguous()
                dist.broadcast(contiguous_shard.view(-1).view(torch.uint8), first_rank, group=self.replicas)
                if contiguous_shard.data_ptr() != shard.data_ptr():
                    shard.copy_(contiguous_shard)

    def gradient(self, name: str, parameter: torch.nn.Parameter) -> PaddedGradient:
        """Return a parameter's gradient in its padded shape: a view of torch's memory if that has room, else a copy.

        Args:
            name: the parameter's name.
            parameter: the parameter in shards, of any shape, which has a gradient.
        """
        gradient: Any = parameter.grad
        shard_gradient: torch.Tensor = gradient.to_local().detach()
        padded_shape = self._padded_shapes[name]
        padded_elements = padded_shape.numel()
        available_elements = (
            shard_gradient.untyped_storage().nbytes() // shard_gradient.element_size() - shard_gradient.storage_offset()
        )
        has_room = name in self._names_padded_by_torch and available_elements >= padded_elements
        if (shard_gradient.shape == padded_shape or has_room) and shard_gradient.is_contiguous():
            flat = shard_gradient.as_strided((padded_elements,), (1,), shard_gradient.storage_offset())
            return PaddedGradient(Piece(name, flat, tuple(padded_shape)), shard_gradient, is_copy=False)
        padded_copy = shard_gradient.new_zeros(padded_shape)
        padded_copy[tuple(slice(size) for size in shard_gradient.shape)] = shard_gradient
        return PaddedGradient(Piece(name, padded_copy.view(-1), tuple(padded_shape)), shard_gradient, is_copy=True)


def has_replicas(module: torch.nn.Module) -> bool:
    """True if torch averages the gradients of a model in shards over replicas.

    Raises:
        SettingsError: this torch lacks a private name.
    """
    return bool(
        _fsdp_groups_with_replicas((child for child in module.modules() if isinstance(child, FSDPModule)), True)
    )


def local_tensor(tensor: Any) -> Any:
    """Return this rank's shard of a ``DTensor``, detached; return anything else unchanged.

    Args:
        tensor: a tensor of any shape, or a number, or anything else that an optimizer stores.
    """
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor


def in_shards_like(local: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Return a ``DTensor`` that is cut into shards like a parameter, and shares memory with ``local``.

    Args:
        local: this rank's shard of the result, of the shape of this rank's shard of the parameter.
        parameter: a parameter in shards, of any shape.
    """
    sharded_parameter: Any = parameter
    return DTensor.from_local(
        local,
        sharded_parameter.device_mesh,
        sharded_parameter.placements,
        run_check=False,
        shape=sharded_parameter.shape,
        stride=sharded_parameter.stride(),
    )


def _slots_to_average(
    module: torch.nn.Module, averaged_parameter_ids: "set[int] | None", torch_states: dict[int, Any]
) -> Iterator[tuple[str, _ParameterSlot]]:
    """Yield, for each parameter to average, its name in the model and its ``_ParameterSlot``.

    Args:
        module: the model.
        averaged_parameter_ids: ``id`` of each parameter to average; ``None``: all parameters in shards are to be
            averaged.
        torch_states: torch's record of each parameter in shards, by the parameter's ``id``.
    """
    unit_by_module_id: dict[int, int] = {}
    innermost_unit_by_id: dict[int, int] = {}
    seen_ids: set[int] = set()
    for path, child in module.named_modules():
        parent_unit = innermost_unit_by_id.get(id(module.get_submodule(path.rpartition(".")[0])), -1) if path else -1
        innermost_unit_by_id[id(child)] = (
            unit_by_module_id.setdefault(id(child), len(unit_by_module_id))
            if isinstance(child, FSDPModule)
            else parent_unit
        )
        for parameter_key, parameter in child.named_parameters(recurse=False):
            is_averaged = isinstance(parameter, DTensor) and (
                averaged_parameter_ids is None or id(parameter) in averaged_parameter_ids
            )
            if parameter.requires_grad and is_averaged and id(parameter) not in seen_ids:
                seen_ids.add(id(parameter))
                name = canonical_name(f"{path}.{parameter_key}" if path else parameter_key)
                torch_state = torch_states.get(id(parameter))
                yield (
                    name,
                    _ParameterSlot(
                        child, parameter_key, innermost_unit_by_id[id(child)], parameter.device_mesh, torch_state
                    ),
                )


def _local_shard(slot: _ParameterSlot) -> torch.Tensor:
    """Return this rank's shard of a slot's parameter, of the shard's shape, detached."""
    parameter: Any = slot.parameter
    shard: torch.Tensor = parameter.to_local().detach()
    return shard


def _largest_sizes(shapes: Iterable[tuple[int, ...]]) -> torch.Size:
    """Return, for each dimension, the largest size in some shapes of equally many dimensions."""
    return torch.Size(torch.tensor(list(shapes), dtype=torch.int64, device="cpu").amax(0).tolist())


def _new_group(ranks: list[int]) -> dist.ProcessGroup:
    """Return a new process group of some ranks. Called on all of these ranks."""
    group: dist.ProcessGroup = dist.new_group(ranks, use_local_synchronization=True, group_desc="gravac")
    return group


# private names of torch


def _fsdp_groups_with_replicas(fsdp_modules: Iterable[Any], raise_if_missing: bool) -> list[Any]:
    """Return FSDP2's parameter groups (one or more for each ``fully_shard`` call) whose mesh has a replicate dimension.

    Args:
        fsdp_modules: modules that ``fully_shard`` or ``replicate`` was called with.
        raise_if_missing: what to do if this torch lacks a private name: raise if True, return an empty list if False.

    Raises:
        SettingsError: this torch lacks a private name, and ``raise_if_missing``.
    """
    try:
        fsdp_groups = _fsdp_parameter_groups(fsdp_modules)
        return [
            fsdp_group
            for fsdp_group in fsdp_groups
            if getattr(fsdp_group.mesh_info, "replicate_process_group", None) is not None
        ]
    except AttributeError as error:
        if not raise_if_missing:
            return []
        raise SettingsError(
            f"module: torch {torch.__version__} lacks a private name by which gravac finds replicas ({error}); use a "
            "mesh of the shard dimension alone, and give AdaptiveCompressor(process_group=...) the ranks that hold "
            "the same shard"
        ) from error


def _offset_in_whole(slot: _ParameterSlot) -> tuple[int, ...] | None:
    """Return the index, in the whole parameter, of the first element of this rank's shard.

    Return ``None`` if this torch lacks a private name. If this rank's shard is empty, the index has no meaning.
    """
    try:
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
    except ImportError:
        return None
    parameter: Any = slot.parameter
    mesh, placements = parameter.device_mesh, parameter.placements
    return tuple(compute_local_shape_and_global_offset(parameter.shape, mesh, placements)[1])


def _is_root(fsdp_module: Any) -> "bool | None":
    """Return True if torch takes a module for the whole model in shards, and False for a part of a larger model.

    Return ``None`` before the first forward, when torch does not know yet, or if this torch lacks the private name.
    """
    is_root: bool | None = getattr(fsdp_module._get_fsdp_state(), "_is_root", None)
    return is_root


def _fsdp_parameter_groups(fsdp_modules: Iterable[Any]) -> list[Any]:
    """Return FSDP2's parameter groups of several ``fully_shard`` calls; before torch 2.11, at most one for each call.

    Args:
        fsdp_modules: modules that ``fully_shard`` or ``replicate`` was called with.

    Raises:
        AttributeError: this torch lacks a private name.
    """
    fsdp_groups: list[Any] = []
    for module in fsdp_modules:
        fsdp_state = module._get_fsdp_state()
        state_groups = getattr(fsdp_state, "_fsdp_param_groups", None)
        fsdp_groups += [fsdp_state._fsdp_param_group] if state_groups is None else state_groups
    return [fsdp_group for fsdp_group in fsdp_groups if fsdp_group is not None]


def _torch_states(fsdp_modules: Iterable[Any]) -> dict[int, Any]:
    """Return torch's record of each parameter in shards, by the parameter's ``id``.

    Empty if this torch lacks a private name.

    Args:
        fsdp_modules: modules that ``fully_shard`` or ``replicate`` was called with.
    """
    try:
        return {
            id(torch_state.sharded_param): torch_state
            for fsdp_group in _fsdp_parameter_groups(fsdp_modules)
            for torch_state in fsdp_group.fsdp_params
        }
    except AttributeError:
        return {}


def _trained_parameters(fsdp_group: Any) -> list[torch.nn.Parameter]:
    """Return those parameters of one of FSDP2's parameter groups that require gradients, in shards."""
    return [
        torch_state.sharded_param for torch_state in fsdp_group.fsdp_params if torch_state.sharded_param.requires_grad
    ]


def _replica_group(fsdp_groups: list[Any], requested_group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    """Return the process group of the ranks that hold the same shard, which must be the same for the whole model.

    Args:
        fsdp_groups: FSDP2's parameter groups whose mesh has a replicate dimension.
        requested_group: process group that the user gave; ``None`` if the user gave none.

    Raises:
        SettingsError: units have different replicas, or the user gave a group of other ranks.
    """
    mesh_info_by_ranks = {
        tuple(dist.get_process_group_ranks(fsdp_group.mesh_info.replicate_process_group)): fsdp_group.mesh_info
        for fsdp_group in fsdp_groups
    }
    if len(mesh_info_by_ranks) > 1:
        raise SettingsError(
            "module: its fully_shard units are replicated over different ranks "
            f"({', '.join(map(str, mesh_info_by_ranks))}), but gravac averages over one group; use one mesh for all "
            "units that are replicated"
        )
    ((ranks, mesh_info),) = mesh_info_by_ranks.items()
    if requested_group is not None and tuple(dist.get_process_group_ranks(requested_group)) != ranks:
        raise SettingsError(
            f"process_group: has ranks {dist.get_process_group_ranks(requested_group)}, but the model's mesh has "
            f"replicas on ranks {list(ranks)}, over which gravac averages; leave process_group out"
        )
    replica_group: dist.ProcessGroup = mesh_info.replicate_process_group
    return replica_group


def _ranks_of_own_replica(fsdp_groups: list[Any]) -> frozenset[int]:
    """Return the ranks that together hold this rank's replica.

    Empty if the parameter groups do not all have the same such ranks, or if ``fsdp_groups`` is empty.

    Args:
        fsdp_groups: FSDP2's parameter groups whose mesh has a replicate dimension.
    """
    rank_sets = {
        frozenset(
            [dist.get_rank()]
            if getattr(fsdp_group.mesh_info, "shard_process_group", None) is None
            else dist.get_process_group_ranks(fsdp_group.mesh_info.shard_process_group)
        )
        for fsdp_group in fsdp_groups
    }
    return next(iter(rank_sets)) if len(rank_sets) == 1 else frozenset()


def _refuse_fsdp1(module: torch.nn.Module) -> None:
    """Raise a ``TypeError`` if a model, or a part of it, is in shards by FSDP1."""
    for path, child in module.named_modules():
        if any(ancestor.__name__ == "FullyShardedDataParallel" for ancestor in type(child).__mro__):
            raise TypeError(
                f"module: {path or 'the whole module'} is in shards by FullyShardedDataParallel (FSDP1), which cuts a "
                "flat vector of parameters, but gravac compresses single tensors; use fully_shard (FSDP2)"
            )
