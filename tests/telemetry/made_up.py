# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A made-up run of 600 steps whose CF goes 10, 20, 40, 160, 40: what the sinks' tests and pictures are fed with."""

import math
import random
from collections.abc import Iterator

from gravac.candidate import Candidate, Dropped, Forecast, describe_exchange
from gravac.measurement import AGREED_NAMES
from gravac.telemetry import DecisionRecord, EndRecord, Record, RunRecord, StepRecord, page

CF_FROM = {0: 10.0, 60: 20.0, 140: 40.0, 260: 160.0, 420: 40.0}
GAIN = {10.0: 0.93, 20.0: 0.88, 40.0: 0.81, 160.0: 0.55}
SETTINGS: dict[str, str | int | float | bool] = {
    "compressor": "topk",
    "controller": "gravac",
    "controller.window": 20,
    "controller.epsilon": 0.7,
    "controller.paper_literal": False,
    "release": math.inf,
}

CHARTED = {tag.removesuffix("$") for charts in page.LAYOUT.values() for _, tags in charts.values() for tag in tags}
AGREED_IN_CHARTS = {name: 0.003 for name in AGREED_NAMES if page.STEP_TAGS.get(name) in CHARTED}
"""A number that ranks agree on needs points, if there is a chart of it."""


def topk(cf: float) -> Candidate:
    """Top-k in each step."""
    return Candidate("hook", "topk", cf, sends=describe_exchange(f"topk {cf:g}x", cf / 1.8))


DENSE = Forecast(Candidate("hook", "dense", 1.0, sends="dense float32"), 1.0, method="dense float32")
FORECASTS = (
    DENSE,
    *(Forecast(topk(cf), cf / 1.8, 0.9, "topk", ((0.0, 0.5), (1.0, 1.0)), method=f"topk {cf:g}x") for cf in GAIN),
)
FEW = Forecast(topk(2.0), 0.9, coding_s=0.004, exchange_s=0.01, method="topk 2x")
DROPPED = (
    Dropped(FEW, "not_fewer_bytes", DENSE, 1 / 0.9),
    Dropped(Forecast(topk(320.0), FORECASTS[-1].wire_ratio, method="topk 320x"), "same_bytes", FORECASTS[-1], 1.0),
)


def cf_at(step: int) -> float:
    """CF that runs in a step of the made-up run."""
    return next(cf for start, cf in reversed(CF_FROM.items()) if start <= step)


def make_step(step: int, cf: float = 10.0, gain: float | None = 0.9, seconds: float = 0.1) -> StepRecord:
    """A step of 64 samples; 6.4 MB dense on a link of 12.5 MB/s."""
    wire = int(1.8 * 6_400_000 / cf) + 40_000
    t_system = 64 / seconds
    return StepRecord(
        step=step,
        compressor="topk",
        cf=cf,
        achieved_cf=0.98 * cf,
        gain=gain,
        wire_ratio=6_400_000 / wire,
        payload_bytes=wire // 2,
        wire_bytes=wire,
        dense_wire_bytes=6_400_000,
        seconds=seconds,
        compute_seconds=0.09,
        compress_seconds=0.02,
        exchange_seconds=wire / 12.5e6,
        input_wait_seconds=0.002,
        t_system=t_system,
        t_compression=None if gain is None else t_system * gain,
        shadow=((20.0, 0.8), (40.0, 0.7)),
        **AGREED_IN_CHARTS,
    )


def make_run(steps: int = 600) -> Iterator[Record]:
    """All records of the made-up run, in the order a run gives them."""
    noise = random.Random(0)
    yield RunRecord(SETTINGS, 2, FORECASTS, DROPPED)
    gains: list[float] = []
    for step in range(steps):
        cf = cf_at(step)
        gains.append(GAIN[cf] + noise.gauss(0, 0.02))
        seconds = math.nan if step == 0 else 0.1 + 0.4 / cf + abs(noise.gauss(0, 0.003))
        yield make_step(step, cf, gains[-1], seconds)
        if (step + 1) % 20 == 0 and step + 1 < steps:
            chosen = cf_at(step + 1)
            gain = sum(gains) / len(gains)
            verdict = {True: "above ε 0.70: try the next", False: "T_compression within ω of the best"}[chosen > cf]
            yield DecisionRecord(
                step=step + 1,
                compressor="topk",
                cf=chosen,
                changed=chosen != cf,
                gain=gain,
                gain_low=min(gains),
                gain_high=max(gains),
                t_system=64 / (0.1 + 0.4 / cf),
                t_compression=gain * 64 / (0.1 + 0.4 / cf),
                phase="explore" if step < 300 else "exploit",
                reason=f"gain {gain:.2f}, {verdict}",
                sends=topk(chosen).sends,
            )
            gains = []
    yield EndRecord(steps, {"steps": float(steps), "wire_ratio": 17.9, "gain": 0.81, "cf": 40.0, "tta": math.nan})
