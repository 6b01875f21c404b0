# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What gravac computes does not depend on torch's default dtype and default device, which programs may set."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import gravac
from gravac.averaging.in_memory import average, averagers, residual_of
from gravac.compressors import COMPRESSORS, Compressor, ladder, quantize, thc, topkc
from gravac.testing import cfs_of, gradients

WAYS = (
    *COMPRESSORS.values(),
    quantize(4, exchange="gather"),
    quantize(1, back_bits=4),
    quantize(2, rotate=True),
    thc(rotate="full", bits=8),
    topkc(values=quantize(1)),
    ladder(quantize(2), topkc),
)

DEFAULTS = {"float64": (torch.float64, None), "bfloat16 on meta": (torch.bfloat16, "meta")}
"""Default dtype and default device: a wider dtype, and a narrower one beside another device."""

FACTORIES = re.compile(
    "arange|as_tensor|asarray|empty|empty_strided|eye|full|linspace|logspace|normal|ones|rand|randint|randn|randperm|"
    "scalar_tensor|tensor|tril_indices|triu_indices|zeros"
)
"""Functions of torch that make a tensor on the default device, floats in the default dtype unless told otherwise."""


def forget_tables() -> None:
    """Empty all caches of gravac's modules: a table that an earlier test made would hide how tables are made."""
    for name, module in [*sys.modules.items()]:
        if name.startswith("gravac."):
            for attribute in vars(module).values():
                getattr(attribute, "cache_clear", lambda: None)()


@pytest.fixture
def torch_defaults() -> Iterator[None]:
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    forget_tables()


def results(compressor: Compressor, xs_of_steps: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    """Average gradients of three ranks, with residuals; return each step's means, and each rank's last residual."""
    tensors = []
    for cf in cfs_of(compressor):
        ranks = averagers(compressor, len(xs_of_steps[0]))
        for step, xs in enumerate(xs_of_steps):
            tensors += average(ranks, xs, cf, step)
        tensors += [residual_of(rank, xs_of_steps[0][0].numel()) for rank in ranks]
    return tensors


@pytest.mark.parametrize("compressor", WAYS, ids=repr)
def test_compressors_give_the_same_bits_under_all_default_dtypes_and_devices(
    compressor: Compressor, torch_defaults: None
) -> None:
    xs_of_steps = [gradients(3, (60, 50), seed=step) for step in range(2)]
    forget_tables()
    expected = results(compressor, xs_of_steps)
    for name, (dtype, device) in DEFAULTS.items():
        forget_tables()
        torch.set_default_dtype(dtype)
        torch.set_default_device(device)
        found = results(compressor, xs_of_steps)
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
        assert [(x.dtype, x.device) for x in found] == [(x.dtype, x.device) for x in expected], name
        assert all(map(torch.equal, found, expected)), f"other bits with the default {name}"


def test_every_tensor_that_gravac_makes_has_a_dtype_and_a_device() -> None:
    root = Path(gravac.__file__).parent
    unsaid = [
        f"{path.relative_to(root)}:{call.lineno}: {ast.unparse(call)}"
        for path in sorted(root.rglob("*.py"))
        if "lab" not in path.relative_to(root).parts
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        if isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == "torch"
        if FACTORIES.fullmatch(call.func.attr) and not {"dtype", "device"} <= {keyword.arg for keyword in call.keywords}
    ]
    assert not unsaid, "\n".join(unsaid)
