# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Runs a program on one rank and writes down what a rank holds at some of its steps; the program is not changed.

    torchrun ... witness.py FOLDER PROGRAM [ARGUMENT ...]

What a rank shares with the others is the module's ``state_dict``, as the program itself would save it. The digests are
taken where a step begins, before gravac sees its forward, and when the program calls ``synchronize`` and ``close``.
"""

import hashlib
import json
import os
import runpy
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from gravac import AdaptiveCompressor

STEPS, OFFSETS = 10, (0, 3)
"""In every so many steps, digests are taken before these: at the end of rounds of five, and within them."""


def digest(named: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Return a digest of tensors, by the names that they have without ``torch.compile``'s prefix."""
    total = hashlib.sha256()
    for name, tensor in named:
        total.update(name.removeprefix("_orig_mod.").encode())
        total.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()[:16]


def digest_of_state(state: Mapping[str, torch.Tensor]) -> str:
    """Return the digest of a module's ``state_dict``."""
    return digest(state.items())


class Witness:
    """What one rank held.

    Args:
        compressor: attached to ``ddp`` already.
        ddp: the model that the program trains.

    Attributes:
        steps: number of steps that have begun.
        shared: digest of the ``state_dict``, by the number of steps before it.
        own: digest of the weights that the module holds, likewise.
        end: digest of the weights after ``close``.
    """

    def __init__(self, compressor: AdaptiveCompressor, ddp: DistributedDataParallel) -> None:
        self.compressor, self.ddp = compressor, ddp
        self.steps = 0
        self.shared: dict[int, str] = {}
        self.own: dict[int, str] = {}
        self.end = ""
        self._between = True
        ddp.register_forward_pre_hook(self._forward_starts, prepend=True)

    def _forward_starts(self, *_: object) -> None:
        if not torch.is_grad_enabled():
            return
        if self._between and self.steps % STEPS in OFFSETS:
            self.look()
        self._between = self.ddp.require_backward_grad_sync
        self.steps += self._between

    def look(self) -> None:
        """Take both digests."""
        self.shared[self.steps] = digest_of_state(self.ddp.module.state_dict())
        self.own[self.steps] = digest(self.ddp.module.named_parameters())

    def closed(self) -> None:
        """Note what the module holds when gravac has left."""
        self.end = digest(self.ddp.module.named_parameters())

    def report(self) -> dict[str, Any]:
        """Return all of it, and how steps were run."""
        compressor = self.compressor
        return {
            "steps": self.steps,
            "shared": self.shared,
            "own": self.own,
            "end": self.end,
            "mode": compressor.mode,
            "changes": [[change.step, change.before, change.after] for change in compressor.changes],
            "every": sorted({record.every for record in compressor.history}),
            "sent_bytes": compressor.ledger.wire_bytes,
        }


def watch(folder: Path) -> None:
    """Have every compressor that is attached from here on make a witness, which writes its report at the end."""
    attach, synchronize, close = AdaptiveCompressor.attach, AdaptiveCompressor.synchronize, AdaptiveCompressor.close
    witnesses: dict[AdaptiveCompressor, Witness] = {}

    def attached(self: AdaptiveCompressor, module: torch.nn.Module, *arguments: Any, **more: Any) -> None:
        attach(self, module, *arguments, **more)
        assert isinstance(module, DistributedDataParallel)
        witnesses[self] = Witness(self, module)

    def synchronized(self: AdaptiveCompressor) -> None:
        witnesses[self].look()
        synchronize(self)

    def closed(self: AdaptiveCompressor) -> None:
        report = witnesses[self].report()
        close(self)
        witnesses[self].closed()
        text = json.dumps({**report, "end": witnesses[self].end})
        (folder / f"rank{os.environ['RANK']}.json").write_text(text, encoding="utf-8")

    for name, replacement in (("attach", attached), ("synchronize", synchronized), ("close", closed)):
        setattr(AdaptiveCompressor, name, replacement)


def main() -> None:
    folder, program, *arguments = sys.argv[1:]
    watch(Path(folder))
    sys.argv = [program, *arguments]
    sys.path[0] = str(Path(program).resolve().parent)
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
