# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A commit against HEAD: what is made of pairs of blocks, and where it is published. Running blocks takes minutes."""

import subprocess
from pathlib import Path

import pytest

from tests.measure import before_after, check, published, results, tables


def pair(before: float, after: float) -> dict[str, before_after.Block]:
    return {
        "before": {"a step": {"seconds": before, "wire_ratio": 1.0}},
        "after": {"a step": {"seconds": after, "wire_ratio": 2.0}},
    }


PAIRS = [pair(0.1, 0.2), pair(0.2, 0.2), pair(0.1, 0.15)]


def rows() -> results.Rows:
    return [{**row, "before": "1" * 40, "after": "2" * 40} for row in before_after.summarize(PAIRS)]


def test_blocks_take_turns_so_that_drift_meets_both_sides() -> None:
    sides = [side for sides in before_after.order(4) for side in sides]
    assert sides == ["before", "after", "after", "before"] * 2


def test_what_is_compared_is_each_pair_of_blocks() -> None:
    (row,) = before_after.summarize(PAIRS)
    assert (row["what"], row["before_ms"], row["after_ms"], row["blocks"]) == ("a step", 100.0, 200.0, 3)
    assert row["ratio"] == 1.5, "the median of 2, 1 and 1.5, not 200 / 100"
    assert (row["low"], row["high"]) == (1.0, 2.0)
    assert row["wire_ratios"] == [1.0, 2.0]


def test_an_unknown_commit_is_refused_before_anything_runs() -> None:
    with pytest.raises(ValueError, match="git knows no commit 'nosuchcommit'"):
        before_after.commit("nosuchcommit")


def test_a_worktree_is_gone_also_when_what_it_was_for_is_stopped(tmp_path: Path) -> None:
    place = tmp_path / "code"
    with pytest.raises(KeyboardInterrupt), before_after.worktree(place, before_after.commit("HEAD")):
        assert (place / "gravac" / "__init__.py").exists()
        raise KeyboardInterrupt
    known = subprocess.run(["git", "worktree", "list"], cwd=before_after.ROOT, capture_output=True, text=True).stdout
    assert not place.exists()
    assert str(place) not in known


def test_the_document_has_a_section_only_once_there_is_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = tmp_path / "measurements.md"
    document.write_text("# Measurements\n", encoding="utf-8")
    table = {"before_after": tables.DOCUMENTS[tables.MEASUREMENTS]["before_after"]}
    monkeypatch.setattr(published, "FOLDER", tmp_path)
    monkeypatch.setitem(tables.DOCUMENTS, document, table)
    monkeypatch.setitem(tables.SECTIONS, document, {"before_after": before_after.SECTION})
    published._rows.cache_clear()
    assert tables.update(document) == check.faults(document) == []
    assert document.read_text(encoding="utf-8") == "# Measurements\n"
    results.keep(rows(), str(tmp_path / "before_after.json"))
    assert tables.update(document) == check.faults(document) == []
    text = document.read_text(encoding="utf-8")
    assert "| a step | 100.0 | 200.0 | 1.500 (1.000-2.000) |" in text
    assert "1111111111 against 2222222222, 3 blocks of each." in text
    assert tables.update(document) == []
    assert document.read_text(encoding="utf-8") == text, "a second time changes nothing"
    published._rows.cache_clear()
