# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""``gravac demo``: trains a model over a slow link by four methods of exchanging gradients, each for the same time.

1. A few steps over an unthrottled link measure how long a step computes on this machine.
2. The demo takes the link on which the exchange of float16 gradients is about three times as long as that.
3. Each method trains over this link; a comparison of the losses follows, and forecasts for other links.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from gravac.lab.advise import shapes_of
from gravac.lab.demo.display import DemoLive, show_result
from gravac.lab.demo.outcome import LABELS, Comparison, DemoOutcome
from gravac.lab.demo.plot import draw
from gravac.lab.demo.usual_links import StepWork
from gravac.lab.json_file import check_folder_can_be_made, check_writable, write_json
from gravac.lab.links.link import PACED, UNTHROTTLED
from gravac.lab.links.network import MAX_WORKERS, EmulatedNetwork, emulation_obstacle
from gravac.lab.links.rates import format_rate, parse_rate
from gravac.lab.provenance import stamp
from gravac.lab.tasks import make
from gravac.lab.training.run import TrainingRun, TrainingSettings
from gravac.lab.training.session import WARM_UP_STEPS, Leg
from gravac.lab.tta.record import CurvePoint

METHODS = {
    "dense-fp32": "fp32",
    "dense-fp16": "fp16",
    "adaptive": "adaptive",
    "adaptive-100": "adaptive(every=(1, 100))",
}
"""Text of each method to compare, as ``gravac.lab.training.methods`` defines it, by the demo's name for the method."""

CHANGE_FIELDS = ("step", "mode", "compressor", "cf", "every", "delay", "sends", "reason")
"""Fields of a controller's decision that the demo's result keeps, if the decision changed how steps run."""

EVALUATION_SECONDS = 5.0
"""Seconds of training from one evaluation to the next; half of the training time if that is shorter."""

TIMED_STEPS = 9
"""Number of steps whose median is the time that a step computes, after ``WARM_UP_STEPS`` more."""

MAX_TIMING_SECONDS = 20.0
"""Maximum seconds of the steps that are timed first; on a very slow machine, fewer steps are timed."""


@dataclass(frozen=True)
class Demo:
    """Settings of the demo.

    Attributes:
        seconds: training time of each method, 1 to 86400 s.
        workers: number of worker processes, one per rank, 2 to 8.
        rate: bits per second of each worker's link; ``None``: the demo chooses a rate that suits this machine.
        log_dir: folder for TensorBoard logs, without logs of an earlier demo; ``None``: a new folder below
            ``runs/demo``.
        json: file to write the result to; ``None``: no file.
        paced: whether gravac sleeps in each exchange to imitate a slow link, instead of using emulated links.

    Raises:
        ValueError: a setting is wrong, or a file or folder cannot be written. The message names the argument, the
            value and the remedy.
    """

    seconds: float = 60.0
    workers: int = 2
    rate: float | None = None
    log_dir: Path | None = None
    json: Path | None = None
    paced: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.seconds <= 86_400:
            raise ValueError(f"seconds: {self.seconds:g} is outside 1 to 86400 (of training, per method); use 60")
        if not 2 <= self.workers <= MAX_WORKERS:
            raise ValueError(f"workers: {self.workers} is outside 2 to {MAX_WORKERS}; use 2")
        if self.rate is not None:
            parse_rate(self.rate)
        if self.log_dir is not None:
            check_folder_can_be_made("log-dir", self.log_dir)
            logged_methods = [method for method in METHODS if (self.log_dir / method).exists()]
            if logged_methods:
                raise ValueError(
                    f"log-dir: {self.log_dir} contains an earlier run ({logged_methods[0]}); use a new folder"
                )
        if self.json is not None:
            check_writable("json", self.json)


def run_demo(demo: Demo, console: Console | None = None) -> Comparison:
    """Train with each method, one after another; print and return a comparison of their losses.

    Also write a picture of the losses into the folder of logs, and the result as JSON if ``demo.json`` is set.

    Args:
        demo: settings of the demo.
        console: console to print on; ``None``: standard output.

    Raises:
        RunFailed: a worker failed.
        LinkError: the links could not be emulated, although this machine has all that emulation needs.
    """
    console = console or Console()
    pacing_reason = "requested by --paced" if demo.paced else emulation_obstacle()
    paced = pacing_reason is not None
    log_dir = demo.log_dir or Path("runs", "demo", time.strftime("%Y%m%d-%H%M%S"))
    log_dir.mkdir(parents=True, exist_ok=True)
    provenance = stamp()
    step_work = _measure_step(demo.workers, provenance.copy_bytes_per_s, console)
    rate = step_work.suitable_rate if demo.rate is None else demo.rate
    choice_text = step_work.describe_choice(rate, paced, is_given=demo.rate is not None)
    console.print(choice_text, highlight=False, soft_wrap=True)
    _introduce(console, demo, rate, pacing_reason)
    settings = TrainingSettings(workers=demo.workers, link=format_rate(rate), lowest_rate_bps=rate, log_dir=log_dir)
    with ExitStack() as stack:
        network = None if paced else stack.enter_context(EmulatedNetwork(demo.workers, rate))
        progress_display = stack.enter_context(DemoLive(console, demo.seconds, list(METHODS), paced))
        comparison = Comparison(
            tuple(_train(name, demo.seconds, settings, network, progress_display) for name in METHODS)
        )
    plot_path = log_dir / "loss.png"
    link_text = f"{demo.workers} workers at {format_rate(rate)}" + (f" ({PACED})" if paced else "")
    draw(comparison, f"A transformer on Python's source, {link_text}", plot_path)
    if demo.json is not None:
        content = comparison.to_json(rate=rate, workers=demo.workers, paced=paced, log_dir=log_dir)
        head = {"stamp": provenance.model_dump(), "compute_s": step_work.compute_s}
        write_json(demo.json.absolute(), {**head, **content})
    show_result(console, comparison, rate=rate, workers=demo.workers, paced=paced, log_dir=log_dir)
    console.print("\n" + "\n".join(step_work.describe_expectations(rate)), highlight=False, soft_wrap=True)
    return comparison


def _measure_step(workers: int, copy_bytes_per_s: float, console: Console) -> StepWork:
    """Train a few steps over an unthrottled link; return what a step computes and exchanges on this machine.

    Args:
        workers: number of worker processes; all of them compute at the same time, as they do later.
        copy_bytes_per_s: bytes of a tensor / measured seconds of copying the tensor.
        console: console to print on.

    Raises:
        RunFailed: a worker failed.
    """
    console.print(f"Timing a few steps on this machine, with {workers} workers ...", highlight=False)
    settings = TrainingSettings(workers=workers, link=UNTHROTTLED, lowest_rate_bps=None)
    leg = Leg(METHODS["dense-fp32"], "timing", steps=WARM_UP_STEPS + TIMED_STEPS, seconds=MAX_TIMING_SECONDS)
    with TrainingRun([leg], settings, None) as run:
        *_, end_event = run.events()
    shapes = tuple(shapes_of(make(settings.task, scale=settings.scale, seed=settings.seed).model()))
    return StepWork(shapes, end_event["split"]["compute"], workers, copy_bytes_per_s)


def _introduce(console: Console, demo: Demo, rate: float, pacing_reason: str | None) -> None:
    """Print which link and which methods the demo uses, before training starts.

    Args:
        console: console to print on.
        demo: settings of the demo.
        rate: bits per second of each worker's link.
        pacing_reason: why links are not emulated; ``None`` if they are emulated.
    """
    link_text = f"{format_rate(rate)} per worker, {demo.workers} workers"
    if pacing_reason is None:
        console.print(f"Link: {link_text}, in network namespaces shaped by tc.", highlight=False, soft_wrap=True)
    else:
        console.print(f"Link: {link_text}: {PACED} ({pacing_reason}).", highlight=False, soft_wrap=True, markup=False)
    interrupt_effect = "stops the demo and removes the links" if pacing_reason is None else "stops the demo"
    console.print(
        f"Training a character-level transformer on Python's own source, {demo.seconds:g} s with each of these "
        f"methods: {'; '.join(LABELS.values())}. Ctrl-C {interrupt_effect}.",
        highlight=False,
        soft_wrap=True,
    )


def _train(
    method_name: str,
    seconds: float,
    settings: TrainingSettings,
    network: EmulatedNetwork | None,
    progress_display: DemoLive,
) -> DemoOutcome:
    """Train with one method, show the progress, and return the outcome.

    Args:
        method_name: the demo's name for the method, a key of ``METHODS``.
        seconds: training time, in seconds.
        settings: settings of training that are the same for all methods.
        network: emulated network between the workers; ``None`` if links are not emulated.
        progress_display: display of the progress.
    """
    leg = Leg(METHODS[method_name], method_name, seconds=seconds, every_seconds=min(EVALUATION_SECONDS, seconds / 2))
    loss_curve: list[CurvePoint] = []
    outcome = None
    progress_display.show_start(method_name)
    with TrainingRun([leg], settings, network) as run:
        samples_per_step = 0
        for event in run.events():
            progress_display.show_event(method_name, event)
            if event["event"] == "start":
                samples_per_step = event["samples_per_step"]
            elif event["event"] == "evaluation":
                loss_curve.append(CurvePoint(step=event["step"], seconds=event["seconds"], metric=event["metric"]))
            elif event["event"] == "end":
                numbered_decisions = enumerate(event["turns"])
                changing_decisions = [
                    decision for index, decision in numbered_decisions if decision["changed"] or index == 0
                ]
                outcome = DemoOutcome(
                    method=method_name,
                    steps=event["step"],
                    seconds=event["seconds"],
                    samples_per_s=event["step"] * samples_per_step / event["seconds"],
                    wire_bytes=event["wire_bytes"] if event["interface_bytes"] is None else event["interface_bytes"],
                    curve=tuple(loss_curve),
                    cf_path=tuple(
                        {field_name: decision_fields[field_name] for field_name in CHANGE_FIELDS}
                        for decision_fields in changing_decisions
                    ),
                )
    assert outcome is not None  # run.events() yields an event "end", or raises an error
    return outcome
