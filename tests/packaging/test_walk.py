# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The way of a gradient: what counts as a function, as its caller and as a climb."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.measure import walk
from tests.measure.walk import Entry, Function, Profile

LOW, HIGH = Function("exchange/fifo.py", "Fifo._advance"), Function("engine/engine.py", "Engine._begin")
AVERAGE = Function(*walk.START.split(":"))


def recorded(action: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None]]:
    """Profile an action, with this file in the package's place; return names of functions and of their callers."""
    monkeypatch.setattr(walk, "FOLDER", str(Path(__file__).parent) + "/")
    profile = Profile()
    profile.on = True
    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(None)
    short = [(entry.function.name, entry.caller.name if entry.caller else None) for entry in profile.take()]
    return [(name.split(".")[-1], caller and caller.split(".")[-1]) for name, caller in short if "recorded" not in name]


def leaf() -> None: ...


def numbers() -> Iterator[int]:
    yield 1
    leaf()
    yield 2


def outer() -> list[int]:
    return [*inner()]


def inner() -> Iterator[int]:
    yield from numbers()


def by_lambda() -> None:
    (lambda: leaf())()


def test_a_generator_is_entered_once_however_often_it_is_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    entered = recorded(outer, monkeypatch)
    assert [name for name, _ in entered] == ["outer", "inner", "numbers", "leaf"]
    assert entered[2:] == [("numbers", "inner"), ("leaf", "numbers")]


def test_a_lambda_is_no_function_and_no_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    entered = recorded(by_lambda, monkeypatch)
    assert [name for name, _ in entered] == ["by_lambda", "leaf"]
    assert entered[1] == ("leaf", "by_lambda")


def test_nothing_is_recorded_while_the_profile_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "FOLDER", str(Path(__file__).parent) + "/")
    profile = Profile()
    sys.setprofile(profile)
    leaf()
    sys.setprofile(None)
    assert profile.take() == []


def test_a_climb_is_an_entry_from_a_lower_layer() -> None:
    assert Entry("a", HIGH, LOW).climbs
    assert not Entry("a", LOW, HIGH).climbs
    assert not Entry("a", HIGH, HIGH).climbs
    assert not Entry("a", HIGH, None).climbs


def test_a_function_that_two_threads_enter_counts_once_and_each_climb_counts() -> None:
    way = walk.walk([Entry("a", LOW, None), Entry("b", LOW, None), Entry("b", HIGH, LOW), Entry("b", HIGH, LOW)])
    assert way.functions == {"a": [LOW], "b": [HIGH]}
    row = way.row("whole step")
    assert (row["functions"], row["files"], row["climbs"], row["climbing_edges"]) == (2, 2, 2, 1)
    assert "     2  Engine._begin" in list(walk.numbered(way))


def test_the_way_from_averaging_on_leaves_out_the_thread_of_backward() -> None:
    entries = [Entry("x", LOW, None), Entry("x", AVERAGE, LOW), Entry("MainThread", HIGH, None), Entry("x", LOW, None)]
    assert walk.from_averaging(entries) == [entries[1], entries[3]]
    with pytest.raises(ValueError, match="no thread entered averaging/average"):
        walk.from_averaging(entries[:1])
