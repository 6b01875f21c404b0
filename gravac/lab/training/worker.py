# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""One rank of a session, in a process of its own: ``python -m gravac.lab.training.worker SPEC RANK``.

A session is a list of *legs*: each trains a fresh model with one method. The clock of a leg counts training only:
neither the start (imports, first connection, the copy of the weights) nor evaluation. Rank 0 decides when to evaluate
and when to stop, and says so in one integer a step on a group of its own, sent while the step runs: the same small cost
for every method.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import threading
import time
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.tensorboard import SummaryWriter

from gravac.lab.tasks import make
from gravac.lab.tasks.base import Score, Task
from gravac.lab.training.methods import Exchange, Method, attach, bucket_mb
from gravac.lab.training.session import ALONE, WARM_UP, Leg, Spec, log_folder
from gravac.lab.training.step_clock import Lap, TrainingClock

GO_ON, EVALUATE, STOP = 0, 1, 2

REPORT_SECONDS = 0.25
"""Least time between two progress lines."""


class WorkerReport:
    """Rank 0's account of a leg: JSON lines for the parent, scalars for TensorBoard. Silent on other ranks."""

    def __init__(self, spec: Spec, leg: int, rank: int) -> None:
        self._leg = leg
        self._lines = open(Path(spec.folder, "events.jsonl"), "a") if rank == 0 else None  # noqa: SIM115
        folder = log_folder(spec, spec.legs[leg])
        self._board = SummaryWriter(str(folder)) if rank == 0 and folder is not None else None
        self._last = -math.inf

    def line(self, event: str, **values: Any) -> None:
        """One event, at once."""
        if self._lines:
            self._lines.write(json.dumps({"event": event, "leg": self._leg, **values}) + "\n")
            self._lines.flush()

    def step(self, step: int, clock: float, loss: float, exchange: Exchange | None, samples: int) -> None:
        """Progress after a step; the line is left out when the last one is recent."""
        if self._board:
            self._board.add_scalar("loss/training", loss, step)
        if self._lines and time.monotonic() - self._last >= REPORT_SECONDS:
            self._last = time.monotonic()
            cf, gain = (exchange.cf, exchange.gain) if exchange else (None, None)
            self.line(
                "step", step=step, seconds=clock, loss=loss, cf=cf, gain=gain, samples_per_s=step * samples / clock
            )

    def evaluation(self, step: int, clock: float, metric: float) -> None:
        """The metric, against steps and against the clock (there TensorBoard's "step" is milliseconds)."""
        self.line("evaluation", step=step, seconds=clock, metric=metric)
        if self._board:
            self._board.add_scalar("metric/validation", metric, step)
            self._board.add_scalar("metric/validation_by_milliseconds", metric, round(clock * 1000))

    def compare(self, settings: dict[str, Any], metrics: dict[str, float]) -> None:
        """TensorBoard's hparams page puts runs side by side by these."""
        if self._board:
            self._board.add_hparams(settings, metrics, run_name="hparams")

    def close(self) -> None:
        """Writes what is left."""
        if self._board:
            self._board.close()
        if self._lines:
            self._lines.close()


def train(spec: Spec, index: int, rank: int, control: dist.ProcessGroup) -> None:
    """Trains one leg until its limit or target, on every rank."""
    leg = spec.legs[index]
    task = make(spec.task, scale=spec.scale, seed=spec.seed, data=spec.data)
    alone = leg.method == ALONE
    if alone and rank:
        dist.barrier(group=control)
        return
    workers = 1 if alone else spec.workers
    model = task.model()
    optimizer = task.optimizer(model)
    samples = task.batch_size * workers
    parameters = sum(parameter.numel() for parameter in model.parameters())
    with ExitStack() as stack:
        report = WorkerReport(spec, index, rank)
        stack.callback(report.close)
        trained, exchange = model, None
        if not alone:
            method = Method.parse(leg.method)
            trained = ddp = DistributedDataParallel(model, bucket_cap_mb=bucket_mb(method, parameters))
            exchange = attach(
                method,
                ddp,
                optimizer,
                samples_per_step=samples,
                log_dir=log_folder(spec, leg),
                seed=spec.seed,
                pace=spec.pace,
            )
            stack.callback(exchange.close)
            dist.barrier(group=control)
        report.line("start", parameters=parameters, samples_per_step=samples, batch_size=task.batch_size)
        metric = math.nan
        if leg.evaluates:
            metric = _evaluate(task, model, workers, rank, control)
            report.evaluation(0, 0.0, metric)
        sent_before = _interface_bytes(spec)
        busy_before = time.process_time()
        told = _Word(leg, control, alone)
        clock = TrainingClock()
        laps: list[Lap] = []
        ends = [0.0]
        word = GO_ON
        while word != STOP:
            step = len(laps)
            clock.start()
            told.say(step, ends[-1], laps[-1].seconds if laps else 0.0)
            for group in optimizer.param_groups:
                group["lr"] = task.learning_rate_at(step)
            optimizer.zero_grad()
            batch = task.batch(step, rank)
            clock.inputs_ready()
            loss = task.loss(trained, batch)
            clock.watch(loss)
            loss.backward()  # type: ignore[no-untyped-call]
            clock.exchanged()
            optimizer.step()
            if exchange:
                exchange.stepped()
            word = told.heard()
            laps.append(clock.stop())
            ends.append(ends[-1] + laps[-1].seconds)
            report.step(step + 1, ends[-1], float(loss.detach()), exchange, samples)
            if word != GO_ON and leg.evaluates:
                metric = _evaluate(task, model, workers, rank, control)
                report.evaluation(step + 1, ends[-1], metric)
                told.evaluated(step + 1, ends[-1])
                if leg.target is not None and task.metric.reached(metric, leg.target):
                    word = STOP  # every rank knows the same metric
        used = torch.tensor(
            [time.process_time() - busy_before, _interface_bytes(spec) - sent_before], dtype=torch.float64
        )
        if not alone:
            dist.all_reduce(used, group=control)
        counted = laps[WARM_UP:] or laps
        split = exchange.split() if exchange else None
        report.line(
            "end",
            step=len(laps),
            seconds=ends[-1],
            step_s=statistics.median(lap.seconds for lap in counted),
            steps_s=[round(lap.seconds, 6) for lap in counted],
            cpu_seconds=float(used[0]),
            wire_bytes=exchange.wire_bytes(len(laps), workers) if exchange else 0,
            interface_bytes=round(float(used[1]) / workers) if spec.interface else None,
            gain=exchange.mean_gain() if exchange else None,
            turns=_turns(exchange, ends) if exchange else [],
            split={
                "compute": statistics.median(lap.compute for lap in counted),
                "exposed": statistics.median(lap.exposed for lap in counted),
                "input_wait": statistics.median(lap.input_wait for lap in counted),
                "compress": split[0] if split else None,
                "exchange": split[1] if split else None,
            },
        )
        report.compare(
            {"task": spec.task, "link": spec.link, "method": leg.method, "workers": spec.workers, "seed": spec.seed},
            {"run/metric": metric, "run/seconds": ends[-1], "run/steps": float(len(laps))},
        )
    if alone:
        dist.barrier(group=control)


class _Word:
    """Rank 0's word for each step: go on, evaluate after it, or evaluate and stop."""

    def __init__(self, leg: Leg, control: dist.ProcessGroup, alone: bool) -> None:
        self._leg = leg
        self._control = control
        self._alone = alone
        self._evaluated = (0, 0.0)

    def evaluated(self, step: int, clock: float) -> None:
        self._evaluated = (step, clock)

    def say(self, step: int, clock: float, duration: float) -> None:
        """Decides from the clock as it will stand after this step, should it last as long as the one before."""
        leg, after, then = self._leg, step + 1, clock + duration
        word = GO_ON
        if _past(after, leg.steps) or _past(then, leg.seconds):
            word = STOP
        elif _past(after - self._evaluated[0], leg.every_steps) or _past(then - self._evaluated[1], leg.every_seconds):
            word = EVALUATE
        self._told = torch.tensor([word])
        self._telling = None if self._alone else dist.broadcast(self._told, 0, group=self._control, async_op=True)

    def heard(self) -> int:
        if self._telling is not None:
            self._telling.wait()
        return int(self._told)


def _past(value: float, bound: float | None) -> bool:
    return bound is not None and value >= bound


def _evaluate(task: Task, model: torch.nn.Module, workers: int, rank: int, control: dist.ProcessGroup) -> float:
    """The metric, each rank scoring its share; every rank leaves at the same time, with the same value."""
    score = task.validate(model, rank, workers)
    summed = torch.tensor([score.total, score.count], dtype=torch.float64)
    if workers > 1:
        dist.all_reduce(summed, group=control)
    return task.metric.value(Score(float(summed[0]), int(summed[1])))


def _turns(exchange: Exchange, ends: list[float]) -> list[dict[str, Any]]:
    return [
        {
            "step": turn.step,
            "seconds": ends[min(turn.step, len(ends) - 1)],
            "compressor": turn.compressor,
            "cf": turn.cf,
            "changed": turn.changed,
            "gain": turn.gain if math.isfinite(turn.gain) else None,
            "t_system": turn.t_system,
            "reason": turn.reason,
        }
        for turn in exchange.decisions()
    ]


def _interface_bytes(spec: Spec) -> int:
    """Bytes this rank's network interface sent so far, headers included; 0 without one."""
    if spec.interface is None:
        return 0
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == spec.interface:
            return int(counters.split()[8])
    raise RuntimeError(f"interface {spec.interface!r} is not in /proc/net/dev; run the worker in its namespace")


def _end_with_parent() -> None:
    """The parent holds the other end of standard input; when it is gone, so is the reason to run."""
    while os.read(0, 1):  # not through sys.stdin, whose lock would be held at the interpreter's end
        pass
    os._exit(3)


def main(arguments: list[str]) -> int:
    """Runs one rank: a ``Spec`` as JSON, and the rank."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    spec, rank = Spec.from_json(arguments[0]), int(arguments[1])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{spec.folder}/store",
        rank=rank,
        world_size=spec.workers,
        timeout=timedelta(minutes=10),
    )
    try:
        control = dist.new_group(backend="gloo")
        for index in range(len(spec.legs)):
            train(spec, index, rank, control)
    finally:
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
