# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What adaptive runs come to on programs that nothing was tuned on, over links: time to the loss of float16.

A program's runs all have the same steps and schedule: ``every=(1, 100)`` with a probe, the hook alone, and native
float16. They are compared in three ways.

- By the clock, within the seconds in which all of them still train: the time to the losses that float16, or the better
  of float16 and the hook, has after 60, 80 and 100 % of those seconds.
- By the steps: the time to the losses that float16 has after 60, 80 and 100 % of its own run. Faster methods have to
  reach them with the same number of steps.
- By the loss after equal seconds, each with a schedule of its own (*fitted*): the adaptive run and float16 are made
  once more, with as many steps as they make in the seconds of the hook's run.

All runs are made in full over the emulated link, but for float16 where that takes long: its loss by step is that of a
run over an unthrottled link, its time by step that of ``TIMED`` steps over the link (*factored*). Training goes on at
the lowest rate for a fifth of the steps more, so that slower ones may come to the last target.

The runs of a program over a link take turns, from each evaluation to the next one: the machine is slower in one minute
than in another, by more than what is compared.

    python -m tests.measure.programs_links [--nanogpt CLONE] [--examples CLONE] [--programs NAME ...] [--json FILE]
        [--methods NAME ...] [--seeds N] [--steps N] [--minutes N] [--show PROGRAM METHOD]
"""

import itertools
import json
import math
import shutil
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from gravac.lab.links.link import UNTHROTTLED, parse_link
from gravac.lab.links.network import EmulatedNetwork
from gravac.lab.links.schedule import Schedule
from tests.measure.nanogpt import RANKS, REPORT, Configuration, Edit, Method, edits, patched, write_characters
from tests.measure.nanogpt_links import SEEN, RunFailed, clock_edits, interpolated, reached, trained
from tests.measure.programs import with_mingpt
from tests.measure.programs.methods import (
    ADAPTIVE,
    CAREFUL,
    FLOAT16,
    FLOAT32,
    HOOK,
    MISLED,
    OUTER,
    PROBING,
    SETTINGS,
)
from tests.measure.racing import two_way
from tests.measure.resuming import Book, Progress, parser_of, resumable, until
from tests.measure.turns import in_turns

LINKS = ("20mbit", "100mbit", UNTHROTTLED)

MORE = 1.2
"""Number of steps that are made, over the number in which the learning rate falls."""

LONG = 4200
"""Number of steps in which the learning rate falls of a long program: with those at the lowest rate some 5000."""

EVALUATIONS = 24

TIMED, EVALUATIONS_TIMED = 60, 4
"""Numbers of steps and of evaluations of a run that only takes the time of a step; the first quarter warms up."""

CHECKED = (("glyphs", LINKS[1]), ("tokens", LINKS[1]))
"""Programs and links where float16 also runs in full over the link, to check its factored times."""

AT = (0.6, 0.8, 1.0)
"""Shares of the seconds, or of float16's steps, after which the losses are the targets."""

FRAMEWORKS = Path(".venv-integrations/bin/python").absolute()
"""Python with Hugging Face's Trainer, as ``make environment-integrations`` makes it."""

REAL = Path(".venv-real/bin/python").absolute()
"""Python with what minGPT-ddp imports, as ``make real`` makes it."""

WRAPPED = "DDP(model)"


class Program(ABC):
    """A program whose ranks are started by a command.

    Attributes:
        name: name in the record and tables.
        steps: number of steps in which the learning rate falls.
    """

    name: str
    steps: int

    @abstractmethod
    def command(self, folder: Path, method: str, seed: int, steps: int, total: int, evaluations: int) -> list[str]:
        """Write what the program needs into a folder; return the command that runs one rank.

        Args:
            folder: empty folder, in which the command will run.
            method: one of ``tests.measure.programs.methods``.
            seed: of weights and batches.
            steps: number of steps in which the learning rate falls.
            total: number of steps that are made.
            evaluations: number of evaluations after the first one, before any step.
        """


def _if_long(steps: int) -> str:
    """Return what the name of a program adds if the program is long: the number of steps that it makes."""
    return f", {MORE * steps:g} steps" if steps == LONG else ""


@dataclass(frozen=True)
class NanoGPT(Program):
    """nanoGPT's ``train.py`` with the edits of ``tests.measure.nanogpt``, the clock, and gravac's lines.

    Attributes:
        clone: folder of the clone.
        width: width of the embedding.
        rate: learning rate.
        steps: number of steps in which the learning rate falls.
    """

    clone: Path
    width: int
    rate: float
    steps: int = 1000

    @property
    def name(self) -> str:  # type: ignore[override]
        """Width, learning rate, and the number of steps if it is large."""
        return f"nanogpt, width {self.width}, rate {self.rate:g}{_if_long(self.steps)}"

    def command(self, folder: Path, method: str, seed: int, steps: int, total: int, evaluations: int) -> list[str]:
        """See ``Program``."""
        settings = Configuration(
            n_embd=self.width,
            max_iters=total,
            eval_interval=total // evaluations,
            eval_iters=10,
            warmup_iters=min(100, steps // 4),
        )
        text = (self.clone / "train.py").read_text(encoding="utf-8")
        (folder / "train.py").write_text(patched(text, self.edits(method, seed)), encoding="utf-8")
        for other in ("model.py", "configurator.py"):
            shutil.copy(self.clone / other, folder)
        write_characters(folder / "data" / "library")
        decays = "--lr_decay_iters="
        arguments = [
            f"{decays}{steps}" if argument.startswith(decays) else argument
            for argument in settings.arguments(self.rate)
        ]
        return [sys.executable, "train.py", *arguments]

    def edits(self, method: str, seed: int) -> Iterator[Edit]:
        """Yield all edits of ``train.py``."""
        yield from edits(Method("native"), seed)
        yield from clock_edits()
        imports = "from torch.nn.parallel import DistributedDataParallel as DDP\n"
        if method == FLOAT16:
            hook = "from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook\n"
            yield Edit("float16", imports, imports + hook)
            yield Edit("float16", WRAPPED, f"{WRAPPED}\n    model.register_comm_hook(None, fp16_compress_hook)")
        elif method in SETTINGS:
            ours = "import json\nfrom gravac import AdaptiveCompressor\n"
            ours += "from tests.measure.programs.methods import RunReport\n"
            ours += MISLEADING if method == MISLED else ""
            yield Edit("imports", imports, imports + ours)
            yield Edit("gravac", WRAPPED, f"{WRAPPED}{PROBE}    compressor = {call(method)}\n{ATTACHED}")
            yield Edit("report and close", "    destroy_process_group()", ENDED)


PROBE = """
    before = torch.get_rng_state()
    torch.manual_seed(9876 + ddp_rank)
    fixed = [get_batch('val') for _ in range(4)]
    torch.set_rng_state(before)
    def probe():
        return sum(float(raw_model(X, Y)[1]) for X, Y in fixed) / len(fixed)
    report = RunReport()
"""
"""A loss on fixed batches; the random numbers of training stay as they are."""

MISLEADING = """from gravac.beliefs import use_beliefs
from tests.measure.programs.methods import believing_too_much
too_much = use_beliefs(believing_too_much())
too_much.__enter__()
"""

ATTACHED = "    compressor.attach(model, optimizer)"

ENDED = f"""    plain = report.as_plain(compressor)
    if master_process:
        print({REPORT!r} + json.dumps(plain))
    compressor.close()
    destroy_process_group()"""


@dataclass(frozen=True)
class TaskProgram(Program):
    """A program of ``tests.measure.programs`` in a plain training loop.

    Attributes:
        program: name of the program.
        rate: learning rate.
        steps: number of steps in which the learning rate falls.
    """

    program: str
    rate: float
    steps: int = 1000

    @property
    def name(self) -> str:  # type: ignore[override]
        """The program's name, and the number of steps if it is large."""
        return f"{self.program}{_if_long(self.steps)}"

    def command(self, folder: Path, method: str, seed: int, steps: int, total: int, evaluations: int) -> list[str]:
        """See ``Program``."""
        numbers = (seed, self.rate, steps, total, evaluations)
        module = "tests.measure.programs.train_task"
        return [sys.executable, "-m", module, self.program, method, *map(str, numbers)]


@dataclass(frozen=True)
class TrainerProgram(Program):
    """A small GPT-2 in Hugging Face's Trainer, in the environment that has it.

    Attributes:
        rate: learning rate.
        steps: number of steps in which the learning rate falls.
    """

    rate: float
    steps: int = 1000
    name: ClassVar[str] = "trainer"

    def command(self, folder: Path, method: str, seed: int, steps: int, total: int, evaluations: int) -> list[str]:
        """See ``Program``."""
        numbers = (seed, self.rate, steps, total, evaluations)
        module = "tests.measure.programs.with_trainer"
        return [str(FRAMEWORKS), "-m", module, method, *map(str, numbers)]


@dataclass(frozen=True)
class MinGPTProgram(Program):
    """minGPT-ddp of pytorch/examples with the lines of its patch, in the environment that has what it imports.

    Attributes:
        clone: folder of the clone, named ``examples``.
        rate: learning rate, constant as in the program.
        steps: number of steps.
    """

    clone: Path
    rate: float
    steps: int = 1000
    name: ClassVar[str] = "mingpt"

    def command(self, folder: Path, method: str, seed: int, steps: int, total: int, evaluations: int) -> list[str]:
        """See ``Program``."""
        with_mingpt.write(self.clone.parent, folder, method)
        numbers = (seed, self.rate, steps, total, evaluations)
        return [str(REAL), "-m", with_mingpt.__name__, method, *map(str, numbers)]


def programs(clone: Path | None, examples: Path | None = None) -> tuple[Program, ...]:
    """Return all programs; those of nanoGPT and of pytorch/examples only if their clones are given."""
    own: tuple[Program, ...] = (TaskProgram("tokens", 3e-3), TaskProgram("glyphs", 0.1))
    long = TaskProgram("tokens", 3e-3, LONG)
    if FRAMEWORKS.exists():
        own = (*own, TrainerProgram(1e-3))
    if examples is not None:
        own = (*own, MinGPTProgram(examples, 1e-3))
    if clone is None:
        return (*own, long)
    small, large = ([NanoGPT(clone, width, rate) for rate in (1e-3, 3e-3)] for width in (144, 208))
    return (small[0], *own, small[1], *large, NanoGPT(clone, 144, 1e-3, LONG), long)


def call(method: str) -> str:
    """Return the call that a user would write; empty for methods without gravac.

    Example:
        >>> call(HOOK)
        'AdaptiveCompressor(native=False, sinks=[report])'
    """
    if method not in SETTINGS:
        return ""
    given = [f"{name}={value!r}" for name, value in SETTINGS[method].items()]
    given += ["probe=probe", "total_steps=max_iters"] if method in PROBING else []
    return f"AdaptiveCompressor({', '.join(given)}, sinks=[report])"


class Run(NamedTuple):
    """One run of a program.

    Attributes:
        program: the program.
        method: one of ``tests.measure.programs.methods``.
        seed: of weights and batches.
        link: the link.
        steps: number of steps in which the learning rate falls.
    """

    program: Program
    method: str
    seed: int
    link: str
    steps: int

    @property
    def identity(self) -> dict[str, Any]:
        """Fields of the run's row that tell it from others."""
        return {**self._asdict(), "program": self.program.name}


def run(
    one: Run,
    environment: Mapping[str, str] = MappingProxyType({}),
    given_up: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Train once over a link; return the row.

    Args:
        one: what to run.
        environment: more environment variables of the program.
        given_up: function without arguments that returns True if the program is to end now.

    Raises:
        RunFailed: the program failed, or did not evaluate to its end.
    """
    program, method, seed, link, steps = one
    timing = steps == TIMED
    evaluations = EVALUATIONS_TIMED if timing else EVALUATIONS
    interval = max(1, round((1 if timing else MORE) * steps / evaluations))
    total = evaluations * interval
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gravac-measure-")))
        command = program.command(folder, method, seed, steps, total, evaluations)
        network = stack.enter_context(EmulatedNetwork(RANKS, parse_link(link)))
        schedule = stack.enter_context(Schedule(network))
        output = trained(folder, command, network, schedule, environment, given_up)
        sent = network.interface_bytes(0)[0]
    curve = [(int(step), float(loss), float(seconds)) for step, _, loss, seconds in SEEN.findall(output)]
    if not curve or curve[-1][0] != total:
        raise RunFailed(
            f"{program.name}, {method}: no evaluation after step {total}; end of the output: {output[-4000:]}"
        )
    reports = [line.removeprefix(REPORT) for line in output.splitlines() if line.startswith(REPORT)]
    return {
        **one.identity,
        "call": call(method),
        "made": total,
        "curve": curve,
        "step_s": step_seconds(curve),
        "interface_bytes": sent,
        **(json.loads(reports[0]) if reports else {}),
    }


Curve = Sequence[Sequence[float]]
"""Steps, loss and seconds of each evaluation."""


def step_seconds(curve: Curve) -> float:
    """Return the mean seconds of a step from the second evaluation on.

    Example:
        >>> step_seconds([(0, 4.0, 0.0), (10, 3.0, 9.0), (20, 2.0, 11.0), (40, 1.0, 15.0)])
        0.2
    """
    first, last = curve[1], curve[-1]
    return round((last[2] - first[2]) / (last[0] - first[0]), 6)


class Measurement:
    """The runs that the file does not have yet.

    Args:
        book: the file.
        chosen: programs.
        links: links.
        seeds: number of seeds.
        steps: at most so many a run, to try the program.
    """

    def __init__(self, book: Book, chosen: Sequence[Program], links: Sequence[str], seeds: int, steps: int) -> None:
        self.book, self.programs, self.links, self.seeds, self.most = book, chosen, links, seeds, steps

    def go(self, minutes: float, methods: tuple[str, ...]) -> None:
        """Run all that is missing, program by program, of methods whose names begin so."""
        over = until(minutes)
        for planned in (self._all, self._fitted):
            todo = [missing for runs in planned() if (missing := self._missing(runs, methods))]
            progress = Progress(sum(map(len, todo)))
            for runs in todo:
                if over():
                    return
                for row in in_turns([partial(run, one) for one in runs]):
                    row["in_turns"] = len(runs)
                    self.book.add(row)
                    last = row["curve"][-1]
                    progress.say(
                        f"{row['program']}, {row['method']}, {row['link']}, seed {row['seed']}, {row['made']} steps: "
                        f"{last[2]:.1f} s, loss {last[1]:.4f}; {row.get('reason', '')}"
                    )

    def _missing(self, runs: Sequence[Run], methods: tuple[str, ...]) -> list[Run]:
        """Return the runs that the file lacks, of methods whose names begin so."""
        return [one for one in runs if one.method.startswith(methods) and not self.book.find(**one.identity)]

    def _fitted(self) -> Iterator[list[Run]]:
        """Yield runs with as many steps as the seconds of the hook's run allow, by the steps' times so far."""
        for seed in range(self.seeds):
            for program, link in itertools.product(self.programs, self.links):
                steps = min(self.most, program.steps)
                about = {"program": program.name, "seed": seed, "link": link}
                hook, adaptive = (self.book.find(method=method, steps=steps, **about) for method in (HOOK, ADAPTIVE))
                timed = self.book.find(method=FLOAT16, steps=TIMED, **about)
                if hook is not None and adaptive is not None and timed is not None:
                    as_long = fitting(hook, adaptive["curve"][-1][2] / adaptive["made"])
                    yield [Run(program, ADAPTIVE, seed, link, as_long)]
                    yield [Run(program, FLOAT16, seed, UNTHROTTLED, fitting(hook, timed["step_s"]))]

    def _all(self) -> Iterator[list[Run]]:
        """Yield all runs; those of a list take turns."""
        for seed in range(self.seeds):
            for program in self.programs:
                steps = min(self.most, program.steps)
                long = program.steps == LONG
                for link in sorted(self.links, key=LINKS.index, reverse=True):
                    methods = [FLOAT16, HOOK, ADAPTIVE] if link == UNTHROTTLED else [HOOK, ADAPTIVE]
                    if long:
                        methods += [OUTER] + [MISLED] * (link == LINKS[1])
                    yield [Run(program, method, seed, link, steps) for method in methods]
                    if link != UNTHROTTLED:
                        yield [Run(program, FLOAT16, seed, link, TIMED)]
                if UNTHROTTLED not in self.links:
                    yield [Run(program, FLOAT16, seed, UNTHROTTLED, steps)]
                yield from (
                    [Run(program, FLOAT16, seed, link, steps)] for name, link in CHECKED if name == program.name
                )
                if not long:
                    yield [Run(program, FLOAT32, seed, UNTHROTTLED, steps)]
                    yield [Run(program, FLOAT16, seed + self.seeds, UNTHROTTLED, steps)]  # how much seeds differ
                    if LINKS[1] in self.links:
                        yield [Run(program, CAREFUL, seed, LINKS[1], steps)]


def fitting(hook: Mapping[str, Any], step_s: float) -> int:
    """Return in how many steps the learning rate falls, so that the run takes the seconds of the hook's.

    Args:
        hook: row of the hook's run.
        step_s: mean seconds of a step.

    Example:
        >>> fitting({"curve": [(0, 4.0, 0.0), (1200, 2.0, 240.0)]}, step_s=0.1)
        2000
    """
    return round(hook["curve"][-1][2] / step_s / MORE)


@dataclass(frozen=True)
class Cell:
    """What one program came to on one link, with one seed.

    Attributes:
        program: its name.
        link: the link.
        seed: the seed.
        seconds: time in which all methods still train.
        losses: loss after those seconds, by method.
        to_float16: time of ``ADAPTIVE`` over that of the better of hook and float16, to the losses that float16 has
            after ``AT`` of those seconds.
        to_better: the same to the lower of the losses that hook and float16 have then.
        to_whole_run: the same to the losses that float16 has after ``AT`` of its own run.
        end: loss of ``ADAPTIVE`` when float16's steps are over, and float16's own.
        adaptive: row of the adaptive run.
    """

    program: str
    link: str
    seed: int
    seconds: float
    losses: Mapping[str, float]
    to_float16: Sequence[float]
    to_better: Sequence[float]
    to_whole_run: Sequence[float]
    end: tuple[float, float]
    adaptive: Mapping[str, Any]


def cells_of(rows: Sequence[dict[str, Any]]) -> list[Cell]:
    """Return the cells of which all runs are there."""
    found = []
    for row in rows:
        if row["method"] != ADAPTIVE:
            continue
        same = {"program": row["program"], "seed": row["seed"]}
        loss = _find(rows, method=FLOAT16, link=UNTHROTTLED, steps=row["steps"], **same)
        hook = _find(rows, method=HOOK, link=row["link"], steps=row["steps"], **same)
        timed = (
            loss if row["link"] == UNTHROTTLED else _find(rows, method=FLOAT16, link=row["link"], steps=TIMED, **same)
        )
        if loss is None or hook is None or timed is None:
            continue
        factored = [(step, value, step * timed["step_s"]) for step, value, _ in loss["curve"]]
        curves = {FLOAT16: factored, HOOK: hook["curve"], ADAPTIVE: row["curve"]}
        others = (curves[HOOK], curves[FLOAT16])
        seconds = min(curve[-1][2] for curve in curves.values())
        by_clock = [{name: loss_at(curve, share * seconds) for name, curve in curves.items()} for share in AT]
        whole_run = [loss_after(factored, share * row["steps"]) for share in AT]
        found.append(
            Cell(
                row["program"],
                row["link"],
                row["seed"],
                seconds,
                by_clock[-1],
                [ratio(row["curve"], others, losses[FLOAT16]) for losses in by_clock],
                [ratio(row["curve"], others, min(losses[FLOAT16], losses[HOOK])) for losses in by_clock],
                [ratio(row["curve"], others, target) for target in whole_run],
                (loss_at(row["curve"], row["steps"] * timed["step_s"]), whole_run[-1]),
                row,
            )
        )
    return found


def ratio(curve: Curve, others: Sequence[Curve], target: float) -> float:
    """Return a run's time to a loss over that of the best of others; infinite if it never came there.

    Example:
        >>> slow, fast = [(0, 4.0, 0.0), (10, 2.0, 10.0)], [(0, 4.0, 0.0), (10, 3.0, 5.0)]
        >>> ratio(fast, [slow], 3.0), ratio(fast, [slow], 2.0)
        (1.0, inf)
    """
    seconds = time_to(curve, target)
    best = min(found for other in others if (found := time_to(other, target)) is not None)
    return math.inf if seconds is None else seconds / best


def loss_after(curve: Curve, step: float) -> float:
    """Return the loss after so many steps, linear between evaluations."""
    return interpolated([(steps, loss) for steps, loss, _ in curve], step)


def loss_at(curve: Curve, seconds: float) -> float:
    """Return the loss after so many seconds, linear between evaluations; the last one if training ended before."""
    return interpolated([(at, loss) for _, loss, at in curve], min(seconds, curve[-1][2]), "seconds")


def time_to(curve: Curve, loss: float) -> float | None:
    """Return the seconds to a loss, linear between evaluations; ``None`` if it was never reached."""
    seconds, there = reached(curve, loss)
    return seconds if there else None


def seeds_differ(rows: Sequence[dict[str, Any]], program: str) -> float | None:
    """Return by how much the last losses of float16 differ between seeds, at equal steps; ``None`` if not known."""
    runs = [row for row in rows if (row["program"], row["method"], row["link"]) == (program, FLOAT16, UNTHROTTLED)]
    longest = max((row["steps"] for row in runs), default=0)
    last = [loss_after(row["curve"], row["steps"]) for row in runs if row["steps"] == longest]
    return max(last) - min(last) if len(last) > 1 else None


def _find(rows: Sequence[dict[str, Any]], **about: Any) -> dict[str, Any] | None:
    return next((row for row in rows if all(row[name] == value for name, value in about.items())), None)


def in_words(ratios: Sequence[float]) -> str:
    """Return ratios in words.

    Example:
        >>> in_words([0.5, math.inf])
        '0.50 never'
    """
    return " ".join(f"{number:.2f}" if math.isfinite(number) else "never" for number in ratios)


def ended_with(row: Mapping[str, Any]) -> str:
    """Return what an adaptive run ended with, and the number of its trials."""
    last = row["turns"][-1][1] if row["turns"] else row["mode"]
    trials = len(row["progress"])
    return last.removesuffix(", every 1, delay 0") + (f"; {trials} trials" if trials else "")


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return each cell as Markdown."""
    lines = [
        "| program | link | all train for | losses then: float16, hook, adaptive | to float16's losses | to the "
        "better's losses | to those of float16's whole run | loss when that is over | ended with |",
        "|" + " --- |" * 9,
    ]
    for cell in sorted(cells_of(rows), key=lambda one: (LINKS.index(one.link), one.program, one.seed)):
        losses = " ".join(f"{cell.losses[method]:.3f}" for method in (FLOAT16, HOOK, ADAPTIVE))
        ratios = " | ".join(map(in_words, (cell.to_float16, cell.to_better, cell.to_whole_run)))
        differ = seeds_differ(rows, cell.program)
        end = f"{cell.end[0]:.3f}, float16 {cell.end[1]:.3f}" + (f" ± {differ:.3f}" if differ is not None else "")
        program = cell.program + (f", seed {cell.seed}" if cell.seed else "")
        names = f"{program} | {cell.link} | {cell.seconds:.0f} s"
        lines.append(f"| {names} | {losses} | {ratios} | {end} | {ended_with(cell.adaptive)} |")
    return "\n".join(lines)


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """Return the geometric means over all cells and targets with their intervals, in words."""
    cells = cells_of(rows)
    return "\n".join(
        (
            in_all("to float16's losses", cells, [cell.to_float16 for cell in cells]),
            in_all("to the better's losses", cells, [cell.to_better for cell in cells]),
            in_all("to those of float16's whole run", cells, [cell.to_whole_run for cell in cells]),
        )
    )


def in_all(losses: str, cells: Sequence[Cell], ratios: Sequence[Sequence[float]]) -> str:
    """Return the geometric mean of ratios with its interval, in words.

    Args:
        losses: what losses were to be reached, in words.
        cells: the cells.
        ratios: ratios to each target, by cell.
    """
    finite = [[math.log(number) for number in of_cell] for of_cell in ratios if all(map(math.isfinite, of_cell))]
    never = len(ratios) - len(finite)
    if not finite:
        return f"Time {losses}, over the better of hook and float16: never in all {never} cells."
    mean, low, high = two_way(finite)
    worst = max(range(len(cells)), key=lambda at: max(ratios[at]))
    return (
        f"Time {losses}, over the better of hook and float16: {mean:.3f} [{low:.3f}-{high:.3f}] over {len(finite)} "
        f"cells, never in {never}; the worst is {cells[worst].program} at {cells[worst].link}: "
        f"{max(ratios[worst]):.2f}."
    )


def table_of_careful(rows: Sequence[dict[str, Any]]) -> str:
    """Return the losses at equal samples of runs that are to lose nothing, as Markdown."""
    lines = ["| program | native float32 | `least_efficiency=0.98` | difference |", "|" + " --- |" * 4]
    for row in rows:
        if row["method"] != CAREFUL:
            continue
        about = {"program": row["program"], "seed": row["seed"], "steps": row["steps"]}
        native = _find(rows, method=FLOAT32, link=UNTHROTTLED, **about)
        if native is not None:
            losses = [loss_after(one["curve"], row["steps"]) for one in (native, row)]
            change = 100 * (losses[1] / losses[0] - 1)
            lines.append(f"| {row['program']} | {losses[0]:.4f} | {losses[1]:.4f} | {change:+.2f} % |")
    return "\n".join(lines)


def table_of_fitted(rows: Sequence[dict[str, Any]]) -> str:
    """Return the last losses of runs whose schedules end with the hook's seconds, as Markdown."""
    lines = [
        "| program | link | seconds | float16: steps, loss | hook: steps, loss | adaptive: steps, seconds, loss |",
        "|" + " --- |" * 6,
    ]
    for hook in rows:
        about = {name: hook[name] for name in ("program", "seed", "link")}
        first, timed = (
            _find(rows, method=method, steps=steps, **about)
            for method, steps in ((ADAPTIVE, hook["steps"]), (FLOAT16, TIMED))
        )
        if hook["method"] != HOOK or first is None or timed is None:
            continue
        adaptive = _find(rows, method=ADAPTIVE, steps=fitting(hook, first["curve"][-1][2] / first["made"]), **about)
        about["link"] = UNTHROTTLED
        float16 = _find(rows, method=FLOAT16, steps=fitting(hook, timed["step_s"]), **about)
        if adaptive is None or float16 is None:
            continue
        cells = [hook["program"], hook["link"], f"{hook['curve'][-1][2]:.0f}"]
        cells += [f"{row['made']}, {row['curve'][-1][1]:.3f}" for row in (float16, hook)]
        last = adaptive["curve"][-1]
        cells.append(f"{adaptive['made']}, {last[2]:.0f}, {last[1]:.3f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def table_of_checked(rows: Sequence[dict[str, Any]]) -> str:
    """Return how float16's factored times compare with runs in full over the link, as Markdown."""
    lines = [
        "| program | link | seconds in full | factored | factored over full | loss at the end: in full, factored |"
    ]
    lines.append("|" + " --- |" * 6)
    for program, link in CHECKED:
        of_program = [row for row in rows if (row["program"], row["method"], row["seed"]) == (program, FLOAT16, 0)]
        timed = _find(of_program, link=link, steps=TIMED)
        full = next((row for row in of_program if row["link"] == link and row["steps"] != TIMED), None)
        if timed is None or full is None:
            continue
        fast = _find(of_program, link=UNTHROTTLED, steps=full["steps"])
        assert fast is not None
        _, loss, seconds = full["curve"][-1]
        factored_s, factored_loss = full["made"] * timed["step_s"], fast["curve"][-1][1]
        times = f"{seconds:.0f} s | {factored_s:.0f} s | {factored_s / seconds:.2f}"
        lines.append(f"| {program} | {link} | {times} | {loss:.4f}, {factored_loss:.4f} |")
    return "\n".join(lines)


def table_of_long(rows: Sequence[dict[str, Any]]) -> str:
    """Return how much longer long adaptive runs took than staying in the hook or outer steps at once, as Markdown.

    The losses to be reached are the lower ones that the two have after ``AT`` of the seconds in which all train.
    """
    lines = [
        "| program | link | losses after so many seconds: hook, outer every 10, adaptive | time over the better | "
        "trials: progress of a step over one of the hook's | ended with |",
        "|" + " --- |" * 6,
    ]
    for row in rows:
        about = {name: row[name] for name in ("program", "seed", "link", "steps")}
        hook, outer = (_find(rows, method=method, **about) for method in (HOOK, OUTER))
        if row["method"] != ADAPTIVE or hook is None or outer is None:
            continue
        others = (hook["curve"], outer["curve"])
        seconds = min(curve[-1][2] for curve in (*others, row["curve"]))
        targets = [min(loss_at(curve, share * seconds) for curve in others) for share in AT]
        losses = " ".join(f"{loss_at(curve, seconds):.3f}" for curve in (*others, row["curve"]))
        over = in_words([ratio(row["curve"], others, target) for target in targets])
        tried = {}
        for _, candidate, reference, measured, error, trials, *_ in row["progress"]:
            tried[candidate] = f"{candidate}: {measured:.2f} ± {error:.2f} of {reference} ({trials})"
        names = f"{row['program']} | {row['link']} | {seconds:.0f} s: {losses}"
        lines.append(f"| {names} | {over} | {'; '.join(tried.values())} | {ended_with(row)} |")
    return "\n".join(lines)


def draw(rows: Sequence[dict[str, Any]], program: str, link: str, path: Path) -> None:
    """Draw loss by seconds of a program's runs as a picture; if the adaptive run made trials, what it believed, too."""
    from matplotlib.figure import Figure

    about = {"program": program, "link": link}
    adaptive = _find(rows, method=ADAPTIVE, **about)
    assert adaptive is not None
    curve, tried = adaptive["curve"], adaptive["beliefs"]
    figure = Figure(figsize=(8, 6 if tried else 3.8), dpi=110, layout="constrained", facecolor="white")
    losses, *others = figure.subplots(2 if tried else 1, 1, sharex=True, squeeze=False).flat
    for method, label in (
        (HOOK, "native=False: the hook alone"),
        (OUTER, "every=10: outer steps from the first step on"),
        (ADAPTIVE, "every=(1, 100), with a probe"),
    ):
        row = _find([row for row in rows if row["steps"] != TIMED], method=method, **about)
        if row is not None:
            losses.plot(*zip(*((seconds, loss) for _, loss, seconds in row["curve"]), strict=True), label=label)
    for axes in (losses, *others):
        for start, end in outer_stretches(adaptive):
            axes.axvspan(seconds_after(curve, start), seconds_after(curve, end), color="C2", alpha=0.1, linewidth=0)
    losses.set_title(f"{program}, {link}; green: the adaptive run made outer steps", loc="left", fontsize=9)
    losses.set_ylabel("validation loss")
    losses.set_ylim(min(loss for _, loss, _ in curve) - 0.05, curve[1][1])
    for axes in others:
        for number, (name, believed) in enumerate(tried.items()):
            points = [(0, *believed)] + [(row[0], *row[6:]) for row in adaptive["progress"] if row[1] == name]
            steps, median, low, high = zip(*points, strict=True)
            seconds, color = [seconds_after(curve, step) for step in steps], f"C{number + 3}"
            axes.plot(seconds, median, color=color, drawstyle="steps-post", label=f"{name}: median, 80 % bounds")
            axes.fill_between(seconds, low, high, color=color, alpha=0.2, step="post")
        axes.set(ylabel="efficiency believed", ylim=(0, 1.1))
    (others or [losses])[-1].set_xlabel("seconds")
    for axes in (losses, *others):
        axes.legend(fontsize=8, frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, format="png")


def outer_stretches(row: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return the first and last steps of each stretch of outer steps."""
    stretches, began = [], None
    for step, _, after, *_ in row["changes"]:
        if after == "outer":
            began = step
        elif began is not None:
            stretches.append((began, step))
            began = None
    return [*stretches, (began, row["made"])] if began is not None else stretches


def seconds_after(curve: Curve, step: float) -> float:
    """Return the seconds after so many steps, linear between evaluations."""
    return interpolated([(steps, seconds) for steps, _, seconds in curve], min(step, curve[-1][0]))


def folder(named: str) -> Path:
    """Return a folder that was named on the command line, wherever the ranks will run."""
    return Path(named).resolve()


def main() -> int:
    parser = parser_of(__doc__, "docs/measurements/programs_links.json")
    parser.add_argument("--nanogpt", type=folder, help="folder of a clone of github.com/karpathy/nanoGPT")
    parser.add_argument("--examples", type=folder, help="folder of a clone of github.com/pytorch/examples")
    parser.add_argument(
        "--programs", nargs="+", help="programs to run, each by the beginning of its name (default: all)"
    )
    parser.add_argument("--links", nargs="+", choices=LINKS, default=LINKS)
    parser.add_argument("--methods", nargs="+", help="methods to run, each by the beginning of its name (default: all)")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=10**9, help="maximum number of steps of a run, to try the program")
    parser.add_argument("--show", nargs=2, metavar=("PROGRAM", "METHOD"), help="print train.py with a method's edits")
    options = parser.parse_args()
    every = programs(options.nanogpt, options.examples)
    chosen = [one for one in every if not options.programs or one.name.startswith(tuple(options.programs))]
    if options.show:
        one = next(one for one in every if one.name == options.show[0])
        assert isinstance(one, NanoGPT)
        print(patched((one.clone / "train.py").read_text(encoding="utf-8"), one.edits(options.show[1], 0)))
        return 0
    book = Book(options.json)
    status = resumable(
        lambda: Measurement(book, chosen, options.links, options.seeds, options.steps).go(
            options.minutes, tuple(options.methods or ("",))
        )
    )
    if cells_of(book.rows):
        parts = (table(book.rows), summary(book.rows), table_of_careful(book.rows))
        parts = (*parts, table_of_fitted(book.rows), table_of_long(book.rows), table_of_checked(book.rows))
        print(*parts, sep="\n\n")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
