# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Training runs that take turns: one at a time trains, in every round each of them, and a failure ends all."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest

from tests.measure.turns import in_turns, wait_for_turn

PROGRAM = """
import sys
from tests.measure.turns import wait_for_turn
name, turns, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
for turn in range(turns):
    wait_for_turn()
    with open(path, "a") as file:
        file.write(f"{name} begins\\n")
        file.flush()
        sum(range(10**5))
        file.write(f"{name} ends\\n")
"""


def train(
    name: str, turns: int, path: Path, environment: Mapping[str, str], given_up: Callable[[], bool]
) -> tuple[str, int]:
    """Run a program that notes when each of its turns begins and ends."""
    command = [sys.executable, "-c", PROGRAM, name, str(turns), str(path)]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": os.getcwd(), **environment}, check=True, timeout=300)
    return name, turns


def test_one_run_at_a_time_trains_and_all_come_to_their_end(tmp_path: Path) -> None:
    path = tmp_path / "turns"
    results = in_turns([partial(train, name, turns, path) for name, turns in (("a", 4), ("b", 2), ("c", 3))])
    assert results == [("a", 4), ("b", 2), ("c", 3)]
    noted = path.read_text().splitlines()
    begun, ended = noted[::2], noted[1::2]
    assert [line.replace("begins", "ends") for line in begun] == ended
    names = [line.split()[0] for line in begun]
    assert {name: names.count(name) for name in "abc"} == {"a": 4, "b": 2, "c": 3}
    assert set(names[:3]) == set(names[3:6]) == {"a", "b", "c"}


def test_a_run_that_fails_ends_the_others_and_its_reason_is_raised() -> None:
    def waits(environment: Mapping[str, str], given_up: Callable[[], bool]) -> None:
        Path(environment["GRAVAC_MEASURE_TURNS"]).touch()
        while not given_up():
            time.sleep(0.01)

    def fails(environment: Mapping[str, str], given_up: Callable[[], bool]) -> None:
        raise RuntimeError("no room on the disk")

    with pytest.raises(RuntimeError, match="no room on the disk"):
        in_turns([waits, fails, waits])


def test_a_program_that_takes_no_turns_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRAVAC_MEASURE_TURNS", raising=False)
    wait_for_turn()
