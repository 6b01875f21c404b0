# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""One rank of one test: a process of its own, forked where torch's tests are imported already.

What it saw goes to a file: whether the test passed, how many models it made that gravac can be attached to, how many
gravac was attached to, the steps gravac exchanged, the communication hooks that the test registered by itself.
"""

import faulthandler
import json
import os
import sys
import traceback
import unittest
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist

from gravac import AdaptiveCompressor
from tests.torch_ddp.suite import Seen, Suite


def run(suite: Suite, name: str, rank: int, world: int, gravac: bool, folder: Path) -> None:
    """Run a test as ``rank`` of ``world``; ends the process.

    Args:
        suite: has the test.
        name: of the test.
        rank: of this process.
        world: number of ranks.
        gravac: attach to every model.
        folder: of this test alone; takes ``rank<n>.json`` and ``rank<n>.log``, with all stacks if the time is over.
    """
    log = os.open(folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    faulthandler.dump_traceback_later(suite.timeout, exit=True)
    seen = Seen()
    compressors: list[AdaptiveCompressor] = []
    try:
        torch.set_num_threads(1)
        os.environ.update(WORLD_SIZE=str(world), TEMP_DIR=str(folder), GLOO_SOCKET_IFNAME="lo", TP_SOCKET_IFNAME="lo")
        suite.prepare(name, rank, world, folder)
        suite.watch(seen, compressors if gravac else None)
        close_before_destroy(seen, compressors)
        suite.execute(name, rank, world, folder)
        if dist.is_initialized():
            dist.destroy_process_group()
        seen.outcome = "passed"
    except unittest.SkipTest as skipped:
        seen.outcome, seen.text = "skipped", str(skipped)
    except SystemExit as ended:
        known = suite.skip_messages()
        seen.outcome = "skipped" if ended.code in known else "failed"
        seen.text = known.get(ended.code, f"exit status {ended.code}")  # type: ignore[arg-type]
    except BaseException:
        seen.outcome, seen.text = "failed", traceback.format_exc()
    (folder / f"rank{rank}.json").write_text(json.dumps(asdict(seen)))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # peers that died may keep threads of this process waiting


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
