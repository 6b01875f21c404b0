# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The demo runs through, says what it must, and leaves nothing behind, also when it is stopped."""

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gravac.cli import main
from gravac.lab.demo.display import DemoLive
from gravac.lab.demo.usual_links import SLOW_RATES_BPS
from gravac.lab.links.network import emulation_obstacle
from gravac.lab.links.owner import start_ticks
from gravac.lab.links.rates import format_rate
from gravac.lab.training.run import Event, RunFailed, TrainingRun, TrainingSettings
from gravac.lab.training.session import Leg

HUNG = 250.0
"""Seconds after which a test gives up on what should have happened; no test passes by waiting for so long."""

REASON = emulation_obstacle()
needs_namespaces = pytest.mark.skipif(REASON is not None, reason=f"no network namespaces here: {REASON}")

TIMING = "Timing a few steps"
"""What the demo says first, before it starts workers."""

METHODS = ["dense-fp32", "dense-fp16", "adaptive", "adaptive-100"]


def environment(folder: Path) -> dict[str, str]:
    """The demo's temporary files go to ``folder``, so that a test can see what is left."""
    return {**os.environ, "TMPDIR": str(folder)}


def namespaces_of(pid: int) -> list[str]:
    return [name for name in os.listdir("/run/netns") if name.startswith(f"gravac-{pid}-")] if REASON is None else []


def descendants(pid: int) -> list[int]:
    found = []
    with suppress(FileNotFoundError, ProcessLookupError):  # what ends meanwhile has none
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *descendants(child)]
    return found


def use_small_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the demo train a tenth of its model: what it shows and writes is of the same kind."""
    monkeypatch.setattr("gravac.lab.demo.demo.TrainingSettings", partial(TrainingSettings, scale=0.1))


@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize("paced", [pytest.param(False, marks=[needs_namespaces, pytest.mark.long]), True])
def test_demo_runs_through(
    paced: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(tempfile, "tempdir", None)  # the variable is read again
    if paced:
        use_small_model(monkeypatch)
    command = ["demo", "--json", str(tmp_path / "result.json"), "--log-dir", str(tmp_path / "logs"), "--seconds"]
    assert main([*command, *(["1", "--paced", "--rate", "5mbit"] if paced else ["3"])]) == 0
    shown = capsys.readouterr().out
    assert ("paced, no emulated link" in shown) == paced
    assert f"tensorboard --logdir {tmp_path / 'logs'}" in shown.replace("\n", "")
    for words in ("validation loss", "With every=(1, 100), ", "Decisions of gravac, every=(1, 100)"):
        assert words in shown

    result = json.loads((tmp_path / "result.json").read_text())
    assert list(result) == ["stamp", "compute_s", "rate", "workers", "paced", "log_dir", "runs"]
    assert (result["workers"], result["paced"]) == (2, paced)
    assert result["rate"] == 5e6 if paced else result["rate"] in SLOW_RATES_BPS, "a rate that is given is used"
    assert 0 < result["compute_s"] < 20
    first_lines, last_lines = shown.splitlines()[:3], shown.rstrip().splitlines()[-6:]
    assert any(line.startswith("A step computes ") and format_rate(result["rate"]) in line for line in first_lines)
    assert last_lines[-1].strip().startswith("1 Gbit/s: ")
    assert all(re.search(r"it/s: (gravac .* times as fast as float16|dense float)", line) for line in last_lines[2:])
    assert [run["method"] for run in result["runs"]] == METHODS
    for run in result["runs"]:
        # a run ends with the step that, as long as the one before, would reach its time: half of that, at the least
        assert run["steps"] >= 2 and run["seconds"] > (0.5 if paced else 1.5) and 0 < run["val_loss"] < 6
        assert run["cf_path"][0]["step"] == 0
        assert (run["curve"][0]["step"], run["curve"][-1]["step"]) == (0, run["steps"])
        assert list((tmp_path / "logs" / run["method"]).glob("events.out.tfevents*"))
    assert (tmp_path / "logs" / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert "validation loss, nats" in shown and "# gravac, every=(1, 100)" in shown
    assert not paced or {turn["mode"] for run in result["runs"] for turn in run["cf_path"]} <= {"hook", "outer"}
    fp32, fp16, *_ = result["runs"]
    assert fp32["wire_ratio"] == 1
    assert fp16["wire_ratio"] == pytest.approx(2, rel=0.05)
    assert list(temporary.glob("gravac*")) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs", "result.json", "tmp"]


@pytest.mark.parametrize(
    ("number", "moment", "paced"),
    [
        pytest.param(signal.SIGINT, ": step", False, marks=pytest.mark.long),
        pytest.param(signal.SIGTERM, ": starting", True, marks=pytest.mark.long),
        (signal.SIGTERM, TIMING, True),
    ],
)
def test_interrupt_leaves_no_process_namespace_or_file(
    number: signal.Signals, moment: str, paced: bool, tmp_path: Path
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    command = [sys.executable, "-u", "-m", "gravac", "demo", "--seconds", "60", "--json", str(tmp_path / "result.json")]
    command += ["--log-dir", str(tmp_path / "logs"), *(["--paced"] if paced else [])]
    demo = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(temporary)
    )
    assert demo.stdout and demo.stderr
    introduced = ""
    for line in demo.stdout:
        introduced += line
        if moment in line:
            break
    assert moment == TIMING or REASON is not None or ("paced, no emulated link" in introduced) == paced
    while len(workers := descendants(demo.pid)) < 2 and demo.poll() is None:
        time.sleep(0.05)  # the system tells of no start of a process
    demo.send_signal(number)
    said = ""
    for line in demo.stderr:
        said += line
        if "cleaning up" in line:
            demo.send_signal(number)  # an impatient user: cleaning up is not interrupted
    demo.communicate(timeout=HUNG)
    assert demo.returncode == 128 + number
    assert "Traceback" not in said
    assert alive_after(workers, seconds=20) == []
    assert namespaces_of(demo.pid) == []
    assert list(temporary.glob("gravac*")) == []
    assert not (tmp_path / "result.json").exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.usefixtures("forks", "signals")
def test_an_interrupt_while_a_method_trains_ends_its_workers_and_writes_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    workers: list[int] = []
    show_event = DemoLive.show_event

    def shown_and_interrupted(live: DemoLive, method: str, event: Event) -> None:
        show_event(live, method, event)
        if event["event"] == "step":
            workers.extend(child.pid for child in multiprocessing.active_children() if child.pid)
            signal.raise_signal(signal.SIGTERM)

    use_small_model(monkeypatch)
    monkeypatch.setattr(DemoLive, "show_event", shown_and_interrupted)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    command = ["demo", "--paced", "--json", str(tmp_path / "result.json"), "--log-dir", str(tmp_path / "logs")]
    with pytest.raises(SystemExit) as stopped:
        main(command)
    assert stopped.value.code == 128 + signal.SIGTERM and "cleaning up" in capsys.readouterr().err
    assert len(workers) == 2 and not any(map(start_ticks, workers))
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]


def test_killed_worker_ends_the_run_with_its_name_and_no_process(tmp_path: Path) -> None:
    settings = TrainingSettings(workers=2, link="100mbit", lowest_rate_bps=1e8, log_dir=tmp_path)
    with (
        pytest.raises(RunFailed, match="dense-fp16: worker 1 was killed by signal 9"),
        TrainingRun([Leg("fp16", "dense-fp16", seconds=60)], settings, None) as run,
    ):
        pids = run.pids
        for event in run.events():
            if event["event"] == "step":
                os.kill(pids[1], signal.SIGKILL)
    assert [pid for pid in pids if start_ticks(pid)] == []


@pytest.mark.usefixtures("signals")
def test_a_worker_that_was_just_started_is_ended_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pids: list[int] = []
    popen = subprocess.Popen

    def started_and_interrupted(*arguments: Any, **options: Any) -> "subprocess.Popen[bytes]":
        worker = popen(*arguments, **options)
        pids.append(worker.pid)
        signal.raise_signal(signal.SIGINT)  # before anyone else knows of the worker
        return worker

    monkeypatch.setattr(subprocess, "Popen", started_and_interrupted)
    settings = TrainingSettings(workers=2, link="100mbit", lowest_rate_bps=1e8, log_dir=tmp_path)
    with pytest.raises(KeyboardInterrupt), TrainingRun([Leg("fp16", "dense-fp16", seconds=60)], settings, None):
        pass
    assert [start_ticks(pid) for pid in pids] == [None]  # it was waited for


def alive_after(pids: list[int], seconds: float) -> list[int]:
    """Those of some processes that live, once none does or so many seconds are over: a killed one takes time to die."""
    until = time.monotonic() + seconds
    while (alive := [pid for pid in pids if start_ticks(pid)]) and time.monotonic() < until:
        time.sleep(0.05)
    return alive
