# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Runs tests, several at a time, a process per rank; what all ranks of a test saw, as one outcome."""

import json
import multiprocessing
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.torch_ddp.rank import run
from tests.torch_ddp.suite import Seen, Suite


@dataclass
class Outcome:
    """Of a test, over its ranks.

    Attributes:
        name: of the test.
        gravac: whether it was attached.
        passed: on every rank; with gravac, attached to every model made, of which there was one at least.
        skipped: by the test itself.
        text: why not; one rank's traceback.
        made: models that gravac can be attached to, on rank 0.
        attached: those which gravac was attached to, on rank 0.
        steps: backwards that gravac exchanged, on rank 0.
        own_hooks: communication hooks which the test registered, on rank 0.
        seconds: it took.
    """

    name: str
    gravac: bool
    passed: bool = False
    skipped: bool = False
    text: str = ""
    made: int = 0
    attached: int = 0
    steps: int = 0
    own_hooks: int = 0
    seconds: float = 0.0


@dataclass
class _Running:
    name: str
    gravac: bool
    timeout: float
    folder: tempfile.TemporaryDirectory  # type: ignore[type-arg]
    ranks: list[BaseProcess]
    started: float = field(default_factory=time.monotonic)

    def over(self) -> bool:
        """Whether all ranks ended, or one failed and its peers had time to."""
        if not any(rank.is_alive() for rank in self.ranks):
            return True
        age = time.monotonic() - self.started
        reports = list(Path(self.folder.name).glob("rank*.json"))
        failed = [path for path in reports if time.time() - path.stat().st_mtime > 10 and _failed(path)]
        return bool(failed) or age > self.timeout + 10


def outcomes(suite: Suite, wanted: Sequence[tuple[str, bool]], jobs: int) -> Iterator[Outcome]:
    """Run tests, each natively or with gravac, and give each outcome as it comes.

    Args:
        suite: has the tests.
        wanted: names, and whether gravac is attached.
        jobs: tests at a time.
    """
    waiting = list(wanted)
    running: list[_Running] = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(_start(suite, *waiting.pop(0)))
            time.sleep(0.02)
            for one in [one for one in running if one.over()]:
                running.remove(one)
                yield _finish(one)
    finally:
        for one in running:
            _finish(one)


def _start(suite: Suite, name: str, gravac: bool) -> _Running:
    world = suite.world(name)
    folder = tempfile.TemporaryDirectory()
    for needed in ("barrier", "test_dir", "init_dir"):
        (Path(folder.name) / needed).mkdir()
    # forked: importing torch's tests takes longer than most of them
    context = multiprocessing.get_context("fork")
    ranks = [
        context.Process(target=run, args=(suite, name, rank, world, gravac, Path(folder.name))) for rank in range(world)
    ]
    for process in ranks:
        process.start()
    return _Running(name, gravac, suite.timeout, folder, list(ranks))


def _finish(one: _Running) -> Outcome:
    for process in one.ranks:
        if process.is_alive():
            process.kill()
        process.join()
    seconds = round(time.monotonic() - one.started, 1)
    folder = Path(one.folder.name)
    seen = [_seen(folder, rank, process.exitcode) for rank, process in enumerate(one.ranks)]
    one.folder.cleanup()
    return judge(one.name, one.gravac, seen, seconds)


def judge(name: str, gravac: bool, seen: Sequence[Seen], seconds: float = 0.0) -> Outcome:
    """One outcome of what every rank saw."""
    first = seen[0]
    outcome = Outcome(name, gravac, seconds=seconds)
    outcome.made, outcome.attached, outcome.steps = first.made, first.attached, first.steps
    outcome.own_hooks = first.own_hooks
    outcome.skipped = all(one.outcome == "skipped" for one in seen)
    if outcome.skipped:
        outcome.text = first.text
        return outcome
    ended = [(rank, one) for rank, one in enumerate(seen) if one.outcome != "passed"]
    # a rank that was killed, because another failed, has little to say
    ended.sort(key=lambda pair: pair[1].outcome == "died")
    reasons = [f"rank {rank} {one.outcome}: {one.text}" for rank, one in ended]
    if gravac:
        reasons += [f"attach: {text}" for one in seen for text in one.attach_failures]
        none = not any(one.made for one in seen)
        if not reasons and (none or any(one.attached != one.made for one in seen)):
            reasons.append(f"gravac was attached to {[one.attached for one in seen]} of {[one.made for one in seen]}")
    outcome.passed = not reasons
    outcome.text = "\n".join(reasons)
    return outcome


def _seen(folder: Path, rank: int, status: int | None) -> Seen:
    try:
        return Seen(**json.loads((folder / f"rank{rank}.json").read_text()))
    except (OSError, ValueError):
        log = folder / f"rank{rank}.log"
        told = log.read_text(errors="replace")[-6000:] if log.exists() else ""
        return Seen(text=f"exit status {status}\n{told}")


def _failed(path: Path) -> bool:
    try:
        return bool(json.loads(path.read_text())["outcome"] != "passed")
    except ValueError:
        return False
