# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Records say what they were measured with, and tables do not mix what several commits measured unless told so."""

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
from gravac.lab.provenance import UNRECORDED, Stamp, commits_note, stamp
from gravac.lab.report.markdown import markdown_tables
from gravac.lab.tta import record
from gravac.lab.tta.display import TtaLive
from gravac.lab.tta.factored import factored_record, factored_record_of_seed
from gravac.settings import SettingsError
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


def test_one_commit_is_nothing_to_speak_of_and_none_is_said() -> None:
    assert commits_note([OLD, OLD.with_current_time()], "a.json") == ""
    assert commits_note([None, None], "a.json") == "the commit of these runs was not recorded"


@pytest.mark.parametrize("stamps", [(OLD, CHANGED), (OLD, None), (None, OLD, OLD)])
def test_several_commits_are_refused_and_with_mixed_told(stamps: tuple[Stamp | None, ...]) -> None:
    with pytest.raises(SettingsError, match=r"a\.json: the measurements are of 2 commits .*: .*0123456789.*--mixed"):
        commits_note(stamps, "a.json")
    assert commits_note(stamps, "a.json", allow_mixed=True).startswith(
        "runs of 2 versions of gravac, each as commit (number of runs): "
    )


def test_runs_keep_their_stamp_in_a_file_and_older_files_have_none(tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    record.save(path, [made_up(stamp=OLD)])
    assert record.read([path])[0].stamp == OLD
    (plain,) = json.loads(path.read_text())
    del plain["stamp"]
    path.write_text(json.dumps([plain]))
    assert record.read([path])[0].stamp is None


def test_a_factored_run_has_the_stamp_of_its_step_time() -> None:
    split = {"compute": 0.1, "exposed": 0.2, "input_wait": 0.0, "compress": None, "exchange": None}
    probe = {"steps_s": [0.4], "step": 5, "interface_bytes": 100, "split": split}
    run = made_up("topk@10", stamp=OLD)
    made = factored_record(run, "20mbit", [probe], 60.0, run, CHANGED)
    assert made.stamp == CHANGED
    assert factored_record_of_seed(run, made, 60.0).stamp == CHANGED


def test_a_report_of_several_commits_is_refused_and_with_mixed_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "runs.json"
    record.save(path, [made_up("fp32", stamp=OLD, split=None), made_up(stamp=CHANGED, split=None)])
    asked = ["report", str(path), "--out", str(tmp_path / "page")]
    assert main(asked) == 2
    said = capsys.readouterr().err
    assert "runs.json" in said and "0123456789+" in said and "--mixed" in said
    assert not (tmp_path / "page").exists()
    assert main([*asked, "--mixed"]) == 0
    assert (
        "runs of 2 versions of gravac, each as commit (number of runs): 0123456789 (1), 0123456789+ (1)"
        in capsys.readouterr().out
    )
    assert "runs of 2 versions of gravac" in (tmp_path / "page" / "index.html").read_text(encoding="utf-8")


def test_markdown_tables_say_that_the_commit_is_not_known() -> None:
    runs = [made_up("fp32"), made_up()]
    made_with = record.commits_of([Path("runs.json")], runs)
    assert markdown_tables(runs, made_with).startswith("The commit of these runs was not recorded.\n")


def test_rows_keep_the_stamps_of_those_who_measured_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.json"
    path.write_text('{"torch": "2.13.0", "python": "3.11.7", "rows": [{"x": 1}]}')
    (old,) = results.read(path)
    assert old == {"x": 1, "stamp": None}
    for made_with, value in ((OLD, 2), (CHANGED, 3)):
        monkeypatch.setattr(results, "todays", lambda made_with=made_with: made_with)
        results.keep([*results.read(path), {"x": value}], str(path))
    rows = results.read(path)
    assert [(row["x"], row["stamp"]) for row in rows] == [(1, None), (2, OLD), (3, CHANGED)]
    with pytest.raises(SettingsError, match=r"rows\.json: the measurements are of 3 commits"):
        results.commits(rows, path)
    assert results.commits(rows, path, mixed=True).startswith("runs of 3 versions of gravac")


@pytest.mark.parametrize("content", ['[{"x": 1}]', '{"rows": [{"x": 1}]}'])
def test_rows_of_older_files_are_read(tmp_path: Path, content: str) -> None:
    (tmp_path / "rows.json").write_text(content)
    assert results.read(tmp_path / "rows.json") == [{"x": 1, "stamp": None}]


def test_what_a_bench_writes_is_stamped(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "file.json"
    few = ["--elements", "64", "--repeats", "1", "--only", "dense"]
    assert main(["bench", "compressors", *few, "--json", str(path)]) == 0
    made = Stamp(**json.loads(path.read_text())["stamp"])
    assert made.torch == torch.__version__
    assert results.read(path)[0]["stamp"] == made


def test_a_bench_that_goes_on_in_a_file_of_other_code_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with TtaLive(Console(width=300), paced=False) as live:
        live.show_commits("abc", ["abc"])
        live.show_commits("abc", [])
        assert capsys.readouterr().out == ""
        live.show_commits("abc", ["abc", UNRECORDED])
    said = capsys.readouterr().out
    assert f"runs of other code ({UNRECORDED}; this is abc): new runs are added" in said and "--mixed" in said
