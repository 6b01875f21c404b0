# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The training loss that ranks tell: its mean over ranks stands beside what ran, in every mode."""

import math
from typing import Any

import pytest
import torch

from gravac.engine.losses import Losses
from gravac.telemetry import StepRecord
from tests.distributed.training import batch, network, parallel
from tests.modes.scripted import APART, HOOK, NATIVE, script
from tests.modes.test_switch import OPTIMIZERS, compressor_of
from tests.ranks import processes

PLAN = script((0, HOOK), (8, APART), (19, NATIVE), (30, HOOK))
STEPS = 46


@pytest.mark.parametrize("told", [[], [7.0], [0.0, -100.0], [1.5, -2.0, 64.0, 3.25]])
def test_the_mean_of_what_was_told_since_the_last_call(told: list[float]) -> None:
    losses = Losses()
    for loss in told:
        losses.add(loss)
    taken = losses.take_mean()
    assert taken == pytest.approx(sum(told) / len(told)) if told else math.isnan(taken)
    assert math.isnan(losses.take_mean())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_tensor_is_told_without_its_graph(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    losses = Losses()
    losses.add(torch.full(shape, 2.0, dtype=dtype, requires_grad=True) * 3)
    losses.add(2)
    assert losses.take_mean() == 4.0


@pytest.mark.parametrize(
    ("wrong", "error", "match"),
    [
        (torch.zeros(3), ValueError, r"loss: its shape is \(3,\); give the mean over the batch, one number"),
        (torch.zeros(0), ValueError, r"loss: its shape is \(0,\)"),
        (torch.zeros(1, dtype=torch.complex64), TypeError, "loss: torch.complex64 is complex; give a real number"),
        ("2.0", TypeError, "loss: str is not a number; give a tensor of one element, or a float"),
        (True, TypeError, "loss: bool is not a number"),
        (None, TypeError, "loss: NoneType is not a number"),
    ],
)
def test_what_is_no_loss_is_refused(wrong: Any, error: type[Exception], match: str) -> None:
    losses = Losses()
    with pytest.raises(error, match=match):
        losses.add(wrong)
    assert math.isnan(losses.take_mean())


def told_in_all_modes(rank: int, world: int, after: bool) -> dict[str, Any]:
    ddp = parallel(network(2))
    trains = OPTIMIZERS["sgd"](ddp.parameters())
    steps: list[StepRecord] = []
    compressor = compressor_of(
        PLAN, sinks=[lambda record: steps.append(record) if isinstance(record, StepRecord) else None]
    )
    compressor.loss(7.0)  # nothing is attached yet: it counts for nothing
    compressor.attach(ddp, trains)
    losses = []
    for step in range(STEPS):
        trains.zero_grad()
        x, y = batch(rank, step)
        loss = torch.nn.functional.cross_entropy(ddp(x), y)
        if not after:
            compressor.loss(loss)
        loss.backward()
        trains.step()
        if after:
            compressor.loss(loss)
        losses.append(loss.item())
    compressor.close()
    compressor.loss(7.0)  # nor when it is closed
    return {"told": losses, "records": [(one.step, one.steps, one.mode, one.loss) for one in steps]}


def told_before_and_after(rank: int, world: int) -> list[dict[str, Any]]:
    return [told_in_all_modes(rank, world, after) for after in (False, True)]


@pytest.fixture(scope="module")
def by_rank() -> list[list[dict[str, Any]]]:
    """What each rank told and recorded, with losses told before backward and after the step."""
    return processes(told_before_and_after, 2)


@pytest.mark.parametrize("after", [False, True], ids=["before backward", "after the step"])
def test_each_record_has_the_mean_over_ranks_of_its_steps(by_rank: list[list[dict[str, Any]]], after: bool) -> None:
    ranks = [of_rank[after] for of_rank in by_rank]
    records = ranks[0]["records"]
    assert {mode for _, _, mode, _ in records} == {"hook", "outer", "native"}
    means = [sum(of) / 2 for of in zip(*(rank["told"] for rank in ranks), strict=True)]
    exact = 0
    for first, count, mode, loss in records:
        late = after and mode == "hook"  # told after the step, a loss counts for the next one by the hook
        of = means[max(0, first - late) : first + count - late]
        if not of or (late and first == 0):
            assert math.isnan(loss)
            continue
        exact += abs(loss - sum(of) / len(of)) < 1e-5
        assert min(means) <= loss <= max(means)  # where the mode changes, a loss may count for the record beside
    assert exact >= 0.8 * len(records)
