# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""One rank of a session, in a process of its own: ``python -m gravac.lab.training.worker SPEC RANK``.

A session is a list of *legs*: each trains a fresh model with one method. The clock of a leg counts training only:
neither the start (imports, first connection, the copy of the weights) nor evaluation.

Rank 0 decides when to evaluate and when to stop. While a step runs, rank 0 broadcasts its command, an integer, over a
separate process group: the same small cost for every method. On emulated links that group has separate interfaces, so a
command neither waits for an exchange nor counts as bytes. With local steps, the ranks evaluate the weights that they
share.
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
"""Commands of rank 0 for a step; after ``EVALUATE`` and ``STOP`` the ranks evaluate the model."""

MAX_POSTPONED = 10
"""Maximum number of evaluations postponed while an exchange is in flight; then training waits for the exchange."""


def train(spec: Spec, index: int, rank: int, control: dist.ProcessGroup) -> None:
    """Train one leg until its limit or target; call it on every rank.

    Args:
        spec: specification of the session.
        index: index of the leg in ``spec.legs``.
        rank: rank of this process.
        control: separate process group for rank 0's commands and for metrics.
    """
    leg = spec.legs[index]
    alone = leg.method == ALONE
    if rank == 0 or not alone:
        with ExitStack() as stack:
            training = _Training(spec, index, rank, control, stack)
            if leg.evaluates:
                training.evaluate()
            usage = _Usage(spec)
            command = GO_ON
            while command != STOP:
                command = training.step()
                if leg.evaluates and training.judge(command):
                    command = STOP  # on every rank, since all have the same metric
            training.finish(usage)
    if alone:
        dist.barrier(group=control)


class _Training:
    """The training of one leg on one rank: a fresh model, the attached method, and the clock."""

    def __init__(self, spec: Spec, index: int, rank: int, control: dist.ProcessGroup, stack: ExitStack) -> None:
        self.spec, self.leg, self.rank, self.control = spec, spec.legs[index], rank, control
        alone = self.leg.method == ALONE
        self.workers = 1 if alone else spec.workers
        self.task = make(spec.task, scale=spec.scale, seed=spec.seed, data=spec.data)
        self.model = self.task.model()
        self.evaluated = copy.deepcopy(self.model)  # a second model, to evaluate earlier states
        self.optimizer = self.task.optimizer(self.model)
        self.samples = self.task.batch_size * self.workers
        self.parameters = sum(parameter.numel() for parameter in self.model.parameters())
        self.metric = math.nan
        self.postponed: list[tuple[int, dict[str, torch.Tensor]]] = []  # number of steps, shared state
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
        """Train one step; return rank 0's command after the step."""
        step = len(self.laps)
        self.clock.step_begins()
        self.commands.send(step, self.ends[-1], self.laps[-1].seconds if self.laps else 0.0)
        for group in self.optimizer.param_groups:
            group["lr"] = self.task.learning_rate_at(step)
        self.optimizer.zero_grad()
        batch = self.task.batch(step, self.rank)
        self.clock.inputs_ready()
        loss = self.task.loss(self.exchange.module if self.exchange else self.model, batch)
        self.clock.watch_backward(loss)
        loss.backward()  # type: ignore[no-untyped-call]
        self.clock.exchanged()
        self.optimizer.step()
        command = self.commands.receive()
        if self.exchange and command == STOP:
            self.exchange.finish()
        elif self.exchange and command == EVALUATE:
            self._postpone(step + 1) if self.exchange.in_flight else self.exchange.settle()
        self.laps.append(self.clock.stop(self.exchange.exposed if self.exchange else None))
        self.ends.append(self.ends[-1] + self.laps[-1].seconds)
        self.report.step(step + 1, self.ends[-1], float(loss.detach()), self.exchange, self.samples)
        return command

    def _postpone(self, steps: int) -> None:
        """Copy the ranks' shared state to evaluate it later: no exchange may progress while the clock stands still."""
        assert self.exchange is not None
        if len(self.postponed) == MAX_POSTPONED:
            self.exchange.settle()
        self.postponed.append((steps, self.exchange.shared_state()))

    def judge(self, command: int) -> bool:
        """Evaluate as rank 0 commanded, and postponed states unless an exchange is in flight.

        Args:
            command: rank 0's command after the step.

        Returns:
            Whether the target was reached.
        """
        in_flight = self.exchange is not None and self.exchange.in_flight and command != STOP
        if command == EVALUATE:
            self.commands.evaluated(len(self.laps), self.ends[-1])
        if in_flight and len(self.postponed) <= MAX_POSTPONED:
            return False
        if not self.postponed and (command == GO_ON or in_flight):
            return False
        return self.evaluate(command != GO_ON and not in_flight)

    def evaluate(self, current: bool = True) -> bool:
        """Evaluate postponed states, and with ``current`` the current state; return whether a state is at the target.

        Called on every rank; the metric is the same on every rank.
        """
        while self.postponed:
            steps, state = self.postponed.pop(0)
            self.evaluated.load_state_dict(state)
            if self._reached(steps, self.evaluated):
                return True
        with self.exchange.shared() if self.exchange else nullcontext():
            return current and self._reached(len(self.laps), self.model)

    def _reached(self, steps: int, model: torch.nn.Module) -> bool:
        """Evaluate a model and report the metric; return whether the metric reached the target."""
        self.metric = _evaluate(self.task, model, self.workers, self.rank, self.control)
        self.report.evaluation(steps, self.ends[steps], self.metric)
        return self.leg.target is not None and self.task.metric.reached(self.metric, self.leg.target)

    def finish(self, usage: _Usage) -> None:
        """Sum the leg's usage over the ranks, and report the leg's results."""
        used = usage.so_far()
        if self.leg.method != ALONE:
            dist.all_reduce(used, group=self.control)
        cpu_seconds, interface_bytes = used.tolist()
        exchange = self.exchange
        # for methods with local steps all steps count: their mean has each round's exchange, and no partial round
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
            every=_mean_every(len(self.laps), exchange),
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
    """Rank 0's command for each step: go on, evaluate after the step, or evaluate and stop."""

    def __init__(self, leg: Leg, control: dist.ProcessGroup, alone: bool) -> None:
        self._leg = leg
        self._control = control
        self._alone = alone
        self._evaluated = (0, 0.0)

    def evaluated(self, step: int, clock: float) -> None:
        self._evaluated = (step, clock)

    def send(self, step: int, clock: float, duration: float) -> None:
        """Decide on the command for a step, and start to broadcast it.

        Args:
            step: number of the step, from 0 on.
            clock: training seconds before the step.
            duration: expected seconds of the step: those of the previous step.
        """
        leg, steps, seconds = self._leg, step + 1, clock + duration
        evaluated_steps, evaluated_seconds = self._evaluated
        command = GO_ON
        if _reaches(steps, leg.steps) or _reaches(seconds, leg.seconds):
            command = STOP
        elif _reaches(steps - evaluated_steps, leg.every_steps) or _reaches(
            seconds - evaluated_seconds, leg.every_seconds
        ):
            command = EVALUATE
        self._command = torch.tensor([command])
        self._sending = None if self._alone else dist.broadcast(self._command, 0, group=self._control, async_op=True)

    def receive(self) -> int:
        if self._sending is not None:
            self._sending.wait()
        return int(self._command)


class _Usage:
    """Processor time and interface bytes of this rank since the object was made."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._initial_bytes = _interface_bytes(spec)
        self._initial_seconds = time.process_time()

    def so_far(self) -> torch.Tensor:
        """Return ``(2,)``, float64: processor seconds, and bytes that the network interface sent."""
        seconds = time.process_time() - self._initial_seconds
        sent = _interface_bytes(self._spec) - self._initial_bytes
        return torch.tensor([seconds, sent], dtype=torch.float64)


def _reaches(amount: float, bound: float | None) -> bool:
    return bound is not None and amount >= bound


def _evaluate(task: Task, model: torch.nn.Module, workers: int, rank: int, control: dist.ProcessGroup) -> float:
    """Evaluate a shard of the validation data on each rank; return the metric, the same on every rank."""
    score = task.validate(model, rank, workers)
    summed = torch.tensor([score.total, score.count], dtype=torch.float64)
    if workers > 1:
        dist.all_reduce(summed, group=control)
    return task.metric.compute(Score(float(summed[0]), int(summed[1])))


def _mean_every(steps: int, exchange: Exchange | None) -> float | None:
    """Return the mean number of steps from one exchange to the next; ``None`` if the method exchanges in every step."""
    exchanges = exchange.exchanges() if exchange else None
    return None if exchanges is None else steps / max(1, exchanges)


def _typical(exchange: Exchange | None) -> Callable[[Iterable[float]], float]:
    """Return the function for a typical step: the median, or the mean for methods with local steps."""
    return statistics.median if exchange is None or exchange.every is None else statistics.fmean


def _split(laps: list[Lap], exchange: Exchange | None) -> dict[str, float | None]:
    """Return the seconds of each phase of a typical step."""
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
    """Return the bytes that this rank's network interface sent so far, headers included; 0 without an interface."""
    if spec.interface is None:
        return 0
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == spec.interface:
            return int(counters.split()[8])
    raise RuntimeError(f"interface {spec.interface!r} is not in /proc/net/dev; run the worker in its namespace")


def _control(spec: Spec) -> dist.ProcessGroup:
    """Make the group for commands, over separate interfaces if the session has them."""
    exchange_interface = os.environ.get(IFNAME)
    if spec.control is not None:
        os.environ[IFNAME] = spec.control  # gloo reads the variable whenever it makes a group
    try:
        group: dist.ProcessGroup = dist.new_group(backend="gloo")
        return group
    finally:
        if exchange_interface is not None:
            os.environ[IFNAME] = exchange_interface


def _end_with_parent() -> None:
    """End this process when the parent, which has the other end of standard input, ended."""
    while os.read(0, 1):  # not sys.stdin, whose lock this thread would hold when the interpreter ends
        pass
    os._exit(3)


def main(arguments: list[str]) -> int:
    """Run one rank of a session; return the exit status.

    Args:
        arguments: a ``Spec`` as JSON, then the rank.
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
