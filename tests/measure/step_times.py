# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a step costs: each method's step time over native float32's, where the link costs nothing, or on a slow one.

Two workers, the lab's tasks. Every session trains all methods one after the other, in turns, and each is compared with
float32 of its own session; medians over the sessions, with range.

    python -m tests.measure.step_times [--json FILE] [--sessions N] [--steps N] [--link L] [--tasks T ...]
        [--methods M ...]
"""

import argparse
import random
import statistics
from typing import Any

from gravac.lab.links.link import UNTHROTTLED, Link, parse_link
from gravac.lab.links.network import EmulatedNetwork
from gravac.lab.training.run import TrainingRun, TrainingSettings
from gravac.lab.training.session import Leg
from gravac.lab.tta.runner import finished_legs
from tests.measure.results import write

TASKS = {"charlm": 0.4, "lstm": 1.0, "denoise": 1.0}
"""Scales, those of ``make measure-tta``."""

METHODS = (
    "fp16",
    "torch-powersgd(4)",
    "quantize(8)",
    "quantize(4)",
    "quantize(2)",
    "quantize(1)",
    "topk@10",
    "topkc@10",
    "powersgd(4)@128",
    "goodput:ladder@2-1000",
)

STEPS = 40


def session(task: str, link: Link, methods: list[str], steps: int) -> dict[str, dict[str, float]]:
    """Step time and processor time a step, seconds, by method; after a few steps of float32 to warm up."""
    legs = [Leg("fp32", "warm-up", steps=8), *(Leg(method, method, steps=steps) for method in methods)]
    came: dict[str, dict[str, float]] = {}
    with EmulatedNetwork(2, link) as network:
        settings = TrainingSettings(
            workers=2, link=str(link), lowest_rate_bps=link.lowest_rate_bps, task=task, scale=TASKS[task]
        )
        with TrainingRun(legs, settings, network) as run:
            for finished in finished_legs(run, legs):
                if finished.leg.label != "warm-up":
                    busy = finished.end["cpu_seconds"] / finished.end["step"] / 2
                    came[finished.leg.method] = {"step_s": finished.end["step_s"], "busy_s": busy}
    return came


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--sessions", type=int, default=3)
    parser.add_argument("--steps", type=int, default=STEPS, help="number of steps of each method in a session")
    parser.add_argument("--link", default=UNTHROTTLED)
    parser.add_argument("--tasks", nargs="+", default=tuple(TASKS))
    parser.add_argument("--methods", nargs="+", default=METHODS)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    order = random.Random(0)
    for task in arguments.tasks:
        sessions = []
        for _ in range(arguments.sessions):
            methods = ["fp32", *arguments.methods]
            order.shuffle(methods)
            sessions.append(session(task, parse_link(arguments.link), methods, arguments.steps))
        for method in arguments.methods:
            ratios = [came[method]["step_s"] / came["fp32"]["step_s"] for came in sessions]
            busy = [came[method]["busy_s"] / came["fp32"]["busy_s"] for came in sessions]
            rows.append(
                {
                    "task": task,
                    "link": arguments.link,
                    "method": method,
                    "step_over_fp32": round(statistics.median(ratios), 3),
                    "lowest": round(min(ratios), 3),
                    "highest": round(max(ratios), 3),
                    "processor_over_fp32": round(statistics.median(busy), 3),
                    "sessions": len(sessions),
                }
            )
            print(rows[-1], flush=True)
    write(rows, arguments.json)


if __name__ == "__main__":
    main()
