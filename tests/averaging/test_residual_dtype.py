# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Residuals in bfloat16: half the memory, rounded at random, so that nothing is lost on average, for 10,000 steps."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gravac import AdaptiveCompressor, Static, quantize, topk
from gravac.averaging.feedback import Feedback
from gravac.averaging.residuals import round_to_bfloat16
from gravac.compressors.draws import Draws
from gravac.exchange.lockstep import Lockstep
from gravac.settings import SettingsError

finite = st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False)


@given(st.lists(finite, min_size=1, max_size=40), st.integers(0, 1000))
def test_rounding_goes_to_a_neighbour(numbers: list[float], key: int) -> None:
    x = torch.tensor(numbers)
    near = round_to_bfloat16(x, Draws(str(key)))
    assert near.dtype == torch.bfloat16
    assert bool(((near.float() - x).abs() <= 2.0**-7 * x.abs()).all())
    exact = near.float()
    assert torch.equal(round_to_bfloat16(exact, Draws(str(key + 1))), near)  # what fits stays
    assert torch.equal(round_to_bfloat16(x, Draws(str(key))), near)


def test_rounding_is_right_on_average() -> None:
    x = torch.full((1 << 16,), 1 + 2.0**-9)  # a quarter of the way from 1 to the next
    up = (round_to_bfloat16(x, Draws("key")).float() > 1).double().mean()
    assert abs(up - 0.25) < 5 * (0.25 * 0.75 / x.numel()) ** 0.5


def piled(dtype: str, steps: int, draws: bool = True) -> torch.Tensor:
    """What is kept after as many steps of gradients of 1 with nothing sent."""
    feedback = Feedback(dtype=dtype)
    for step in range(steps):
        x = feedback.fold("w", torch.ones(256), keeps_unsent=True)
        feedback.store_unsent(["w"], x, key=f"{step if draws else 0}")
    return feedback.residual["w"].double()


def test_ten_thousand_steps_lose_nothing_on_average() -> None:
    kept = piled("bfloat16", 10_000)
    # each step rounds by at most one unit in the last place, independently of the others
    bound = 2.0**-7 * 10_000 * 10_000**0.5 / 256**0.5
    assert abs(kept.mean() - 10_000) < bound
    assert torch.equal(piled("float32", 500), torch.full((256,), 500.0, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_it_is_added_to_gradients_in_float32(dtype: torch.dtype) -> None:
    feedback = Feedback(dtype="bfloat16")
    feedback.residual["w"] = torch.full((8,), 256.0, dtype=torch.bfloat16)
    assert torch.equal(feedback.fold("w", torch.ones(8, dtype=dtype), keeps_unsent=True), torch.full((8,), 257.0))


def test_to_the_nearest_it_would_stand_still() -> None:
    kept = torch.zeros(8, dtype=torch.bfloat16)
    for _ in range(1000):
        kept = (kept.float() + 1).bfloat16()
    assert kept[0] == 256


def trained(steps: int, state: list[dict[str, Any]] | None = None, **settings: Any) -> Iterator[Any]:
    """Two ranks' compressors and gradients after each step; ``state``: what they go on from."""
    ranks = Lockstep(2)
    base = settings.pop("base", topk)
    made = [AdaptiveCompressor(base, controller=Static(cf=8), residual_dtype="bfloat16", **settings) for _ in range(2)]
    weights = {"w": torch.zeros(64, 64)}
    doors = [one.door(weights, executor=executor) for one, executor in zip(made, ranks.executors, strict=True)]
    first = 0
    if state is not None:
        for one, saved in zip(made, state, strict=True):
            one.load_state_dict(saved)
        first = state[0]["step"]
    for step in range(first, steps):
        gradients = [torch.randn(64, 64, generator=torch.Generator().manual_seed(10 * step + r)) for r in range(2)]
        handles = []
        for door, gradient in zip(doors, gradients, strict=True):
            door.begin()
            handles.append(door.ready([("w", gradient)]))
            door.end()
        handles[0].wait()
        yield made, gradients


def test_what_is_sent_and_kept_is_what_was_given_within_its_bound() -> None:
    given_, sent = torch.zeros(64, 64, dtype=torch.float64), torch.zeros(64, 64, dtype=torch.float64)
    slack = torch.zeros(64, 64, dtype=torch.float64)
    for step, (made, gradients) in enumerate(trained(30)):
        draws = [torch.randn(64, 64, generator=torch.Generator().manual_seed(10 * step + r)) for r in range(2)]
        given_ += sum(one.double() for one in draws) / 2
        sent += gradients[0].double()
        kept = [one.state_dict()["residual"]["w"].double().view(64, 64) for one in made]
        slack += 2.0**-6 * sum(one.abs() for one in kept) / 2
        assert bool(((given_ - sent - sum(kept) / 2).abs() <= slack + 1e-5).all())


@pytest.mark.parametrize("base", [topk, quantize(2)], ids=repr)
@pytest.mark.parametrize("safe", [False, True])
def test_it_is_saved_as_it_is_and_goes_on_bit_for_bit(base: Any, safe: bool) -> None:
    settings = {"base": base, "overflow_safety": safe, "error_feedback": 1.0}
    whole = [gradients for _, gradients in trained(12, **settings)]
    *_, (made, _) = trained(6, **settings)
    saved = [one.state_dict() for one in made]
    assert saved[0]["residual"]["w"].dtype == torch.bfloat16
    rest = [gradients for _, gradients in trained(12, saved, **settings)]
    assert all(torch.equal(one[0], other[0]) for one, other in zip(whole[6:], rest, strict=True))


def test_another_format_is_refused_by_name() -> None:
    with pytest.raises(SettingsError, match=r"residual_dtype.*float32.*bfloat16"):
        AdaptiveCompressor(topk, residual_dtype="float16")
