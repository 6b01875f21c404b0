# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The lint of names finds what it is there to find, and the package passes it."""

from pathlib import Path

import pytest

from tests.packaging.names import ALLOWED, ROOT, complaints, opaque


@pytest.mark.parametrize(
    "source",
    [
        "def found(): pass",
        "class Found: pass\nfound = 1",
        "def f(found): pass",
        "def f(*, found=1): pass",
        "lambda found: 1",
        "[found for found in ()]",
        "for found, x in (): pass",
        "self.found = 1",
        "_found: int = 1",
        "with open('') as found: pass",
    ],
)
def test_every_way_to_define_a_name_is_seen(source: str) -> None:
    assert {definition.name for definition in opaque(source)} == {"found"}


def test_names_that_others_define_are_no_matter() -> None:
    assert opaque("import torch\nmask = torch.where(x, part=1).data\nresult = found") == []


def test_the_package_has_no_other_names_than_those_allowed() -> None:
    assert list(complaints((ROOT / "gravac").rglob("*.py"))) == []


def test_a_complaint_names_file_line_and_name_and_an_entry_that_nothing_needs(tmp_path: Path) -> None:
    path, name = next(iter(ALLOWED))
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text("x = 1\nfound = 2\n")
    lines = list(complaints([file], tmp_path))
    assert f"{path}:2: 'found' fits anything; use the field's noun" in lines
    assert any(f"ALLOWED in tests/packaging/names.py has {name!r}" in line for line in lines)
