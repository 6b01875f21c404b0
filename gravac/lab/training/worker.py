# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Runs one rank of a session, in a process of its own: ``python -m gravac.lab.training.worker SPEC RANK``.

A session trains one or more *legs*, one after another. Each leg trains a fresh model with one method of exchanging
gradients. The clock of a leg counts the time of training steps only. The start of the leg (imports, first connection,
copy of the weights) and evaluations are not counted.

Rank 0 decides when all ranks evaluate the model and when they stop. While a step runs, rank 0 broadcasts its command
for the end of the step, an integer, over a separate process group. The broadcast takes the same short time with every
method. On emulated links the separate group has its own network interfaces. So commands do not wait for an exchange of
gradients, and the bytes of commands are not counted. With a method of local steps (local SGD, DiLoCo, outer steps), the
ranks evaluate the weights that they share.

On a mesh, legs train a model in shards (``sharded.py``). The ranks of a replica evaluate the same validation data,
because the forward of a replica needs all its ranks.
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
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from gravac.lab.links.pauses import imitate_link
from gravac.lab.mesh import Mesh, parse_mesh
from gravac.lab.tasks import make
from gravac.lab.tasks.base import Score
from gravac.lab.training.attach import attach
from gravac.lab.training.exchange import Exchange
from gravac.lab.training.methods import Method
from gravac.lab.training.session import WARM_UP_STEPS, Leg, SessionSpec, log_folder
from gravac.lab.training.sharded import device_mesh, reduce_dtype, shard
from gravac.lab.training.step_clock import StepTimes, TrainingClock
from gravac.lab.training.worker_report import WorkerReport, decisions_as_json

INTERFACE_VARIABLE = "GLOO_SOCKET_IFNAME"
"""Name of the environment variable that tells gloo which network interface to use."""

CONTINUE, EVALUATE, STOP = 0, 1, 2
"""Rank 0's commands after a step: train the next step; evaluate, then train the next step; or evaluate, then stop."""

MAX_POSTPONED = 10
"""Maximum number of evaluations that are postponed because an exchange is in flight.

When another evaluation is due, training waits for the exchange. Then the ranks evaluate the copies of the weights that
they stored, one for each postponed evaluation.
"""


@dataclass(frozen=True)
class _ProcessGroups:
    """Process groups of a session.

    Attributes:
        control_group: process group of all ranks for rank 0's commands and for metrics, separate from that of the
            gradients.
        device_mesh: mesh on which legs train a model in shards; ``None``: legs train with DDP, without shards.
    """

    control_group: dist.ProcessGroup
    device_mesh: DeviceMesh | None


def train(spec: SessionSpec, leg_index: int, rank: int, groups: _ProcessGroups) -> None:
    """Train one leg until a limit of steps or seconds, or the leg's target, is reached; called on all ranks.

    Args:
        spec: specification of the session.
        leg_index: index of the leg in ``spec.legs``.
        rank: rank of this process.
        groups: process groups of the session.
    """
    leg = spec.legs[leg_index]
    with ExitStack() as stack:
        training = _Training(spec, leg_index, rank, groups, stack)
        if leg.evaluates:
            training.evaluate()
        resource_use = _ResourceUse(spec)
        command = CONTINUE
        while command != STOP:
            command = training.step()
            if leg.evaluates and training.evaluate_if_due(command):
                command = STOP  # on all ranks, since all have the same metric
        training.report_results(resource_use)


class _Training:
    """The training of one leg on one rank: a fresh model, its attached method, and a clock.

    Args:
        spec: specification of the session.
        leg_index: index of the leg in ``spec.legs``.
        rank: rank of this process.
        groups: process groups of the session.
        stack: stack to which the constructor adds functions that close the leg's files and end its threads.
    """

    def __init__(self, spec: SessionSpec, leg_index: int, rank: int, groups: _ProcessGroups, stack: ExitStack) -> None:
        self.spec, self.leg, self.rank, self.control_group = spec, spec.legs[leg_index], rank, groups.control_group
        self.workers, self.mesh = spec.workers, _mesh_of(spec)
        self.task = make(spec.task, scale=spec.scale, seed=spec.seed, data=spec.data)
        self.model = self.task.model()
        self.evaluation_model = copy.deepcopy(self.model)  # loads a postponed state, to evaluate it
        if self.mesh is not None and groups.device_mesh is not None:
            for model in (self.model, self.evaluation_model):
                shard(self.task, model, groups.device_mesh, reduce_dtype(Method.parse(self.leg.method)))
        self.optimizer = self.task.optimizer(self.model)
        self.samples_per_step = self.task.batch_size * self.workers
        self.parameter_count = sum(parameter.numel() for parameter in self.model.parameters())
        self.metric = math.nan
        self.postponed_states: list[
            tuple[int, dict[str, torch.Tensor]]
        ] = []  # (number of steps trained, state that all ranks shared after these steps)
        self.step_times: list[StepTimes] = []
        self.end_seconds = [0.0]  # seconds of training at the end of each step, after a 0 for the start of training
        self.clock = TrainingClock()
        self.commands = _StepCommands(self.leg, self.control_group)
        self.report = WorkerReport(spec, leg_index, rank)
        stack.callback(self.report.close)
        self.exchange = self._attach(stack)
        self.report.write_event(
            "start",
            parameters=self.parameter_count,
            samples_per_step=self.samples_per_step,
        )

    def _attach(self, stack: ExitStack) -> Exchange:
        """Attach the leg's method to the model, wait until all ranks have done that, and return the attached method.

        Args:
            stack: stack to which this function adds the method's ``close``.
        """
        exchange = attach(
            Method.parse(self.leg.method),
            self.model,
            self.optimizer,
            samples_per_step=self.samples_per_step,
            log_dir=log_folder(self.spec, self.leg),
            seed=self.spec.seed,
            paced=self.spec.paced_bps is not None,
            choices=self.leg.choices,
        )
        stack.callback(exchange.close)
        dist.barrier(group=self.control_group)
        return exchange

    def step(self) -> int:
        """Train one step; return rank 0's command for what follows: ``CONTINUE``, ``EVALUATE`` or ``STOP``."""
        step = len(self.step_times)
        self.clock.mark_step_begin()
        self.commands.send(step, self.end_seconds[-1], self.step_times[-1].seconds if self.step_times else 0.0)
        for group in self.optimizer.param_groups:
            group["lr"] = self.task.learning_rate_at(step)
        self.optimizer.zero_grad()
        batch = self.task.batch(step, self.rank)
        self.clock.mark_inputs_ready()
        loss = self.task.loss(self.exchange.module, batch)
        self.clock.watch_backward(loss)
        loss.backward()  # type: ignore[no-untyped-call]
        self.clock.mark_backward_return()
        self.optimizer.step()
        command = self.commands.receive()
        if command == STOP:
            self.exchange.exchange_remainder()
        elif command == EVALUATE:
            self._postpone(step + 1) if self.exchange.in_flight else self.exchange.wait_for_exchanges()
        self.step_times.append(self.clock.end_step(self.exchange.exposed_seconds))
        self.end_seconds.append(self.end_seconds[-1] + self.step_times[-1].seconds)
        self.report.report_step(
            step + 1, self.end_seconds[-1], float(loss.detach()), self.exchange, self.samples_per_step
        )
        return command

    def _postpone(self, steps: int) -> None:
        """Store a copy of the weights that all ranks share, to evaluate the copy when no exchange is in flight.

        The clock of the leg does not count the time of evaluations. If the ranks evaluated now, the exchange in flight
        would progress in time that is not counted, and the method would seem faster than it is.

        Args:
            steps: number of steps trained so far.
        """
        if len(self.postponed_states) == MAX_POSTPONED:
            self.exchange.wait_for_exchanges()
        self.postponed_states.append((steps, self.exchange.shared_state()))

    def evaluate_if_due(self, command: int) -> bool:
        """Evaluate the model if an evaluation is due and no exchange is in flight; called after each step.

        ``EVALUATE`` makes an evaluation due. If an exchange is then in flight, ``step`` has stored a copy of the
        weights, and the evaluation is postponed. The stored copies are evaluated after the first step that leaves no
        exchange in flight, or when they are more than ``MAX_POSTPONED``. ``STOP`` evaluates the stored copies and the
        final model.

        Args:
            command: rank 0's command after the step.

        Returns:
            True if an evaluated copy or the model itself reached the leg's target.
        """
        in_flight = self.exchange.in_flight and command != STOP
        if command == EVALUATE:
            self.commands.note_evaluation(len(self.step_times), self.end_seconds[-1])
        if in_flight and len(self.postponed_states) <= MAX_POSTPONED:
            return False
        if not self.postponed_states and (command == CONTINUE or in_flight):
            return False
        return self.evaluate(command != CONTINUE and not in_flight)

    def evaluate(self, with_current_model: bool = True) -> bool:
        """Evaluate all stored copies of earlier weights, then the model itself; stop when the target is reached.

        Called on all ranks; the metric is the same on all ranks.

        Args:
            with_current_model: whether to evaluate the model itself, besides the stored copies.

        Returns:
            True if an evaluated copy or the model itself reached the leg's target.
        """
        while self.postponed_states:
            steps, state = self.postponed_states.pop(0)
            self.evaluation_model.load_state_dict(state)
            if self._evaluate_and_report(steps, self.evaluation_model):
                return True
        with self.exchange.shared_weights():
            return with_current_model and self._evaluate_and_report(len(self.step_times), self.model)

    def _evaluate_and_report(self, steps: int, model: torch.nn.Module) -> bool:
        """Evaluate a model, and report the metric; return True if the metric reached the leg's target.

        Args:
            steps: number of steps that the model was trained for.
            model: model to evaluate.
        """
        self.metric = self._evaluated_metric(model)
        self.report.report_evaluation(steps, self.end_seconds[steps], self.metric)
        return self.leg.target is not None and self.task.metric.is_reached(self.metric, self.leg.target)

    def _evaluated_metric(self, model: torch.nn.Module) -> float:
        """Return a model's metric over all validation data, in the task's unit; the same number on every rank.

        Each rank evaluates a portion of the data, and an all-reduce adds the scores. On a mesh, the ranks of a replica
        evaluate the same portion together.
        """
        portion_index, portion_count = self.rank, self.workers
        if self.mesh is not None:
            portion_index, portion_count = self.mesh.replica_of(self.rank), self.mesh.replicas
        score = self.task.validate(model, portion_index, portion_count)
        score_sums = torch.tensor([score.total, score.count], dtype=torch.float64)
        dist.all_reduce(score_sums, group=self.control_group)
        return self.task.metric.compute(Score(float(score_sums[0]), int(score_sums[1])))

    def _mean_interface_bytes(self, summed_interface_bytes: float) -> int:
        """Return the number of bytes that a rank sent through its network interface, mean over the ranks.

        On a mesh the ranks of a replica share an interface. Each of these ranks counts all bytes of the interface.

        Args:
            summed_interface_bytes: bytes that a rank counted on its interface, summed over all ranks.
        """
        return round(summed_interface_bytes / self.workers / (1 if self.mesh is None else self.mesh.shards))

    def report_results(self, resource_use: _ResourceUse) -> None:
        """Write the leg's results as the event ``end``, and for TensorBoard; called on all ranks after the last step.

        Args:
            resource_use: processor time and network bytes of this rank, which an all-reduce adds over the ranks.
        """
        usage_sums = resource_use.totals()
        dist.all_reduce(usage_sums, group=self.control_group)
        cpu_seconds, summed_interface_bytes = usage_sums.tolist()
        exchange = self.exchange
        counted_times = self.step_times[WARM_UP_STEPS:] or self.step_times
        if exchange.every is not None:  # a mean over steps must cover whole rounds, so no step is left out
            counted_times = self.step_times
        self.report.write_event(
            "end",
            step=len(self.step_times),
            seconds=self.end_seconds[-1],
            step_s=_averaging_function(exchange)(times.seconds for times in counted_times),
            cpu_seconds=cpu_seconds,
            wire_bytes=exchange.wire_bytes(len(self.step_times), self.workers),
            interface_bytes=self._mean_interface_bytes(summed_interface_bytes) if self.spec.counted_interface else None,
            gain=exchange.mean_gain(),
            every=_mean_every(len(self.step_times), exchange),
            turns=decisions_as_json(exchange, self.end_seconds),
            split=_phase_seconds(counted_times, exchange) if exchange.knows_exposed_time else None,
        )
        spec = self.spec
        mesh_setting = {} if spec.mesh is None else {"mesh": spec.mesh}
        self.report.write_hparams(
            {
                "task": spec.task, "link": spec.link, "method": self.leg.method, "workers": spec.workers,
                "seed": spec.seed, **mesh_setting,
            },
            {"run/metric": self.metric, "run/seconds": self.end_seconds[-1], "run/steps": float(len(self.step_times))},
        )  # fmt: skip


class _StepCommands:
    """Chooses what follows each step (``CONTINUE``, ``EVALUATE`` or ``STOP``), and broadcasts rank 0's choice.

    Each rank computes a command from its own clock, but all ranks follow the command of rank 0.

    Args:
        leg: leg to train, with its limits and the steps or seconds between evaluations.
        control_group: process group for the commands.
    """

    def __init__(self, leg: Leg, control_group: dist.ProcessGroup) -> None:
        self._leg = leg
        self._control_group = control_group
        self._latest_evaluation = (0, 0.0)

    def note_evaluation(self, steps: int, seconds: float) -> None:
        """Store when the latest evaluation took place. From then on, steps and seconds to the next one are counted.

        Args:
            steps: number of steps trained before the evaluation.
            seconds: seconds of training before the evaluation.
        """
        self._latest_evaluation = (steps, seconds)

    def send(self, step: int, training_s: float, expected_step_s: float) -> None:
        """Choose the command for the time after a step, and start to broadcast the command; called before the step.

        Args:
            step: number of the step, from 0.
            training_s: seconds of training before the step.
            expected_step_s: expected seconds of the step: the time that the previous step took, or 0 before the first
                step.
        """
        leg, steps, seconds = self._leg, step + 1, training_s + expected_step_s
        evaluated_steps, evaluated_seconds = self._latest_evaluation
        command = CONTINUE
        if _is_reached(steps, leg.steps) or _is_reached(seconds, leg.seconds):
            command = STOP
        elif _is_reached(steps - evaluated_steps, leg.every_steps) or _is_reached(
            seconds - evaluated_seconds, leg.every_seconds
        ):
            command = EVALUATE
        self._command_tensor = torch.tensor([command])
        self._broadcast_work = dist.broadcast(self._command_tensor, 0, group=self._control_group, async_op=True)

    def receive(self) -> int:
        """Wait for the broadcast that ``send`` started; return rank 0's command."""
        self._broadcast_work.wait()
        return int(self._command_tensor)


class _ResourceUse:
    """Processor seconds of this process, and bytes that its network interface sent, since this object was made."""

    def __init__(self, spec: SessionSpec) -> None:
        self._spec = spec
        self._initial_sent_bytes = _interface_bytes(spec)
        self._initial_cpu_seconds = time.process_time()

    def totals(self) -> torch.Tensor:
        """Return a float64 tensor of shape ``(2,)``: processor seconds, and bytes sent, since this object was made."""
        cpu_seconds = time.process_time() - self._initial_cpu_seconds
        sent_bytes = _interface_bytes(self._spec) - self._initial_sent_bytes
        return torch.tensor([cpu_seconds, sent_bytes], dtype=torch.float64)


def _is_reached(number: float, limit: float | None) -> bool:
    """True if the number is equal to the limit or above; False if the limit is ``None``."""
    return limit is not None and number >= limit


def _mean_every(steps: int, exchange: Exchange) -> float | None:
    """Return the mean number of steps from one exchange to the next; ``None`` if the method exchanges in every step.

    Args:
        steps: number of steps of the leg.
        exchange: method of exchanging gradients, attached to the model.
    """
    exchanges = exchange.exchange_count()
    return None if exchanges is None else steps / max(1, exchanges)


def _averaging_function(exchange: Exchange) -> Callable[[Iterable[float]], float]:
    """Return the function that averages the times of steps: the median, or the mean for methods with local steps.

    The function takes the seconds of each step and returns their average, seconds.
    """
    return statistics.median if exchange.every is None else statistics.fmean


def _phase_seconds(step_times: list[StepTimes], exchange: Exchange) -> dict[str, float | None]:
    """Return the seconds of each phase of a typical step on this rank, by the phase's name.

    The names are the fields of ``gravac.lab.tta.record.Split``. The seconds are medians over steps, or means for
    methods with local steps; ``None`` if not known.
    """
    compress_s, exchange_s = exchange.phase_seconds()
    average = _averaging_function(exchange)
    return {
        "compute": average(times.compute_s for times in step_times),
        "exposed": average(times.exposed_s for times in step_times),
        "input_wait": average(times.input_wait_s for times in step_times),
        "compress": compress_s,
        "exchange": exchange_s,
    }


def _interface_bytes(spec: SessionSpec) -> int:
    """Return the bytes that this rank's network interface has sent so far; 0 without emulated links.

    The operating system counts the bytes, packet headers included.
    """
    if spec.counted_interface is None:
        return 0
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == spec.counted_interface:
            return int(counters.split()[8])
    raise RuntimeError(
        f"interface {spec.counted_interface!r} is not in /proc/net/dev; start the worker in its network namespace"
    )


def _mesh_of(spec: SessionSpec) -> Mesh | None:
    """Return the mesh on which a session trains models in shards; ``None`` if it trains with DDP, without shards."""
    return None if spec.mesh is None else parse_mesh(spec.mesh)


def _new_control_group(spec: SessionSpec) -> dist.ProcessGroup:
    """Return a new process group of all ranks for rank 0's commands.

    The group uses the session's network interface for commands, ``SessionSpec.command_interface``, if there is one.
    """
    exchange_interface = os.environ.get(INTERFACE_VARIABLE)
    if spec.command_interface is not None:
        os.environ[INTERFACE_VARIABLE] = spec.command_interface  # gloo reads the variable whenever it makes a group
    try:
        control_group: dist.ProcessGroup = dist.new_group(backend="gloo")
        return control_group
    finally:
        if exchange_interface is not None:
            os.environ[INTERFACE_VARIABLE] = exchange_interface


def _exit_with_parent() -> None:
    """Wait until the parent process ends, then end this process with exit status 3; runs in a thread of its own.

    Standard input is a pipe, whose other end only the parent holds. So the pipe closes when the parent ends.
    """
    while os.read(0, 1):  # not sys.stdin: a thread that holds its lock when the interpreter ends is a fatal error
        pass
    os._exit(3)


def main(arguments: list[str]) -> int:
    """Train all legs of a session as one of its ranks; return the exit status.

    Args:
        arguments: the session's ``SessionSpec`` as JSON, and the rank.
    """
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    spec, rank = SessionSpec.from_json(arguments[0]), int(arguments[1])
    torch.set_num_threads(1)
    if spec.paced_bps is not None:
        imitate_link(spec.paced_bps)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{spec.session_folder}/store",
        rank=rank,
        world_size=spec.workers,
        timeout=timedelta(minutes=10),
    )
    try:
        mesh = _mesh_of(spec)
        groups = _ProcessGroups(_new_control_group(spec), None if mesh is None else device_mesh(mesh))
        for leg_index in range(len(spec.legs)):
            train(spec, leg_index, rank, groups)
    finally:
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
