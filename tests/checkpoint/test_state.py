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
from gravac.stepping.agreement import Layout


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
        (AdaptiveCompressor(topk), {"version": 99}, "version: the state has 99, this gravac reads 1"),
        (AdaptiveCompressor(topk), {}, "version: the state has None"),
        (AdaptiveCompressor(randomk), state(), "base: the state was made with 'topk', this compressor has 'randomk'"),
        (AdaptiveCompressor(topk, controller=Static(cf=10)), state(), "controller: the state was made with 'goodput'"),
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
    held = {"v": torch.full((2,), 4.0)}
    merged = merge_states([state(1), state(0, held=held)])
    assert torch.equal(merged["residual"]["w"], torch.full((4,), 1.5))
    assert torch.equal(merged["held"]["v"], torch.full((2,), 2.0)), "a rank without one counts as zero"
    assert merged["world"] is None
    AdaptiveCompressor(topk).load_state_dict(merged)


@pytest.mark.parametrize(
    ("states", "said"),
    [
        ([], "give the states of all ranks"),
        ([state(0)], r"each of the 2 ranks at one step; got ranks \[0\]"),
        ([state(0), state(0)], r"got ranks \[0, 0\]"),
        ([state(0), state(1, step=7)], "at one step"),
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


@pytest.mark.parametrize(
    ("shadow", "kept"),
    [
        ((), ["seconds", "error", "energy", "waited", "coded", "learning_rate", "exchanged"]),
        ((10.0, 20.0, 40.0), ["seconds", "error", "energy", "10", "20", "40", "waited", "coded"]),
        ((10.0, 20.0, 40.0, 80.0, 160.0), ["seconds", "error", "energy", "10", "20", "40", "80", "160"]),
    ],
    ids=len,
)
def test_eight_numbers_of_a_state_of_version_1_are_the_slots_they_were(
    shadow: tuple[float, ...], kept: list[str]
) -> None:
    eight = [float(at) for at in range(1, 9)]
    before = {"step": 3, "candidate": asdict(Candidate("hook", "topk", 10.0)), "shadow": list(shadow), "numbers": eight}
    compressor = AdaptiveCompressor(topk)
    compressor.load_state_dict(state(version=1, step=4, report=before))
    (one,) = compressor._steps.state.unobserved
    report = one.report
    assert (report.step, report.candidate, report.shadow) == (3, Candidate("hook", "topk", 10.0), shadow)
    known = {slot: number for slot, number in report.numbers.items() if not math.isnan(number)}
    assert [slot.removeprefix("error at ").removesuffix(".0") for slot in known] == kept
    assert list(known.values()) == eight[: len(kept)]
    assert list(report.numbers) == list(Layout(shadow).slots)


def test_a_state_of_version_2_is_read_as_it_is() -> None:
    compressor = AdaptiveCompressor(topk)
    compressor.load_state_dict(state(version=2))
    assert compressor.state_dict()["version"] == 3


def test_a_report_comes_back_as_it_was_saved() -> None:
    numbers = {slot: float(at) for at, slot in enumerate(Layout((10.0, 20.0)).slots)} | {"learning_rate": math.inf}
    report = {
        "step": 3,
        "candidate": asdict(Candidate("hook", "topk", 10.0)),
        "shadow": [10.0, 20.0],
        "numbers": numbers,
    }
    compressor = AdaptiveCompressor(topk)
    compressor.load_state_dict(state(step=4, report=report))
    assert compressor.state_dict()["report"] == report


def test_a_slot_that_a_saved_report_lacks_is_nan() -> None:
    numbers = {slot: 1.0 for slot in Layout((10.0,)).slots if slot != "exchanged"}
    candidate = asdict(Candidate("hook", "topk", 10.0))
    compressor = AdaptiveCompressor(topk)
    compressor.load_state_dict(
        state(step=4, report={"step": 3, "candidate": candidate, "shadow": [10.0], "numbers": numbers})
    )
    (one,) = compressor._steps.state.unobserved
    named = zip(Layout((10.0,)).slots, one.report.vector(), strict=True)
    assert [slot for slot, number in named if math.isnan(number)] == ["exchanged"]
