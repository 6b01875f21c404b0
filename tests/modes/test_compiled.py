# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Dynamo compiles the user's module, optimizer or whole training step, and none of the hooks that gravac adds."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from tests.distributed.training import batch, network, weights
from tests.modes.scripted import APART, HOOK, NATIVE, Entry, script
from tests.modes.test_switch import OPTIMIZERS, compressor_of
from tests.ranks import is_gravacs, processes

ENTRIES: dict[str, Entry] = {"native": NATIVE, "hook": HOOK, "outer": APART}


def compiled_functions() -> list[str]:
    """Names of gravac's functions that dynamo has compiled in this process."""
    from torch._dynamo.convert_frame import input_codes

    codes = [code for reference in input_codes.seen if (code := reference()) is not None]
    assert codes
    return sorted(code.co_name for code in codes if is_gravacs(code.co_filename))


def trained(rank: int, world: int, what: str, compiling_ranks: int) -> dict[str, list[Any]]:
    """Train in each mode; return gravac's compiled functions, and whether the weights are as without a compiler.

    The first ranks compile; the others make the same steps without a compiler, whose imports take seconds.
    """
    compiles = rank < compiling_ranks
    graphs = []

    def counting(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def compiled(function: Any) -> Any:
        return torch.compile(function, backend=counting)

    def run(entry: Entry, wanted: str) -> torch.Tensor:
        ddp = DistributedDataParallel(network(2))
        optimizer = OPTIMIZERS["sgd"](ddp.parameters())
        compressor = compressor_of(script((0, entry)))
        compressor.attach(ddp, optimizer)
        module = compiled(ddp) if wanted == "module" else ddp
        step: Callable[[], Any] = compiled(lambda: optimizer.step()) if wanted == "optimizer" else optimizer.step

        def whole(x: torch.Tensor, y: torch.Tensor) -> None:
            optimizer.zero_grad()
            loss = cross_entropy(module(x), y)
            loss.backward()
            step()

        train = compiled(whole) if wanted == "step" else whole
        for number in range(8):
            train(*batch(rank, number))
        assert compressor.mode == entry[1]
        compressor.close()
        return weights(ddp)

    seen: dict[str, list[Any]] = {}
    for mode, entry in ENTRIES.items():
        torch.compiler.reset()
        own = run(entry, what if compiles else "nothing")
        seen[mode] = [compiled_functions() if compiles else [], torch.allclose(own, run(entry, "nothing"), atol=1e-5)]
    assert graphs or what == "module" or not compiles
    return seen


@pytest.mark.parametrize(
    ("what", "compiling_ranks"),
    [("step", 1), *(pytest.param(what, 2, marks=pytest.mark.long) for what in ("module", "optimizer", "step"))],
)
def test_no_hook_of_gravac_is_compiled_with_what_the_user_compiles(what: str, compiling_ranks: int) -> None:
    for seen in processes(trained, 2, what, compiling_ranks):
        assert seen == {mode: [[], True] for mode in ENTRIES}
