# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""nanoGPT's ``train.py`` on emulated links: ``every=(1, 100)`` against ``every=1``, by time to native's loss.

The loss is that of native's own run, over an unthrottled link, after 80 % of the steps in which its learning rate
decays. Training goes on at the lowest rate for a fifth of these steps more. Seconds are those of training: evaluation
and saving, which rank 0 does alone, stop the clock. The edits are those of ``tests.measure.nanogpt`` and the clock.

    python -m tests.measure.nanogpt_links CLONE [--json FILE] [--seeds N] [--steps N] [--minutes N] [--show METHOD]
"""

import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gravac.lab.links.link import UNTHROTTLED, parse_link
from gravac.lab.links.network import INTERFACE, EmulatedNetwork
from gravac.lab.links.schedule import Schedule
from tests.measure.judgement import interval as student_interval
from tests.measure.nanogpt import (
    NATIVE,
    RANKS,
    REPORT,
    Case,
    Configuration,
    Edit,
    Method,
    commit,
    edits,
    patched,
    write_characters,
)
from tests.measure.racing import AT
from tests.measure.resuming import Book, Progress, parser_of, resumable, until

LINKS = ("20mbit", "100mbit")

RATE = 3e-3
"""Native's best learning rate, by ``make measure-nanogpt``."""

STEPS = 1000
"""Number of steps in which the learning rate decays."""

MORE = 1.2
"""Number of steps that are made, over ``STEPS``."""

LONG, EVALUATIONS, EVALUATIONS_OF_SHORT = 200, 24, 4
"""Number of steps from which on a run is a long one; numbers of evaluations of a long run and of a short one."""

EVERY_1 = Method("every=1", "AdaptiveCompressor()", "hook")
EVERY_100 = Method("every=(1, 100)", "AdaptiveCompressor(every=(1, 100))", "hook")
HOOK = Method("hook", "AdaptiveCompressor(native=False)", "hook")
OUTER = Method("outer, every 10", "AdaptiveCompressor(every=10)", "outer")
PLAIN = Method(NATIVE)
METHODS = (PLAIN, HOOK, OUTER, EVERY_1, EVERY_100)

SEEN = re.compile(
    r"^step (\d+): train loss ([\d.]+|nan|inf), val loss ([\d.]+|nan|inf), seconds ([\d.]+)", re.MULTILINE
)

BEGINS = "training begins"

SILENCE = 900.0
"""Seconds of silence after which a run is ended as a failure."""

Curve = list[tuple[int, float, float]]
"""Steps, validation loss and seconds of training, of each evaluation."""


class RunFailed(RuntimeError):
    """The program failed. The message has the end of what it said."""


def clock_edits() -> tuple[Edit, ...]:
    """Return what makes ``train.py`` tell its training seconds, meet by a file, and take turns."""
    evaluation = "    if iter_num % eval_interval == 0 and master_process:\n"
    begins = "local_iter_num = 0 # number of iterations in the lifetime of this process\n"
    told = "val loss {losses['val']:.4f}\""
    eval_only = "    if iter_num == 0 and eval_only:\n"
    wait = "from tests.measure.turns import wait_for_turn\n"
    turn = f"{evaluation}        wait_for_turn()\n"
    return (
        Edit(
            "ranks on links of their own meet by a file",
            "init_process_group(backend=backend)",
            "init_process_group(backend=backend, init_method=os.environ['MEET'], rank=int(os.environ['RANK']), "
            "world_size=int(os.environ['WORLD_SIZE']))",
        ),
        Edit("the clock", begins, f"{begins}{wait}print('{BEGINS}', flush=True)\nbegan = time.time()\n"),
        Edit("the clock", evaluation, f"    paused = time.time()\n{evaluation}"),
        Edit("the clock", told, "val loss {losses['val']:.4f}, seconds {paused - began:.3f}\", flush=True"),
        Edit("the clock", eval_only, f"{turn}    began += time.time() - paused\n{eval_only}"),
    )


def run(clone: Path, case: Case, steps: int, link: str) -> dict[str, Any]:
    """Train once over a link, which changes as its words say; return the row.

    Raises:
        RunFailed: ``train.py`` failed.
    """
    parts = EVALUATIONS if steps >= LONG else EVALUATIONS_OF_SHORT
    interval = max(2, round(MORE * steps / parts))
    settings = Configuration(
        max_iters=parts * interval, eval_interval=interval, eval_iters=10, warmup_iters=min(100, steps // 4)
    )
    original = (clone / "train.py").read_text(encoding="utf-8")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gravac-measure-")))
        made = (*edits(case.method, case.seed), *clock_edits())
        (folder / "train.py").write_text(patched(original, made), encoding="utf-8")
        for other in ("model.py", "configurator.py"):
            shutil.copy(clone / other, folder)
        write_characters(folder / "data" / "library")
        arguments = [
            f"--lr_decay_iters={steps}" if argument.startswith("--lr_decay_iters=") else argument
            for argument in settings.arguments(case.learning_rate)
        ]
        network = stack.enter_context(EmulatedNetwork(RANKS, parse_link(link)))
        schedule = stack.enter_context(Schedule(network))
        output = trained(folder, [sys.executable, "train.py", *arguments], network, schedule)
        sent = network.interface_bytes(0)[0]
    curve = [(int(step), float(loss), float(seconds)) for step, _, loss, seconds in SEEN.findall(output)]
    if not curve or curve[-1][0] != settings.max_iters:
        raise RunFailed(
            f"{case.words}: no evaluation after step {settings.max_iters}; end of the output: {output[-4000:]}"
        )
    reports = [line.removeprefix(REPORT) for line in output.splitlines() if line.startswith(REPORT)]
    return {
        "method": case.method.name,
        "call": case.method.call,
        "seed": case.seed,
        "link": link,
        "native": steps,
        "steps": settings.max_iters,
        "validation_loss": curve[-1][1],
        "curve": curve,
        "interface_bytes": sent,
        **(json.loads(reports[0]) if reports else {}),
        "arguments": " ".join(arguments),
        "nanogpt": commit(clone),
    }


def trained(
    folder: Path,
    command: Sequence[str],
    network: EmulatedNetwork,
    schedule: Schedule,
    environment: Mapping[str, str] = MappingProxyType({}),
    given_up: Callable[[], bool] = lambda: False,
) -> str:
    """Run a program on all ranks, with one thread each; return what rank 0 printed.

    Args:
        folder: folder that it runs in; the ranks meet by a file there.
        command: the program and its arguments.
        network: hosts of the ranks.
        schedule: changes of the link, from the program's line ``BEGINS`` on.
        environment: more environment variables of the program.
        given_up: function without arguments that returns True if the program is to end now.

    Raises:
        RunFailed: it failed, said nothing for ``SILENCE`` seconds, or was given up.
    """
    paths = os.pathsep.join(filter(None, (os.getcwd(), os.environ.get("PYTHONPATH"))))
    common = {
        **os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": INTERFACE, "CUDA_VISIBLE_DEVICES": "",
        "WORLD_SIZE": str(RANKS), "MEET": f"file://{folder}/store", "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1",
        **environment,
    }  # fmt: skip
    ranks: list[subprocess.Popen[bytes]] = []
    outputs = [folder / f"rank{rank}.log" for rank in range(RANKS)]
    try:
        for rank, path in enumerate(outputs):
            with path.open("wb") as said:
                on_host = [*network.prefix(rank), *command]
                environment = {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
                ranks.append(
                    subprocess.Popen(
                        on_host, cwd=folder, env=environment, stdout=said, stderr=said, start_new_session=True
                    )
                )
        _wait(ranks, outputs[0], schedule, given_up)
    finally:
        for process in ranks:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    texts = [path.read_text(errors="replace") for path in outputs]
    if any(process.returncode for process in ranks):
        codes = [process.returncode for process in ranks]
        ends = " | ".join(text[-2000:] for text in texts)
        raise RunFailed(f"the ranks ended with exit statuses {codes}; ends of their outputs: {ends}")
    return texts[0]


def _wait(
    ranks: Sequence["subprocess.Popen[bytes]"], output: Path, schedule: Schedule, given_up: Callable[[], bool]
) -> None:
    """Wait until all ranks have ended, one has failed, or nothing was said for long; follow the link's schedule."""
    news, length = time.monotonic(), 0
    while any(process.poll() is None for process in ranks):
        size = output.stat().st_size
        if size != length:
            news, length = time.monotonic(), size
            if BEGINS in output.read_text(errors="replace"):
                schedule.follow()
        if time.monotonic() - news > SILENCE:
            end = output.read_text(errors="replace")[-2000:]
            raise RunFailed(f"the program printed nothing for {SILENCE:g} s; end of its output: {end}")
        if given_up():
            raise RunFailed("ended: another run that took turns with it failed, or the measurement was stopped")
        if any(process.poll() for process in ranks):
            return
        time.sleep(0.05)


def target_of(curve: Sequence[Sequence[float]], steps: int) -> float:
    """Return native's validation loss after ``AT`` of its steps, linear between evaluations."""
    return interpolated([(made, loss) for made, loss, _ in curve], AT * steps)


def interpolated(points: Sequence[tuple[float, float]], at: float, unit: str = "steps") -> float:
    """Return the loss after a number of steps or seconds, linear between evaluations.

    Args:
        points: steps or seconds, and loss, of each evaluation.
        at: number of steps or seconds.
        unit: which of them, for the message.

    Raises:
        ValueError: no evaluation came after it.

    Example:
        >>> interpolated([(0, 4.0), (10, 2.0)], 5)
        3.0
    """
    for before, after in pairwise(points):
        if before[0] <= at <= after[0]:
            share = (at - before[0]) / (after[0] - before[0])
            return before[1] + share * (after[1] - before[1])
    raise ValueError(f"no evaluation after {at:g} {unit}")


def reached(curve: Sequence[Sequence[float]], loss: float) -> tuple[float, bool]:
    """Return the seconds to a loss, linear between evaluations, and True; or all seconds, and False."""
    for before, after in pairwise(curve):
        if after[1] <= loss:
            share = 0.0 if before[1] <= loss else (before[1] - loss) / (before[1] - after[1])
            return float(before[2] + share * (after[2] - before[2])), True
    return float(curve[-1][2]), False


def measure(clone: Path, book: Book, seeds: int, steps: int, minutes: float) -> None:
    """Run what the file does not have yet."""
    over = until(minutes)
    cases = [(Case(PLAIN, RATE, seed), UNTHROTTLED) for seed in range(seeds)]
    for seed in range(seeds):
        raced = [(Case(method, RATE, seed), link) for link in LINKS for method in (EVERY_1, EVERY_100)]
        random.Random(seed).shuffle(raced)
        cases += raced
    todo = [
        (case, link)
        for case, link in cases
        if not book.find(method=case.method.name, seed=case.seed, link=link, native=steps)
    ]
    progress = Progress(len(todo))
    for case, link in todo:
        if over():
            return
        row = run(clone, case, steps, link)
        book.add(row)
        progress.say(f"{case.words}, {link}: {row['curve'][-1][2]:.1f} s, validation loss {row['validation_loss']:.3f}")


def ratios_of(rows: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """Return the times of ``every=(1, 100)`` over those of ``every=1``, by link, one for each seed."""
    targets = {row["seed"]: target_of(row["curve"], row["native"]) for row in rows if row["method"] == NATIVE}
    times = {
        (row["link"], row["method"], row["seed"]): reached(row["curve"], targets[row["seed"]])[0]
        for row in rows
        if row["method"] != NATIVE
    }
    found: dict[str, list[float]] = {}
    for link in LINKS:
        for seed in targets:
            pair = [times.get((link, method.name, seed)) for method in (EVERY_100, EVERY_1)]
            if pair[0] is not None and pair[1] is not None:
                found.setdefault(link, []).append(pair[0] / pair[1])
    return found


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return times to native's loss as Markdown, and the pooled ratio with its interval."""
    targets = {row["seed"]: target_of(row["curve"], row["native"]) for row in rows if row["method"] == NATIVE}
    lines = [
        "| link | setting | seconds to native's loss, by seed | what ran at the end | changes of mode |",
        "|" + " --- |" * 5,
    ]
    for link in LINKS:
        for method in (EVERY_1, EVERY_100):
            own = sorted(
                (row for row in rows if (row["link"], row["method"]) == (link, method.name)),
                key=lambda row: int(row["seed"]),
            )
            if not own:
                continue
            shown = " ".join(seconds_of(row, targets[row["seed"]]) for row in own)
            last = "; ".join(dict.fromkeys(row["turns"][-1][1] if row["turns"] else row["mode"] for row in own))
            changes = statistics.fmean(len(row["changes"]) for row in own)
            lines.append(f"| {link} | `{method.name}` | {shown} | {last} | {changes:.1f} a run |")
    ratios = ratios_of(rows)
    sums = [f"{link}: {' '.join(f'{ratio:.2f}' for ratio in of)}" for link, of in ratios.items()]
    every = [ratio for of in ratios.values() for ratio in of]
    if len(every) > 1:
        mean, low, high = student_interval(every)
        sums.append(f"pooled over both links: {mean:.3f} [{low:.3f}-{high:.3f}]")
    return "\n".join([*lines, "", f"`every=(1, 100)` over `every=1`, by seed: {'; '.join(sums)}."])


def seconds_of(row: dict[str, Any], target: float) -> str:
    """Return a run's seconds to the loss in words."""
    seconds, there = reached(row["curve"], target)
    return f"{seconds:.1f}" if there else f"over {seconds:.1f}"


def main() -> int:
    parser = parser_of(__doc__, "docs/measurements/nanogpt_links.json")
    parser.add_argument("clone", type=Path, help="folder of a clone of github.com/karpathy/nanoGPT")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=STEPS, help="number of steps in which the learning rate decays")
    parser.add_argument("--show", help="measure nothing, print train.py with the edits for a method, such as 'every=1'")
    options = parser.parse_args()
    if options.show:
        method = {one.name: one for one in METHODS}[options.show]
        text = (options.clone / "train.py").read_text(encoding="utf-8")
        print(patched(text, (*edits(method, 0), *clock_edits())))
        return 0
    book = Book(options.json)
    clone = options.clone.resolve()
    status = resumable(lambda: measure(clone, book, options.seeds, options.steps, options.minutes))
    if any(row["method"] == NATIVE for row in book.rows):
        print(table(book.rows))
    return status


if __name__ == "__main__":
    raise SystemExit(main())
