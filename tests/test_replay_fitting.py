# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A trace with a wrong line is replayed, or refused in one line that names file, line, field and value."""

import functools
import json
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gravac import Goodput, GraVAC, SettingsError, topk
from gravac.cli import main
from gravac.policy import Policy
from gravac.replay import read_trace, replay
from tests.checkpoint.mutations import spoilt
from tests.outer.ranks import Ranks
from tests.test_replay import record_run, topk_policy

pytestmark = pytest.mark.timeout(300)

POLICIES = {
    "gravac": topk_policy(controller=GraVAC(window=8, warmup=2, shadow_every=4)),
    "goodput": topk_policy(controller=Goodput(window=8, trial=5)),
    "outer": Policy(base=topk, cf_range=(2, 64), controller=Goodput(window=5, trial=5), dense_below=0),
}


@functools.cache
def lines_of(kind: str, folder: Path) -> tuple[str, ...]:
    """The lines of a short run's trace."""
    path = folder / kind / "gravac.jsonl"
    if kind == "outer":
        trained = Ranks(
            1,
            clock=0.01,
            base=topk,
            cf_range=(2, 64),
            controller=POLICIES[kind].controller,
            every=(1, 5),
            log_dir=path.parent,
        ).train(60)
        trained.outer[0].close()
    else:
        record_run(path, POLICIES[kind], steps=50)
    return tuple(path.read_text(encoding="utf-8").splitlines())


@pytest.mark.parametrize("kind", POLICIES)
@given(seed=st.integers(0, 2**48))
@settings(max_examples=160)
def test_a_wrong_line_is_refused_in_words_or_replayed(
    kind: str, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    base = tmp_path_factory.getbasetemp()
    lines, chance = [*lines_of(kind, base)], random.Random(seed)
    at = chance.choice((0, 1, len(lines) - 1, chance.randrange(len(lines))))
    wrong: Any = spoilt(json.loads(lines[at]), seed)
    lines[at] = json.dumps(wrong, default=lambda value: "x")
    path = base / f"wrong {kind}.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with suppress(SettingsError):
        json.dumps(replay(read_trace(path), POLICIES[kind]).as_dict())


@pytest.mark.parametrize(
    ("kind", "field", "value", "said"),
    [
        ("step", "cf", 0, "cf: 0.0 is out of range; must be a compression factor"),
        ("step", "wire_bytes", "many", "wire_bytes: 'many' is not an integer"),
        ("step", "energy", None, "energy: None beside a gain; a record with a gain must have an energy"),
        ("step", "shadow", [[10]], r"shadow/0: \[10\] is not a list of 2"),
        ("step", "seconds", True, "seconds: True is not a number"),
        ("step", "every", -5, "every: -5 is out of range; must be 1 or more"),
        ("run", "version", 1, "version: 1 cannot be read; this gravac reads version 6"),
        ("run", "world_size", 0, "world_size: 0 is out of range; must be 1 or more"),
        ("run", "forecasts", 5, "forecasts: 5 is not a list"),
        ("decision", "phase", None, "phase: None is not a word"),
    ],
)
def test_file_line_field_and_value_are_named(
    kind: str, field: str, value: Any, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "gravac.jsonl"
    record_run(path, POLICIES["gravac"], steps=30)
    lines = path.read_text(encoding="utf-8").splitlines()
    at = next(number for number, line in enumerate(lines) if json.loads(line)["kind"] == kind)
    lines[at] = json.dumps({**json.loads(lines[at]), field: value})
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(SettingsError, match=rf"trace: .*gravac\.jsonl, line {at + 1}: not a record of gravac: {said}"):
        read_trace(path)
    assert main(["replay", str(path), "--policy", "gravac"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("gravac replay: trace: ")


def test_a_missing_field_is_named(tmp_path: Path) -> None:
    path = tmp_path / "gravac.jsonl"
    path.write_text('{"kind":"run","version":6,"settings":{}}\n', encoding="utf-8")
    with pytest.raises(SettingsError, match="line 1: not a record of gravac: world_size: the field is missing"):
        read_trace(path)
