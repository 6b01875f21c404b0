# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""How ranks agree on the measurement of a step, by the sums of their numbers over the ranks.

1. A step ends: its ``StepRecording`` is pending, that is, not summed over the ranks yet.
2. ``read``: the host converts the recording's squared norms and moments (events on a device) to numbers.
3. ``exchange``: a job sums the numbers over the ranks.
4. ``observe``: the sums have arrived, and the engine decides by the sums.

On a thread, the numbers of step t are summed in step t + 1, and the ranks decide by them when that step ends. On a
GPU's streams, they are read before step t + 2, summed in step t + 2, and the ranks decide when step t + 3 begins. All
ranks follow the same schedule.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gravac.averaging.recording import StepRecording
from gravac.engine.run_state import RunState
from gravac.exchange.executor import Executor, Job, sums_over_all
from gravac.exchange.failures import ExchangeError
from gravac.exchange.reading import HostCopy
from gravac.measurement import vectors

AGREEMENT_TEXT = "the ranks' agreement on an earlier step"
"""Text for error messages: what the ranks exchanged when a sum of measurements failed."""

Observe = Callable[[StepRecording, list[list[float]]], None]
"""Function that is called with a step's recording, and with the sums over the ranks of its ``vectors``, in order."""


class Agreement:
    """Sums the pending measurements of a run over the ranks: those of steps that the ranks have not agreed on yet.

    Args:
        executor: object that runs the jobs.
        state: state of the run, with the pending measurements.
        observe: function that is called with each pending measurement and its sums, in the order of steps.
    """

    def __init__(self, executor: Executor, state: RunState, observe: Observe) -> None:
        self.executor = executor
        self._state, self._observe = state, observe
        self._sent_count = 0  # number of pending measurements that are, or were, summed over the ranks
        self._sums: list[list[HostCopy]] = []  # sums that have arrived, of each vector of each measurement

    def catch_up(self) -> Job[None]:
        """Read and observe what is due before the present step begins.

        Numbers that are due, but not summed yet, are summed first: after a run was restored.
        """
        step, executor = self._state.step, self.executor
        executor.catch_up()
        self.read(step - 1 - executor.lag)
        yield from self.exchange(step - executor.latency)
        self.observe()

    def exchange_due(self) -> Job[None]:
        """Sum the numbers that are due in the present step, which has begun."""
        yield from self.exchange(self._state.step + 1 - self.executor.latency)  # the step that the job runs in

    def exchange_ended(self) -> Job[None]:
        """Sum the numbers of all steps that have ended."""
        self.executor.catch_up()
        self.read(self._state.step)
        yield from self.exchange(self._state.step)

    def observe_due(self) -> None:
        """Observe the sums that have arrived during a step, which ends, if the host may read them at once."""
        if not self.executor.lag:
            self.observe()

    def read(self, last_step: int) -> None:
        """Convert squared norms and moments of pending measurements to numbers.

        Args:
            last_step: number of the last step to convert; this step and all earlier ones have ended.
        """
        for recording in self._state.pending:
            if recording.step <= last_step and recording.own is None:
                recording.read(self.executor)

    def exchange(self, last_step: int) -> Job[None]:
        """Sum the numbers of pending measurements up to ``last_step`` over the ranks."""
        own_vectors = []
        for recording in self._state.pending[self._sent_count :]:
            if recording.step > last_step:
                break
            assert recording.own is not None
            own_vectors.append(vectors(recording.own))
            self._state.totals.norm_bytes += sum(8 * len(norms) for norms in own_vectors[-1][1:])
        if not own_vectors:
            return
        self._sent_count += len(own_vectors)
        with named_failure(self._state, lambda: AGREEMENT_TEXT):
            sums = yield from sums_over_all(self.executor, [vector for step in own_vectors for vector in step])
        remaining_sums = iter(sums)
        self._sums += [[next(remaining_sums) for _ in step] for step in own_vectors]

    def observe(self) -> None:
        """Let the engine decide by the sums of each step whose sums have arrived.

        For each step, the function ``observe`` that the constructor got is called with the measurement and its sums.
        """
        while self._sums:
            with named_failure(self._state, lambda: AGREEMENT_TEXT):
                sums = [total.read() for total in self._sums.pop(0)]
            self._sent_count -= 1
            self._observe(self._state.pending.pop(0), sums)


@contextmanager
def named_failure(state: RunState, what: Callable[[], str]) -> Iterator[None]:
    """Return a context manager that adds to an ``ExchangeError`` the training step, what was exchanged, the candidate.

    Args:
        state: state of the run, with the step and the candidate.
        what: function that returns a text: what is exchanged within the context. Called only if the exchange fails.
    """
    try:
        yield
    except ExchangeError as failure:
        since_text = f" (since step {state.trained})" if state.covered > 1 else ""
        raise ExchangeError(
            f"gravac: step {state.training_step}{since_text}, exchange of {what()}, {state.candidate}: {failure}"
        ) from failure.__cause__


def gain(error: float, energy: float) -> float | None:
    """Return the share of the energy that was sent, ``1 - error / energy``; ``None`` if not finite.

    Args:
        error: squared norm of what was not sent.
        energy: squared norm of what was to be sent: gradients plus residuals. If the energy is 0, the gain is 1.
    """
    if not math.isfinite(error + energy):
        return None  # if a gradient was not finite, the error is nan, and the energy may be 0
    if energy == 0:
        return 1.0
    sent_fraction = 1 - error / energy
    return sent_fraction if math.isfinite(sent_fraction) else None
