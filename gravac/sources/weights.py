# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Tensors of a module that ranks exchange: how they must lie in memory, and rank 0's on all ranks at the start."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.distributed as dist

from gravac.sources.ddp import canonical


def check_memory(module: torch.nn.Module) -> None:
    """Refuse tensors of a module that cannot be exchanged as they lie in memory.

    Raises:
        ValueError: a parameter or buffer is sparse or quantized, or several of its elements are one place in memory; a
            parameter to train has gaps in memory, or shares memory with another one or with a buffer.
    """
    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    for what, named in (("parameter", parameters), ("buffer", buffers)):
        for name, tensor in named.items():
            refuse_overlap(f"{what} {canonical(name)}", tensor)
    trains = {f"parameter {canonical(name)}": p for name, p in parameters.items() if p.requires_grad}
    for name, parameter in trains.items():
        if not torch.ops.aten.is_non_overlapping_and_dense(parameter):
            raise ValueError(
                f"module: {name} has shape {tuple(parameter.shape)} and strides {parameter.stride()}, which leave gaps "
                "in memory; replace it by torch.nn.Parameter(parameter.detach().contiguous())"
            )
    held = {f"buffer {name}": buffer for name, buffer in buffers.items()}
    _refuse_shared(*({name: tensor for name, tensor in of.items() if tensor.numel()} for of in (trains, held)))


def _refuse_shared(trains: Mapping[str, torch.Tensor], buffers: Mapping[str, torch.Tensor]) -> None:
    """Refuse a parameter to train that shares memory with another one, or with a buffer."""
    lies = [
        _Lies.of(name, tensor, trained)
        for trained, named in ((True, trains), (False, buffers))
        for name, tensor in named.items()
    ]
    before: _Lies | None = None
    for one in sorted(lies):
        together = before is not None and before.storage == one.storage
        if before is not None and together and one.first < before.last and (one.trains or before.trains):
            raise ValueError(
                f"module: {before.name} and {one.name} share memory, so that each exchange would change both; tie "
                "parameters by giving one Parameter two names, and keep buffers in memory of their own"
            )
        if before is None or not together or one.last > before.last:
            before = one


class _Lies(NamedTuple):
    """Where a tensor lies in memory: from the first byte of a storage to one before the last; and what it is."""

    storage: int
    first: int
    last: int
    name: str
    trains: bool

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor, trains: bool) -> "_Lies":
        size, first = tensor.element_size(), tensor.element_size() * int(tensor.storage_offset())
        reach = sum(stride * (number - 1) for stride, number in zip(tensor.stride(), tensor.shape, strict=True))
        return cls(tensor.untyped_storage()._cdata, first, first + size * (1 + reach), name, trains)


def refuse_overlap(what: str, tensor: torch.Tensor) -> None:
    """Refuse a tensor that is not as many places in memory as it has elements.

    Args:
        what: names the tensor in errors.
        tensor: any tensor.

    Raises:
        ValueError: it is sparse or quantized, or several of its elements are one place in memory.
    """
    if tensor.layout != torch.strided or tensor.is_quantized:
        kind = "quantized" if tensor.is_quantized else f"of layout {tensor.layout}"
        raise ValueError(f"module: {what} is {kind}, which ranks cannot exchange; use a dense tensor")
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and tensor.numel() and stride <= reach:
            raise ValueError(
                f"module: {what} has shape {tuple(tensor.shape)} and strides {tensor.stride()}, so that several of its "
                "elements are one place in memory (expand() makes such tensors); replace it by its .contiguous() copy"
            )
        reach += stride * (size - 1)


def share(module: torch.nn.Module, group: dist.ProcessGroup | None) -> None:
    """Give all ranks the weights and buffers of their first, bit for bit, however they lie in memory.

    They are sent as bytes, so that number formats that a backend does not know are too.

    Raises:
        RuntimeError: there is no process group.
    """
    if not dist.is_initialized():
        raise RuntimeError("no process group: call torch.distributed.init_process_group first")
    first = 0 if group is None else dist.get_global_rank(group, 0)
    for tensor in (*module.parameters(), *module.buffers()):
        own = tensor.detach()
        whole = own.resolve_conj().resolve_neg().contiguous()
        if whole.numel():
            dist.broadcast(whole.reshape(-1).view(torch.uint8), first, group=group)
        if whole.data_ptr() != own.data_ptr() or own.is_conj() or own.is_neg():
            own.copy_(whole)
