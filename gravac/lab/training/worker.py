# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""One rank of a session, in a process of its own: ``python -m gravac.lab.training.worker SPEC RANK``.

A session is a list of *legs*: each trains a fresh model with one method. The clock of a leg counts training only:
neither the start (imports, first connection, the copy of the weights) nor evaluation. Rank 0 decides when to evaluate
and when to stop, and says so in one integer a step on a group of its own, sent while the step runs: the same small cost
for every method. That group has interfaces of its own where links are emulated: a command neither waits behind an
exchange nor counts as bytes. Where ranks train apart, what they share is evaluated.
"""

from __future__ import annotations

import copy
import math
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, nullcontext
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from gravac.lab.tasks import make
from gravac.lab.tasks.base import Score, Task
from gravac.lab.training.attach import attach
from gravac.lab.training.exchange import Exchange
from gravac.lab.training.methods import Method
from gravac.lab.training.session import ALONE, WARM_UP, Leg, Spec, log_folder
from gravac.lab.training.step_clock import Lap, TrainingClock
from gravac.lab.training.worker_report import WorkerReport, changes, decisions

IFNAME = "GLOO_SOCKET_IFNAME"
"""Variable of the environment that names gloo's interface."""

GO_ON, EVALUATE, STOP = 0, 1, 2
"""Commands of rank 0 for a step; both but the first have it evaluated."""

MOST = 10
"""Largest number of evaluations put off until nothing travels; then training waits for what does."""


def train(spec: Spec, index: int, rank: int, control: dist.ProcessGroup) -> None:
    """Train one leg until its limit or target; called on every rank.

    Args:
        spec: the session.
        index: the leg's place in ``spec.legs``.
        rank: this rank.
        control: process group of its own for what ranks tell each other about training.
    """
    leg = spec.legs[index]
    alone = leg.method == ALONE
    if rank == 0 or not alone:
        with ExitStack() as stack:
            training = _Training(spec, index, rank, control, stack)
            if leg.evaluates:
                training.evaluate()
            used = _Used(spec)
            command = GO_ON
            while command != STOP:
                command = training.step()
                if leg.evaluates and training.judge(command):
                    command = STOP  # every rank knows the same metric
            training.finish(used)
    if alone:
        dist.barrier(group=control)


class _Training:
    """One leg under way on one rank: a fresh model, what exchanges its gradients, and the clock."""

    def __init__(self, spec: Spec, index: int, rank: int, control: dist.ProcessGroup, stack: ExitStack) -> None:
        self.spec, self.leg, self.rank, self.control = spec, spec.legs[index], rank, control
        alone = self.leg.method == ALONE
        self.workers = 1 if alone else spec.workers
        self.task = make(spec.task, scale=spec.scale, seed=spec.seed, data=spec.data)
        self.model = self.task.model()
        self.evaluated = copy.deepcopy(self.model)  # of earlier states, beside the one that trains
        self.optimizer = self.task.optimizer(self.model)
        self.samples = self.task.batch_size * self.workers
        self.parameters = sum(parameter.numel() for parameter in self.model.parameters())
        self.metric = math.nan
        self.put_off: list[tuple[int, dict[str, torch.Tensor]]] = []
        self.laps: list[Lap] = []
        self.ends = [0.0]
        self.clock = TrainingClock()
        self.commands = _Commands(self.leg, control, alone)
        self.report = WorkerReport(spec, index, rank)
        stack.callback(self.report.close)
        self.exchange: Exchange | None = None
        if not alone:
            self._attach(stack)
        self.report.line(
            "start", parameters=self.parameters, samples_per_step=self.samples, batch_size=self.task.batch_size
        )

    def _attach(self, stack: ExitStack) -> None:
        """Attach the method, and wait for the other ranks."""
        self.exchange = attach(
            Method.parse(self.leg.method),
            self.model,
            self.optimizer,
            samples_per_step=self.samples,
            log_dir=log_folder(self.spec, self.leg),
            seed=self.spec.seed,
            pace=self.spec.pace,
            played=self.leg.played,
        )
        stack.callback(self.exchange.close)
        dist.barrier(group=self.control)

    def step(self) -> int:
        """Train one step; return rank 0's command for what comes next."""
        step = len(self.laps)
        self.clock.step_begins()
        self.commands.send(step, self.ends[-1], self.laps[-1].seconds if self.laps else 0.0)
        for group in self.optimizer.param_groups:
            group["lr"] = self.task.learning_rate_at(step)
        self.optimizer.zero_grad()
        batch = self.task.batch(step, self.rank)
        self.clock.inputs_ready()
        loss = self.task.loss(self.exchange.module if self.exchange else self.model, batch)
        self.clock.watch(loss)
        loss.backward()  # type: ignore[no-untyped-call]
        self.clock.exchanged()
        self.optimizer.step()
        command = self.commands.receive()
        if self.exchange and command == STOP:
            self.exchange.finish()
        elif self.exchange and command == EVALUATE:
            self._put_off(step + 1) if self.exchange.travels else self.exchange.settle()
        self.laps.append(self.clock.stop(self.exchange.exposed if self.exchange else None))
        self.ends.append(self.ends[-1] + self.laps[-1].seconds)
        self.report.step(step + 1, self.ends[-1], float(loss.detach()), self.exchange, self.samples)
        return command

    def _put_off(self, steps: int) -> None:
        """Keep what the ranks share, to evaluate later: what travels must not do so while the clock stands still."""
        assert self.exchange is not None
        if len(self.put_off) == MOST:
            self.exchange.settle()
        self.put_off.append((steps, self.exchange.shared_state()))

    def judge(self, command: int) -> bool:
        """Evaluate what rank 0 commanded, and what was put off; tell whether the target was reached."""
        travels = self.exchange is not None and self.exchange.travels and command != STOP
        if command == EVALUATE:
            self.commands.evaluated(len(self.laps), self.ends[-1])
        if travels and len(self.put_off) <= MOST:
            return False
        if not self.put_off and (command == GO_ON or travels):
            return False
        return self.evaluate(command != GO_ON and not travels)

    def evaluate(self, now: bool = True) -> bool:
        """Take the metric on every rank, of what was put off and of ``now``; tell whether it reached the target."""
        while self.put_off:
            steps, then = self.put_off.pop(0)
            self.evaluated.load_state_dict(then)
            if self._reached(steps, self.evaluated):
                return True
        with self.exchange.shared() if self.exchange else nullcontext():
            return now and self._reached(len(self.laps), self.model)

    def _reached(self, steps: int, model: torch.nn.Module) -> bool:
        self.metric = _evaluate(self.task, model, self.workers, self.rank, self.control)
        self.report.evaluation(steps, self.ends[steps], self.metric)
        return self.leg.target is not None and self.task.metric.reached(self.metric, self.leg.target)

    def finish(self, used: _Used) -> None:
        """Add up over the ranks what the leg used, and report how it ended."""
        spent = used.so_far()
        if self.leg.method != ALONE:
            dist.all_reduce(spent, group=self.control)
        cpu_seconds, interface_bytes = spent.tolist()
        exchange = self.exchange
        # a mean over all steps has the exchanges of all rounds, and no part of a round
        counted = self.laps if exchange and exchange.every is not None else self.laps[WARM_UP:] or self.laps
        self.report.line(
            "end",
            step=len(self.laps),
            seconds=self.ends[-1],
            step_s=_typical(exchange)(lap.seconds for lap in counted),
            steps_s=[round(lap.seconds, 6) for lap in counted],
            cpu_seconds=cpu_seconds,
            wire_bytes=exchange.wire_bytes(len(self.laps), self.workers) if exchange else 0,
            interface_bytes=round(interface_bytes / self.workers) if self.spec.interface else None,
            gain=exchange.mean_gain() if exchange else None,
            every=_every(len(self.laps), exchange),
            turns=decisions(exchange, self.ends) if exchange else [],
            changes=changes(exchange, self.ends) if exchange else [],
            split=_split(counted, exchange),
        )
        spec = self.spec
        self.report.compare(
            {
                "task": spec.task, "link": spec.link, "method": self.leg.method, "workers": spec.workers,
                "seed": spec.seed,
            },
            {"run/metric": self.metric, "run/seconds": self.ends[-1], "run/steps": float(len(self.laps))},
        )  # fmt: skip


class _Commands:
    """Rank 0's command for each step: go on, evaluate after it, or evaluate and stop."""

    def __init__(self, leg: Leg, control: dist.ProcessGroup, alone: bool) -> None:
        self._leg = leg
        self._control = control
        self._alone = alone
        self._evaluated = (0, 0.0)

    def evaluated(self, step: int, clock: float) -> None:
        self._evaluated = (step, clock)

    def send(self, step: int, clock: float, duration: float) -> None:
        """Decide from the clock as it will stand after this step, should it last as long as the one before."""
        leg, after, then = self._leg, step + 1, clock + duration
        command = GO_ON
        if _past(after, leg.steps) or _past(then, leg.seconds):
            command = STOP
        elif _past(after - self._evaluated[0], leg.every_steps) or _past(then - self._evaluated[1], leg.every_seconds):
            command = EVALUATE
        self._command = torch.tensor([command])
        self._sending = None if self._alone else dist.broadcast(self._command, 0, group=self._control, async_op=True)

    def receive(self) -> int:
        if self._sending is not None:
            self._sending.wait()
        return int(self._command)


class _Used:
    """Processor time and interface bytes of this rank since it was made."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._sent = _interface_bytes(spec)
        self._busy = time.process_time()

    def so_far(self) -> torch.Tensor:
        """Return ``(2,)``, float64: processor seconds, and bytes that the network interface sent."""
        busy, sent = time.process_time() - self._busy, _interface_bytes(self._spec) - self._sent
        return torch.tensor([busy, sent], dtype=torch.float64)


def _past(value: float, bound: float | None) -> bool:
    return bound is not None and value >= bound


def _evaluate(task: Task, model: torch.nn.Module, workers: int, rank: int, control: dist.ProcessGroup) -> float:
    """Score a share of the validation data on each rank; return the metric, the same on every rank."""
    score = task.validate(model, rank, workers)
    summed = torch.tensor([score.total, score.count], dtype=torch.float64)
    if workers > 1:
        dist.all_reduce(summed, group=control)
    return task.metric.value(Score(float(summed[0]), int(summed[1])))


def _every(steps: int, exchange: Exchange | None) -> float | None:
    """Mean number of steps from one exchange to the next; ``None`` if each step has its exchange by all means."""
    exchanges = exchange.exchanges() if exchange else None
    return None if exchanges is None else steps / max(1, exchanges)


def _typical(exchange: Exchange | None) -> Callable[[Iterable[float]], float]:
    """Median over steps, or their mean where most of them do not exchange."""
    return statistics.median if exchange is None or exchange.every is None else statistics.fmean


def _split(laps: list[Lap], exchange: Exchange | None) -> dict[str, float | None]:
    """Where a step's time went: seconds over the counted steps."""
    compress, exchanged = exchange.split() if exchange else (None, None)
    typical = _typical(exchange)
    return {
        "compute": typical(lap.compute for lap in laps),
        "exposed": typical(lap.exposed for lap in laps),
        "input_wait": typical(lap.input_wait for lap in laps),
        "compress": compress,
        "exchange": exchanged,
    }


def _interface_bytes(spec: Spec) -> int:
    """Return the bytes that this rank's network interface sent so far, headers included; 0 without one."""
    if spec.interface is None:
        return 0
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == spec.interface:
            return int(counters.split()[8])
    raise RuntimeError(f"interface {spec.interface!r} is not in /proc/net/dev; run the worker in its namespace")


def _control(spec: Spec) -> dist.ProcessGroup:
    """Make the group for commands, over interfaces of its own where there are some."""
    exchanges_over = os.environ.get(IFNAME)
    if spec.control is not None:
        os.environ[IFNAME] = spec.control  # gloo looks it up whenever it makes a group
    try:
        group: dist.ProcessGroup = dist.new_group(backend="gloo")
        return group
    finally:
        if exchanges_over is not None:
            os.environ[IFNAME] = exchanges_over


def _end_with_parent() -> None:
    """End this process when the parent, which holds the other end of standard input, is gone."""
    while os.read(0, 1):  # not through sys.stdin, whose lock would be held at the interpreter's end
        pass
    os._exit(3)


def main(arguments: list[str]) -> int:
    """Run one rank of a session; return the exit status.

    Args:
        arguments: a ``Spec`` as JSON, and the rank.
    """
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
        control = _control(spec)
        for index in range(len(spec.legs)):
            train(spec, index, rank, control)
    finally:
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
