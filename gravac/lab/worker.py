# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""One rank of one training run, in a process of its own: ``python -m gravac.lab.worker SPEC RANK``.

The clock of a run counts training only: neither the start (imports, first connection, the copy of the weights) nor
evaluation. Rank 0 decides when to evaluate and when to stop, and says so in one integer a step on a group of its own,
sent while the step runs: the same small cost for every method.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.tensorboard import SummaryWriter

from gravac.lab.tasks.charlm import CharLM
from gravac.lab.methods import Exchange, attach

GO_ON, EVALUATE, STOP = 0, 1, 2

EVALUATE_SECONDS = 5.0
"""Training time between evaluations; a short run is evaluated twice, besides before training."""

REPORT_SECONDS = 0.25
"""Least time between two progress lines."""

BUCKET_MB = 0.5
"""DDP's bucket size: small, so that the exchange of every method overlaps with backward."""


@dataclass(frozen=True)
class Spec:
    """One run, as plain values: what a worker is told.

    Attributes:
        method: of ``gravac.lab.methods.METHODS``.
        workers: ranks.
        seconds: training time, without evaluation.
        seed: of weights and batches.
        folder: where ranks meet and where rank 0 writes ``events.jsonl``.
        log_dir: TensorBoard logs of this run.
        interface: network interface whose bytes count; ``None`` when there is none of our own.
        pace: bits per second at which our exchange holds itself back; ``None`` on real links.
    """

    method: str
    workers: int
    seconds: float
    seed: int
    folder: str
    log_dir: str
    interface: str | None
    pace: float | None

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Spec:
        """The inverse of ``to_json``."""
        return cls(**json.loads(text))


class Report:
    """Rank 0's account of the run: JSON lines for the parent, scalars for TensorBoard. Silent on other ranks."""

    def __init__(self, spec: Spec, rank: int) -> None:
        self._lines = open(Path(spec.folder, "events.jsonl"), "a") if rank == 0 else None  # noqa: SIM115
        self._board = SummaryWriter(spec.log_dir) if rank == 0 else None
        self._last = -math.inf

    def line(self, event: str, **values: Any) -> None:
        """One event, at once."""
        if self._lines:
            self._lines.write(json.dumps({"event": event, **values}) + "\n")
            self._lines.flush()

    def step(self, step: int, clock: float, loss: float, exchange: Exchange, samples: int) -> None:
        """Progress after a step; the line is left out when the last one is recent."""
        if self._board:
            self._board.add_scalar("loss/training", loss, step)
        if self._lines and time.monotonic() - self._last >= REPORT_SECONDS:
            self._last = time.monotonic()
            rate = step * samples / clock
            self.line(
                "step", step=step, seconds=clock, loss=loss, cf=exchange.cf, gain=exchange.gain, samples_per_s=rate
            )

    def evaluation(self, step: int, clock: float, loss: float) -> None:
        """The validation loss, against steps and against the clock (there TensorBoard's "step" is milliseconds)."""
        self.line("evaluation", step=step, seconds=clock, val_loss=loss)
        if self._board:
            self._board.add_scalar("loss/validation", loss, step)
            self._board.add_scalar("loss/validation_by_milliseconds", loss, round(clock * 1000))

    def close(self) -> None:
        """Writes what is left."""
        if self._board:
            self._board.close()
        if self._lines:
            self._lines.close()


def train(spec: Spec, rank: int) -> None:
    """Trains until rank 0's clock says stop. Call it once the default process group exists."""
    task = CharLM(seed=spec.seed)
    model = task.model()
    optimizer = task.optimizer(model)
    samples = task.batch_size * spec.workers
    control = dist.new_group(backend="gloo")
    with ExitStack() as stack:
        report = Report(spec, rank)
        stack.callback(report.close)
        ddp = DistributedDataParallel(model, bucket_cap_mb=BUCKET_MB)
        exchange = attach(
            spec.method, ddp, optimizer, samples_per_step=samples, log_dir=Path(spec.log_dir), pace=spec.pace
        )
        stack.callback(exchange.close)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        report.line("start", parameters=parameters, samples_per_step=samples)
        report.evaluation(0, 0.0, _evaluate(task, model, spec.workers, rank, control))
        sent_before = _sent(spec, exchange)
        between = min(EVALUATE_SECONDS, spec.seconds / 2)
        step, clock, duration, evaluate_at, word = 0, 0.0, 0.0, between, GO_ON
        while word != STOP:
            began = time.perf_counter()
            if clock + duration >= spec.seconds:
                word = STOP
            elif clock + duration >= evaluate_at:
                word = EVALUATE
            else:
                word = GO_ON
            told = torch.tensor([word])
            telling = dist.broadcast(told, src=0, group=control, async_op=True)
            for group in optimizer.param_groups:
                group["lr"] = task.learning_rate_at(step)
            optimizer.zero_grad()
            loss = task.loss(ddp, task.batch(step, rank))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            exchange.stepped()
            telling.wait()
            word = int(told)
            duration = time.perf_counter() - began
            clock += duration
            step += 1
            report.step(step, clock, float(loss.detach()), exchange, samples)
            if word != GO_ON:
                evaluate_at = clock + between
                report.evaluation(step, clock, _evaluate(task, model, spec.workers, rank, control))
        sent = torch.tensor([float(_sent(spec, exchange) - sent_before)], dtype=torch.float64)
        dist.all_reduce(sent, group=control)
        path = [asdict(turn) for turn in exchange.path()]
        report.line("end", step=step, seconds=clock, wire_bytes=round(float(sent) / spec.workers), cf_path=path)


def _evaluate(task: CharLM, model: torch.nn.Module, workers: int, rank: int, control: dist.ProcessGroup) -> float:
    """Validation loss, each rank its share; every rank leaves at the same time."""
    score = torch.tensor(task.validate(model, rank, workers), dtype=torch.float64)
    dist.all_reduce(score, group=control)
    return float(score[0] / score[1])


def _sent(spec: Spec, exchange: Exchange) -> int:
    """Bytes this rank sent so far: by its network interface, headers included; without one, by our ledger."""
    if spec.interface is None:
        return exchange.wire_bytes or 0
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
        train(spec, rank)
    finally:
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
