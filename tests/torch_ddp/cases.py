# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Which of torch's tests make a DistributedDataParallel, found in their source; and each as an object that runs."""

import functools
import importlib
import inspect
import os
import re
from typing import Any

from tests.torch_ddp import cpu

SOURCE = "torch.testing._internal.distributed.distributed_test"
RPC_SOURCE = "torch.testing._internal.distributed.ddp_under_dist_autograd_test"
WORLD = 2
"""Ranks of a test of ``SOURCE``: none that makes a DDP needs more."""
RPC_WORLDS = {"DdpComparisonTest": 4, "DdpUnderDistAutogradTest": 6}
"""Ranks of the tests of ``RPC_SOURCE``, by their class: those that its authors wrote."""

MAKES_DDP = re.compile(r"\bDistributedDataParallel\b|\bDDP\(")


@functools.cache
def load() -> Any:
    """The module of torch's tests, imported as on gloo; once per process, before anything that it patches is used."""
    os.environ.update(BACKEND="gloo", WORLD_SIZE=str(WORLD), INIT_METHOD="file://")
    cpu.before_import()
    return importlib.import_module(SOURCE)


@functools.cache
def rpc_tests() -> dict[str, str]:
    """Classes of the tests that train over RPC and distributed autograd, by the tests' names."""
    load()
    module = importlib.import_module(RPC_SOURCE)
    return {name: one for one in RPC_WORLDS for name in vars(getattr(module, one)) if name.startswith("test_")}


def world(name: str) -> int:
    """Number of ranks of a test."""
    return RPC_WORLDS[rpc_tests()[name]] if name in rpc_tests() else WORLD


def case(name: str) -> Any:
    """A test, to be run on a rank."""
    tests = load()
    if name not in rpc_tests():
        return type("OnGloo", (tests.TestDistBackend, tests.DistributedTest._DistTestBase), {})(name)
    from torch.testing._internal.distributed.rpc.tensorpipe_rpc_agent_test_fixture import TensorPipeRpcAgentTestFixture

    base = getattr(importlib.import_module(RPC_SOURCE), rpc_tests()[name])
    return type("OverRPC", (base, TensorPipeRpcAgentTestFixture, tests.MultiProcessTestCase), {})(name)


def candidates() -> list[str]:
    """Names of the tests that make a DistributedDataParallel, themselves or in a method that they call."""
    base = load().DistributedTest._DistTestBase
    sources = {name: inspect.getsource(inspect.unwrap(value)) for name, value in vars(base).items() if callable(value)}
    called = {name: set(re.findall(r"self\.(\w+)", text)) & set(sources) for name, text in sources.items()}

    def makes(name: str, seen: frozenset[str] = frozenset()) -> bool:
        if MAKES_DDP.search(sources[name]):
            return True
        return any(makes(one, seen | {name}) for one in called[name] - seen - {name})

    return [*(name for name in sources if name.startswith("test_") and makes(name)), *rpc_tests()]
