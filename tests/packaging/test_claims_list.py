# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The list of claims: what it holds, and how two of them compare."""

from pathlib import Path

import pytest

from tests.measure import claims_list
from tests.measure.claims_list import Difference, claims, compare, read

COLLECTED = """tests/b.py::test_two[x::y]
tests/b.py::test_two[z]
tests/a.py::TestGroup::test_one
gravac/closeable.py::gravac.closeable.Live

4 tests collected in 0.01s
"""

LISTED = ["gravac/closeable.py::gravac.closeable.Live", "tests/a.py::TestGroup::test_one", "tests/b.py::test_two"]


def test_the_list_is_sorted_and_has_each_test_once_without_parameters() -> None:
    assert claims(COLLECTED) == LISTED


def test_two_lists_differ_by_what_is_gone_new_and_moved() -> None:
    before = ["a::same", "a::leaves", "a::goes"]
    now = ["a::same", "b::goes", "b::comes"]
    assert compare(before, now) == Difference(["a::leaves"], ["b::comes"], [("a::goes", "b::goes")])
    assert compare(now, now) == Difference()


def test_a_name_that_several_tests_have_is_not_taken_for_moved() -> None:
    assert compare(["a::x", "b::x"], ["c::x"]) == Difference(["a::x", "b::x"], ["c::x"])


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite is ``COLLECTED``."""
    monkeypatch.setattr(claims_list, "collect", lambda: claims(COLLECTED))


@pytest.mark.usefixtures("here")
def test_a_written_list_is_read_again_and_a_test_that_is_gone_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "claims.txt"
    assert claims_list.main(["--out", str(file)]) == 0
    assert file.read_text().startswith("# 3 tests, commit")
    assert read(file.read_text()) == LISTED
    assert claims_list.main(["--against", str(file)]) == 0
    assert capsys.readouterr().out == "0 gone, 0 new, 0 moved\n"
    file.write_text(file.read_text() + "tests/b.py::test_three\n")
    assert claims_list.main(["--against", str(file)]) == 1
    assert capsys.readouterr().out == "gone  tests/b.py::test_three\n1 gone, 0 new, 0 moved\n"


@pytest.mark.usefixtures("here")
def test_without_a_file_the_list_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert claims_list.main([]) == 0
    assert capsys.readouterr().out.splitlines() == LISTED
