# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Numbers of all ranks that somebody else than a step has summed, in order with the steps' own exchange."""

import threading
from collections.abc import Sequence
from typing import Any

from gravac.exchange.executor import Executor
from gravac.exchange.group import ExchangeError


class Sums:
    """Numbers on their way to all ranks: started when this is made, then asked for, then waited for.

    Args:
        executor: sums them.
        what: what they are, for errors.
        numbers: this rank's; as many on every rank.
    """

    def __init__(self, executor: Executor, what: str, numbers: Sequence[float]) -> None:
        self._executor, self._what = executor, what
        self._started: Any = None
        self._sums: list[float] = []
        self._there = threading.Event()
        self._failure: BaseException | None = None

        def start() -> None:
            self._started = executor.agree([numbers])

        executor.call(start, self._fail)

    def ask(self) -> None:
        """Have the executor wait for the sums. Called on every rank at the same point, before a step begins."""
        self._executor.call(self._take, self._fail)

    def wait(self) -> list[float]:
        """Return the sums over the ranks, float64, which were asked for.

        Raises:
            ExchangeError: a rank did not answer.
        """
        self._there.wait()
        if self._failure is not None:
            raise self._failure
        return self._sums

    def _take(self) -> None:
        try:
            (self._sums,) = self._executor.agreed(self._started)
        except ExchangeError as failure:
            raise ExchangeError(f"gravac: {self._what}: {failure}") from failure.__cause__
        self._there.set()

    def _fail(self, failure: BaseException) -> None:
        self._failure = failure
        self._there.set()
