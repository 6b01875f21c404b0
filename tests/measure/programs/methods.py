# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Methods of a race: torch's own hooks, and lines that a user may write; and what a run with gravac reports at its end.

``attach`` and ``end`` are called by the ranks of a program, wherever a user would add the lines of the method.
"""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from gravac import AdaptiveCompressor
from gravac.telemetry.records import DecisionRecord, ModeRecord, Record

RANKS = 2
"""Number of ranks of each program."""

BEGINS = "training begins"
"""Line that rank 0 of a program prints before its first step."""

REPORT = "gravac reports "
"""Beginning of the line that a run with gravac prints at its end."""


class Method(NamedTuple):
    """A way to exchange gradients.

    Attributes:
        call: what a user would write; empty for float32.
        settings: settings of ``AdaptiveCompressor``; ``None`` if the method is torch's own.
    """

    call: str = ""
    settings: Mapping[str, Any] | None = None


def _line(**settings: Any) -> Method:
    given = ", ".join(f"{name}={value!r}" for name, value in settings.items())
    return Method(f"AdaptiveCompressor({given})", settings)


FLOAT32, FLOAT16, POWERSGD, HOOK, OUTER = "float32", "float16", "powersgd", "hook", "outer, every 10"
LADDER, EVERY = "AdaptiveCompressor()", "AdaptiveCompressor(every=(1, 100))"
LINE = "AdaptiveCompressor(topk, cf_range=(10, 1000))"
LINE_BY_GOODPUT = "the same, controller='goodput'"

METHODS: Mapping[str, Method] = MappingProxyType(
    {
        FLOAT32: Method(),
        FLOAT16: Method("register_comm_hook(None, fp16_compress_hook)"),
        POWERSGD: Method("register_comm_hook(PowerSGDState(None, 4, start_powerSGD_iter=10), powerSGD_hook)"),
        HOOK: _line(native=False),
        OUTER: _line(every=10),
        LADDER: _line(),
        EVERY: _line(every=(1, 100)),
        LINE: _line(base="topk", cf_range=(10, 1000)),
        LINE_BY_GOODPUT: _line(base="topk", cf_range=(10, 1000), controller="goodput"),
    }
)
"""Every method by its name."""


class RunReport:
    """A sink that keeps decisions and changes of mode."""

    def __init__(self) -> None:
        self._turns: list[Any] = []
        self._changes: list[Any] = []

    def __call__(self, record: Record) -> None:
        """Keep a decision that changes anything, or a change of mode."""
        if isinstance(record, DecisionRecord) and record.changed:
            candidate = f"{record.mode}, {record.compressor} {record.cf:g}, every {record.every}, delay {record.delay}"
            self._turns.append([record.step, candidate, record.phase, record.reason])
        elif isinstance(record, ModeRecord):
            self._changes.append([record.step, record.before, record.after, record.seconds, record.wire_bytes])

    def as_plain(self, compressor: AdaptiveCompressor) -> dict[str, Any]:
        """Return the report as plain values. Called on every rank."""
        last = compressor.history[-1] if compressor.history else None
        return {
            "turns": self._turns,
            "changes": self._changes,
            "mode": compressor.mode,
            "wire_ratio": compressor.wire_ratio,
            "reason": "" if last is None else last.reason,
        }


class Attached(NamedTuple):
    """A compressor that trains a program, and its report."""

    compressor: AdaptiveCompressor
    report: RunReport


def attach(method: str, ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> Attached | None:
    """Have a model exchange its gradients by a method; return what ``end`` needs."""
    settings = METHODS[method].settings
    if method == FLOAT16:
        ddp.register_comm_hook(None, fp16_compress_hook)
    elif method == POWERSGD:
        state = PowerSGDState(None, 4, start_powerSGD_iter=10)
        ddp.register_comm_hook(state, powerSGD_hook)  # type: ignore[no-untyped-call]
    if settings is None:
        return None
    report = RunReport()
    compressor = AdaptiveCompressor(**settings, sinks=[report])
    compressor.attach(ddp, optimizer)
    return Attached(compressor, report)


def end(attached: Attached | None) -> None:
    """Print the report on rank 0, and close the compressor. Called on every rank, before the process group ends."""
    if attached is not None:
        plain = attached.report.as_plain(attached.compressor)
        if dist.get_rank() == 0:
            print(REPORT + json.dumps(plain), flush=True)
        attached.compressor.close()
