# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Starts ranks on this machine, one process each, over gloo; or joins the ranks that a launcher has started."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

from gravac.lab.links import network as links


def under_torchrun() -> bool:
    """True if a launcher such as torchrun set this process's rank in the environment."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


@contextmanager
def launched_group() -> Iterator[int]:
    """Make the default process group of the ranks that a launcher started, and yield this process's rank.

    The group communicates over NCCL if the machine has GPUs, otherwise over gloo. The end of the block destroys the
    group.
    """
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield dist.get_rank()
    finally:
        dist.destroy_process_group()


@contextmanager
def joined_group(folder: Path, rank: int, workers: int) -> Iterator[None]:
    """Join the default process group of the ranks that ``spawn`` started, over gloo, until a ``with`` block ends.

    If the block raises no error, this rank waits for all ranks at the end of the block, and destroys the group.

    Args:
        folder: folder with the file by which the ranks find each other.
        rank: rank of this process.
        workers: number of ranks.
    """
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=workers)
    yield
    dist.barrier()
    dist.destroy_process_group()


def spawn(
    module: str,
    folder: Path,
    workers: int,
    *arguments: str,
    timeout_s: float,
    network: links.EmulatedNetwork | None = None,
) -> None:
    """Run ``python -m module FOLDER WORKERS *arguments RANK`` for every rank, and wait until all ranks have ended.

    Args:
        module: name of the module that each rank runs, which calls ``joined_group``; what the module prints appears in
            this process's output.
        folder: folder in which ranks find each other and write results.
        workers: number of ranks.
        arguments: additional command line arguments of the module, placed between WORKERS and RANK.
        timeout_s: seconds after which all ranks are killed.
        network: emulated links between the ranks; ``None``: the loopback interface.

    Raises:
        RuntimeError: a rank failed, or the ranks took longer than ``timeout_s``; all ranks were killed.
    """
    interface_name = "lo" if network is None else links.INTERFACE
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": interface_name, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", module, str(folder), str(workers), *arguments]
    processes = [
        subprocess.Popen([*(network.prefix(rank) if network else []), *command, str(rank)], env=environment)
        for rank in range(workers)
    ]
    deadline = time.monotonic() + timeout_s
    try:
        while any(process.poll() is None for process in processes) and not any(process.poll() for process in processes):
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"the workers did not end within {timeout_s:g} s and were killed; use a faster link, or an idle "
                    "machine"
                )
            time.sleep(0.02)
        exit_statuses = [process.poll() for process in processes]
    finally:
        for process in processes:
            process.kill()  # if a rank failed, other ranks may wait for that rank for ever
            process.wait()
    if any(exit_statuses):
        failed_ranks = ", ".join(f"rank {rank}: {status}" for rank, status in enumerate(exit_statuses) if status)
        raise RuntimeError(f"workers failed (exit statuses: {failed_ranks}); their error messages are above")
