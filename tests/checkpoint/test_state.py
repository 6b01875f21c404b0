# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint holds, and which ones are refused."""

import io
import math
from dataclasses import asdict
from typing import Any

import pytest
import torch

from gravac import AdaptiveCompressor, SettingsError, Static, merge_states, randomk, topk
from gravac.candidate import Candidate
from gravac.measurement import OVER_RANKS


def state(rank: int = 0, world: int = 2, **changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = AdaptiveCompressor(topk).state_dict()
    residual = {"w": torch.full((4,), float(rank + 1))}
    return {**made, "rank": rank, "world": world, "residual": residual, **changes}


def test_a_state_is_tensors_and_plain_values() -> None:
    file = io.BytesIO()
    torch.save(state(), file)
    loaded = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    assert loaded.keys() == state().keys()


@pytest.mark.parametrize(
    ("compressor", "given", "said"),
    [
        (
            AdaptiveCompressor(topk),
            {"version": 99},
            "version: the state has version 99, but this gravac reads version 9",
        ),
        (AdaptiveCompressor(topk), {"version": 4}, "version: the state has version 4, but this gravac reads version 9"),
        (AdaptiveCompressor(topk), {}, "version: the state has version None"),
        (
            AdaptiveCompressor(randomk),
            state(),
            "base: the state was made with 'topk', but this compressor has 'randomk'",
        ),
        (AdaptiveCompressor(topk, controller=Static(cf=10)), state(), "controller: the state was made with 'gravac'"),
    ],
)
def test_a_state_of_something_else_is_refused(compressor: AdaptiveCompressor, given: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        compressor.load_state_dict(given)


def test_a_state_of_another_model_is_refused() -> None:
    compressor = AdaptiveCompressor(topk)
    compressor.bind(torch.nn.Linear(2, 2))
    with pytest.raises(SettingsError, match="residual: the model has no parameter 'w'"):
        compressor.load_state_dict(state())


def test_merging_takes_the_mean_residual_and_fits_any_world() -> None:
    sums = {"v": torch.full((2,), 4.0)}
    merged = merge_states([state(1), state(0, sums=sums)])
    assert torch.equal(merged["residual"]["w"], torch.full((4,), 1.5))
    assert torch.equal(merged["sums"]["v"], torch.full((2,), 2.0)), "a rank without one counts as zero"
    assert merged["world"] is None
    AdaptiveCompressor(topk).load_state_dict(merged)


@pytest.mark.parametrize(
    ("states", "said"),
    [
        ([], "give the states of all ranks"),
        ([state(0)], r"each of the 2 ranks, all of the same step; got ranks \[0\]"),
        ([state(0), state(0)], r"got ranks \[0, 0\]"),
        ([state(0), state(1, step=7)], r"all of the same step; got ranks \[0, 1\] at steps \[\d+, 7\]"),
    ],
)
def test_an_incomplete_set_of_states_is_not_merged(states: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        merge_states(states)


def test_loading_copies() -> None:
    given = state()
    compressor = AdaptiveCompressor(topk)
    compressor.load_state_dict(given)
    given["residual"]["w"].zero_()
    assert compressor.state_dict()["residual"]["w"].any()


def test_merging_keeps_what_compressors_keep() -> None:
    """A second error joins the residual, since its shards fit one world size only; other memory becomes the mean."""
    first = {"second": torch.ones(1, 4)}
    states = [
        state(rank, memory={"w": first, "v": {"velocity": torch.full((2,), 2.0 * rank)}}, aside={"w": torch.ones(4)})
        for rank in range(2)
    ]
    merged = merge_states(states)
    assert torch.equal(merged["residual"]["w"], torch.full((4,), 2.5))
    assert merged["memory"].keys() == {"v"}
    assert torch.equal(merged["memory"]["v"]["velocity"], torch.ones(2))


def pending(*shadow: float) -> dict[str, Any]:
    """A rank's numbers of step 3, of which the ranks have not agreed yet."""
    numbers = {name: float(at) for at, name in enumerate(OVER_RANKS)}
    made = {"step": 3, "candidate": asdict(Candidate("hook", "topk", 10.0)), "first": 7, "steps": 2}
    return {
        **made,
        **numbers,
        "samples": math.inf,
        "shadow": tuple((cf, 2 * cf) for cf in shadow),
        "norms": (("w", 4.0),),
    }


def test_pending_numbers_come_back_as_they_were_saved() -> None:
    given = {**pending(10.0, 20.0), "learning_rate": math.inf}
    compressor = AdaptiveCompressor(topk)
    compressor.load_state_dict(state(step=4, pending=[given]))
    assert compressor.state_dict()["pending"] == [given]
    own = compressor._engine.state.pending[0].own
    assert own is not None and own.candidate == Candidate("hook", "topk", 10.0)
    assert (own.first, own.steps, own.shadow, own.norms) == (7, 2, ((10.0, 20.0), (20.0, 40.0)), (("w", 4.0),))


def test_a_number_that_pending_numbers_lack_or_have_besides_is_named() -> None:
    lacks, has_besides = pending(10.0), {**pending(10.0), "colour": 1.0}
    del lacks["exchanged"]
    for given, said in (
        (lacks, "exchanged: the entry is missing"),
        (has_besides, "colour: this run expects no such entry"),
    ):
        with pytest.raises(SettingsError, match=f"pending/0/{said}"):
            AdaptiveCompressor(topk).load_state_dict(state(step=4, pending=[given]))
