# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Real ranks for tests: processes over gloo, or threads over torch's threaded process group."""

import faulthandler
import gc
import multiprocessing
import os
import pickle
import random
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gravac

PACKAGE = os.path.dirname(gravac.__file__) + os.sep

Rank = Callable[..., Any]

PRELOADED = ["pytest", "torch._dynamo", "gravac", "tests.distributed.training"]
"""Imported once, where ranks are forked from. An optimizer's first step imports dynamo, a second of processor time."""


def is_gravacs(file: str) -> bool:
    """Tell whether a source file is of the package; torch, too, may lie below a folder named gravac: the clone's."""
    return file.startswith(PACKAGE)


def processes(
    function: Rank,
    world: int,
    *args: Any,
    timeout: float = 200,
    preloaded: Sequence[str] = PRELOADED,
    alone: bool = False,
) -> list[Any]:
    """Run ``function(rank, world, *args)`` in a process per rank, with gloo set up; what each returned.

    The processes stay, and run functions of later tests, too. Fails with a rank's traceback, or with all stacks when a
    rank hangs; later tests then get new processes.

    Args:
        function: function of a module, which the processes import.
        world: number of ranks.
        args: further arguments of the function.
        timeout: seconds after which a rank prints all stacks and ends.
        preloaded: modules that the process has imported from which ranks are forked. That process is one for all tests
            of a process of pytest, and stays as it was first asked for.
        alone: whether the processes run this function only, because it may end, block or cripple its process.
    """
    stays = not alone and world <= MOST_RANKS_THAT_STAY
    ranks = RANKS_THAT_STAY if stays else Ranks()
    try:
        returned = ranks.run(pickle.dumps((function, args)), world, timeout, preloaded)
    except BaseException:
        ranks.end()
        raise
    if not stays:
        ranks.end()
    return returned


class Ranks:
    """Processes that run functions as the ranks of one process group after another."""

    def __init__(self) -> None:
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []
        self._busy: list[Connection] = []

    def run(self, job: bytes, world: int, timeout: float, preloaded: Sequence[str]) -> list[Any]:
        """Run a job, a pickled function and its arguments, on ranks 0 to ``world - 1``; return what each returned."""
        if not all(self._answers_free(pipe) for pipe in self._busy):
            self.end()  # an earlier job's threads go on, or its process group did not end
        self._busy = []
        while len(self._processes) < world:
            self._start(len(self._processes), preloaded)
        pipes = self._pipes[:world]
        with tempfile.TemporaryDirectory() as folder:
            for pipe in pipes:
                pipe.send_bytes(pickle.dumps((job, world, f"{folder}/store", timeout)))
            self._busy = pipes
            answers = self._answers(pipes, timeout + 10)
            for pipe in pipes:
                pipe.send_bytes(b"leave")  # none leaves the process group before all have returned
        return answers

    def _answers(self, pipes: list[Connection], timeout: float) -> list[Any]:
        answers: dict[int, Any] = {}
        failures: dict[int, str] = {}
        latest = time.monotonic() + timeout
        while waiting := [pipe for rank, pipe in enumerate(pipes) if rank not in answers and rank not in failures]:
            ready = wait(waiting, max(0.0, latest - time.monotonic()))
            if not ready and not failures:
                failures = {pipes.index(pipe): f"rank {pipes.index(pipe)} hung" for pipe in waiting}
            if not ready:
                break
            for rank in map(pipes.index, ready):  # type: ignore[arg-type]
                failed, answer = self._answer(rank)
                (failures if failed else answers)[rank] = answer
            if failures:  # the others may know more
                latest = min(latest, time.monotonic() + SECONDS_AFTER_A_FAILURE)
        assert not failures, "\n".join(failures[rank] for rank in sorted(failures))
        return [answers[rank] for rank in range(len(pipes))]

    def _answer(self, rank: int) -> tuple[bool, Any]:
        """Return whether a rank failed, and its traceback or what its function returned."""
        try:
            failed, answer = pickle.loads(self._pipes[rank].recv_bytes())  # noqa: S301 - written by the rank
        except (EOFError, ConnectionError):
            self._processes[rank].join(10)
            return True, f"rank {rank} returned nothing; exit code {self._processes[rank].exitcode}"
        return failed, answer

    def _answers_free(self, pipe: Connection) -> bool:
        try:
            return pipe.poll(20) and pipe.recv_bytes() == b"free"
        except (EOFError, ConnectionError):
            return False

    def _start(self, rank: int, preloaded: Sequence[str]) -> None:
        context: Any = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([*preloaded])
        here, there = context.Pipe()
        process = context.Process(target=_serve, args=(there, rank), daemon=True)
        process.start()
        there.close()
        self._processes.append(process)
        self._pipes.append(here)

    def end(self) -> None:
        """Kill the processes."""
        for process in self._processes:
            process.kill()
        for process, pipe in zip(self._processes, self._pipes, strict=True):
            process.join()
            pipe.close()
        self._processes, self._pipes, self._busy = [], [], []


SECONDS_AFTER_A_FAILURE = 20
"""Seconds for which the other ranks may still return or fail after the first failure."""

MOST_RANKS_THAT_STAY = 4
"""Number of ranks up to which processes are kept for later tests."""

RANKS_THAT_STAY = Ranks()
"""Processes for the functions of this process's tests, started when they are first needed."""


def _serve(pipe: Connection, rank: int) -> None:
    """Run jobs as a rank, until the test process ends."""
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    as_begun = dict(os.environ)
    threads_as_begun = threading.active_count()
    gc.freeze()  # what was imported is not searched after each function
    while True:
        try:
            job, world, store, timeout = pickle.loads(pipe.recv_bytes())  # noqa: S301 - written by the test process
        except (EOFError, ConnectionError):
            os._exit(0)
        faulthandler.dump_traceback_later(timeout, exit=True)
        torch.manual_seed(0)
        random.seed(0)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
        try:
            function, args = pickle.loads(job)  # noqa: S301 - written by the test process
            with warnings.catch_warnings():  # what was told to an earlier function is told to this one, too
                answer = pickle.dumps((False, function(rank, world, *args)))
        except BaseException:
            pipe.send_bytes(pickle.dumps((True, f"rank {rank}:\n{traceback.format_exc()}")))
            os._exit(1)  # peers may wait for this rank for ever
        pipe.send_bytes(answer)
        if pipe.recv_bytes() != b"leave":
            os._exit(1)
        del function, args, answer
        dist.destroy_process_group()
        gc.collect()
        faulthandler.cancel_dump_traceback_later()
        os.environ.clear()
        os.environ.update(as_begun)
        pipe.send_bytes(b"free" if threading.active_count() == threads_as_begun else b"threads go on")


def threads(function: Rank, world: int, *args: Any, timeout: float = 200) -> list[Any]:
    """Run ``function(rank, world, *args)`` in a thread per rank of one process, over torch's threaded group."""
    from torch.testing._internal.distributed.multi_threaded_pg import _install_threaded_pg, _uninstall_threaded_pg

    returned: dict[int, Any] = {}
    failures: list[str] = []
    store = dist.HashStore()

    def rank_main(rank: int) -> None:
        try:
            dist.init_process_group("threaded", rank=rank, world_size=world, store=store)
            returned[rank] = function(rank, world, *args)
        except BaseException:
            failures.append(f"rank {rank}:\n{traceback.format_exc()}")

    isolation = torch._C._distributed_c10d._set_thread_isolation_mode
    isolation(True)
    _install_threaded_pg()
    try:
        ranks = [threading.Thread(target=rank_main, args=(rank,), daemon=True) for rank in range(world)]
        for thread in ranks:
            thread.start()
        for thread in ranks:
            thread.join(timeout)
        assert not failures, failures[0]
        assert len(returned) == world, "ranks hung"
        return [returned[rank] for rank in range(world)]
    finally:
        _uninstall_threaded_pg()
        isolation(False)
        # Whose forward runs is one attribute for all threads, each of which restores what it found: another's model
        # stays, and dynamo takes all that is compiled later for a part of it.
        DistributedDataParallel._active_ddp_module = None
