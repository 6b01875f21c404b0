# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Checks the memory layout of the tensors that ranks exchange, and copies rank 0's weights to all ranks."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.distributed as dist

from gravac.sources.ddp import canonical_name


def check_memory(module: torch.nn.Module) -> None:
    """Raise if the memory layout of a module's parameter or buffer does not allow an exchange.

    Raises:
        ValueError: a parameter or buffer is sparse or quantized, or several of its elements share memory; a parameter
            to train has gaps in memory, or shares memory with another parameter or with a buffer.
    """
    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    for tensor_kind, tensors_by_name in (("parameter", parameters), ("buffer", buffers)):
        for name, tensor in tensors_by_name.items():
            refuse_overlap(f"{tensor_kind} {canonical_name(name)}", tensor)
    parameter_by_label = {
        f"parameter {canonical_name(name)}": parameter
        for name, parameter in parameters.items()
        if parameter.requires_grad
    }
    for name, parameter in parameter_by_label.items():
        if not torch.ops.aten.is_non_overlapping_and_dense(parameter):
            raise ValueError(
                f"module: {name} has shape {tuple(parameter.shape)} and strides {parameter.stride()}, which leave gaps "
                "in memory; replace it by torch.nn.Parameter(parameter.detach().contiguous())"
            )
    buffer_by_label = {f"buffer {name}": buffer for name, buffer in buffers.items()}
    _refuse_shared(
        {name: tensor for name, tensor in parameter_by_label.items() if tensor.numel()},
        {name: tensor for name, tensor in buffer_by_label.items() if tensor.numel()},
    )


def _refuse_shared(trained_parameters: Mapping[str, torch.Tensor], buffers: Mapping[str, torch.Tensor]) -> None:
    """Raise a ``ValueError`` if a parameter to train shares memory with another parameter or with a buffer.

    Args:
        trained_parameters: parameters to train, of any shapes, by the name that an error shows.
        buffers: buffers, of any shapes, by the name that an error shows.
    """
    memory_ranges = [
        _MemoryRange.of(name, tensor, is_trained)
        for is_trained, tensors_by_name in ((True, trained_parameters), (False, buffers))
        for name, tensor in tensors_by_name.items()
    ]
    furthest_range: _MemoryRange | None = None  # range with the highest end so far in its storage
    for memory_range in sorted(memory_ranges):
        same_storage = furthest_range is not None and furthest_range.storage_id == memory_range.storage_id
        if (
            furthest_range is not None
            and same_storage
            and memory_range.first_byte < furthest_range.end_byte
            and (memory_range.is_trained or furthest_range.is_trained)
        ):
            raise ValueError(
                f"module: {furthest_range.name} and {memory_range.name} share memory, so that each exchange would "
                "change both tensors; tie parameters by giving one Parameter two names, and keep buffers in memory of "
                "their own"
            )
        if furthest_range is None or not same_storage or memory_range.end_byte > furthest_range.end_byte:
            furthest_range = memory_range


class _MemoryRange(NamedTuple):
    """Range of bytes, from a tensor's first to its last element, in the tensor's storage (``torch.UntypedStorage``).

    Attributes:
        storage_id: number that identifies the storage.
        first_byte: offset of the first byte in the storage.
        end_byte: offset of the byte after the last byte.
        name: the tensor's name, for errors.
        is_trained: whether the tensor is a parameter to train.
    """

    storage_id: int
    first_byte: int
    end_byte: int
    name: str
    is_trained: bool

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor, is_trained: bool) -> "_MemoryRange":
        """Return the range of bytes that a tensor, of any shape, covers in its storage."""
        element_bytes, first_byte = tensor.element_size(), tensor.element_size() * int(tensor.storage_offset())
        last_index = sum(stride * (size - 1) for stride, size in zip(tensor.stride(), tensor.shape, strict=True))
        return cls(
            tensor.untyped_storage()._cdata, first_byte, first_byte + element_bytes * (1 + last_index), name, is_trained
        )


def refuse_overlap(subject: str, tensor: torch.Tensor) -> None:
    """Raise if several elements of a tensor share memory, or if the tensor is sparse or quantized.

    Args:
        subject: text that names the tensor in errors.
        tensor: tensor of any shape.

    Raises:
        ValueError: the tensor is sparse or quantized, or several of its elements share memory.
    """
    if tensor.layout != torch.strided or tensor.is_quantized:
        storage_text = "quantized" if tensor.is_quantized else f"of layout {tensor.layout}"
        raise ValueError(f"module: {subject} is {storage_text}, which ranks cannot exchange; use a dense tensor")
    last_index = 0  # offset of the last element, in elements, over the dimensions so far
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and tensor.numel() and stride <= last_index:
            raise ValueError(
                f"module: {subject} has shape {tuple(tensor.shape)} and strides {tensor.stride()}, so that several of "
                "its elements share memory (expand() makes such tensors); replace it by its .contiguous() copy"
            )
        last_index += stride * (size - 1)


def broadcast_weights(module: torch.nn.Module, group: dist.ProcessGroup | None) -> None:
    """Copy the first rank's parameters and buffers to all ranks, bit for bit. Called on every rank.

    Tensors are sent as bytes, so that a backend need not support their dtypes. They may have any memory layout.

    Args:
        module: this rank's module; all ranks' modules have parameters and buffers of the same shapes and dtypes.
        group: process group whose first rank sends; ``None``: the default group.

    Raises:
        RuntimeError: the default process group is not initialized.
    """
    if not dist.is_initialized():
        raise RuntimeError("no process group: call torch.distributed.init_process_group first")
    first_rank = 0 if group is None else dist.get_global_rank(group, 0)
    for tensor in (*module.parameters(), *module.buffers()):
        detached_tensor = tensor.detach()
        contiguous_tensor = detached_tensor.resolve_conj().resolve_neg().contiguous()
        if contiguous_tensor.numel():
            dist.broadcast(contiguous_tensor.reshape(-1).view(torch.uint8), first_rank, group=group)
        if (
            contiguous_tensor.data_ptr() != detached_tensor.data_ptr()
            or detached_tensor.is_conj()
            or detached_tensor.is_neg()
        ):
            detached_tensor.copy_(contiguous_tensor)
