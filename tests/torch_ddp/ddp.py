# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""torch's tests of DistributedDataParallel, as the harness runs them."""

import functools
import os
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gravac import AdaptiveCompressor, OuterSettings, Static, topk
from tests.modes.scripted import DENSE, NATIVE, Scripted, script
from tests.torch_ddp import cases, cpu
from tests.torch_ddp import reasons as stated
from tests.torch_ddp.suite import Reasons, Seen

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


class DDPSuite:
    """The tests that make a DistributedDataParallel."""

    made_key = "ddp"
    timeout = 90.0  # all but two take less than 5
    reasons = Reasons(
        not_run=stated.NOT_RUN,
        nothing_made="makes no DDP that stands",
        native=lambda name, _: stated.NATIVE.get(name, ""),
        with_gravac=lambda name, error: stated.with_gravac(name, error, os.environ.get(MODE, "hook")),
    )

    def world(self, name: str) -> int:
        """Return the number of ranks of a test."""
        return cases.world(name)

    def details(self, name: str) -> dict[str, Any]:
        """Return what a record's row has of a test besides its outcome: nothing."""
        return {}

    def skip_messages(self) -> dict[int, str]:
        """Return why a test is skipped, by the exit status with which it says so."""
        return {skip.exit_code: skip.message for skip in cases.load().TEST_SKIPS.values()}

    def prepare(self, name: str, rank: int, world: int, folder: Path) -> None:
        """What torch's own runner sets before a rank's process starts, and the patches that move tests to the CPU."""
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29500", TORCH_SHOW_CPP_STACKTRACES="0")
        if name not in cases.rpc_tests():
            cpu.in_rank(cases.load(), rank, world)

    def execute(self, name: str, rank: int, world: int, folder: Path) -> None:
        """As ``TestDistBackend._run`` does it, on gloo; tests over RPC make their process group themselves."""
        from torch.testing._internal import common_utils

        case = cases.case(name)
        case.rank, case.file_name = rank, str(folder / "store")
        if name in cases.rpc_tests():
            getattr(case, name)()
            return
        store = f"file://{case.file_name}"
        dist.init_process_group("gloo", store, timedelta(seconds=60), world_size=world, rank=case.rank)
        case._barrier(timeout=30)
        common_utils.set_rng_seed()  # type: ignore[no-untyped-call]
        getattr(case, name)()
        case._barrier(timeout=30)

    def watch(self, seen: Seen, compressors: list[AdaptiveCompressor] | None) -> None:
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
        def constructed(ddp: Any, /, *args: Any, **kwargs: Any) -> None:
            nonlocal attaching
            construct(ddp, *args, **kwargs)
            seen.made += 1
            if compressors is None:
                return
            attaching = True
            try:
                compressor = COMPRESSORS[os.environ.get(MODE, "hook")]()
                compressors.append(compressor)
                compressor.attach(ddp, ())  # the optimizer is made later, if at all
                seen.attached += len(ddp._comm_hooks)
            except BaseException:
                # a test that expects its model to be refused must not take gravac's refusal for that
                seen.attach_failures.append(traceback.format_exc())
                raise
            finally:
                attaching = False

        DistributedDataParallel.__init__ = constructed  # type: ignore[method-assign, assignment]


SUITE = DDPSuite()
