# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What programs that install gravac for a check go by: bounds, examples' first lines, contents of distributions."""

import re
from pathlib import Path

import pytest

from tests.packaging import contents
from tests.packaging.check_bounds import bounds
from tests.packaging.check_examples import first_lines
from tests.packaging.environments import ROOT

EXTRAS = {"lightning_ddp": "lightning", "accelerate_ddp": "accelerate", "trainer_ddp": "transformers", "ray_ddp": "ray"}


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_an_examples_first_lines_name_its_extra_and_a_command(example: Path) -> None:
    extra, command = first_lines(example)
    assert extra == EXTRAS.get(example.stem)
    assert command[0] in ("torchrun", "python") and command[-1].endswith(".py")


def test_every_dependency_has_a_lower_bound() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extras = project.split("[project.optional-dependencies]")[1].split("[project.scripts]")[0]
    needed = re.findall(r"^dependencies = \[(.*)\]$", project, re.MULTILINE)
    needed += re.findall(r"^\w+ = \[(.*)\]$", extras, re.MULTILINE)
    named = [one for text in needed for one in re.findall(r'"([^"]+)"', text) if not one.startswith("gravac[")]
    assert len(named) > 20
    assert [one for one in named if not re.match(r"[\w-]+(\[\w+\])?>=\d", one)] == []
    assert "tensorboard" in {pin.split("==")[0] for pin in bounds(project)}


def test_a_distribution_with_something_stray_or_missing_is_told() -> None:
    tracked = {"gravac/a.py", "policies/wan.toml", "LICENSE", ".ci/run", "tests/test_a.py"}
    assert contents.expected_sdist(tracked) == tracked - {".ci/run"} | {"PKG-INFO"}
    wheel = contents.expected_wheel(tracked, "gravac-1.dist-info")
    assert {"gravac/a.py", "gravac/_policies/wan.toml", "gravac-1.dist-info/RECORD"} <= wheel
    assert contents.differences("wheel", (wheel - {"gravac/a.py"}) | {"run"}, wheel) == [
        "wheel: gravac/a.py is missing",
        "wheel: run is stray",
    ]
