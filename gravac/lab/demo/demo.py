# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""``gravac demo``: trains a model over a slow link by four methods, each for the same time."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from gravac.lab.demo.display import DemoLive, show_result
from gravac.lab.demo.outcome import LABELS, Comparison, DemoOutcome
from gravac.lab.demo.plot import draw
from gravac.lab.json_file import write_json
from gravac.lab.links.link import PACED
from gravac.lab.links.network import MAX_WORKERS, EmulatedNetwork, available
from gravac.lab.links.rates import format_rate, parse_rate
from gravac.lab.provenance import stamp
from gravac.lab.training.run import TrainingRun, TrainingSettings
from gravac.lab.training.session import Leg
from gravac.lab.tta.record import CurvePoint

METHODS = {
    "dense-fp32": "fp32",
    "dense-fp16": "fp16",
    "adaptive": "adaptive",
    "adaptive-100": "adaptive(every=(1, 100))",
}
"""Methods to compare, by the demo's names; see ``gravac.lab.training.methods``."""

CHANGE_FIELDS = ("step", "mode", "compressor", "cf", "every", "delay", "reason")
"""Fields of a decision that the result records, if the decision changed the candidate."""

EVALUATE_SECONDS = 5.0
"""Seconds of training between evaluations; a short run is evaluated twice, besides before training."""


@dataclass(frozen=True)
class Demo:
    """Settings of the demo; wrong values are refused at construction.

    Attributes:
        seconds: training time of each method.
        workers: number of workers, 2 to 8.
        rate: bits per second of each worker's link.
        log_dir: TensorBoard logs; ``None`` makes a new folder below ``runs/demo``.
        json: file for the result; ``None`` writes none.
        paced: whether the exchange slows itself down instead of using emulated links.

    Raises:
        ValueError: names the argument, the value and the remedy.
    """

    seconds: float = 60.0
    workers: int = 2
    rate: float = 100e6
    log_dir: Path | None = None
    json: Path | None = None
    paced: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.seconds <= 86_400:
            raise ValueError(f"seconds: {self.seconds:g} is outside 1 to 86400 (of training, per method); use 60")
        if not 2 <= self.workers <= MAX_WORKERS:
            raise ValueError(f"workers: {self.workers} is outside 2 to {MAX_WORKERS}; use 2")
        parse_rate(self.rate)
        if self.log_dir is not None:
            _check_folder("log-dir", _existing_folder(self.log_dir))
            earlier = [method for method in METHODS if (self.log_dir / method).exists()]
            if earlier:
                raise ValueError(f"log-dir: {self.log_dir} holds an earlier run ({earlier[0]}); use a new folder")
        if self.json is not None:
            if self.json.is_dir():
                raise ValueError(f"json: {self.json} is a folder; name a file in it")
            _check_folder("json", self.json.absolute().parent)


def run_demo(demo: Demo, console: Console | None = None) -> Comparison:
    """Train by every method, one after another; show and return the comparison.

    Args:
        demo: settings of the demo.
        console: console to print on; ``None`` for standard output.

    Raises:
        RunFailed: a worker failed.
        LinkError: making the links failed, although ``available`` could make links.
    """
    console = console or Console()
    reason = "asked for with --paced" if demo.paced else available()
    paced = reason is not None
    log_dir = demo.log_dir or Path("runs", "demo", time.strftime("%Y%m%d-%H%M%S"))
    log_dir.mkdir(parents=True, exist_ok=True)
    _introduce(console, demo, reason)
    provenance = stamp()
    settings = TrainingSettings(workers=demo.workers, link=format_rate(demo.rate), slowest=demo.rate, log_dir=log_dir)
    with ExitStack() as stack:
        network = None if paced else stack.enter_context(EmulatedNetwork(demo.workers, demo.rate))
        live = stack.enter_context(DemoLive(console, demo.seconds, list(METHODS), paced))
        comparison = Comparison(tuple(_train(name, demo.seconds, settings, network, live) for name in METHODS))
    picture = log_dir / "loss.png"
    link = f"{demo.workers} workers at {format_rate(demo.rate)}" + (f" ({PACED})" if paced else "")
    draw(comparison, f"A transformer on Python's source, {link}", picture)
    if demo.json is not None:
        content = comparison.to_json(rate=demo.rate, workers=demo.workers, paced=paced, log_dir=log_dir)
        write_json(demo.json.absolute(), {"stamp": provenance.model_dump(), **content})
    show_result(console, comparison, rate=demo.rate, workers=demo.workers, paced=paced, logs=log_dir)
    return comparison


def _introduce(console: Console, demo: Demo, reason: str | None) -> None:
    """Print a description of the demo; ``reason`` says why no links are emulated, ``None`` if they are."""
    link = f"{format_rate(demo.rate)} per worker, {demo.workers} workers"
    if reason is None:
        console.print(f"Link: {link}, in network namespaces shaped by tc.", highlight=False, soft_wrap=True)
    else:
        console.print(f"Link: {link}: {PACED} ({reason}).", highlight=False, soft_wrap=True, markup=False)
    console.print(
        f"Training a character-level transformer on Python's own source, {demo.seconds:g} s with each of "
        f"{', '.join(LABELS.values())}. Ctrl-C stops and cleans up.",
        highlight=False,
        soft_wrap=True,
    )


def _train(
    name: str, seconds: float, settings: TrainingSettings, network: EmulatedNetwork | None, live: DemoLive
) -> DemoOutcome:
    """Train by one method for a number of seconds, show the progress and return the outcome."""
    leg = Leg(METHODS[name], name, seconds=seconds, every_seconds=min(EVALUATE_SECONDS, seconds / 2))
    curve: list[CurvePoint] = []
    outcome = None
    live.starting(name)
    with TrainingRun([leg], settings, network) as run:
        samples = 0
        for event in run.events():
            live.event(name, event)
            if event["event"] == "start":
                samples = event["samples_per_step"]
            elif event["event"] == "evaluation":
                curve.append(CurvePoint(step=event["step"], seconds=event["seconds"], metric=event["metric"]))
            elif event["event"] == "end":
                decisions = enumerate(event["turns"])
                changes = [decision for index, decision in decisions if decision["changed"] or index == 0]
                outcome = DemoOutcome(
                    method=name,
                    steps=event["step"],
                    seconds=event["seconds"],
                    samples_per_s=event["step"] * samples / event["seconds"],
                    wire_bytes=event["wire_bytes"] if event["interface_bytes"] is None else event["interface_bytes"],
                    curve=tuple(curve),
                    cf_path=tuple({key: change[key] for key in CHANGE_FIELDS} for change in changes),
                )
    assert outcome is not None  # events() ends with an "end" or raises
    return outcome


def _existing_folder(path: Path) -> Path:
    """Return the path itself if it exists, or else its nearest parent that exists."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def _check_folder(argument: str, folder: Path) -> None:
    if not folder.is_dir():
        raise ValueError(f"{argument}: {folder} is not a folder; make it first, or name another")
    if not os.access(folder, os.W_OK):
        raise ValueError(f"{argument}: {folder} is not writable; name another")
