# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Ranks of a measurement in processes of their own, over loopback or emulated links; rank 0 tells in lines of JSON.

A module that is run so calls ``rank_main`` where it is started with a rank, and ``lines_of`` where it measures.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from gravac.lab.links.network import INTERFACE, EmulatedNetwork

RANK = "--rank"
"""First argument of a rank's command line."""

Say = Callable[[dict[str, Any]], None]
"""Function that takes a row and tells it to the measurement; on other ranks than 0 it does nothing."""


class RankFailed(RuntimeError):
    """A rank ended with an error. The message has its last words."""


@contextmanager
def lines_of(
    module: str, argument: dict[str, Any], network: EmulatedNetwork | None = None, world: int = 2
) -> Iterator[Iterator[dict[str, Any]]]:
    """Start the ranks, and give what rank 0 tells, row by row; leaving ends all ranks.

    Args:
        module: module to run, which calls ``rank_main``.
        argument: what ``rank_main`` hands on.
        network: links; ``None``: loopback.
        world: number of ranks.

    Raises:
        RankFailed: while rows are read: a rank failed.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gravac-measure-")))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": INTERFACE if network else "lo"}
        ranks: list[subprocess.Popen[bytes]] = []
        stack.callback(_end, ranks)
        for rank in range(world):
            log = stack.enter_context((folder / f"rank{rank}.log").open("wb"))
            command = [sys.executable, "-m", module, RANK, str(rank), str(world), str(folder), json.dumps(argument)]
            ranks.append(
                subprocess.Popen(
                    [*(network.prefix(rank) if network else []), *command],
                    stdin=subprocess.PIPE,  # its end tells the rank that we are gone
                    stdout=subprocess.PIPE if rank == 0 else log,
                    stderr=log,
                    env=environment,
                    start_new_session=True,
                )
            )
        yield _read(ranks, folder)


def _read(ranks: Sequence["subprocess.Popen[bytes]"], folder: Path) -> Iterator[dict[str, Any]]:
    assert ranks[0].stdout is not None
    for line in ranks[0].stdout:
        yield json.loads(line)
    for rank, process in enumerate(ranks):
        if process.wait(60):
            words = "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(folder.glob("rank*.log")))
            raise RankFailed(
                f"rank {rank} ended with exit status {process.returncode}; ends of the ranks' outputs: {words}"
            )


def _end(ranks: Sequence["subprocess.Popen[bytes]"]) -> None:
    for process in ranks:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def rank_main(function: Callable[[int, int, dict[str, Any], Say], None], arguments: Sequence[str]) -> int:
    """Run one rank: ``function(rank, world, argument, say)``, with gloo set up.

    Args:
        function: function that does the rank's work; takes rank, number of ranks, argument and the function ``say``.
        arguments: the command line, beginning with ``RANK``.
    """
    rank, world, folder = int(arguments[1]), int(arguments[2]), Path(arguments[3])
    threading.Thread(target=_end_with_parent, daemon=True).start()
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing else may speak where rows go

    def say(row: dict[str, Any]) -> None:
        if rank == 0:
            print(json.dumps(row), file=told, flush=True)

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world, timeout=timedelta(minutes=10)
    )
    try:
        function(rank, world, json.loads(arguments[4]), say)
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # peers may wait for this rank for ever
    dist.barrier()
    dist.destroy_process_group()
    told.close()
    return 0


def _end_with_parent() -> None:
    """End this process when what started it, which holds the other end of standard input, is gone."""
    while os.read(0, 1):
        pass
    os._exit(3)
