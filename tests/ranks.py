# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Real ranks for tests: processes over gloo, or threads over torch's threaded process group."""

import faulthandler
import multiprocessing
import os
import pickle
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gravac

PACKAGE = os.path.dirname(gravac.__file__) + os.sep

Rank = Callable[..., Any]

PRELOADED = [
    "pytest",
    "hypothesis",
    "torch._dynamo.backends.debugging",
    "torch.profiler._cupti_monitor",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.optim",
    "gravac",
    "tests.distributed.training",
    "tests.frozen",
]
"""Imported once, where ranks are forked from. An optimizer's first step imports dynamo, a second of processor time."""


def is_gravacs(file: str) -> bool:
    """Tell whether a source file is of the package; torch, too, may lie below a folder named gravac: the clone's."""
    return file.startswith(PACKAGE)


def processes(
    function: Rank, world: int, *args: Any, timeout: float = 200, preloaded: Sequence[str] = PRELOADED
) -> list[Any]:
    """Run ``function(rank, world, *args)`` in a process per rank, with gloo set up; what each returned.

    Fails with a rank's traceback, or with all stacks when a rank hangs. With nothing ``preloaded`` each rank is started
    anew: the server that ranks are forked from is one for all tests of a process, and stays as it was first asked for.
    """
    context: Any = multiprocessing.get_context("forkserver" if preloaded else "spawn")
    if preloaded:
        context.set_forkserver_preload([*preloaded])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "arguments").write_bytes(pickle.dumps(args))
        ranks = [
            context.Process(target=_process, args=(function, rank, world, folder, timeout)) for rank in range(world)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(timeout + 10)
        hung = [rank for rank, process in enumerate(ranks) if process.is_alive()]
        for rank in hung:
            ranks[rank].kill()
        failures = [path.read_text() for path in sorted(folder.glob("failure*"))]
        assert not failures, "\n".join(failures)
        assert not hung, f"ranks {hung} hung"
        missing = [rank for rank in range(world) if not (folder / f"returned{rank}").exists()]
        assert not missing, f"ranks {missing} returned nothing; exit codes {[p.exitcode for p in ranks]}"
        # written by the ranks above
        return [pickle.loads((folder / f"returned{rank}").read_bytes()) for rank in range(world)]  # noqa: S301


def _process(function: Rank, rank: int, world: int, folder: Path, timeout: float) -> None:
    faulthandler.dump_traceback_later(timeout, exit=True)
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    try:
        args = pickle.loads((folder / "arguments").read_bytes())  # noqa: S301
        (folder / f"returned{rank}").write_bytes(pickle.dumps(function(rank, world, *args)))
    except BaseException:
        (folder / f"failure{rank}").write_text(f"rank {rank}:\n{traceback.format_exc()}")
        os._exit(1)  # peers may wait for this rank for ever
    dist.barrier()
    dist.destroy_process_group()


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
