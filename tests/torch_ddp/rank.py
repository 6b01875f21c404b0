# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""One rank of one test: a process of its own, forked where torch's tests are imported already.

What it saw goes to a file: whether the test passed, how many DDP modules it made, how many gravac was attached to, the
steps gravac exchanged, the communication hooks that the test registered by itself.
"""

import faulthandler
import functools
import json
import os
import sys
import traceback
import unittest
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gravac import AdaptiveCompressor, OuterSettings, Static, topk
from tests.modes.scripted import DENSE, NATIVE, Scripted, script
from tests.torch_ddp import cases, cpu

MODE = "TORCH_DDP_MODE"
"""Name of the environment's variable that says how gravac is attached: a key of ``COMPRESSORS``."""

BETWEEN = script((0, DENSE), (2, NATIVE), (5, DENSE), (7, NATIVE))
"""Gradients by the hook and by DDP itself in turns, all dense."""

COMPRESSORS: dict[str, Callable[[], AdaptiveCompressor]] = {
    "hook": lambda: AdaptiveCompressor(topk, controller=Static(cf=1), native=False),
    "switching": lambda: AdaptiveCompressor(topk, controller=Scripted(script=BETWEEN, watch=1)),
    "apart": lambda: AdaptiveCompressor(topk, controller=Static(cf=1), every=5, outer=OuterSettings(delay=0)),
}
"""What is attached: the hook throughout; the hook and DDP itself in turns; ranks that train apart for five steps.

Ranks take up each other's progress at once: after how many steps else depends on how long the exchange took.
"""


@dataclass
class Seen:
    """What a rank saw of a test."""

    outcome: str = "died"
    text: str = ""
    made: int = 0
    attached: int = 0
    steps: int = 0
    own_hooks: int = 0
    attach_failures: list[str] = field(default_factory=list)


def run(name: str, rank: int, world: int, gravac: bool, folder: Path, timeout: float) -> None:
    """Run a test as ``rank`` of ``world``; ends the process.

    Args:
        name: of the test.
        rank: of this process.
        world: number of ranks.
        gravac: attach to every DistributedDataParallel.
        folder: of this test alone; takes ``rank<n>.json`` and ``rank<n>.log``.
        timeout: seconds after which all stacks are written to the log and the process ends.
    """
    log = os.open(folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    faulthandler.dump_traceback_later(timeout, exit=True)
    seen = Seen()
    compressors: list[AdaptiveCompressor] = []
    try:
        prepare(name, rank, world, folder)
        watch(seen, compressors if gravac else None)
        close_before_destroy(seen, compressors)
        case = cases.case(name)
        case.rank, case.file_name = rank, str(folder / "store")
        test(case, name, world)
        if dist.is_initialized():
            dist.destroy_process_group()
        seen.outcome = "passed"
    except unittest.SkipTest as skipped:
        seen.outcome, seen.text = "skipped", str(skipped)
    except SystemExit as ended:
        known = {skip.exit_code: skip.message for skip in cases.load().TEST_SKIPS.values()}
        seen.outcome = "skipped" if ended.code in known else "failed"
        seen.text = known.get(ended.code, f"exit status {ended.code}")
    except BaseException:
        seen.outcome, seen.text = "failed", traceback.format_exc()
    (folder / f"rank{rank}.json").write_text(json.dumps(asdict(seen)))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # peers that died may keep threads of this process waiting


def prepare(name: str, rank: int, world: int, folder: Path) -> None:
    """What torch's own runner sets before a rank's process starts, and the patches that move tests to the CPU."""
    torch.set_num_threads(1)
    os.environ.update(WORLD_SIZE=str(world), TEMP_DIR=str(folder), GLOO_SOCKET_IFNAME="lo", TP_SOCKET_IFNAME="lo")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29500", TORCH_SHOW_CPP_STACKTRACES="0")
    if name not in cases.rpc_tests():
        cpu.in_rank(cases.load(), rank, world)


def test(case: Any, name: str, world: int) -> None:
    """As ``TestDistBackend._run`` does it, on gloo; tests over RPC make their process group themselves."""
    from torch.testing._internal import common_utils

    if name in cases.rpc_tests():
        getattr(case, name)()
        return
    store = f"file://{case.file_name}"
    dist.init_process_group("gloo", store, timedelta(seconds=60), world_size=world, rank=case.rank)
    case._barrier(timeout=30)
    common_utils.set_rng_seed()  # type: ignore[no-untyped-call]
    getattr(case, name)()
    case._barrier(timeout=30)


def close_before_destroy(seen: Seen, compressors: list[AdaptiveCompressor]) -> None:
    """Close all compressors when the default process group is about to go, be it at the test's end or in the test."""
    destroy = dist.destroy_process_group

    def closing(group: dist.ProcessGroup | None = None) -> None:
        if group is None:
            for compressor in compressors:
                compressor.close()
                seen.steps += compressor._engine.state.step
            compressors.clear()
        destroy(group)

    dist.destroy_process_group = closing


def watch(seen: Seen, compressors: list[AdaptiveCompressor] | None) -> None:
    """Count what the test makes and registers, and attach gravac.

    Args:
        seen: takes the counts.
        compressors: takes those attached; ``None`` attaches none.
    """
    attaching = False

    def counted(register: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(register)
        def registered(*args: Any, **kwargs: Any) -> Any:
            seen.own_hooks += not attaching
            return register(*args, **kwargs)

        return registered

    for method in ("register_comm_hook", "_register_builtin_comm_hook", "_register_fused_optim"):
        setattr(DistributedDataParallel, method, counted(getattr(DistributedDataParallel, method)))
    construct = DistributedDataParallel.__init__

    @functools.wraps(construct)
    def constructed(self: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal attaching
        construct(self, *args, **kwargs)
        seen.made += 1
        if compressors is None:
            return
        attaching = True
        try:
            compressor = COMPRESSORS[os.environ.get(MODE, "hook")]()
            compressors.append(compressor)
            compressor.attach(self, ())  # the optimizer is made later, if at all
            seen.attached += len(self._comm_hooks)
        except BaseException:
            # a test that expects its model to be refused must not take gravac's refusal for that
            seen.attach_failures.append(traceback.format_exc())
            raise
        finally:
            attaching = False

    DistributedDataParallel.__init__ = constructed  # type: ignore[method-assign]
