# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Ranks that stay run one function after another as if each were the first, and a rank that fails ends them all."""

import os
import signal
import threading
import time
import warnings

import pytest
import torch
import torch.distributed as dist

from tests.ranks import processes


def traces(rank: int, world: int) -> tuple[int, str | None, float, int, int]:
    """Leave traces in the process, and return its id, and what there is of an earlier function's traces."""
    found = os.getpid(), os.environ.get("TRACE"), float(torch.rand(())), dist.get_world_size()
    os.environ["TRACE"] = "left"
    with warnings.catch_warnings(record=True) as told:
        warnings.warn("the same words at the same place", stacklevel=1)
    return *found, len(told)


def test_the_same_processes_run_the_next_function_and_show_no_trace_of_the_last() -> None:
    first, *_ = processes(traces, 2)
    again, _, third = processes(traces, 3)
    assert first[0] == again[0] != third[0], "one process more"
    assert first[1:] == (None, again[2], 2, 1)
    assert again[1:] == (None, third[2], 3, 1)


def failing(rank: int, world: int, how: str) -> None:
    if rank == 1 and how == "raises":
        raise ValueError("the rank's own words")
    if rank == 1 and how == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "hangs":
        time.sleep(600)
    dist.barrier()


@pytest.mark.parametrize(
    ("how", "said"), [("raises", "rank 1:\n.*the rank's own words"), ("is killed", "exit code -9"), ("hangs", "rank 0")]
)
def test_a_rank_that_fails_is_told_and_the_next_function_gets_new_ranks(how: str, said: str) -> None:
    before = processes(traces, 2)
    with pytest.raises(AssertionError, match=f"(?s){said}"):
        processes(failing, 2, how, timeout=2 if how == "hangs" else 200)
    after = processes(traces, 2)
    assert not {found[0] for found in before} & {found[0] for found in after}


def leaves_a_thread(rank: int, world: int) -> int:
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    return os.getpid()


def test_ranks_whose_threads_go_on_are_not_used_again() -> None:
    assert processes(leaves_a_thread, 2)[0] != processes(traces, 2)[0][0]
