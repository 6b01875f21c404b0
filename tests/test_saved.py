# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What is loaded is what was dumped: nothing is missing, unknown, or converted from another type."""

import math
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ConfigDict

from gravac.ranges import Count, Factor, SumOfSquares
from gravac.saved import FlatTensor, dump_fields, load_fields
from gravac.settings import SettingsError


@dataclass(frozen=True)
class Part:
    """Numbers with ranges."""

    cf: Factor = 2.0
    squares: tuple[SumOfSquares, ...] = ()


@dataclass
class Whole:
    """Plain values, a part, and tensors."""

    __pydantic_config__ = ConfigDict(arbitrary_types_allowed=True)

    step: Count = 0
    loss: float = math.nan
    done: bool = False
    part: Part | None = None
    tensors: dict[str, FlatTensor] = field(default_factory=dict)


wholes = st.builds(
    Whole,
    step=st.integers(0, 2**53),
    loss=st.floats(),
    done=st.booleans(),
    part=st.none()
    | st.builds(Part, cf=st.floats(1e-9, 1e9), squares=st.lists(st.floats(0, 1e300), max_size=3).map(tuple)),
    tensors=st.dictionaries(st.text(max_size=3), st.builds(torch.ones, st.integers(0, 3)), max_size=2),
)


@given(wholes)
def test_what_was_dumped_is_loaded_with_the_same_tensors(whole: Whole) -> None:
    loaded = load_fields(Whole, dump_fields(whole))
    assert (loaded.step, loaded.done, loaded.part) == (whole.step, whole.done, whole.part)
    assert loaded.loss == whole.loss or (math.isnan(loaded.loss) and math.isnan(whole.loss))
    assert loaded.tensors.keys() == whole.tensors.keys()
    assert all(loaded.tensors[name] is tensor for name, tensor in whole.tensors.items())


def test_lists_may_stand_for_tuples_and_whole_numbers_for_floats() -> None:
    dumped = {**dump_fields(Whole()), "loss": 1, "part": {"cf": 3, "squares": [1.0, 2]}}
    assert load_fields(Whole, dumped) == Whole(loss=1.0, part=Part(3.0, (1.0, 2.0)))


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({"step": "5"}, "step: is '5'; it should be 5"),
        ({"step": True}, "step: is True; it should be 1"),
        ({"step": -1}, "step: is -1; it should be greater than or equal to 0"),
        ({"step": 2**53 + 1}, "step: is 9007199254740993; it should be less than or equal to"),
        ({"step": 1.5}, "step: is 1.5; it should be a valid integer"),
        ({"done": 1}, "done: is 1; it should be True"),
        ({"loss": "nan"}, "loss: is 'nan'; it should be nan"),
        ({"part": {"cf": 2.0}}, "part/squares: the entry is missing"),
        ({"part": {"cf": 0.0, "squares": ()}}, "part/cf: is 0.0; it should be greater than 0"),
        ({"part": {"cf": math.inf, "squares": ()}}, "part/cf: is inf; it should be less than or equal to"),
        ({"part": {"cf": 2.0, "squares": (-1.0,)}}, "part/squares/0: is -1.0; it should be a sum of squares"),
        ({"part": {"cf": 2.0, "squares": (1e301,)}}, "part/squares/0: is 1e.301; it should be a sum of squares"),
        ({"part": {"cf": 2.0, "squares": (), "x": 1}}, "part/x: this run expects no such entry"),
        ({"x": 1}, "x: this run expects no such entry"),
        ({"tensors": {"w": torch.ones(2, 2)}}, "tensors/w: is float32 of shape .*; it should have one dimension"),
        ({"tensors": {"w": torch.ones(2).int()}}, "tensors/w: is int32 of shape .*; it should be float32 or float64"),
        ({"tensors": {"w": torch.tensor([1.0, math.inf])}}, "tensors/w: .* 1 of its 2 elements are not finite"),
        ({"tensors": {"w": torch.ones(2, device="meta")}}, "tensors/w: .*; it should be a dense tensor"),
        ({"tensors": {"w": [1.0]}}, r"tensors/w: is \[1.0\]; it should be an instance of Tensor"),
        ({"tensors": None}, "tensors: is None; it should be a valid dictionary"),
    ],
)
def test_what_does_not_fit_is_named_with_its_path(entries: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=f"^{said}.*; load a state that the same version of gravac saved"):
        load_fields(Whole, {**dump_fields(Whole()), **entries})


def test_a_missing_entry_is_named_with_the_path_of_the_whole() -> None:
    dumped = dump_fields(Whole())
    del dumped["loss"]
    with pytest.raises(SettingsError, match=r"^rank/0/loss: the entry is missing"):
        load_fields(Whole, dumped, "rank/0")
