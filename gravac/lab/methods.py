# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The ways of exchanging gradients that the lab compares, each attached to a DDP model in a few lines."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from gravac import AdaptiveCompressor, Static, topk

METHODS = {
    "dense-fp32": "native DDP, float32 all-reduce",
    "dense-fp16": "torch's fp16_compress_hook",
    "adaptive": "AdaptiveCompressor(topk, cf_range=(10, 1000))",
}

_DENSE = {"dense-fp32": (1.0, "float32"), "dense-fp16": (2.0, "float16")}


@dataclass(frozen=True)
class Turn:
    """A compression factor that a run came to.

    Attributes:
        step: the first step it held for.
        cf: compression factor; 1 is dense float32, 2 is 16 bit.
        reason: why, in words.
    """

    step: int
    cf: float
    reason: str


class Exchange:
    """A method, attached: what the training loop may ask it. ``compressor`` is ``None`` for the native ones."""

    def __init__(self, method: str, compressor: AdaptiveCompressor | None) -> None:
        self._compressor = compressor
        self._native_cf = _DENSE[method][0] if compressor is None else 1.0
        self._start: Turn | None = None

    def stepped(self) -> None:
        """Called after each step. What a run starts with is decided in its first step, so it is noted here."""
        if self._start is None:
            self._start = Turn(0, self.cf, "start")

    @property
    def cf(self) -> float:
        """Compression factor of the next step."""
        return self._compressor.cf if self._compressor else self._native_cf

    @property
    def gain(self) -> float | None:
        """Gain of the last step; ``None`` for native methods and before it is known."""
        return self._compressor.gain if self._compressor else None

    @property
    def wire_bytes(self) -> int | None:
        """Bytes this rank sent so far, by our ledger; ``None`` for native methods, which keep none."""
        return self._compressor.ledger.wire_bytes if self._compressor else None

    def path(self) -> list[Turn]:
        """The compression factors so far: the first, then each change."""
        history = self._compressor.history if self._compressor else []
        changes = [Turn(record.step, record.cf, record.reason) for record in history if record.changed]
        return [self._start, *changes] if self._start else changes

    def close(self) -> None:
        """Ends the method's threads and logs."""
        if self._compressor:
            self._compressor.close()


def attach(
    method: str,
    ddp: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    *,
    samples_per_step: int,
    log_dir: Path,
    pace: float | None = None,
) -> Exchange:
    """Attaches a method of ``METHODS`` to a DDP model.

    Args:
        method: its name.
        ddp: the wrapped model, without a communication hook.
        optimizer: of the same model.
        samples_per_step: over all ranks.
        log_dir: where ``adaptive`` writes its logs.
        pace: bits per second at which our exchange holds itself back; ``None`` on real links.

    Raises:
        ValueError: no such method.
    """
    if method not in METHODS:
        raise ValueError(f"method: {method!r} is unknown; use one of {', '.join(METHODS)}")
    if method == "adaptive":
        compressor = AdaptiveCompressor(
            topk, cf_range=(10, 1000), samples_per_step=samples_per_step, log_dir=log_dir, pace=pace
        )
    elif pace is not None:
        # only our exchange can pace itself, so in paced mode it stands in for the native methods
        cf, dtype = _DENSE[method]
        compressor = AdaptiveCompressor(
            topk, controller=Static(cf=cf), dense=dtype, samples_per_step=samples_per_step, pace=pace
        )
    else:
        if method == "dense-fp16":
            ddp.register_comm_hook(state=None, hook=fp16_compress_hook)
        return Exchange(method, None)
    compressor.attach(ddp, optimizer)
    return Exchange(method, compressor)
