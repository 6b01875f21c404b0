# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Triton kernels for compressors: one pass over the numbers replaces many small operators.

Compressors use kernels if tensors are on a CUDA device and triton, which PyTorch for CUDA installs, can be imported.
Otherwise compressors compute the same with PyTorch's operators, and import no kernel. Decoded numbers have the same
bits as on a CPU, so that ranks with and without kernels can train in one run.

Every function calls one custom operator, ``torch.ops.gravac....``, so that tools that record operators see the call.

``make test-kernels`` runs the kernels on a CPU, by triton's interpreter.
"""

import functools
import importlib

import torch


@functools.cache
def usable(device_type: str) -> bool:
    """True if kernels can run on devices of a type: on ``"cuda"``, with triton and compute capability 8.0 or more."""
    if device_type != "cuda":
        return False
    try:
        importlib.import_module("triton")
    except ImportError:
        return False
    return torch.cuda.get_device_capability() >= (8, 0)
