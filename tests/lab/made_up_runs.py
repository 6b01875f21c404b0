# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Records of runs that were never made: what the report is tried with."""

from __future__ import annotations

import math
import random
from typing import Any

from gravac.lab.tta.record import CurvePoint, DecisionPoint, Split, TrainingRecord

DENSE_BYTES = 8_000_000
"""A step of float32 over the wire."""

NATIVE = {"fp32": 1.0, "fp16": 2.0, "bf16": 2.0, "torch-powersgd(4)": 60.0}

TASKS = {
    "charlm": ("validation loss in nats a character", False, 4.2, 1.4, 1.75, 0.12),
    "cifar-resnet": ("test accuracy in %", True, 10.0, 93.0, 88.0, 0.25),
    "denoise": ("validation PSNR in dB", True, 14.6, 29.5, 28.6, 0.18),
}
"""Name: metric, whether higher is better, where it starts, where it ends, target, seconds of compute a step."""

METHODS = {
    "fp32": (1.0, 1.0, 0.0),
    "fp16": (2.0, 1.0, 0.02),
    "bf16": (2.0, 1.03, 0.02),
    "torch-powersgd(4)": (60.0, 1.25, 0.1),
    "quantize(8)": (4.0, 1.0, 0.05),
    "quantize(2)": (15.0, 1.15, 0.05),
    "topk@10": (5.0, 1.08, 0.2),
    "topkc@10": (10.0, 1.05, 0.12),
    "topk@1000": (500.0, 2.6, 0.2),
    "gravac:topk": (120.0, 1.18, 0.2),
    "gravac:ladder@2-1000": (90.0, 1.04, 0.1),
    "literal:topk@10-1000": (40.0, 1.3, 0.25),
}
"""Name: wire ratio, steps relative to fp32, compression's share of compute."""

RATES = {"10mbit": 1e7, "100mbit": 1e8, "1gbit,30s:50mbit": 4e8, "unthrottled": 2e10}


def made_up(method: str = "fp16", seed: int = 0, **given: Any) -> TrainingRecord:
    """One short run that took 20 s; fields as given."""
    tta = given.get("tta_s", 20.0)
    fields: dict[str, Any] = {
        "task": "charlm",
        "scale": 1.0,
        "link": "100mbit",
        "workers": 2,
        "method": method,
        "adaptive": method.startswith(("gravac:", "literal:")),
        "seed": seed,
        "metric": "validation loss in nats a character",
        "higher_is_better": False,
        "target": 1.75,
        "tta_s": tta,
        "steps_to_target": None if tta is None else 100,
        "seconds": 24.0,
        "limit_s": None,
        "steps": 120,
        "step_s": 0.2,
        "samples_per_s": 320.0,
        "efficiency": 0.8,
        "wire_bytes": 120 * DENSE_BYTES // int(NATIVE.get(method, 10)),
        "interface_bytes": None,
        "cpu_seconds": 40.0,
        "gain": None if method in NATIVE else 0.9,
        "val_metric": 1.7,
        "curve": tuple(CurvePoint(step=s, seconds=s / 5, metric=4.0 - 0.0225 * s) for s in range(0, 121, 20)),
        "turns": (),
        "split": Split(compute=0.15, compress=None, exchange=None, exposed=0.04, input_wait=0.01),
        "paced": False,
        "factored": False,
    }
    return TrainingRecord(**(fields | given))


def realistic(task: str, link: str, method: str, seed: int) -> TrainingRecord:
    """A run as long and as noisy as real ones."""
    chance = random.Random(f"{task} {link} {method} {seed}")
    metric, higher, start, end, target, compute = TASKS[task]
    ratio, steps_factor, share = METHODS[method]
    dense_bytes = DENSE_BYTES * (1 + 2 * list(TASKS).index(task))
    exchange = 8 * dense_bytes / ratio / RATES[link]
    exposed = max(0.02 * compute, exchange - 0.4 * compute)
    step_s = (compute * (1 + 0.5 * share) + exposed + 0.01) * chance.uniform(0.97, 1.03)
    pace = 500 * steps_factor * chance.uniform(0.94, 1.06)
    curve, steps, reached = [], 0, None
    budget = 3200
    while steps <= budget:
        level = start + (end - start) * (1 - math.exp(-steps / pace)) + chance.gauss(0, abs(end - start) * 0.004)
        curve.append(CurvePoint(step=steps, seconds=steps * step_s, metric=level))
        if reached is None and steps and (level >= target if higher else level <= target):
            reached = steps - 50
            budget = min(budget, steps + 300)
        if steps * step_s > 900:
            break
        steps += 100
    steps = curve[-1].step
    ours = method not in NATIVE
    adaptive = method.startswith(("gravac:", "literal:"))
    return made_up(
        method,
        seed,
        task=task,
        link=link,
        metric=metric,
        higher_is_better=higher,
        target=target,
        tta_s=None if reached is None else reached * step_s,
        steps_to_target=reached,
        seconds=steps * step_s,
        limit_s=900.0,
        steps=steps,
        step_s=step_s,
        samples_per_s=128 / step_s,
        efficiency=compute / step_s,
        wire_bytes=int(steps * dense_bytes / ratio),
        gain=chance.uniform(0.8, 0.97) if ours else None,
        val_metric=curve[-1].metric,
        curve=tuple(curve),
        turns=_turns(method, steps, step_s, chance) if adaptive else (),
        split=Split(
            compute=compute,
            compress=share * compute if ours else None,
            exchange=exchange if ours else None,
            exposed=exposed,
            input_wait=0.01,
        ),
        paced=link == "1gbit,30s:50mbit",
        factored=link == "10mbit",
    )


def _turns(method: str, steps: int, step_s: float, chance: random.Random) -> tuple[DecisionPoint, ...]:
    ladder = (2.0, 10.0, 31.6, 100.0, 316.0, 1000.0)
    rung, turns = 0, []
    for step in range(0, steps, max(1, steps // 25)):
        gain = None if step == 0 else chance.uniform(0.6, 1.0) - 0.05 * rung
        move = 1 if step == 0 or (gain or 0) > 0.72 else -1 if (gain or 0) < 0.55 else 0
        was, rung = rung, min(max(rung + move, 0), len(ladder) - 1)
        turns.append(
            DecisionPoint(
                step=step,
                seconds=step * step_s,
                compressor=f"topk@{ladder[rung]:g}",
                cf=ladder[rung],
                changed=rung != was,
                gain=gain,
                t_system=None if gain is None else 128 / step_s,
                reason=f"{method}: gain {gain or 0:.2f} of θ 0.72 < ε: CF {ladder[was]:g} to {ladder[rung]:g}",
            )
        )
    return tuple(turns)


def everything(seeds: int = 2) -> list[TrainingRecord]:
    """Three tasks on four links, twelve methods each."""
    return [realistic(t, k, m, s) for t in TASKS for k in RATES for m in METHODS for s in range(seeds)]
