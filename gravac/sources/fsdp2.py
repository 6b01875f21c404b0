# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Finds shards, replicas and gradients of models in shards by FSDP2, and turns torch's exchange of replicas off and on.

A mesh of two dimensions holds several *replicas* of the model, each cut into shards (HSDP). torch sums gradients over
the ranks of a replica, which leaves each rank with the gradient of its shard, and then averages over the replicas.
gravac averages over the replicas in place of torch: it replaces torch's process group of the replicas by a group that
exchanges nothing (`idle_group.py`).

Ranks that hold different shards have gradients of different shapes, but must make the same decisions. So every gradient
is exchanged in its *padded* shape, which has the largest size over all ranks in each dimension. A rank that has fewer
rows adds rows of zeros.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from gravac.averaging.plan import Piece, ShardPlace
from gravac.exchange.comparing import gather_objects, largest_shapes
from gravac.settings import SettingsError
from gravac.sources.idle_group import IdleAllReduceGroup
from gravac.sources.parameters import canonical_name

# private names of torch

GROUP_NAMES = ("fsdp_params", "mesh_info", "reduce_grads", "all_reduce_grads")
"""Attributes of FSDP2's parameter groups. A parameter group holds the parameters that one ``fully_shard`` call cuts
along one mesh."""

RECORD_NAMES = ("sharded_param", "padded_sharded_param_size")
"""Attributes of FSDP2's record of a parameter: the parameter in shards, also while torch uses the gathered parameter,
and the shape of the memory that each rank has for its shard of the parameter or of the gradient."""


def _parameter_groups(fsdp_modules: Iterable[Any]) -> list[Any]:
    """Return FSDP2's parameter groups of modules that ``fully_shard`` or ``replicate`` was called with.

    Raises:
        SettingsError: this torch lacks a private name that gravac uses.
    """
    groups: list[Any] = []
    try:
        for state in dict.fromkeys(module._get_fsdp_state() for module in fsdp_modules):
            # before torch 2.11, a call had at most one group
            groups += state._fsdp_param_groups if hasattr(state, "_fsdp_param_groups") else [state._fsdp_param_group]
        groups = [group for group in groups if group is not None]
        for group in groups:
            attrgetter(*GROUP_NAMES)(group)
            for record in group.fsdp_params:
                attrgetter(*RECORD_NAMES)(record)
    except AttributeError as error:
        raise SettingsError(
            f"module: torch {torch.__version__} lacks a private name of FSDP2 that gravac needs ({error}); use another "
            "version of torch, or DistributedDataParallel"
        ) from error
    return groups


def _replicate_group(parameter_group: Any) -> dist.ProcessGroup | None:
    """Return the process group over which torch averages a parameter group's gradients; ``None`` without replicas."""
    group: dist.ProcessGroup | None = getattr(parameter_group.mesh_info, "replicate_process_group", None)
    return group


def _is_root(fsdp_module: Any) -> bool | None:
    """Return True if torch takes a module for the whole model in shards, and False for a part of a larger model.

    Return ``None`` before the first forward, when torch does not know yet.
    """
    is_root: bool | None = getattr(fsdp_module._get_fsdp_state(), "_is_root", None)
    return is_root


def _has_all_reduce_hook(parameter_group: Any) -> bool:
    """True if the user called ``set_all_reduce_hook``."""
    return getattr(parameter_group, "_all_reduce_hook", None) is not None


# a model in shards


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
        units: index of the unit of each averaged parameter, by name. Torch sets the gradients of a unit together: of
            the parameters that one ``fully_shard`` call cuts along one mesh.
        padded_shapes: shape in which ranks exchange a parameter's gradient or pseudo-gradient, by the parameter's name.

    Raises:
        SettingsError: no part of the model is in shards by FSDP2; or the mesh has no replicate dimension, and no
            ``process_group`` was given; or ``process_group`` has other ranks than the replicate dimension; or units
            have different replicas; or ranks hold different parameters; or this version of torch lacks a private
            attribute that gravac uses; or the model is a part of a larger model in shards; or ``set_all_reduce_hook``
            was called.
        ValueError: no parameter that requires a gradient is in shards.
        RuntimeError: another hook uses gradients as soon as they are accumulated, such as that of an optimizer that
            steps within backward.
    """

    def __init__(self, module: torch.nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        self._fsdp_modules = [child for child in module.modules() if isinstance(child, FSDPModule)]
        if not self._fsdp_modules:
            raise SettingsError(
                "module: its parameters are DTensors, but neither fully_shard nor replicate was called with it; for "
                "tensor parallelism, call DistributedDataParallel(module, device_mesh=...) with the data parallel "
                "dimension of the mesh, or fully_shard"
            )
        groups = _parameter_groups(self._fsdp_modules)
        self._replicated_groups = [group for group in groups if _replicate_group(group) is not None]
        self.refuse_part_of_larger_model()
        self.replicas = self._find_replicas(process_group)
        self.refuse_all_reduce_hooks()
        self.reshard()  # after a forward without a backward, the module has gathered parameters in place of shards
        self.units: dict[str, int] = {}
        self._records: dict[str, Any] = {}  # FSDP2's record of each averaged parameter, by name
        unit_and_record_by_id = {
            id(record.sharded_param): (unit, record)
            for unit, group in enumerate(self._replicated_groups or groups)
            for record in group.fsdp_params
        }
        for long_name, parameter in module.named_parameters():
            if parameter.requires_grad and id(parameter) in unit_and_record_by_id:
                name = canonical_name(long_name)
                self.units[name], self._records[name] = unit_and_record_by_id[id(parameter)]
                _refuse_hooks(name, parameter)
        if not self.units:
            raise ValueError(
                "module: no parameter in shards requires a gradient; call fully_shard on the layers that you train"
            )
        self._mesh_infos_and_groups = [(group.mesh_info, _replicate_group(group)) for group in self._replicated_groups]
        self._idle_group = IdleAllReduceGroup(self.replicas.rank(), self.replicas.size())
        self.all_model_ranks = self._find_all_model_ranks()
        self.padded_shapes = largest_shapes(
            {name: tuple(shard.shape) for name, shard in self.shards.items()}, self.all_model_ranks or self.replicas
        )

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
        if any(map(_has_all_reduce_hook, self._replicated_groups)):
            raise SettingsError(
                "module: set_all_reduce_hook was called, but torch would call its hook before gravac averages the "
                "gradients over the replicas; change averaged gradients in optimizer.register_step_pre_hook instead"
            )

    def _find_replicas(self, requested_group: dist.ProcessGroup | None) -> dist.ProcessGroup:
        """Return the process group of the ranks that hold the same shard, which must be the same for the whole model.

        Args:
            requested_group: process group that the user gave; ``None`` if the user gave none.

        Raises:
            SettingsError: there are no replicas; or units have different replicas; or the user gave a group of other
                ranks.
        """
        group_by_ranks = {
            tuple(dist.get_process_group_ranks(group)): group
            for group in map(_replicate_group, self._replicated_groups)
        }
        if len(group_by_ranks) > 1:
            raise SettingsError(
                "module: its fully_shard units are replicated over different ranks "
                f"({', '.join(map(str, group_by_ranks))}), but gravac averages over one group; use one mesh for all "
                "units that are replicated"
            )
        if requested_group is not None and group_by_ranks:
            requested_ranks, (ranks,) = dist.get_process_group_ranks(requested_group), group_by_ranks
            if tuple(requested_ranks) != ranks:
                raise SettingsError(
                    f"process_group: has ranks {requested_ranks}, but the model's mesh has replicas on ranks "
                    f"{list(ranks)}, over which gravac averages; leave process_group out"
                )
        replicas = next(iter(group_by_ranks.values()), requested_group)
        if replicas is None:
            raise SettingsError(
                "process_group: the model is in shards on a mesh of one dimension, without replicas to average over; "
                "use a mesh of two dimensions, init_device_mesh(..., mesh_dim_names=('replicate', 'shard')), or give "
                "AdaptiveCompressor(process_group=...) the ranks that hold the same shard"
            )
        return replicas

    def _find_all_model_ranks(self) -> dist.ProcessGroup | None:
        """Return the process group of all ranks that hold a part of the model; ``None``: those of ``replicas``.

        Called on every rank.
        """
        mesh_ranks = {
            rank for parameter in self.parameters.values() for rank in parameter.device_mesh.mesh.flatten().tolist()
        }
        model_ranks = sorted(set().union(*gather_objects(mesh_ranks, self.replicas)))
        if model_ranks == sorted(dist.get_process_group_ranks(self.replicas)):
            return None
        group: dist.ProcessGroup | None = dist.group.WORLD
        if len(model_ranks) < dist.get_world_size():
            group = dist.new_group(model_ranks, use_local_synchronization=True, group_desc="gravac")
        return group

    @property
    def parameters(self) -> dict[str, Any]:
        """The averaged parameters, each a ``DTensor``, by name; ``load_state_dict(assign=True)`` replaces them."""
        return {name: record.sharded_param for name, record in self._records.items()}

    @property
    def shards(self) -> dict[str, torch.Tensor]:
        """This rank's shards of the parameters, by name, detached."""
        return {name: local_tensor(parameter) for name, parameter in self.parameters.items()}

    @property
    def meta_tensors(self) -> dict[str, torch.Tensor]:
        """Tensors without memory (device ``meta``) of the gradients' padded shapes and dtypes, by name."""
        return {
            name: torch.empty(self.padded_shapes[name], dtype=shard.dtype, device="meta")
            for name, shard in self.shards.items()
        }

    @property
    def device(self) -> torch.device:
        """Device of the gradients."""
        return next(shard.device for shard in self.shards.values())

    @property
    def shard_places(self) -> dict[str, ShardPlace]:
        """Offset and shapes of this rank's shard in each whole parameter, by name.

        If a shard is empty, its offset has no meaning.
        """
        places = {}
        for name, parameter in self.parameters.items():
            mesh, placements = parameter.device_mesh, parameter.placements
            _, offset = compute_local_shape_and_global_offset(parameter.shape, mesh, placements)
            shape = tuple(local_tensor(parameter).shape)
            places[name] = ShardPlace(tuple(offset), shape, self.padded_shapes[name])
        return places

    @property
    def ranks_of_replica(self) -> int:
        """Number of ranks that together hold one replica."""
        rank_count: int = dist.get_world_size(self.all_model_ranks or self.replicas) // self.replicas.size()
        return rank_count

    @property
    def knows_replicas(self) -> bool:
        """True if torch itself would average over the replicas, because the mesh has a replicate dimension."""
        return bool(self._replicated_groups)

    @property
    def will_exchange(self) -> bool:
        """True unless the user told torch to exchange nothing over the replicas in the next backward.

        The user does so by ``set_requires_all_reduce(False)`` or ``set_requires_gradient_sync(False)``.
        """
        return not self.knows_replicas or any(
            group.reduce_grads and group.all_reduce_grads for group in self._replicated_groups
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
        """Tell torch whether to exchange over the replicas, if the mesh has replicas, in the next backwards."""
        for child in self._fsdp_modules:
            child.set_requires_all_reduce(required, recurse=False)

    def reshard(self) -> None:
        """Free the parameters that torch gathered for a forward, so that the model has its shards again."""
        for child in self._fsdp_modules:
            child.reshard()

    def broadcast_weights(self) -> None:
        """Copy the first replica's weights to all replicas, bit for bit. Called on every rank."""
        first_rank = dist.get_global_rank(self.replicas, 0)
        for shard in self.shards.values():
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
        shard_gradient: torch.Tensor = local_tensor(parameter.grad)
        padded_shape, offset = self.padded_shapes[name], shard_gradient.storage_offset()
        padded_elements = math.prod(padded_shape)
        storage_elements = shard_gradient.untyped_storage().nbytes() // shard_gradient.element_size()
        has_room = (
            self._records[name].padded_sharded_param_size == padded_shape
            and storage_elements - offset >= padded_elements
        )
        if (shard_gradient.shape == padded_shape or has_room) and shard_gradient.is_contiguous():
            flat = shard_gradient.as_strided((padded_elements,), (1,), offset)
            return PaddedGradient(Piece(name, flat, padded_shape), shard_gradient, is_copy=False)
        padded_copy = shard_gradient.new_zeros(padded_shape)
        padded_copy[tuple(slice(size) for size in shard_gradient.shape)] = shard_gradient
        return PaddedGradient(Piece(name, padded_copy.view(-1), padded_shape), shard_gradient, is_copy=True)


def has_replicas(module: torch.nn.Module) -> bool:
    """True if torch averages the gradients of a model in shards over replicas.

    Raises:
        SettingsError: this torch lacks a private name.
    """
    groups = _parameter_groups(child for child in module.modules() if isinstance(child, FSDPModule))
    return any(_replicate_group(group) is not None for group in groups)


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


def _refuse_hooks(name: str, parameter: torch.nn.Parameter) -> None:
    """Raise a ``RuntimeError`` if another hook would use a gradient before it is the mean over the replicas."""
    if getattr(parameter, "_post_accumulate_grad_hooks", None):
        raise RuntimeError(
            f"module: parameter {name} already has a post-accumulate-grad hook (of an optimizer step within "
            "backward, or of another compressor), which would see the gradient before gravac averages it; remove "
            "that hook first"
        )
