# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Sessions in which methods train to one loss, one after another in one pair of processes.

The loss to reach is what native DDP has after ``AT`` of its steps. It is taken from a run of its own, by steps, so that
no time of that run counts. Each method trains a fresh model with the session's seed.
"""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gravac.lab.links.link import UNTHROTTLED, parse_link
from gravac.lab.links.network import EmulatedNetwork
from gravac.lab.tasks import make
from gravac.lab.training.run import RunFailed, TrainingRun, TrainingSettings
from gravac.lab.training.session import Leg
from gravac.lab.tta.record import first_reached
from gravac.lab.tta.runner import TARGET_FRACTION, TARGET_HALF_WIDTH, FinishedLeg, finished_legs, target_of
from tests.measure.resuming import Book, Progress

AT = TARGET_FRACTION
"""Share of native's steps at which its loss is the one to reach."""

WORKERS = 2

NATIVE = "fp32"

WARM_UP = Leg(NATIVE, "warm-up", steps=8)

RESAMPLES = 5000


@dataclass(frozen=True)
class Training:
    """What is trained.

    Attributes:
        task: name of a reference task.
        scale: its scale.
        steps: number of native's steps.
    """

    task: str
    scale: float
    steps: int


@dataclass(frozen=True)
class Entrant:
    """A method in a session.

    Attributes:
        method: method in words.
        about: fields of its row that tell it from others in the session.
    """

    method: str
    about: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Goal:
    """When a training ends.

    Attributes:
        target: value of the task's metric to reach.
        limit_s: seconds of training after which it is given up.
        evaluated: number of steps between two evaluations; ``None``: the task's own.
    """

    target: float
    limit_s: float
    evaluated: int | None = None


def settings(training: Training, link: str, seed: int) -> TrainingSettings:
    """Return the settings of a session."""
    parsed = parse_link(link)
    return TrainingSettings(
        workers=WORKERS,
        link=link,
        lowest_rate_bps=parsed.lowest_rate_bps,
        task=training.task,
        scale=training.scale,
        seed=seed,
    )


def ended(training: Training, link: str, seed: int, legs: Sequence[Leg]) -> Iterator[FinishedLeg]:
    """Yield each leg, once it has ended.

    Raises:
        RunFailed: a leg failed; those before it were yielded.
    """
    with (
        EmulatedNetwork(WORKERS, parse_link(link)) as network,
        TrainingRun(legs, settings(training, link, seed), network) as run,
    ):
        yield from finished_legs(run, legs)


def target_row(training: Training, seed: int) -> dict[str, Any]:
    """Train native DDP over an unthrottled link; return the loss that others are to reach."""
    task = make(training.task, scale=training.scale, seed=seed)
    steps = math.ceil((AT + TARGET_HALF_WIDTH) * training.steps)  # no later evaluation counts
    leg = Leg(NATIVE, NATIVE, steps=steps, every_steps=task.steps_per_evaluation)
    (native,) = ended(training, UNTHROTTLED, seed, [leg])
    target = target_of(native.curve, training.steps)
    reached = first_reached(native.curve, target, task.metric.higher_is_better)
    assert reached is not None, f"{training}: native did not reach its own target"
    return {
        "target": target,
        "native_seconds": round(reached[0], 3),
        "native_steps": round(reached[1]),
        "step_s": native.end["step_s"],
    }


def race(training: Training, link: str, seed: int, goal: Goal, entrants: Sequence[Entrant]) -> Iterator[dict[str, Any]]:
    """Train the entrants in this order to the target; yield each one's row. One that fails has a row that says so.

    A link that changes does so from the first step of the first entrant on, so that no warm-up comes before it.

    Args:
        training: what is trained.
        link: link in words.
        seed: seed of weights and batches.
        goal: when an entrant's training ends.
        entrants: methods.
    """
    task = make(training.task, scale=training.scale, seed=seed)
    left = list(entrants)
    before = [WARM_UP] if len(parse_link(link).phases) == 1 else []
    while left:
        legs = list(before)
        legs += [
            Leg(
                one.method,
                one.method,
                seconds=goal.limit_s,
                target=goal.target,
                every_steps=goal.evaluated or task.steps_per_evaluation,
            )
            for one in left
        ]
        running = list(left)
        try:
            for index, finished in enumerate(ended(training, link, seed, legs)):
                if index < len(before):
                    continue
                entrant = running[index - len(before)]
                left.remove(entrant)
                reached = first_reached(finished.curve, goal.target, task.metric.higher_is_better)
                yield row_of(entrant, reached, finished.end)
        except RunFailed as failure:
            failed = left.pop(0)
            yield {
                **dict(failed.about), "method": failed.method, "seconds": goal.limit_s, "reached": False,
                "failed": str(failure)[-400:],
            }  # fmt: skip


def race_into(
    book: Book,
    progress: Progress,
    about: Mapping[str, Any],
    training: Training,
    goal: Goal,
    entrants: Sequence[Entrant],
) -> None:
    """Race the entrants; add a row of each to the file, and say how far the measurement is.

    Args:
        book: the file.
        progress: says how far the measurement is.
        about: fields of the rows: ``part``, ``task``, ``link``, ``seed`` and others.
        training: what is trained.
        goal: when an entrant's training ends.
        entrants: methods, in their order.
    """
    for order, row in enumerate(race(training, about["link"], about["seed"], goal, entrants)):
        book.add({**about, **row, "order": order})
        result = f"{row['seconds']:.1f} s" if row["reached"] else "not reached"
        progress.say(f"{about['part']} {about['task']} {about['link']} seed {about['seed']}: {row['method']}: {result}")


def row_of(entrant: Entrant, reached: tuple[float, float] | None, end: dict[str, Any]) -> dict[str, Any]:
    """Return an entrant's row: seconds to the target, or all it had."""
    return {
        **dict(entrant.about),
        "method": entrant.method,
        "seconds": round(reached[0] if reached else end["seconds"], 4),
        "reached": reached is not None,
        "steps": round(reached[1]) if reached else end["step"],
        "step_s": round(end["step_s"], 5),
        "modes": modes_of(end["turns"], end["step"]),
        "runs": runs_of(end["turns"], end["step"]),
        "changes": [{**change, "seconds": round(change["seconds"], 4)} for change in end["changes"]],
        "interface_bytes": end["interface_bytes"],
    }


def runs_of(turns: Sequence[dict[str, Any]], steps: int) -> dict[str, int]:
    """Return the number of steps for which each candidate ran, by its words."""
    found: dict[str, int] = {}
    ends = [*(one["step"] for one in turns[1:]), steps]
    for turn, after in zip(turns, ends, strict=False):
        words = f"{turn['mode']}, {turn['compressor']} {turn['cf']:.4g}"
        words += f", every {turn['every']}, delay {turn['delay']}" if turn["mode"] == "outer" else ""
        found[words] = found.get(words, 0) + max(0, min(after, steps) - turn["step"])
    return {words: count for words, count in found.items() if count}


def modes_of(turns: Sequence[dict[str, Any]], steps: int) -> dict[str, int]:
    """Return the number of steps in each mode."""
    found: dict[str, int] = {}
    for words, count in runs_of(turns, steps).items():
        mode = words.split(",")[0]
        found[mode] = found.get(mode, 0) + count
    return found


def two_way(logs: Sequence[Sequence[float]], resamples: int = RESAMPLES) -> tuple[float, float, float]:
    """Return a geometric mean with its 95 % interval by a bootstrap over rows and columns at once.

    Args:
        logs: logarithms of ratios, by cell and seed; all cells have the same seeds.
        resamples: number of draws.
    """
    draws = random.Random(0)
    cells, seeds = len(logs), len(logs[0])
    means = []
    for _ in range(resamples):
        columns = draws.choices(range(seeds), k=seeds)
        means.append(
            sum(sum(logs[cell][seed] for seed in columns) for cell in draws.choices(range(cells), k=cells))
            / (cells * seeds)
        )
    means.sort()
    middle = sum(map(sum, logs)) / (cells * seeds)
    low, high = means[int(0.025 * resamples)], means[int(0.975 * resamples)]
    return math.exp(middle), math.exp(low), math.exp(high)
