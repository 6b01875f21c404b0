# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Mixed precision and torch.compile, by streams under DDP's real hook, on CPU tensors: the bits that a thread gives."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gravac import AdaptiveCompressor, Compressor, Static, dense, powersgd, quantize, thc, topk, topkc
from tests.device.idle import streams
from tests.ranks import processes

STEPS = 7
POISONED = 4
"""The step in which a gradient of one rank overflows, where there is a scaler."""


class Case(NamedTuple):
    """A way to train.

    Attributes:
        dtype: of the model, and so of the buckets.
        scaled: whether a scaler multiplies the loss, and one step overflows.
        autocast: whether forward and backward, and so the hook, run under autocast.
        compiled: what torch.compile compiles: the model within DDP, or DDP; nothing.
        backend: of torch.compile.
    """

    base: Compressor
    cf: float
    dtype: torch.dtype = torch.float32
    scaled: bool = False
    autocast: bool = False
    compiled: str = ""
    backend: str = "eager"


class Trained(NamedTuple):
    """What came of it: weights, what is kept, and the loss scale before each step and after the last."""

    weights: torch.Tensor
    residual: torch.Tensor
    scales: list[float]


class Scaler(torch.amp.GradScaler):
    """A scaler that takes gradients in float16, too, which torch's refuses to."""

    def _unscale_grads_(self, optimizer: Any, inv_scale: Any, found_inf: Any, allow_fp16: bool) -> Any:
        return super()._unscale_grads_(optimizer, inv_scale, found_inf, True)


def train(rank: int, case: Case) -> Trained:
    torch.manual_seed(3)
    model: torch.nn.Module = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4))).to(case.dtype)
    if case.compiled == "model":
        model = torch.compile(model, backend=case.backend)  # type: ignore[assignment]
    dist._DEFAULT_FIRST_BUCKET_BYTES = 20_000  # dynamo wants it to be the least
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.02)
    called: Any = torch.compile(ddp, backend=case.backend) if case.compiled == "ddp" else ddp
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    scaler = Scaler("cpu", init_scale=2.0**10, growth_interval=3, enabled=case.scaled)
    scales = []
    with AdaptiveCompressor(case.base, (1, 100), controller=Static(cf=case.cf)) as compressor:
        compressor.attach(ddp, optimizer, scaler if case.scaled else None)
        for step in range(STEPS):
            scales.append(scaler.get_scale())
            optimizer.zero_grad()
            draws = torch.Generator().manual_seed(10 * step + rank)
            with torch.autocast("cpu", torch.bfloat16, enabled=case.autocast):
                loss = called(torch.randn(4, 64, generator=draws).to(case.dtype)).float().square().mean()
                overflows = case.scaled and step == POISONED and rank == 1
                scaler.scale(loss * torch.inf if overflows else loss).backward()  # type: ignore[no-untyped-call]
            scaler.step(optimizer)
            scaler.update()
        kept = compressor.state_dict()["residual"]
    flat = torch.cat([p.detach().flatten() for p in ddp.parameters()])
    return Trained(
        flat,
        torch.cat([torch.zeros(0), *(kept[name].flatten() for name in sorted(kept))]),
        [*scales, scaler.get_scale()],
    )


def both(rank: int, world: int, cases: Sequence[Case]) -> list[tuple[Trained, Trained]]:
    """Each case by a thread, and by streams."""
    came = []
    for case in cases:
        by_thread = train(rank, case)
        with streams(rank) as made:
            came.append((by_thread, train(rank, case)))
        assert len(made) == 1
        torch._dynamo.reset()
    return came


def compare(cases: Sequence[Case]) -> list[Trained]:
    """All ranks' weights are the same, by streams what they are by a thread; returned as rank 0 has them."""
    ranks = processes(both, 2, cases)
    for case, (thread, by_streams), (other_thread, other) in zip(cases, *ranks, strict=True):
        assert by_streams.weights.isfinite().all(), case
        assert torch.equal(by_streams.weights, other.weights), case
        assert torch.equal(by_streams.weights, thread.weights), case
        assert torch.equal(by_streams.residual, thread.residual), case
        assert torch.equal(other.residual, other_thread.residual), case
        assert by_streams.scales == thread.scales == other.scales, case
    return [by_streams for _, by_streams in ranks[0]]


BASES: tuple[tuple[Compressor, float], ...] = ((dense, 1), (topk, 10), (quantize(2), 16), (powersgd, 8))


def test_buckets_of_16_bits() -> None:
    compare([Case(*base, torch.bfloat16) for base in BASES])


def test_a_loss_scale_that_grows_and_a_step_that_overflows() -> None:
    halves = [Case(*base, torch.float16, scaled=True) for base in BASES]
    for one in compare([*halves, Case(topkc, 10, scaled=True)]):
        assert one.scales[POISONED + 1] == one.scales[POISONED] / 2
        assert max(one.scales) > one.scales[0]


def test_autocast_around_the_hook_changes_nothing_of_what_is_exchanged() -> None:
    # left on, it gives PowerSGD's products in bfloat16
    compare([Case(powersgd, 8, autocast=True), Case(thc, 8, autocast=True)])


@pytest.mark.parametrize("backend", ["eager", pytest.param("aot_eager", marks=pytest.mark.long)])
def test_compiled(backend: str) -> None:
    compare([Case(quantize(2), 16, autocast=True, compiled=what, backend=backend) for what in ("model", "ddp")])
