# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The count of a run's state: which classes and attributes count, and where names have several owners."""

import pytest

from tests.measure.attributes import HOMONYMS, homonyms, package, rows, table
from tests.packaging.layers import modules, read

OWNERS = """
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol


class Owner:
    def __init__(self, given: "Given", size: int) -> None:
        self.given = given
        self.made, self.size = Made(), size
        self.all = [Listed()]
        self.later: Later | None = None
        self.runs: Runs | None = None
        self.names: dict[str, Listed] = {}
        self._fill()

    def _fill(self) -> None:
        self.filled = built()

    def change(self) -> None:
        self.later = Later()
        self.size += 1


class Given:
    def __init__(self) -> None:
        self.thread = Thread(target=self._run)
        self.label = self.fixed = 1

    def _run(self) -> None:
        self.label = 2


class Made:
    def __init__(self) -> None:
        self.stats = 0


class Listed:
    def __init__(self) -> None:
        self.number = 0


class Later:
    def __init__(self) -> None:
        self.number = 0


@dataclass
class Built:
    held: "InField | None" = None
    series: list["Later"] = field(default_factory=list)


class InField:
    def __init__(self) -> None:
        self.number = 0


@dataclass(frozen=True)
class Frozen:
    number: int


class Row(NamedTuple):
    number: int


class Runs(Protocol):
    def start(self) -> None: ...


class Runner:
    def __init__(self) -> None:
        self.number = 0

    def start(self) -> None:
        for self.number in range(3):
            pass


def built() -> Built:
    return Built()
"""

WORLD = read(
    {
        "gravac/__init__.py": "from gravac.engine.owners import Owner",
        "gravac/engine/owners.py": OWNERS,
        "gravac/engine/outside.py": "from gravac.engine.owners import Made\nmade = Made()\nmade.stats = 3\n",
        "gravac/lab/run.py": "class Lab:\n    def start(self): self.number = 1\n",
        "gravac/telemetry/sinks.py": "class Sinks:\n    def __init__(self): self.number = 1\n\ndef start(): ...\n",
    }
)


def test_run_state_is_what_the_exported_classes_hold_from_construction_on() -> None:
    assert set(package(WORLD).run_state()) == {"Owner", "Given", "Made", "Listed", "Built", "InField"}


def test_executors_are_the_classes_with_the_methods_of_a_protocol_that_is_held() -> None:
    assert set(package(WORLD).executors()) == {"Runner"}


def test_attributes_are_all_names_that_a_class_assigns_to_itself_and_a_dataclass_s_fields() -> None:
    classes = package(WORLD).classes
    assert classes["Owner"].attributes == {"given", "made", "size", "all", "later", "runs", "names", "filled"}
    assert classes["Built"].attributes == {"held", "series"}


@pytest.mark.parametrize(
    ("owner", "stateful"),
    [
        ("Owner", {"later", "size", "all", "names"}),
        ("Given", {"label"}),  # by a thread that construction starts
        ("Made", {"stats"}),  # by another module
        ("Built", {"series"}),
        ("Runner", {"number"}),
    ],
)
def test_an_attribute_is_stateful_if_it_is_assigned_after_construction_or_changes_in_place(
    owner: str, stateful: set[str]
) -> None:
    assert package(WORLD).classes[owner].stateful == stateful


def test_frozen_classes_and_rooms_that_make_no_run_do_not_count() -> None:
    counted = {row["class"] for row in rows(WORLD) if "class" in row}
    assert counted.isdisjoint({"Frozen", "Row", "Runs", "Lab", "Sinks"})
    assert {"Later", "Runner", "Owner"} <= counted


def test_homonyms_are_counted_by_class_and_module_without_the_lab() -> None:
    assert homonyms(WORLD, ["start", "stop"]) == {
        "start": ["gravac.engine.owners:Runs", "gravac.engine.owners:Runner", "gravac.telemetry.sinks"],
        "stop": [],
    }


def test_the_package_here_is_counted_and_its_totals_add_up() -> None:
    record = rows(modules())
    totals = {row["what"]: row for row in record if "classes" in row}
    assert totals["total of run state"]["classes"] >= 1
    for name in ("classes", "attributes", "stateful"):
        kinds = [totals[f"total of {kind}"][name] for kind in ("run state", "executor", "other")]
        assert sum(kinds) == totals["total of all"][name]
    printed = table(record)
    assert "AdaptiveCompressor" in printed
    assert all(f"\n{name}: " in printed for name in HOMONYMS)
