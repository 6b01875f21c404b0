# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Records say what they were measured with: commit, time and speed of the machine."""

import json
import shutil
import subprocess
import time
from datetime import datetime
from pathlib import Path

import pytest
import torch
from rich.console import Console

from gravac.cli import main
from gravac.lab import provenance
from gravac.lab.provenance import UNRECORDED, Stamp, stamp
from gravac.lab.tta import record
from gravac.lab.tta.display import TtaLive
from tests.lab.made_up_runs import made_up
from tests.measure import results

OLD = Stamp(
    commit="0123456789abcdef", clean=True, utc="2026-01-01T00:00:00+00:00", copy_bytes_per_s=1e10, matmul_s=1e-4,
    torch="2.13.0", python="3.11.7", cores=2,
)  # fmt: skip

CHANGED = OLD(clean=False)


def in_git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_stamp_says_when_and_how_fast_the_machine_is_and_takes_no_time() -> None:
    threads = torch.get_num_threads()
    stamp()
    began = time.perf_counter()
    made = stamp()
    assert time.perf_counter() - began < 0.3
    assert torch.get_num_threads() == threads
    assert 1e8 < made.copy_bytes_per_s < 1e12 and 1e-6 < made.matmul_s < 1
    assert datetime.fromisoformat(made.utc).utcoffset() is not None
    assert made.torch == torch.__version__ and made.cores >= 1


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_checkout_gives_its_commit_and_whether_code_differs_from_it(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    for name in ("code.py", "docs/record.json"):
        (tmp_path / name).write_text("1\n")
    in_git(tmp_path, "init", "-q")
    in_git(tmp_path, "add", ".")
    in_git(tmp_path, "commit", "-q", "-m", "one")
    commit = in_git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "docs" / "record.json").write_text("2\n")
    assert provenance._commit_and_clean(tmp_path / "code.py") == (commit, True), (
        "what a measurement writes is no change"
    )
    (tmp_path / "code.py").write_text("2\n")
    assert provenance._commit_and_clean(tmp_path / "code.py") == (commit, False)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_a_package_installed_inside_another_checkout_does_not_take_its_commit(tmp_path: Path) -> None:
    in_git(tmp_path, "init", "-q")
    in_git(tmp_path, "commit", "-q", "--allow-empty", "-m", "one")
    (tmp_path / "code.py").write_text("1\n")
    assert provenance._commit_and_clean(tmp_path / "code.py") == (None, None)


def test_outside_git_and_without_git_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert provenance._commit_and_clean(tmp_path / "code.py") == (None, None)
    monkeypatch.setenv("PATH", str(tmp_path))
    made = stamp()
    assert (made.commit, made.clean, made.code) == (None, None, UNRECORDED)


def test_the_code_in_words_tells_a_changed_tree_from_its_commit() -> None:
    assert (OLD.code, CHANGED.code) == ("0123456789", "0123456789+")


def test_runs_keep_their_stamp_in_a_file_and_older_files_have_none(tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    record.save(path, [made_up(stamp=OLD)])
    assert record.read(path)[0].stamp == OLD
    (plain,) = json.loads(path.read_text())
    del plain["stamp"]
    path.write_text(json.dumps([plain]))
    assert record.read(path)[0].stamp is None


def test_rows_keep_the_stamps_of_those_who_measured_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.json"
    for made_with, value in ((OLD, 2), (CHANGED, 3)):
        monkeypatch.setattr(results, "todays", lambda made_with=made_with: made_with)
        results.keep([*(results.read(path) if path.exists() else ()), {"x": value}], str(path))
    assert [(row["x"], row["stamp"]) for row in results.read(path)] == [(2, OLD), (3, CHANGED)]


def test_what_a_bench_writes_is_stamped(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "file.json"
    few = ["--elements", "64", "--repeats", "1", "--only", "dense"]
    assert main(["bench", "compressors", *few, "--json", str(path)]) == 0
    assert Stamp(**json.loads(path.read_text())["stamp"]).torch == torch.__version__


def test_a_bench_that_goes_on_in_a_file_of_other_code_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with TtaLive(Console(width=300), paced=False) as live:
        live.show_commits("abc", ["abc"])
        live.show_commits("abc", [])
        assert capsys.readouterr().out == ""
        live.show_commits("abc", ["abc", UNRECORDED])
    said = capsys.readouterr().out
    assert f"runs of other code ({UNRECORDED}; this is abc): new runs are added" in said
