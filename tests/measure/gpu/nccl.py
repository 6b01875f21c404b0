# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Training over NCCL, one rank: nothing waits for the GPU, streams are kept apart, overflow and capture are seen to."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from gravac import Compressor, quantize, topk
from tests.measure.gpu.parts import Row, attempts
from tests.measure.gpu.timing import GPU
from tests.measure.gpu.training import Training, one_rank, static

CASES: tuple[tuple[str, Compressor, float], ...] = (
    ("topk", topk, 100.0),
    ("quantize(4)", quantize(4), 8.0),
    ("dense", topk, 1.0),
)

WARM, STEPS = 8, 20


def rows() -> Iterator[Row]:
    with one_rank():
        cases: dict[str, Callable[[], Row]] = {}
        for name, base, cf in CASES:
            cases[f"{name}: the host waits once in a step"] = partial(waits, base, cf)
        cases["dense: parameters as of native DDP"] = partial(as_native, GPU)
        for name, base, cf in CASES:
            cases[f"{name}: backward on a side stream"] = partial(on_a_side_stream, base, cf)
            cases[f"{name}: an overflow under GradScaler"] = partial(overflow, base, cf, GPU)
        cases["capture into a CUDA graph is refused"] = captured  # the last: what was captured half may go on failing
        yield from attempts(cases)


def waits(base: Compressor, cf: float) -> Row:
    """Synchronizing raises, but for events, for which the executor waits once."""
    training = Training(static(base, cf))
    assert training.compressor is not None
    for _ in range(WARM):
        training.step()
    executor: Any = training.compressor._engine.executor
    before = executor.host_waits
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(STEPS):
            training.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    waited = (executor.host_waits - before) / STEPS
    ratio = training.compressor.cf
    training.close()
    return {"host_waits": waited, "cf": ratio, "met": waited == 1 and ratio == cf}


def trained(
    base: Compressor | None, cf: float, device: torch.device, steps: int = STEPS, width: int = 512
) -> torch.Tensor:
    """Weights after some steps, on the present stream."""
    training = Training(None if base is None else static(base, cf), device, width)
    for _ in range(steps):
        training.step()
    weights = training.weights.cpu()
    training.close()
    return weights


def as_native(device: torch.device, width: int = 512) -> Row:
    return apart(*(trained(base, 1.0, device, width=width) for base in (topk, None)))


def on_a_side_stream(base: Compressor, cf: float) -> Row:
    """Forward, backward and optimizer on a stream that is not the default one, against the default one."""
    plain = trained(base, cf, GPU)
    stream = torch.cuda.Stream(GPU)
    stream.wait_stream(torch.cuda.current_stream(GPU))
    with torch.cuda.stream(stream):
        beside = trained(base, cf, GPU)
    return apart(beside, plain)


def apart(some: torch.Tensor, others: torch.Tensor) -> Row:
    return {"met": torch.equal(some, others), "most": (some - others).abs().max().item()}


def overflow(base: Compressor, cf: float, device: torch.device, width: int = 512) -> Row:
    """A step with an infinite gradient changes neither weights nor residuals, and halves the scale."""
    scaler = torch.amp.GradScaler(device.type, init_scale=1024.0, growth_interval=1000)
    training = Training(static(base, cf), device, width, scaler=scaler)
    assert training.compressor is not None
    for _ in range(WARM):
        training.step()
    before, kept = training.weights, residuals(training)
    training.step(factor=float("inf"))
    same, halved = torch.equal(training.weights, before), scaler.get_scale() == 512.0
    kept_still = all(torch.equal(after, kept[name]) for name, after in residuals(training).items())
    for _ in range(WARM):
        training.step()
    finite = bool(training.weights.isfinite().all()) and not torch.equal(training.weights, before)
    training.close()
    said = {"weights_stay": same, "residuals_stay": kept_still, "scale_halves": halved, "goes_on": finite}
    return {**said, "met": all(said.values())}


def residuals(training: Training) -> dict[str, torch.Tensor]:
    assert training.compressor is not None
    _ = training.compressor.cf  # which waits
    return {name: one.clone() for name, one in training.compressor._engine.averager.feedback.residual.items()}


def captured() -> Row:
    training = Training(static(topk, 100.0))
    for _ in range(12):  # as DistributedDataParallel asks for before a capture
        training.step()
    torch.cuda.synchronize()
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
            training.step()
    except Exception as failure:
        said = "\n".join(map(str, chain(failure)))  # what ends the capture may raise too
        return {"met": "cannot be captured into a CUDA graph" in said, "said": said[:2000]}
    return {"met": False, "said": "it was captured"}


def chain(failure: BaseException | None) -> Iterator[BaseException]:
    """An exception, and those during which it was raised."""
    while failure is not None:
        yield failure
        failure = failure.__cause__ or failure.__context__
