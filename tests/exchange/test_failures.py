# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Reports of failures through the store: all ranks read them, and no rank waits long for a store that is stuck."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
import torch.distributed as dist

from gravac.exchange import failures as module
from gravac.exchange.failures import ExchangeError, Failures

KEY = "gravac/failed/group/1"


class StuckStore:
    """Stands in for the store of a process that is stopped: no call returns while ``answers`` is not set."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.callers: list[str] = []

    def check(self, keys: list[str]) -> bool:
        self.callers.append(threading.current_thread().name)
        assert self.answers.wait(120)
        return False

    def add(self, key: str, number: int) -> int:
        return int(self.check([key]))


@pytest.fixture
def stuck_store() -> Iterator[StuckStore]:
    store = StuckStore()
    yield store
    store.answers.set()


def failures_of(store: object, rank: int = 0, world: int = 2) -> Failures:
    made = Failures([])
    made._group_keys, made._store = [(KEY, rank, world)], store
    return made


def until_told(failures: Failures) -> str:
    deadline_s = time.monotonic() + 60
    while (said := failures.look()) is None:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    return said


def test_a_store_that_never_answers_delays_a_failing_rank_once(
    stuck_store: StuckStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STORE_SECONDS", 0.5)
    failures = failures_of(stuck_store)
    began_s = time.monotonic()
    for _ in range(3):
        assert failures.look(causes_only=True) is None
    failures.report(ValueError("boom"), no_answer=False)
    failures.linger()
    assert time.monotonic() - began_s >= 0.5
    assert stuck_store.callers == ["gravac-store"] * 2  # one that looks, one that reports
    assert not stuck_store.answers.is_set()


def test_a_cause_is_told_and_a_rank_that_only_got_no_answer_is_not_called_failed() -> None:
    store = dist.HashStore()
    ranks = [failures_of(store, rank, 3) for rank in range(3)]
    ranks[1].report(ExchangeError("rank 1 of 3 got no answer"), no_answer=True)
    assert until_told(ranks[0]) == "rank 1 of 3 stopped waiting: ExchangeError: rank 1 of 3 got no answer"
    assert ranks[2].look(causes_only=True) is None
    assert ranks[1].look(causes_only=True) is None  # its own

    store = dist.HashStore()
    ranks = [failures_of(store, rank, 3) for rank in range(3)]
    ranks[2].report(ValueError("boom"), no_answer=False)
    ranks[1].report(ValueError("later"), no_answer=False)
    for rank in range(2):
        assert ranks[rank].look(causes_only=True) == "rank 2 of 3 failed: ValueError: boom"
    ranks[2].linger()
    assert store.add(KEY + "/seen", 0) == 2


def test_a_store_that_is_gone_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class GoneStore:
        def check(self, keys: list[str]) -> bool:
            raise dist.DistNetworkError("Connection reset by peer")

        add = check

    failures = failures_of(GoneStore())
    assert failures.look(causes_only=True) is None
    failures.report(ValueError("boom"), no_answer=False)
    failures.linger()


EXITING = """
from datetime import timedelta
import torch.distributed as dist
from gravac.exchange import failures

store = dist.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False)
for _ in range(8):
    failures._started(lambda: store.wait(["never set"], timedelta(milliseconds=60)))
"""


def test_a_process_that_exits_while_the_store_is_asked_ends_with_its_own_status() -> None:
    ended = subprocess.run([sys.executable, "-c", EXITING], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
