# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The ways of exchanging gradients that the lab compares, in words, each attached to a DDP model in a few lines.

========================== ==================================================================================
``fp32``                   native DDP
``fp16``, ``bf16``         torch's hooks of that name; on gloo, where torch has no bf16 hook, our dense exchange
``torch-powersgd(4)``      torch's ``powerSGD_hook`` at rank 4, in one bucket: with more it aborts on gloo
``topk@10``                one of our compressors at one compression factor
``quantize(4)``            with settings, as in Python; without ``@`` it is the only CF it can do
``gravac:topk@10-1000``    a controller over a compressor, from CF 10 to 1000 (the default range); with settings:
                           ``gravac(epsilon=0.9):topk``
========================== ==================================================================================
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as torch_powersgd
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from gravac import AdaptiveCompressor, Static
from gravac.candidate import DENSE, Span
from gravac.collectives import AllReduce
from gravac.compressors import Compressor, dense
from gravac.lab.training.expression import compressor, controller
from gravac.telemetry.records import DecisionRecord, Record, StepRecord

RANGE = (10.0, 1000.0)
"""Lowest and highest compression factor of an adaptive method that names none."""

POWERSGD_START = 2
"""Number of steps before torch's PowerSGD compresses: the least it allows."""

_DENSE: dict[str, tuple[float, str, Callable[..., Any] | None]] = {
    "fp32": (1.0, "float32", None),
    "fp16": (2.0, "float16", fp16_compress_hook),
    "bf16": (2.0, "bfloat16", bf16_compress_hook),
}

_POWERSGD = re.compile(r"torch-powersgd\((\d+)\)")
_ADAPTIVE = re.compile(r"(?P<controller>\w+(?:\([^:]*\))?):(?P<base>[^@]+)(?:@(?P<low>[\d.]+)-(?P<high>[\d.]+))?")
_STATIC = re.compile(r"(?P<base>[^@:]+)(?:@(?P<cf>[\d.]+))?")


@dataclass(frozen=True)
class Method:
    """A way of exchanging gradients; ``Method.parse`` makes one from words.

    Attributes:
        text: the words it was parsed from.
        native: ``"fp32"``, ``"fp16"`` or ``"bf16"`` for torch's own exchange; ``None`` otherwise.
        rank: rank of torch's PowerSGD; ``None`` otherwise.
        base: our compressor; ``None`` for torch's own methods.
        cf: the one compression factor of ``base``; ``None`` when a controller chooses.
        controller: name of the controller, or the controller itself where it has settings; ``None`` without one.
        cf_range: lowest and highest compression factor that the controller chooses from.

    Example:
        >>> method = Method.parse("gravac:topk@10-100")
        >>> method.adaptive, method.cf_range
        (True, (10.0, 100.0))
        >>> Method.parse("quantize(2)").cf
        16.0
    """

    text: str
    native: str | None = None
    rank: int | None = None
    base: Compressor | None = None
    cf: float | None = None
    controller: Any = None
    cf_range: tuple[float, float] = RANGE

    @property
    def adaptive(self) -> bool:
        """Tell whether a controller decides."""
        return self.controller is not None

    @property
    def ours(self) -> bool:
        """Tell whether gravac, and not torch, exchanges the gradients."""
        return self.base is not None

    @classmethod
    def parse(cls, text: str) -> Method:
        """Return the method that words name; see the module.

        Raises:
            ValueError: names the text, what is wrong with it, and what there is.
        """
        text = text.strip()
        if text in _DENSE:
            return cls(text, native=text)
        if found := _POWERSGD.fullmatch(text):
            if int(found[1]) < 1:
                raise ValueError(f"method: {text!r}: the rank must be at least 1, such as torch-powersgd(4)")
            return cls(text, rank=int(found[1]))
        try:
            if found := _ADAPTIVE.fullmatch(text):
                cf_range = (float(found["low"]), float(found["high"])) if found["low"] else RANGE
                chosen = controller(found["controller"])
                method = cls(text, base=compressor(found["base"]), controller=chosen, cf_range=cf_range)
                method.make()  # refuses a range that the compressor cannot do
                return method
            if found := _STATIC.fullmatch(text):
                base = compressor(found["base"])
                cf = float(found["cf"]) if found["cf"] else _only_cf(base)
                method = cls(text, base=base, cf=cf)
                method.make()
                return method
        except (ValueError, TypeError, SyntaxError) as error:
            raise ValueError(f"method: {text!r}: {error}") from None
        raise ValueError(
            f"method: {text!r} cannot be read; use {', '.join(_DENSE)}, torch-powersgd(4), a compressor at a CF such "
            "as topk@10 or quantize(4), or a controller over one such as gravac:topk@10-1000"
        )

    def make(self, **run: Any) -> AdaptiveCompressor:
        """Make our compressor for it, not attached; ``run`` is what belongs to a run (``log_dir``, ``pace``, ...)."""
        if self.native:
            cf, dtype, _ = _DENSE[self.native]
            return AdaptiveCompressor(dense(dtype=dtype), (1, 2), controller=Static(cf=cf), **run)
        if self.base is None:
            raise ValueError(f"{self.text} is torch's own and cannot be paced; leave it out, or use real links")
        if self.controller:
            return AdaptiveCompressor(self.base, self.cf_range, controller=self.controller, **run)
        assert self.cf is not None
        return AdaptiveCompressor(
            self.base, (min(self.cf, 2.0), max(self.cf, 2.0)), controller=Static(cf=self.cf), **run
        )


def _only_cf(base: Compressor) -> float:
    reach = base.candidates((1.0, math.inf))
    if isinstance(reach, Span):
        raise ValueError(f"{base.name} can do any compression factor; say which, such as {base.name}@10")
    if len(reach) != 1:
        able = ", ".join(f"@{cf:g}" for cf in reach)
        raise ValueError(f"{base.name} can do several compression factors; say which: {able}")
    return reach[0]


class Exchange:
    """A method attached to a model, with what the training loop may ask it."""

    def __init__(
        self,
        method: Method,
        ddp: DistributedDataParallel,
        compressor: AdaptiveCompressor | None,
        seen: list[StepRecord],
    ) -> None:
        self.method = method
        self._compressor = compressor
        self._seen = seen
        self._shapes = [tuple(parameter.shape) for parameter in ddp.parameters() if parameter.requires_grad]
        self._start: DecisionRecord | None = None

    def stepped(self) -> None:
        """Note what a run starts with, which is decided in its first step. Called after each step."""
        cf = self.cf
        if self._start is None and cf is not None:
            base = self.method.base
            dense_cf = self._compressor.policy.dense_format.cf if self._compressor else cf
            name = base.name if base is not None and cf > dense_cf else DENSE
            self._start = DecisionRecord(0, name, cf, False, math.nan, math.nan, math.nan, None, None, "start", "start")

    @property
    def cf(self) -> float | None:
        """Compression factor of the next step; ``None`` for torch's PowerSGD."""
        if self._compressor is not None:
            return self._compressor.cf
        return _DENSE[self.method.native][0] if self.method.native else None

    @property
    def gain(self) -> float | None:
        """Gain of the last step; ``None`` for native methods and before it is known."""
        return self._compressor.gain if self._compressor else None

    def wire_bytes(self, steps: int, world: int) -> int:
        """Return the bytes this rank sent in ``steps`` steps: by our ledger, for torch's own methods by formula."""
        if self._compressor is not None:
            return self._compressor.ledger.wire_bytes
        elements = sum(math.prod(shape) for shape in self._shapes)
        if self.method.native:
            return steps * AllReduce.wire_bytes(round(4 * elements / _DENSE[self.method.native][0]), world)
        assert self.method.rank is not None
        sent = sum(_powersgd_elements(shape, self.method.rank) for shape in self._shapes)
        plain = min(steps, POWERSGD_START)
        return AllReduce.wire_bytes(4 * (plain * elements + (steps - plain) * sent), world)

    def decisions(self) -> list[DecisionRecord]:
        """Return what was run first, then every decision, also those that changed nothing."""
        history = self._compressor.history if self._compressor else []
        return [self._start, *history] if self._start else history

    def split(self) -> tuple[float, float] | None:
        """Return the median seconds a step compressed and waited for collectives; ``None`` where not known."""
        steps = self._seen[3:] or self._seen
        if not steps:
            return None
        return (
            statistics.median(step.compress_seconds for step in steps),
            statistics.median(step.exchange_seconds for step in steps),
        )

    def mean_gain(self) -> float | None:
        """Return the mean gain over the steps so far; ``None`` when no gain is known."""
        gains = [step.gain for step in self._seen if step.gain is not None]
        return statistics.fmean(gains) if gains else None

    def close(self) -> None:
        """End the method's threads and logs."""
        if self._compressor:
            self._compressor.close()


def attach(
    method: Method,
    ddp: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    *,
    samples_per_step: int,
    log_dir: Path | None,
    seed: int = 0,
    pace: float | None = None,
) -> Exchange:
    """Attach a method to a DDP model that has no communication hook yet.

    Args:
        method: the method.
        ddp: the wrapped model; it must have one bucket for torch's PowerSGD (``bucket_mb``).
        optimizer: optimizer of the same model.
        samples_per_step: number of samples of a step, over all ranks.
        log_dir: folder into which adaptive methods write their logs; ``None`` writes none.
        seed: seed of compressors that draw random numbers.
        pace: bits per second at which our exchange holds itself back; ``None`` on real links.

    Raises:
        ValueError: the method cannot be paced.
    """
    native = method.native != "bf16" or dist.get_backend(ddp.process_group) == "nccl"
    if not method.ours and native and pace is None:
        if method.native:
            hook = _DENSE[method.native][2]
            if hook is not None:
                ddp.register_comm_hook(None, hook)
        else:
            state = torch_powersgd.PowerSGDState(
                process_group=None,
                matrix_approximation_rank=method.rank,
                start_powerSGD_iter=POWERSGD_START,
                min_compression_rate=2,
                random_seed=seed,
            )
            ddp.register_comm_hook(state, torch_powersgd.powerSGD_hook)
        return Exchange(method, ddp, None, [])
    seen: list[StepRecord] = []

    def see(record: Record) -> None:
        if isinstance(record, StepRecord):
            seen.append(record)

    made = method.make(
        samples_per_step=samples_per_step,
        log_dir=log_dir if method.adaptive else None,
        seed=seed,
        sinks=[see],
        pace=pace,
    )
    if method.base is not None and method.base.owns_momentum:
        _without_momentum(optimizer)
    made.attach(ddp, optimizer)
    return Exchange(method, ddp, made, seen)


def _without_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Switch the optimizer's momentum off, for compressors that do momentum themselves."""
    for group in optimizer.param_groups:
        if "momentum" in group:
            group.update(momentum=0.0, nesterov=False)
        if "betas" in group:
            group["betas"] = (0.0, group["betas"][1])


def bucket_mb(method: Method, parameters: int) -> float:
    """Return DDP's bucket size in MiB: about eight buckets, so that every exchange overlaps with backward.

    It is at most DDP's default. Torch's PowerSGD gets all of the model in one bucket.

    Example:
        >>> bucket_mb(Method.parse("fp32"), parameters=2_097_152)  # a model of 8 MiB
        1.0
    """
    whole = parameters * 4 / 2**20
    return 4 * whole if method.rank is not None else min(25.0, max(whole / 8, 0.02))


def _powersgd_elements(shape: tuple[int, ...], rank: int) -> int:
    """Return how many elements torch's PowerSGD sends of a tensor: both factors where that halves them, else all."""
    elements = math.prod(shape)
    if len(shape) < 2:
        return elements
    rows, columns = shape[0], elements // shape[0]
    factors = (rows + columns) * min(rank, rows, columns)
    return factors if elements > 2 * factors else elements
