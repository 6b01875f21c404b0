# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Flat views of tensors in memory order, as averaging needs them; errors for tensors that cannot be averaged."""

from collections.abc import Mapping

import torch


def refuse_complex(tensors: Mapping[str, torch.Tensor]) -> None:
    """Raise an error if a tensor is complex: averaging would use its real part only.

    Raises:
        TypeError: a tensor is complex; the message has its name.
    """
    for name, tensor in tensors.items():
        if tensor.is_complex():
            raise TypeError(
                f"{name}: {str(tensor.dtype).removeprefix('torch.')} gradients cannot be averaged, since gravac "
                "averages only real numbers; train torch.view_as_real(parameter) in place of the parameter, or "
                "exclude the parameter from DDP (DistributedDataParallel._set_params_and_buffers_to_ignore_for_model)"
            )


def refuse_missing(tensors: Mapping[str, torch.Tensor | None]) -> None:
    """Raise an error if a tensor is ``None``, as ``parameter.grad`` is before the parameter's first backward.

    Raises:
        TypeError: a tensor is missing; the message has its name.
    """
    for name, tensor in tensors.items():
        if tensor is None:
            raise TypeError(f"{name} has no gradient (None); leave it out, on all ranks")


def flat(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's elements as a flat view, ``[elements]``, in the order that they have in memory.

    Args:
        name: name of the tensor, for the error message.
        tensor: tensor of any shape; the view shares its memory and needs no gradient.

    Raises:
        ValueError: the tensor has gaps in memory, or elements that share memory.
    """
    if not torch.ops.aten.is_non_overlapping_and_dense(tensor):
        raise ValueError(f"{name}: a tensor of strides {tensor.stride()} has gaps in memory; pass tensor.contiguous()")
    return tensor.detach().as_strided((tensor.numel(),), (1,), tensor.storage_offset())


def memory_shape(parameter: torch.Tensor) -> tuple[int, ...]:
    """Return a parameter's shape in memory order, largest stride first: ``(O, H, W, I)`` for channels-last weights."""
    strides = parameter.stride()
    dims_by_stride = sorted(range(parameter.dim()), key=lambda dim: (-strides[dim], dim))
    return tuple(parameter.shape[dim] for dim in dims_by_stride)
