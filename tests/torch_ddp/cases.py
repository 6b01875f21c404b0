# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Which of torch's tests make a DistributedDataParallel, found in their source."""

import functools
import importlib
import inspect
import os
import re
from typing import Any

from tests.torch_ddp import cpu

SOURCE = "torch.testing._internal.distributed.distributed_test"
WORLD = 2
"""Ranks of a test: none of those found here needs more."""

MAKES_DDP = re.compile(r"\bDistributedDataParallel\b|\bDDP\(")


@functools.cache
def load() -> Any:
    """The module of torch's tests, imported as on gloo; once per process, before anything that it patches is used."""
    os.environ.update(BACKEND="gloo", WORLD_SIZE=str(WORLD), INIT_METHOD="file://")
    cpu.before_import()
    return importlib.import_module(SOURCE)


def test_class() -> Any:
    """Torch's tests as a class that can be run."""
    tests = load()
    return type("OnGloo", (tests.TestDistBackend, tests.DistributedTest._DistTestBase), {})


def candidates() -> list[str]:
    """Names of the tests that make a DistributedDataParallel, themselves or in a method that they call."""
    base = load().DistributedTest._DistTestBase
    sources = {name: inspect.getsource(inspect.unwrap(value)) for name, value in vars(base).items() if callable(value)}
    called = {name: set(re.findall(r"self\.(\w+)", text)) & set(sources) for name, text in sources.items()}

    def makes(name: str, seen: frozenset[str] = frozenset()) -> bool:
        if MAKES_DDP.search(sources[name]):
            return True
        return any(makes(one, seen | {name}) for one in called[name] - seen - {name})

    return [name for name in sources if name.startswith("test_") and makes(name)]
