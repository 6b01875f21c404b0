# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Ranks whose settings differ are refused by the field's name; ranks whose settings are the same never are."""

import functools
import re
from dataclasses import dataclass
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gravac import Accordion, GraVAC, Policy, Static, Warmup, dense, quantize, thc, topk, topkc
from gravac.beliefs import shipped_beliefs, use_beliefs
from gravac.exchange.comparing import difference, texts_of_tensors
from gravac.policy import OuterSettings
from gravac.texts import text_of, texts_of

Texts = dict[str, str]

FIELDS = st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=6)


@given(st.lists(FIELDS, min_size=2, max_size=5))
def test_the_first_field_that_differs_is_named_with_its_texts_and_ranks(of_ranks: list[Texts]) -> None:
    hypothesis.assume(any(texts != of_ranks[0] for texts in of_ranks))
    error = difference(of_ranks)
    fields = dict.fromkeys(field for texts in of_ranks for field in texts)
    first = next(field for field in fields if len({texts.get(field) for texts in of_ranks}) > 1)
    assert re.match(re.escape(f"{first}: ") + r"(ranks? \d|\d ranks, )", error)
    assert all(texts.get(first, "none") in error for texts in of_ranks[:3])


BASE = Policy(base=topk, cf_range=(10, 1000), controller=GraVAC())

CHANGES: dict[str, Any] = {
    "base": quantize,
    "cf_range": (10, 100),
    "controller": Static(cf=10),
    "error_feedback": 0.5,
    "dense": "bfloat16",
    "sixteen_bit": False,
    "overflow_safety": True,
    "dense_below": 4096,
    "seed": 1,
    "every": 10,
    "native": False,
    "least_efficiency": 0.9,
    "outer": OuterSettings(delay=2),
    "samples_per_step": 64,
    "total_steps": 1000,
}

NAMED = {"dense": "dense.dtype", "outer": "outer.delay"}
"""Names in errors of settings that have settings of their own."""


@pytest.mark.parametrize("field", sorted({*Policy.model_fields} - {"log_dir"}))
def test_every_field_of_a_policy_is_compared(field: str) -> None:
    before = Policy(base=topk, cf_range=(2, 1000)) if field == "base" else BASE
    error = difference([before.shared(), before(**{field: CHANGES[field]}).shared()])
    assert error.split(": ")[0] == NAMED.get(field, field)


@pytest.mark.parametrize(
    ("one", "other", "field"),
    [
        (quantize(4), quantize(4, block=64), "base.block"),
        (quantize(4), quantize(4, rotate=True), "base.rotate"),
        (topkc(values=quantize(4)), topkc(values=quantize(2)), "base.values"),
        (topk, topk(values="float16"), "base.values"),
        (thc, thc(reach=3.0), "base.reach"),
    ],
    ids=str,
)
def test_every_setting_of_a_compressor_is_compared(one: Any, other: Any, field: str) -> None:
    texts = [texts_of(Policy(base=base, cf_range=(1, 1000))) for base in (one, other)]
    assert difference(texts).startswith(f"{field}: rank 0 has ")


@pytest.mark.parametrize("controller", [GraVAC(), Static(cf=10), Accordion(), Warmup()], ids=str)
def test_every_setting_of_a_controller_is_compared(controller: Any) -> None:
    texts = texts_of(BASE(controller=controller))
    assert {f"controller.{name}" for name in type(controller).model_fields} <= set(texts)
    if hasattr(controller, "window"):
        other = texts_of(BASE(controller=controller(window=17)))
        assert difference([texts, other]).startswith(
            f"controller.window: rank 0 has {controller.window}, rank 1 has 17"
        )


def test_many_ranks_are_named_in_few_words() -> None:
    seeds = [{"seed": str(rank % 7), "cf_range": "(2, 9)"} for rank in range(64)]
    assert difference(seeds).startswith("seed: 10 ranks, 0 to 63, have 0, 9 ranks, 1 to 57, have 1, ")
    assert "and 4 other values; give every rank the same" in difference(seeds)
    some = [{"every": "10"}, {"every": "20", "seed": "1"}, {"every": "10"}]
    assert (
        difference(some)
        == "every: ranks 0, 2 have 10, rank 1 has 20; give every rank the same (these differ, too: seed)"
    )


class Plain:
    """A controller as a user may write one: no settings object."""

    name = "mine"

    def __init__(self, cf: float) -> None:
        self.cf = cf
        self.friend = object()
        self._cache = object()


@dataclass
class Threshold:
    """A part of settings."""

    at: float
    by: Any = None


def function(_: object) -> None:
    """A part of settings, too."""


def test_objects_have_a_text_without_addresses_that_tells_settings_apart() -> None:
    objects = [Plain, lambda: Plain(1.0), lambda: Threshold(0.5, by=Plain(2.0)), lambda: [object(), {function}, len]]
    for make in [lambda: Plain(3.0), *objects[1:]]:
        assert text_of(make()) == text_of(make())
        assert "0x" not in text_of(make())
    assert text_of(Plain(3.0)) == "mine (Plain)(cf=3.0, friend=object())"
    assert text_of(Plain(3.0)) != text_of(Plain(4.0))
    assert text_of(Threshold(0.5)) != text_of(Threshold(0.25))
    half, quarter = (functools.partial(torch.optim.SGD, lr=lr) for lr in (0.5, 0.25))
    assert (text_of(half), text_of(quarter)) == ("SGD(lr=0.5)", "SGD(lr=0.25)")
    assert text_of(torch.tensor(0.5)) == text_of(0.5)
    assert text_of(torch.zeros(100)) == "Tensor [100] torch.float32"
    loop: list[Any] = []
    loop.append(loop)
    assert "list" in text_of(loop)


def test_parameters_are_told_apart_by_name_order_shape_dtype_and_memory() -> None:
    weight = torch.zeros(4, 4)
    told = texts_of_tensors({"a": weight, "b": torch.zeros(3)})
    others = [
        {"b": torch.zeros(3), "a": weight},
        {"a": weight, "c": torch.zeros(3)},
        {"a": weight, "b": torch.zeros(4)},
        {"a": weight.double(), "b": torch.zeros(3)},
        {"a": weight.t(), "b": torch.zeros(3)},
        {"a": weight},
    ]
    assert all(texts_of_tensors(other) != told for other in others)
    assert difference([told, texts_of_tensors({"a": weight})]) == (
        "parameter 1: rank 0 has b [3] float32, rank 1 has none; give every rank the same"
    )
    flat = torch.zeros(4).view(4, 1)
    assert texts_of_tensors({"a": flat}) == texts_of_tensors({"a": flat.t().contiguous().t()})


def test_a_dense_base_is_told_by_its_format() -> None:
    texts = [texts_of(Policy(base=dense(dtype=dtype), cf_range=(1, 2))) for dtype in ("float16", "bfloat16")]
    assert difference(texts).startswith("base.dtype: rank 0 has 'float16', rank 1 has 'bfloat16'")


def test_ranks_that_believe_differently_are_refused() -> None:
    """They would decide differently, and wait for each other for ever."""
    mine = BASE.shared()
    with use_beliefs(shipped_beliefs()(delay=((1.0, 1.0), (2.0, 0.5)))):
        others = BASE.shared()
    assert difference([mine, others, mine]).startswith("beliefs: ")
    assert mine == BASE.shared()
