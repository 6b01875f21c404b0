# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A state that loads is a state that fits; all others are refused in words, and change nothing."""

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gravac import (
    Accordion,
    AdaptiveCompressor,
    Goodput,
    GraVAC,
    SettingsError,
    Static,
    Warmup,
    dgc,
    powersgd,
    quantize,
    topk,
)
from gravac.engine.engine import Engine
from gravac.engine.inputs import StepInputs
from gravac.exchange.lockstep import Lockstep
from tests.checkpoint.mutations import same, spoilt
from tests.policies import adaptive

SHAPES = {"layer.weight": (64, 32), "head.weight": (24, 48), "head.bias": (48,)}


@dataclass
class One:
    """A compressor, the engine that takes its gradients in, and the rank in memory that it is of."""

    compressor: AdaptiveCompressor
    engine: Engine
    ranks: Lockstep

    def train(self, steps: int) -> None:
        for step in range(steps):
            self.engine.begin(StepInputs(learning_rate=0.1, loss_scale=64.0))
            for name, gradient in gradients(step).items():
                self.engine.ready([(name, gradient)])
            self.engine.end()
            self.ranks.run()


def gradients(step: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def unopened(base: Any = topk, controller: Any = None, **given: Any) -> AdaptiveCompressor:
    chosen = controller or Static(cf=10)
    return adaptive(base, cf_range=(2, 100), controller=chosen, dense_below=0, **given)


def opened(make: Callable[[], AdaptiveCompressor]) -> One:
    ranks, compressor = Lockstep(1, seconds=0.1), make()
    return One(compressor, compressor.attach_parameters(gradients(), executor=ranks.executors[0]), ranks)


KINDS: dict[str, Callable[[], AdaptiveCompressor]] = {
    "topk, gravac": lambda: unopened(topk, GraVAC(window=2, warmup=1, shadow_every=2)),
    "topk, gravac as printed": lambda: unopened(topk, GraVAC(paper_literal=True, window=3)),
    "topk, accordion": lambda: unopened(topk, Accordion(epoch=3, every=1)),
    "quantize, goodput": lambda: unopened(quantize, Goodput(window=5, trial=5)),
    "powersgd, static": lambda: unopened(powersgd, Static(cf=8, window=2)),
    "dgc, warm-up": lambda: unopened(dgc, Warmup(cf=50, first=4, every=3, window=2)),
}


@functools.cache
def trained(kind: str) -> dict[str, Any]:
    """A state of a compressor that has trained some steps."""
    one = opened(KINDS[kind])
    one.train(8)
    return copy.deepcopy(one.compressor.state_dict())


def refused_or_loaded(one: One, state: Any) -> bool:
    """Whether a state is loaded; if it is not, nothing has changed."""
    before = copy.deepcopy(one.compressor.state_dict())
    try:
        one.compressor.load_state_dict(state)
    except SettingsError as error:
        refusal = str(error)
    else:
        return True
    assert refusal
    assert same(before, one.compressor.state_dict()), f"half loaded: {refusal}"
    return False


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_is_loaded_bit_for_bit_and_goes_on(kind: str) -> None:
    one, state = opened(KINDS[kind]), trained(kind)
    assert refused_or_loaded(one, state)
    assert same(one.compressor.state_dict(), state)
    one.train(3)


MUTATIONS = 200


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 2**48))
@settings(max_examples=MUTATIONS)
def test_spoilt_states_are_refused_in_words_or_train_on(kind: str, seed: int) -> None:
    one = opened(KINDS[kind])
    if refused_or_loaded(one, spoilt(trained(kind), seed)):
        one.train(2)
        assert all(kept.isfinite().all() for kept in one.compressor.state_dict()["residual"].values())


@pytest.mark.parametrize(
    ("part", "wrong", "said"),
    [
        ("residual", {"layer.weight": torch.ones(4)}, "residual/layer.weight: has 4 elements; it should have 2048"),
        (
            "residual",
            {"layer.weight": torch.ones(2048).int()},
            "residual/layer.weight: is int32 of shape .* float32 or",
        ),
        (
            "residual",
            {"layer.weight": torch.ones(2048).double()},
            "residual/layer.weight: is float64; it should be float32",
        ),
        ("residual", {"layer.weight": torch.ones(64, 32)}, "residual/layer.weight: .* it should have one dimension"),
        ("residual", {"other": torch.ones(4)}, "residual: the model has no parameter 'other'"),
        (
            "sums",
            {"head.bias": torch.full((48,), torch.nan)},
            "sums/head.bias: .* 48 of its 48 elements are not finite",
        ),
        ("sums", {"head.bias": torch.ones(1)}, "sums/head.bias: has 1 elements; it should have 48"),
        ("step", -5, "step: is -5; it should be greater than or equal to 0"),
        ("loss_scale", 0.0, r"loss_scale: is 0.0; it should be None or a number from 2\^-100 to 2\^100"),
        ("loss_scale", torch.inf, "loss_scale: is inf; it should be None or a number"),
        ("rank", 1, r"rank: is 1, while world \(the number of ranks\) is 1; it should be from 0 to 0;"),
        ("factors", {"cf": 10.0}, "factors/cfs: the entry is missing"),
        ("layout", [["a", "b"], ["c", "b"]], "layout: .*; it should have each parameter once, but has 'b' 2 times"),
        ("candidates", [{"cf": 1.0}], "candidates/0/mode: the entry is missing"),
        ("pending", {}, r"pending: is \{\}; it should be a list of measurements"),
        ("outer", [], r"outer: is \[\]; it should be a dict or None"),
        ("more", 1, "more: this run expects no such entry"),
        ("outer", {}, "outer: the state was saved in outer steps, which every=1 excludes; set every"),
        ("controller_state", {}, "controller_state/window: the entry is missing"),
    ],
)
def test_what_does_not_fit_is_named_with_its_path(part: str, wrong: Any, said: str) -> None:
    one = opened(unopened)
    one.compressor.load_state_dict({**one.compressor.state_dict(), "residual": {"layer.weight": torch.ones(2048)}})
    before = copy.deepcopy(one.compressor.state_dict())
    with pytest.raises(SettingsError, match=said):
        one.compressor.load_state_dict({**before, part: wrong})
    assert same(one.compressor.state_dict(), before)


@pytest.mark.parametrize("part", sorted(unopened().state_dict()))
def test_a_missing_part_is_named(part: str) -> None:
    state = unopened().state_dict()
    del state[part]
    if part.startswith("torch.distributed"):
        return unopened().load_state_dict(state)
    with pytest.raises(SettingsError, match=part):
        unopened().load_state_dict(state)
    return None


def test_one_nan_in_a_residual_never_gets_in() -> None:
    residual = torch.zeros(2048)
    residual[7] = torch.nan
    one = opened(unopened)
    with pytest.raises(SettingsError, match="1 of its 2048 elements are not finite"):
        one.compressor.load_state_dict({**one.compressor.state_dict(), "residual": {"layer.weight": residual}})
    one.train(3)
    assert all(kept.isfinite().all() for kept in one.compressor.state_dict()["residual"].values())


def test_residuals_of_another_model_are_refused_when_the_model_is_known() -> None:
    compressor = unopened()
    compressor.load_state_dict({**compressor.state_dict(), "residual": {"layer.weight": torch.ones(4)}})
    with pytest.raises(SettingsError, match=r"residual/layer\.weight: has 4 elements; it should have 2048"):
        compressor.attach_parameters(gradients(), executor=Lockstep(1).executors[0])
    with pytest.raises(SettingsError, match=r"residual: the model has no parameter 'layer\.weight'"):
        compressor.bind(torch.nn.Linear(2, 2))
    assert torch.equal(compressor.state_dict()["residual"]["layer.weight"], torch.ones(4))
    module = torch.nn.ModuleDict({"layer": torch.nn.Linear(2, 2, bias=False)})
    compressor.bind(module)


def test_a_memory_of_another_shape_is_refused() -> None:
    for base, key in ((dgc, "velocity"), (powersgd, "q"), (quantize(2), "second")):
        one = opened(lambda base=base: unopened(base))
        state = {**one.compressor.state_dict(), "memory": {"layer.weight": {key: torch.ones(1)}}}
        with pytest.raises(SettingsError, match=f"memory/layer.weight/{key}: is float32 of shape"):
            one.compressor.load_state_dict(state)


def test_a_late_load_is_refused_and_changes_nothing() -> None:
    one = opened(unopened)
    state = one.compressor.state_dict()
    one.compressor.load_state_dict(state)
    one.train(1)
    before = copy.deepcopy(one.compressor.state_dict())
    with pytest.raises(
        RuntimeError, match=r"this compressor has made 1 steps already; load into a new AdaptiveCompressor"
    ):
        one.compressor.load_state_dict(state)
    assert same(one.compressor.state_dict(), before)


def test_what_was_loaded_is_saved_again_before_the_first_step() -> None:
    again, state = opened(KINDS["quantize, goodput"]), trained("quantize, goodput")
    again.compressor.load_state_dict(state)
    assert same(again.compressor.state_dict(), state)
    assert state["controller_state"] is not None


def test_a_controller_without_a_check_refuses_in_words_when_it_is_restored() -> None:
    class Unchecked(Static):
        def check(self, plain: dict[str, Any]) -> None:
            """Nothing is known."""

    one = opened(lambda: unopened(topk, Unchecked(cf=10)))
    one.compressor.load_state_dict({**one.compressor.state_dict(), "controller_state": {"x": 1}})
    begun = one.engine.begin()
    one.ranks.run()
    assert str(begun.exception(timeout=0)).startswith(
        "controller_state: controller 'static' cannot restore this state (KeyError('window'))"
    )
