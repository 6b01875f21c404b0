# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Ranks whose settings differ are refused by the field's name; ranks whose settings are the same never are."""

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gravac import Accordion, GraVAC, Policy, SettingsError, Static, Warmup, dense, quantize, thc, topk, topkc
from gravac.beliefs import shipped_beliefs, use_beliefs
from gravac.exchange.comparing import compare, difference, texts_of_tensors
from gravac.policy import OuterSettings, RunSettings
from gravac.texts import text_of, texts_of

Texts = dict[str, str]

FIELDS = st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=6)


def in_memory(of_ranks: Sequence[Mapping[str, str]]) -> tuple[list[str], int]:
    """Compare ranks in one process: the error of each that raised, and the number of gathers."""
    comparisons = [compare(texts) for texts in of_ranks]
    parts = [next(comparison) for comparison in comparisons]
    errors: list[str] = []
    for gathers in range(1, 4):
        assert len({(part.shape, part.dtype) for part in parts}) == 1
        ended, following = 0, []
        for comparison in comparisons:
            try:
                following.append(comparison.send(list(parts)))
            except StopIteration:
                ended += 1
            except SettingsError as error:
                errors.append(str(error))
        if ended + len(errors) == len(of_ranks):
            return errors, gathers
        assert len(following) == len(of_ranks), "some ranks ended, and others wait for them"
        parts = following
    raise AssertionError("a comparison did not end")


@given(FIELDS, st.integers(1, 5))
def test_what_is_the_same_is_never_refused_and_takes_one_gather_of_32_bytes(texts: Texts, world: int) -> None:
    reordered = dict(reversed(texts.items()))
    assert in_memory([texts, *[reordered] * (world - 1)]) == ([], 1)
    assert next(compare(texts)).nbytes == 32


@given(st.lists(FIELDS, min_size=2, max_size=5))
def test_whatever_differs_is_named_alike_on_all_ranks(of_ranks: list[Texts]) -> None:
    errors, gathers = in_memory(of_ranks)
    if all(texts == of_ranks[0] for texts in of_ranks):
        assert (errors, gathers) == ([], 1)
        return
    assert gathers == 3
    assert len(errors) == len(of_ranks)
    assert len(set(errors)) == 1
    fields = dict.fromkeys(field for texts in of_ranks for field in texts)
    first = next(field for field in fields if len({texts.get(field) for texts in of_ranks}) > 1)
    assert re.match(re.escape(f"{first}: ") + r"(ranks? \d|\d ranks, )", errors[0])
    assert all(texts.get(first, "none") in errors[0] for texts in of_ranks[:3])


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
    "outer": OuterSettings(fragments=2),
}

NAMED = {"dense": "dense.dtype", "outer": "outer.fragments"}
"""Names in errors of settings that have settings of their own."""


@pytest.mark.parametrize("field", sorted(Policy.model_fields))
def test_every_field_of_a_policy_is_compared(field: str) -> None:
    before = Policy(base=topk, cf_range=(2, 1000)) if field == "base" else BASE
    errors, _ = in_memory([texts_of(before), texts_of(before(**{field: CHANGES[field]}))])
    assert [error.split(": ")[0] for error in errors] == [NAMED.get(field, field)] * 2


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
    settings = RunSettings(policy=BASE)
    mine = settings.shared()
    with use_beliefs(shipped_beliefs()(delay=((1.0, 1.0), (2.0, 0.5)))):
        others = settings.shared()
    errors, _ = in_memory([mine, others, mine])
    assert errors and all(error.startswith("beliefs: ") for error in errors)
    assert in_memory([mine, settings.shared()])[0] == []
