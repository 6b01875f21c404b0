# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Laws of what ranks take over from more or fewer ranks."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gravac import AdaptiveCompressor, SettingsError, topk
from gravac.checkpoint.resize import OnResize, state_to_load

NAMES = ("v", "w")


def states(world: int, seed: int, averaging: int | None = None) -> list[dict[str, Any]]:
    """States of ranks that have some residuals, a second error, and memory."""
    g = torch.Generator().manual_seed(seed)
    plain = AdaptiveCompressor(topk).state_dict()
    made = []
    for rank in range(world):
        parts = {
            part: {name: torch.randn(6, generator=g) for name in NAMES if torch.rand((), generator=g) < 0.7}
            for part in ("residual",)
        }
        aside = {name: torch.randn(6, generator=g) for name in parts["residual"] if name == "w"}
        memory = {"v": {"q": torch.ones(3)}, "w": {"second": torch.randn(2, generator=g)}}
        place = {"rank": rank % (averaging or world), "world": averaging or world}
        made.append({**plain, **place, "step": 7, **parts, "aside": aside, "memory": memory})
    return made


def total(ranks: list[dict[str, Any]], name: str) -> torch.Tensor:
    """All that will still be sent of a tensor, over ranks."""
    nothing = torch.zeros(6)
    return sum((rank[part].get(name, nothing) for rank in ranks for part in ("residual", "aside")), start=nothing)


def after(old: list[dict[str, Any]], now: int, mode: OnResize) -> list[dict[str, Any]]:
    return [state_to_load(len(old), now, rank, mode, old.__getitem__) for rank in range(now)]


worlds = st.integers(1, 5)
seeds = st.integers(0, 2**16)


@given(worlds, worlds, seeds)
def test_the_mean_over_ranks_of_what_was_not_sent_is_conserved(before: int, now: int, seed: int) -> None:
    old = states(before, seed)
    new = after(old, now, "mean")
    for name in NAMES:
        assert torch.allclose(total(new, name) / now, total(old, name) / before, atol=1e-5)


@given(worlds, worlds, seeds)
def test_what_is_kept_stays_with_its_rank(before: int, now: int, seed: int) -> None:
    old = states(before, seed)
    new = after(old, now, "keep")
    for mine, its in zip(new, old, strict=False):
        for name in NAMES:
            assert torch.allclose(total([mine], name), total([its], name), atol=1e-6)
    assert all(rank["residual"] == {} for rank in new[before:])


@given(worlds, worlds, seeds)
def test_what_is_dropped_is_gone_and_the_rest_goes_on(before: int, now: int, seed: int) -> None:
    old = states(before, seed)
    for rank in after(old, now, "drop"):
        assert rank["step"] == 7
        if before != now:
            assert [rank[part] for part in ("residual", "memory", "sums", "aside")] == [{}] * 4


@given(worlds, seeds, st.sampled_from(["mean", "keep", "drop"]))
def test_at_the_same_world_size_every_rank_gets_its_own(world: int, seed: int, mode: OnResize) -> None:
    old = states(world, seed)
    assert after(old, world, mode) == old or all(
        new[key] is mine[key] for new, mine in zip(after(old, world, mode), old, strict=True) for key in mine
    )


@pytest.mark.parametrize("mode", ["mean", "keep"])
def test_every_rank_remembers_what_all_ranks_remembered(mode: OnResize) -> None:
    for rank in after(states(2, 0), 3, mode):
        assert rank["memory"].keys() == {"v"}, "a second error has joined the residual"
        assert torch.equal(rank["memory"]["v"]["q"], torch.ones(3))


def test_half_precision_memory_is_averaged_in_float32() -> None:
    old = states(3, 0)
    for rank, state in enumerate(old):
        state.update(memory={"v": {"q": torch.full((6,), 1 + rank / 128, dtype=torch.bfloat16)}}, aside={})
    assert torch.equal(after(old, 2, "mean")[0]["memory"]["v"]["q"], torch.full((6,), 1 + 1 / 128))


def test_parts_of_a_model_that_some_ranks_averaged_can_only_be_dropped() -> None:
    old = states(4, 0, averaging=2)
    for mode in ("mean", "keep"):
        with pytest.raises(SettingsError, match=f"on_resize: {mode!r} needs a model in shards, since .*2 of 4 ranks"):
            after(old, 2, mode)
    assert after(old, 2, "drop")[1]["residual"] == {}


def test_for_dropping_one_state_is_read() -> None:
    old = states(3, 0)
    asked: list[int] = []

    def state_of(rank: int) -> dict[str, Any]:
        asked.append(rank)
        return old[rank]

    state_to_load(3, 2, 1, "drop", state_of)
    state_to_load(3, 3, 1, "mean", state_of)
    assert asked == [0, 1]
