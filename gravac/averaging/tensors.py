# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""How tensors lie in memory, by which they are averaged flat, and which tensors cannot be averaged."""

from collections.abc import Mapping

import torch


def refuse_complex(tensors: Mapping[str, torch.Tensor]) -> None:
    """Refuse complex tensors, of which averaging would see the real parts alone.

    Raises:
        TypeError: a tensor is complex; the message has its name.
    """
    for name, tensor in tensors.items():
        if tensor.is_complex():
            raise TypeError(
                f"{name}: {str(tensor.dtype).removeprefix('torch.')} gradients cannot be averaged, only real ones can; "
                "train torch.view_as_real of it, or leave it out "
                "(DistributedDataParallel._set_params_and_buffers_to_ignore_for_model)"
            )


def flat(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return a flat view of a tensor, ``[elements]``, whose elements are in the order that they have in memory.

    Raises:
        ValueError: it has gaps.
    """
    if not torch.ops.aten.is_non_overlapping_and_dense(tensor):
        raise ValueError(f"{name}: a tensor of strides {tensor.stride()} has gaps in memory; hand over .contiguous()")
    return tensor.detach().as_strided((tensor.numel(),), (1,), tensor.storage_offset())


def memory_shape(parameter: torch.Tensor) -> tuple[int, ...]:
    """Return the shape with dimensions in the order they lie in memory (channels-last: O, H, W, I)."""
    strides = parameter.stride()
    order = sorted(range(parameter.dim()), key=lambda d: (-strides[d], d))
    return tuple(parameter.shape[d] for d in order)
