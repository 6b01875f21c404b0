# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Checks the memory layout of the tensors that ranks exchange, and copies rank 0's tensors at the start."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.distributed as dist

from gravac.sources.ddp import canonical


def check_memory(module: torch.nn.Module) -> None:
    """Refuse tensors of a module whose memory layout does not allow an exchange.

    Raises:
        ValueError: a parameter or buffer is sparse or quantized, or several of its elements share memory; a parameter
            to train has gaps in memory, or shares memory with another parameter or with a buffer.
    """
    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    for kind, named in (("parameter", parameters), ("buffer", buffers)):
        for name, tensor in named.items():
            refuse_overlap(f"{kind} {canonical(name)}", tensor)
    trained = {
        f"parameter {canonical(name)}": parameter for name, parameter in parameters.items() if parameter.requires_grad
    }
    for name, parameter in trained.items():
        if not torch.ops.aten.is_non_overlapping_and_dense(parameter):
            raise ValueError(
                f"module: {name} has shape {tuple(parameter.shape)} and strides {parameter.stride()}, which leave gaps "
                "in memory; replace it by torch.nn.Parameter(parameter.detach().contiguous())"
            )
    with_buffers = {f"buffer {name}": buffer for name, buffer in buffers.items()}
    _refuse_shared(
        {name: tensor for name, tensor in trained.items() if tensor.numel()},
        {name: tensor for name, tensor in with_buffers.items() if tensor.numel()},
    )


def _refuse_shared(trained: Mapping[str, torch.Tensor], buffers: Mapping[str, torch.Tensor]) -> None:
    """Refuse a parameter to train that shares memory with another parameter, or with a buffer."""
    ranges = [
        _MemoryRange.of(name, tensor, is_trained)
        for is_trained, named in ((True, trained), (False, buffers))
        for name, tensor in named.items()
    ]
    furthest: _MemoryRange | None = None  # of the ranges so far in this storage, the one with the highest end
    for current in sorted(ranges):
        same_storage = furthest is not None and furthest.storage == current.storage
        if (
            furthest is not None
            and same_storage
            and current.start < furthest.end
            and (current.is_trained or furthest.is_trained)
        ):
            raise ValueError(
                f"module: {furthest.name} and {current.name} share memory, so that each exchange would change both; "
                "tie parameters by giving one Parameter two names, and keep buffers in memory of their own"
            )
        if furthest is None or not same_storage or current.end > furthest.end:
            furthest = current


class _MemoryRange(NamedTuple):
    """Range of bytes that a tensor covers in a storage, ``end`` excluded, with the tensor's name and use."""

    storage: int
    start: int
    end: int
    name: str
    is_trained: bool

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor, is_trained: bool) -> "_MemoryRange":
        size, start = tensor.element_size(), tensor.element_size() * int(tensor.storage_offset())
        last_index = sum(stride * (number - 1) for stride, number in zip(tensor.stride(), tensor.shape, strict=True))
        return cls(tensor.untyped_storage()._cdata, start, start + size * (1 + last_index), name, is_trained)


def refuse_overlap(subject: str, tensor: torch.Tensor) -> None:
    """Refuse a tensor several of whose elements share memory.

    Args:
        subject: text that names the tensor in errors.
        tensor: any tensor.

    Raises:
        ValueError: the tensor is sparse or quantized, or several of its elements share memory.
    """
    if tensor.layout != torch.strided or tensor.is_quantized:
        kind = "quantized" if tensor.is_quantized else f"of layout {tensor.layout}"
        raise ValueError(f"module: {subject} is {kind}, which ranks cannot exchange; use a dense tensor")
    last_index = 0  # in memory, of the dimensions so far
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and tensor.numel() and stride <= last_index:
            raise ValueError(
                f"module: {subject} has shape {tuple(tensor.shape)} and strides {tensor.stride()}, so that several of "
                "its elements are one place in memory (expand() makes such tensors); replace it by its .contiguous() "
                "copy"
            )
        last_index += stride * (size - 1)


def broadcast_weights(module: torch.nn.Module, group: dist.ProcessGroup | None) -> None:
    """Copy rank 0's weights and buffers to all ranks, bit for bit, whatever their memory layout.

    Tensors are sent as bytes, so that a backend need not know their number formats.

    Args:
        module: the module, on every rank.
        group: ranks that get the weights of the group's first rank; ``None``: the default group.

    Raises:
        RuntimeError: there is no process group.
    """
    if not dist.is_initialized():
        raise RuntimeError("no process group: call torch.distributed.init_process_group first")
    first = 0 if group is None else dist.get_global_rank(group, 0)
    for tensor in (*module.parameters(), *module.buffers()):
        local = tensor.detach()
        contiguous = local.resolve_conj().resolve_neg().contiguous()
        if contiguous.numel():
            dist.broadcast(contiguous.reshape(-1).view(torch.uint8), first, group=group)
        if contiguous.data_ptr() != local.data_ptr() or local.is_conj() or local.is_neg():
            local.copy_(contiguous)
