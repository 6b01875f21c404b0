# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A commit against HEAD: what is made of pairs of turns, and where it is published. Taking them takes minutes."""

from pathlib import Path
from typing import Any

import pytest

from tests.measure import before_after, check, published, results, tables

ECHO = """
import json, os, sys
print(json.dumps({"package": os.path.abspath("x"), "workloads": ["a step"]}), flush=True)
for line in sys.stdin:
    word, number = line.split() if " " in line else sys.exit("no such word")
    print(json.dumps({"seconds": int(number)}), flush=True)
"""

PAIRS = [{"before": 0.1, "after": 0.2}, {"before": 0.2, "after": 0.2}, {"before": 0.1, "after": 0.15}]


def row() -> dict[str, Any]:
    made = before_after.summarize("a step", PAIRS, [1.0, 2.0])
    return {**made, "before": "1" * 40, "after": "2" * 40, "steps": 7}


def test_turns_alternate_so_that_drift_meets_both_sides() -> None:
    sides = [side for sides in before_after.order(4) for side in sides]
    assert sides == ["before", "after", "after", "before"] * 2


def test_what_is_compared_is_each_pair_of_turns() -> None:
    found = row()
    assert (found["what"], found["before_ms"], found["after_ms"], found["pairs"]) == ("a step", 100.0, 200.0, 3)
    assert found["ratio"] == 1.5, "the median of 2, 1 and 1.5, not 200 / 100"
    assert (found["low"], found["high"]) == (1.0, 2.0)
    assert found["wire_ratios"] == [1.0, 2.0]


def test_sides_take_turns_and_a_rank_that_fails_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "one_side.py").write_text(ECHO)
    with before_after.Side(tmp_path, tmp_path) as side:
        assert side.workloads() == ["a step"]
        assert side.tell("run 3") == {"seconds": 3}
        with pytest.raises(RuntimeError, match="rank 0 failed, or hung:\nno such word"):
            side.tell("fail")


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
    results.keep([row()], str(tmp_path / "before_after.json"))
    assert tables.update(document) == check.faults(document) == []
    text = document.read_text(encoding="utf-8")
    assert "| a step | 100.0 | 200.0 | 1.500 (1.000-2.000) |" in text
    assert "1111111111 against 2222222222, 3 pairs of turns of 7 steps." in text
    assert tables.update(document) == []
    assert document.read_text(encoding="utf-8") == text, "a second time changes nothing"
    published._rows.cache_clear()
