# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The command line refuses wrong use with the argument, the value and the remedy, and exit status 2."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from gravac.cli import main


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--seconds", "0"], "seconds: 0 is outside 1 to 86400"),
        (["--seconds", "nan"], "seconds: nan is outside"),
        (["--workers", "9"], "workers: 9 is outside 2 to 8; use 2"),
        (["--json", "/nowhere/result.json"], "json: /nowhere is not a folder"),
        (["--json", "/"], "json: / is a folder"),
        (["--log-dir", "/dev/null/x"], "log-dir: /dev/null is not a folder"),
    ],
)
def test_wrong_argument_is_named_with_value_and_remedy(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_wrong_rate_is_refused_by_the_parser(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["demo", "--rate", "fast"])
    assert "'fast' is not a rate; use a number and a unit" in capsys.readouterr().err


def test_logs_of_an_earlier_run_are_not_mixed_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "adaptive").mkdir()
    assert main(["demo", "--log-dir", str(tmp_path)]) == 2
    assert "use a new folder" in capsys.readouterr().err


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    find: Any = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "rich" else find(name))
    assert main(["demo"]) == 2
    assert "pip install 'gravac[lab]'" in capsys.readouterr().err


def test_no_command_is_wrong_use() -> None:
    with pytest.raises(SystemExit, match="2"):
        main([])


@pytest.mark.parametrize("command", [["calibrate"], ["bench", "tta"], ["bench", "compressors"], ["demo"]], ids=" ".join)
@pytest.mark.parametrize(
    ("path", "words"), [("/nowhere/x.json", "json: /nowhere is not a folder"), ("/", "json: / is a folder")]
)
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(
    command: list[str], path: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--json", path]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--target", "nan"], "target: nan is no finite number"),
        (["--target", "inf"], "target: inf is no finite number"),
        (["--first-seed", "-1"], "seeds: -1 is below 0"),
        (["--log-dir", "/dev/null/x"], "log_dir: /dev/null is not a folder"),
    ],
)
def test_time_to_accuracy_is_refused_before_anything_is_trained(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "tta", *arguments]) == 2
    assert words in capsys.readouterr().err
