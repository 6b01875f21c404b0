# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Where and how anchors are kept: what it changes, and what it must not."""

from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from gravac import SettingsError, Static, dense
from gravac.compressors.draws import Draws
from gravac.modes.outer.anchors import AnchorStorage, round_to_bfloat16
from tests.device.counting import DEVICE, counting
from tests.device.steps import Counted
from tests.device.storages import Storages
from tests.outer.by_hand import OuterByHand
from tests.outer.ranks import FOUR_BITS, MOMENTUM, Ranks, equal, network, saved


def in_sixteen_bit() -> torch.nn.Module:
    return network().to(torch.bfloat16)


def strided() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = torch.nn.Unflatten(1, (3, 4, 4)), torch.nn.Conv2d(3, 8, 4), torch.nn.Flatten()
    return torch.nn.Sequential(*layers).to(memory_format=torch.channels_last)


@pytest.mark.parametrize("make", [network, strided])
@pytest.mark.parametrize("fragments", [1, 2])
def test_off_the_device_is_the_same_bits(fragments: int, make: Any) -> None:
    settings: dict[str, Any] = {"every": 3, "fragments": fragments, "outer": MOMENTUM, "make": make, **FOUR_BITS}
    there, here = (Ranks(2, offload=offload, **settings).train(9) for offload in (False, True))
    assert all(map(torch.equal, there.weights, here.weights))
    assert all(map(torch.equal, there.anchors, here.anchors))


@example(every=3, fragments=2, delay=1, offload=True)
@example(every=2, fragments=1, delay=3, offload=False)
@given(every=st.integers(1, 4), fragments=st.integers(1, 3), delay=st.integers(0, 3), offload=st.booleans())
def test_rounded_anchors_are_the_same_on_all_ranks(every: int, fragments: int, delay: int, offload: bool) -> None:
    when: dict[str, Any] = {"every": every, "fragments": fragments, "delay": delay, "outer": MOMENTUM}
    trained = Ranks(2, anchor_dtype="bfloat16", offload=offload, **when, **FOUR_BITS).train(9)
    first = trained.outer[0]
    assert {anchor.dtype for anchor in first._anchors.values()} == {torch.bfloat16}
    assert {one["momentum_buffer"].dtype for one in first.outer.state.values()} == {torch.bfloat16}
    assert equal(trained.anchors)


@given(strides=st.booleans(), step=st.floats(2**-12, 2**-9))
def test_what_is_too_small_for_the_format_counts_in_the_mean(strides: bool, step: float) -> None:
    weights = torch.ones(64, 64, 2).transpose(0, 2) if strides else torch.ones(2, 64, 64)
    storage = AnchorStorage(bfloat16=True)
    anchor = storage.anchor("w", weights)
    for number in range(16):
        with storage.in_exchange_dtype({"w": anchor}, number), torch.no_grad():
            assert anchor.dtype == torch.float32
            anchor.sub_(step)
    assert anchor.stride() == weights.stride()
    assert float(anchor.detach().float().mean()) == pytest.approx(1 - 16 * step, abs=1e-3)


@given(strides=st.booleans(), momentum=st.floats(0.5, 0.99))
def test_momentum_that_is_rounded_is_right_in_the_mean(strides: bool, momentum: float) -> None:
    weights = torch.zeros(64, 64, 2).transpose(0, 2) if strides else torch.zeros(2, 64, 64)
    storage = AnchorStorage(bfloat16=True)
    anchor = storage.anchor("w", weights)
    outer = torch.optim.SGD([anchor], lr=0.0, momentum=momentum)
    for number in range(16):
        with storage.in_exchange_dtype({"w": anchor}, number, outer.state):
            anchor.grad = torch.full_like(anchor, 1 / 3)
            outer.step()
            anchor.grad = None
    (kept,) = (one["momentum_buffer"] for one in outer.state.values())
    assert (kept.dtype, kept.stride()) == (torch.bfloat16, weights.stride())
    in_full = sum(momentum**step for step in range(16)) / 3
    assert float(kept.float().mean()) == pytest.approx(in_full, rel=1e-3)


@pytest.mark.parametrize("outer", [torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop])
def test_other_outer_optimizers_keep_what_they_have_rounded_too(outer: Any) -> None:
    settings: dict[str, Any] = {"every": 3, "outer": outer, "anchor_dtype": "bfloat16", **FOUR_BITS}
    whole = Ranks(2, **settings).train(6)
    states = [saved(one.state_dict()) for one in whole.outer]
    again = Ranks(2, **settings)
    for one, state in zip(again.outer, states, strict=True):
        one.load_state_dict(state)
    again.made = 6
    assert all(map(torch.equal, whole.train(6).weights, again.train(6).weights))
    for anchor, kept in whole.outer[0].outer.state.items():
        assert {value.dtype for value in kept.values() if value.shape == anchor.shape} == {torch.bfloat16}


def test_a_run_with_rounded_anchors_goes_on_bit_for_bit() -> None:
    settings: dict[str, Any] = {"every": 3, "outer": MOMENTUM, "anchor_dtype": "bfloat16", "make": strided, **FOUR_BITS}
    whole = Ranks(2, **settings).train(7)
    states = [saved(outer.state_dict()) for outer in whole.outer]
    whole.train(5)
    again = Ranks(2, **settings)
    for outer, state in zip(again.outer, states, strict=True):
        outer.load_state_dict(state)
    again.made = 7
    again.train(5)
    assert all(map(torch.equal, whole.weights, again.weights))
    assert all(map(torch.equal, whole.anchors, again.anchors))


def test_a_format_that_loses_too_much_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"anchor_dtype.*'float32' or 'bfloat16'.*float16"):
        Ranks(1, anchor_dtype="float16")
    with pytest.raises(SettingsError, match=r"parameter 0.weight is in torch.float64; use anchor_dtype='float32', or"):
        Ranks(1, anchor_dtype="bfloat16", make=lambda: network().double())


MATRICES, SIZE = 8, 1 << 12
"""Number of a model's matrices, and elements of each."""


def memory_of(**settings: Any) -> tuple[Storages, Storages]:
    """Follow the third round of a bfloat16 model on a made-up GPU: its memory, and the CPU's."""
    there, here = Storages("npy"), Storages("cpu")
    with ExitStack() as within:
        seen = within.enter_context(counting())
        within.enter_context(there)
        within.enter_context(here)
        matrices = [torch.empty(256, SIZE // 256, dtype=torch.bfloat16, device=DEVICE) for _ in range(MATRICES)]
        module = torch.nn.ParameterList(matrices)
        outer = OuterByHand(
            module,
            torch.optim.SGD(module.parameters()),
            base=dense,
            cf_range=(1, 2),
            controller=Static(cf=1),
            every=MATRICES,
            delay=0,
            outer=partial(torch.optim.SGD, lr=0.7, momentum=0.9, nesterov=True),
            executor=Counted(seen, 2),
            **settings,
        )
        for number in range(3):
            if number == 2:
                there.begin()
                here.begin()
            for _ in range(MATRICES):
                outer.step()
        there.end()
        here.end()
    return there, here


@pytest.mark.parametrize(("anchor_dtype", "each"), [("float32", 4), ("bfloat16", 2)])
def test_off_the_device_nothing_is_kept_on_it(anchor_dtype: str, each: int) -> None:
    of = MATRICES * SIZE
    settings: dict[str, Any] = {"anchor_dtype": anchor_dtype, "fragments": MATRICES}
    there, here = memory_of(offload=True, **settings)
    assert there.kept == pytest.approx(2 * of, rel=0.05)
    assert there.peak < 2 * of + 3 * 4 * SIZE
    assert here.kept == pytest.approx((each + each) * of, rel=0.05)
    there, _ = memory_of(offload=False, **settings)
    assert there.kept == pytest.approx((2 + each + each) * of, rel=0.05)


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
