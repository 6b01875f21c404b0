# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Kernels against what the CPU computes: interpreted (``make test-kernels``), or on a GPU where there is one."""

import importlib.util
import os
from types import ModuleType

import pytest
import torch

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"

INSTALLED = importlib.util.find_spec("triton") is not None


def kernels(name: str) -> ModuleType:
    """A module of ``gravac.compressors.kernels``; the importing module's tests are skipped where it cannot run."""
    if not INSTALLED:
        pytest.skip("no triton here; make test-kernels installs it", allow_module_level=True)
    if DEVICE == "cuda" and not torch.cuda.is_available():
        pytest.skip("neither a GPU nor TRITON_INTERPRET=1, as in make test-kernels", allow_module_level=True)
    return importlib.import_module(f"gravac.compressors.kernels.{name}")
