# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""torch's tests of FSDP2, as the harness of DDP's tests runs them.

gravac is attached to a model when torch has found out which module is its root, that is before its first forward. It
is attached if the model has replicas: by ``replicate()``, or by ``fully_shard()`` on a mesh of two dimensions.
"""

import os
import traceback
import unittest
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState

from gravac import AdaptiveCompressor
from tests.hsdp.training import dense
from tests.torch_ddp.suite import Reasons, Seen
from tests.torch_fsdp import cases, cpu
from tests.torch_fsdp import reasons as stated


class FSDPSuite:
    """The FSDP2 tests of a clone of pytorch.

    Args:
        collection: the tests.
    """

    made_key = "models"
    timeout = 600.0
    reasons = Reasons(
        not_run=stated.NOT_RUN,
        nothing_made=stated.NO_REPLICAS,
        native=stated.natively,
        with_gravac=stated.with_gravac,
    )

    def __init__(self, collection: cases.Collection) -> None:
        self._origins = collection.origins

    def world(self, name: str) -> int:
        """Return the number of ranks of a test."""
        return cases.world(self._origins[name])

    def details(self, name: str) -> dict[str, Any]:
        """Return a test's file, and git's name of the file's content."""
        return {"file": self._origins[name].path, "blob": self._origins[name].blob}

    def skip_messages(self) -> dict[int, str]:
        """Return why a test is skipped, by the exit status with which it says so."""
        from torch.testing._internal.common_distributed import TEST_SKIPS

        return {skip.exit_code: skip.message for skip in TEST_SKIPS.values()}

    def prepare(self, name: str, rank: int, world: int, folder: Path) -> None:
        """Set what torch's own runner sets, and apply the patches that move tests to the CPU."""
        os.environ.update(LOCAL_RANK=str(rank), RANK=str(rank), TORCH_SHOW_CPP_STACKTRACES="0")
        cpu.in_rank(self._origins[name].module, rank, world)

    def execute(self, name: str, rank: int, world: int, folder: Path) -> None:
        """Run a test as torch's base classes do in a rank's process, on gloo.

        Raises:
            unittest.SkipTest: torch skips the class.
            AssertionError: a test that is not distributed failed.
        """
        from torch.testing._internal import common_distributed, common_fsdp, common_utils

        origin = self._origins[name]
        if getattr(origin.kind, "__unittest_skip__", False):
            raise unittest.SkipTest(getattr(origin.kind, "__unittest_skip_why__", ""))
        case: Any = origin.kind(origin.method)
        kinds = (common_distributed.MultiThreadedTestCase, common_distributed.MultiProcContinuousTest)
        grouped = isinstance(case, (common_fsdp.FSDPTest, *kinds))
        if not grouped and not isinstance(case, common_distributed.MultiProcessTestCase):
            _run_alone(case)
            return
        case.rank, case.file_name = rank, str(folder / "store")
        if isinstance(case, common_distributed.MultiProcContinuousTest):
            origin.kind.rank, origin.kind.world_size = rank, world  # type: ignore[attr-defined]
        if grouped:
            store = f"file://{case.file_name}"
            dist.init_process_group("gloo", store, timedelta(seconds=120), world_size=world, rank=rank)
            origin.kind.pg = dist.group.WORLD  # type: ignore[attr-defined]
            dist.barrier()
        torch._dynamo.reset()
        common_utils.set_rng_seed()  # type: ignore[no-untyped-call]
        if isinstance(case, common_distributed.MultiThreadedTestCase):
            case.perThreadSetUp()  # type: ignore[no-untyped-call]
        getattr(case, origin.method)()
        if grouped:
            dist.barrier()

    def watch(self, seen: Seen, compressors: list[AdaptiveCompressor] | None) -> None:
        """Count the models with replicas, and attach gravac to each.

        Args:
            seen: takes the counts.
            compressors: takes those attached; ``None`` attaches none.
        """
        initialize = FSDPState._lazy_init

        def initialized(state: FSDPState) -> None:
            is_first = state._is_root is None
            initialize(state)
            if not is_first or not _has_replicas(state):
                return
            seen.made += 1
            if compressors is None:
                return
            try:
                compressor = dense()
                compressors.append(compressor)
                compressor.attach(state._modules[0], ())  # the loop keeps its optimizer to itself
                seen.attached += 1
            except BaseException:
                # a test that expects an error must not take gravac's refusal for it
                seen.attach_failures.append(traceback.format_exc())
                raise

        def called(module: Any, /, *args: Any, **kwargs: Any) -> Any:
            # before torch calls hooks: those which attach registers take part in this forward
            module._get_fsdp_state()._lazy_init()
            return super(FSDPModule, module).__call__(*args, **kwargs)  # type: ignore[misc]

        FSDPState._lazy_init = initialized  # type: ignore[method-assign, assignment]
        FSDPModule.__call__ = called  # type: ignore[method-assign]


def _has_replicas(state: FSDPState) -> bool:
    """True if a unit of a root's model has replicas."""
    groups = [group for unit in state._state_ctx.all_states for group in unit._fsdp_param_groups]
    return any(getattr(group.mesh_info, "replicate_process_group", None) is not None for group in groups)


def _run_alone(case: unittest.TestCase) -> None:
    """Run a test that is not distributed, with its fixtures; raise if it fails or is skipped."""
    result = unittest.TestResult()
    case.run(result)
    if result.skipped:
        raise unittest.SkipTest(result.skipped[0][1])
    if not result.wasSuccessful():
        raise AssertionError("\n".join(text for _, text in [*result.errors, *result.failures]))
