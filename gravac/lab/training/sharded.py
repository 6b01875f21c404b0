# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Cuts a task's model into shards by FSDP2, and attaches torch's own exchange of such a model (HSDP)."""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from gravac.candidate import DENSE, Candidate
from gravac.collectives import AllReduce
from gravac.lab.mesh import Mesh
from gravac.lab.tasks.base import Task
from gravac.lab.training.exchange import Exchange, start_record, trained_shapes
from gravac.lab.training.methods import TORCH_DENSE_METHODS, Method
from gravac.telemetry.records import DecisionRecord


def device_mesh(mesh: Mesh) -> DeviceMesh:
    """Return torch's mesh over all ranks, on CPU, with the dimensions ``replicate`` and ``shard``.

    Called on every rank, since torch makes process groups for the mesh.
    """
    return init_device_mesh("cpu", (mesh.replicas, mesh.shards), mesh_dim_names=("replicate", "shard"))


def shard(task: Task, model: torch.nn.Module, mesh: DeviceMesh, reduce_dtype: torch.dtype | None = None) -> None:
    """Cut a task's model into shards, in place; called on every rank, before the optimizer is made.

    ``fully_shard`` is called on each block (layer) of the model, then on the model, for all other parameters.

    Args:
        task: task of the model; its attribute ``blocks`` names the model's list of blocks.
        model: model of the task.
        mesh: mesh with the dimensions ``replicate`` and ``shard``.
        reduce_dtype: number format in which torch reduces gradients; ``None``: the format of the parameters.

    Raises:
        ValueError: the task's attribute ``blocks`` is empty.
    """
    if not task.blocks:
        raise ValueError(
            f"task: {task.name!r} has no blocks by which its model could be cut into shards; use charlm or gpt2"
        )
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # a slow import

    precision_policy = MixedPrecisionPolicy(reduce_dtype=reduce_dtype)
    for module in (*model.get_submodule(task.blocks).children(), model):
        fully_shard(module, mesh=mesh, mp_policy=precision_policy)


def reduce_dtype(method: Method) -> torch.dtype | None:
    """Return the number format in which FSDP2 reduces the gradients of a model in shards.

    Methods of torch reduce in the method's format. For methods of gravac the result is ``None``: torch reduces the
    gradients within a replica in the format of the parameters, float32, before gravac gets them.

    Args:
        method: method of exchanging gradients.
    """
    if method.torch_format is None:
        return None
    dtype: torch.dtype = getattr(torch, TORCH_DENSE_METHODS[method.torch_format][1])
    return dtype


class TorchShardedExchange(Exchange):
    """torch's own exchange of a model in shards (HSDP), attached to the model; see ``Exchange`` for the interface.

    torch averages within each replica and between replicas, in the same number format.

    Args:
        method: dense method of torch: ``fp32``, ``fp16`` or ``bf16``.
        module: model in shards that ``shard`` made with the method's number format.
    """

    def __init__(self, method: Method, module: torch.nn.Module) -> None:
        super().__init__(method, module)
        assert method.torch_format is not None
        self._cf, _ = TORCH_DENSE_METHODS[method.torch_format]
        self._exchanged_elements, self._replica_count = _elements_and_replicas(module)

    @property
    def knows_exposed_time(self) -> bool:
        """False: torch waits for the exchange in the middle of backward, where the lab's clock cannot time the wait."""
        return False

    def wire_bytes(self, steps: int, world: int) -> int:
        """Return the bytes that this rank sent to other replicas in ``steps`` steps, by the formula of ring all-reduce.

        Args:
            steps: number of steps so far.
            world: not used: a rank averages with one rank of each other replica, and not with all ranks.
        """
        return steps * AllReduce.wire_bytes(round(4 * self._exchanged_elements / self._cf), self._replica_count)

    def decisions(self) -> list[DecisionRecord]:
        """Return a list with one record, of the only candidate (way to run steps), which never changes."""
        return [start_record(Candidate("native", DENSE, self._cf))]


def _elements_and_replicas(module: torch.nn.Module) -> tuple[int, int]:
    """Return ``(elements, replicas)``: how many elements a rank sends to other replicas, and how many replicas exist.

    The elements are those of all shards that a rank holds, padding included.

    Args:
        module: model in shards.
    """
    parameter_meshes = [getattr(parameter, "device_mesh", None) for parameter in module.parameters()]
    replicas, shards = next(parameter_mesh.shape for parameter_mesh in parameter_meshes if parameter_mesh is not None)
    mesh = Mesh(replicas=replicas, shards=shards)
    return mesh.shard_elements(trained_shapes(module)), mesh.replicas
