# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Triton kernels for compressors whose arithmetic is many small steps on the same numbers: one pass in place of each.

Used where tensors are on a CUDA device and triton, which PyTorch for CUDA brings along, can be imported; everywhere
else compressors compute the same with PyTorch's operators, and nothing here is imported. Results are those of the CPU:
what is decoded has the same bits, so that ranks with and without kernels may train together.

Every function here is one operator, ``torch.ops.gravac....``, and one launch: what watches operators sees all of them.

``make test-kernels`` runs the kernels on a CPU, by triton's interpreter.
"""

import functools
import importlib

import torch


@functools.cache
def usable(device_type: str) -> bool:
    """Tell whether kernels can run on devices of a type: CUDA's, where there is triton, and a GPU that it supports."""
    if device_type != "cuda":
        return False
    try:
        importlib.import_module("triton")
    except ImportError:
        return False
    return torch.cuda.get_device_capability() >= (8, 0)
