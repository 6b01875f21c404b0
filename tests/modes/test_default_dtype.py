# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Programs that set torch's default dtype train as without it, in every mode."""

import pytest
import torch

from gravac import quantize
from tests.distributed.training import batch, network, parallel, sgd, weights
from tests.modes.scripted import Scripted, same, script
from tests.policies import adaptive
from tests.ranks import processes

TOUR = script(
    (0, (0, "hook", "quantize", 8.0, 1)),
    (5, (0, "outer", "quantize", 8.0, 5)),
    (11, (0, "native", "dense", 1.0, 1)),
    (21, (0, "hook", "quantize", 8.0, 1)),
)


def toured(rank: int, world: int, dtype: torch.dtype, default: torch.dtype) -> tuple[list[str], torch.Tensor]:
    """Train a model of ``dtype`` on the tour under a default dtype; return the modes and the weights."""
    torch.set_default_dtype(default)
    module = network(2).to(dtype)
    with torch.no_grad():
        for parameter in module.parameters():  # a module draws its first weights in the default dtype
            parameter.copy_(torch.linspace(-0.1, 0.1, parameter.numel(), dtype=dtype).view_as(parameter))
    ddp = parallel(module)
    optimizer = sgd(ddp)
    compressor = adaptive(quantize, (8, 8), controller=Scripted(script=TOUR), every=(1, 5), dense_below=0)
    compressor.attach(ddp, optimizer)
    modes = []
    for step in range(33):
        torch.set_default_dtype(torch.float32)
        x, y = batch(rank, step)
        torch.set_default_dtype(default)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(ddp(x.to(dtype)), y).backward()
        modes.append(compressor.mode)
        optimizer.step()
    assert same(ddp)
    compressor.close()
    return modes, weights(ddp)


@pytest.mark.timeout(240)
def test_a_default_dtype_changes_no_bit_of_a_run_through_all_modes() -> None:
    expected_modes, expected_weights = processes(toured, 2, torch.float32, torch.float32)[0]
    assert {*expected_modes} == {"hook", "outer", "native"}
    for default in (torch.float64, torch.bfloat16):  # in other processes: in this one, tables are cached
        modes, found = processes(toured, 2, torch.float32, default)[0]
        assert modes == expected_modes
        assert torch.equal(found, expected_weights), default


def test_a_program_in_float64_trains_in_all_modes() -> None:
    processes(toured, 2, torch.float64, torch.float64)
