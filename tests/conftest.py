# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What holds for all tests: time is no property, processes share the cores, and any order will do."""

import os
import random
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests run beside each other, and many start ranks of their own

UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("short", UNTIMED, max_examples=30)
settings.register_profile("long", UNTIMED, max_examples=500)
settings.load_profile("short")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """As many as there are cores; with "auto" one more: some tests wait for a timeout, a link or a lost machine."""
    cores = len(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))
    return cores + (config.option.numprocesses == "auto")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shuffle", type=int, metavar="SEED", help="modules, and tests in each, in the order of this seed"
    )


def pytest_report_header(config: pytest.Config) -> str | None:
    seed = config.getoption("--shuffle")
    return None if seed is None else f"in random order: --shuffle {seed}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what a long run alone tries. Keep a module's tests together, since they share what is dear to make."""
    if config.getoption("--hypothesis-profile") != "long":
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="make test-all runs it"))
    seed = config.getoption("--shuffle")
    if seed is None:
        return
    chance = random.Random(seed)
    modules: dict[Path, list[pytest.Item]] = defaultdict(list)
    for item in items:
        modules[item.path].append(item)
    shuffled = list(modules.values())
    chance.shuffle(shuffled)
    for tests in shuffled:
        chance.shuffle(tests)
    items[:] = [item for tests in shuffled for item in tests]
