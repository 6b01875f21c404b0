# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A state of outer steps that loads is one that fits; all others are refused in words, and change nothing."""

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gravac import SettingsError, Static, checkpoint, quantize
from gravac.checkpoint.fitting_optimizer import check_optimizer
from gravac.modes.outer.sgd import OuterSGD
from tests.checkpoint.mutations import same, spoilt
from tests.outer.by_hand import OuterByHand
from tests.outer.ranks import SGD, Ranks, network

FOUR_BITS: dict[str, Any] = {"base": quantize(bits=4), "cf_range": (8, 8), "controller": Static(cf=8)}


def with_buffers() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(48, 32), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 8))


KINDS: dict[str, Callable[[], Ranks]] = {
    "adamw": lambda: Ranks(1, inner=functools.partial(torch.optim.AdamW, lr=1e-3), every=2, **FOUR_BITS),
    "momentum, delay": lambda: Ranks(
        1,
        inner=functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9),
        make=with_buffers,
        every=3,
        delay=1,
        mixing=None,
        outer=functools.partial(OuterSGD, momentum=0.9),
        **FOUR_BITS,
    ),
    "sgd": lambda: Ranks(1, every=4, **FOUR_BITS),
}


@functools.cache
def trained(kind: str) -> dict[str, Any]:
    """A state of a rank that has trained some steps."""
    return copy.deepcopy(KINDS[kind]().train(8).outer[0].state_dict())


def whole(outer: OuterByHand) -> dict[str, Any]:
    """Everything that a load may change."""
    return copy.deepcopy(outer.state_dict())


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_is_loaded_bit_for_bit_and_goes_on(kind: str) -> None:
    ranks, state = KINDS[kind](), trained(kind)
    ranks.outer[0].load_state_dict(state)
    assert same(whole(ranks.outer[0]), state)
    ranks.train(4)


def with_settings_of(state: dict[str, Any], spoilt_state: Any) -> Any:
    """Return a spoilt state with the optimizers' settings of the whole one: what they mean is left to torch."""
    wrong = copy.deepcopy(spoilt_state)
    try:
        for key, part in enumerate(state["outer"]["inner"]):
            wrong["outer"]["inner"][key]["param_groups"] = part["param_groups"]
        wrong["outer"]["optimizer"]["param_groups"] = state["outer"]["optimizer"]["param_groups"]
    except (TypeError, KeyError, IndexError, AttributeError):  # what holds them is spoilt
        pass
    return wrong


@pytest.mark.parametrize("kind", KINDS)
@example(seed=1724)  # of AdamW: a moment is None
@example(seed=1999)  # of AdamW: the number of steps is a bool
@given(seed=st.integers(0, 2**48))
@settings(max_examples=5 * settings().max_examples)
def test_spoilt_states_are_refused_in_words_or_train_on(kind: str, seed: int) -> None:
    ranks = KINDS[kind]()
    (outer,) = ranks.outer
    before, state = whole(outer), trained(kind)
    # two of three are spoilt in what is the outer steps' own
    wrong = {**state, "outer": spoilt(state["outer"], seed)} if seed % 3 else spoilt(state, seed)
    wrong = with_settings_of(state, wrong)
    refusal = ""
    try:
        outer.load_state_dict(wrong)
    except SettingsError as error:
        refusal = str(error)
    if refusal:
        assert same(before, whole(outer)), f"half loaded: {refusal}"
    else:
        ranks.train(4)


@pytest.mark.parametrize(
    ("path", "wrong", "said"),
    [
        (
            ("anchor", "weights", "0.weight"),
            torch.ones(1),
            r"outer/anchor/weights/0\.weight: has shape \(1,\); ",
        ),
        (
            ("anchor", "own", "2.bias"),
            torch.full((40,), torch.nan),
            r"outer/anchor/own/2\.bias: .* not finite",
        ),
        (("ended",), -5, "outer/ended: is -5; it should be greater than or equal to 0"),
        (("compression",), 1, "outer/compression: this run expects no such entry"),
        (
            ("inner", 0, "state", 0, "exp_avg"),
            torch.ones(1),
            r"outer/inner/0/state/0/exp_avg: has shape \(1,\); it should have \(32, 48\)",
        ),
        (
            ("inner", 0, "param_groups", 0, "params"),
            [0, 1, 2],
            "outer/inner/0/param_groups: differ from this run's; it should have groups of .* parameters",
        ),
        (("inner",), [], "outer/inner: the state has 0 optimizers, but this run has 1; give attach the same"),
        (("inner", 0, "state", "x"), {}, "outer/inner/0/state/x/.key.: is 'x'; it should be a valid integer"),
        (("inner", 0, "state", 1, "exp_avg"), 3.0, "outer/inner/0/state/1/exp_avg: is 3.0; it should be a tensor"),
        (
            ("inner", 0, "param_groups", 0, "amsgrad"),
            True,
            "outer/inner/0/state/0/max_exp_avg_sq: the entry is missing",
        ),
        (
            ("optimizer", "param_groups"),
            [],
            "outer/optimizer/param_groups: differ from this run's; it should have groups of .* parameters",
        ),
        (("buffers", "anchors"), {"x": torch.ones(2)}, "outer/buffers/anchors/x: this run expects no such entry"),
    ],
)
def test_what_does_not_fit_is_named_with_its_path(path: tuple[Any, ...], wrong: Any, said: str) -> None:
    state = copy.deepcopy(trained("adamw"))
    part = state["outer"]
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = wrong
    (outer,) = KINDS["adamw"]().outer
    before = whole(outer)
    with pytest.raises(SettingsError, match=said):
        outer.load_state_dict(state)
    assert same(whole(outer), before)


def test_an_optimizer_that_refuses_its_state_leaves_everything_as_it_was() -> None:
    class Refusing(torch.optim.SGD):
        def load_state_dict(self, state_dict: Any) -> None:
            super().load_state_dict(state_dict)
            self.param_groups[0]["lr"] = 7.0
            raise ValueError("not mine")

    ranks = Ranks(1, inner=functools.partial(Refusing, lr=0.05), every=2, **FOUR_BITS)
    state = copy.deepcopy(Ranks(1, every=2, **FOUR_BITS).train(4).outer[0].state_dict())
    before = whole(ranks.outer[0])
    with pytest.raises(SettingsError, match=r"outer/inner/0: Refusing refuses this state: ValueError\('not mine'\)"):
        ranks.outer[0].load_state_dict(state)
    assert same(whole(ranks.outer[0]), before)
    assert ranks.inner[0].param_groups[0]["lr"] == 0.05


def test_a_late_load_is_refused_and_changes_nothing() -> None:
    ranks, state = KINDS["adamw"](), trained("adamw")
    ranks.outer[0].load_state_dict(state)
    ranks.train(1)
    before = whole(ranks.outer[0])
    with pytest.raises(RuntimeError, match=r"has made steps already, .* load into a new one, before its first step"):
        ranks.outer[0].load_state_dict(state)
    assert same(whole(ranks.outer[0]), before)


def test_nothing_that_was_loaded_stays_mapped_to_its_file(tmp_path: Path) -> None:
    """A file that is cut off afterwards would end the process with SIGBUS at the first step."""
    make = functools.partial(Ranks, 1, inner=functools.partial(torch.optim.AdamW, lr=1e-3), every=2)
    settings_of = {**FOUR_BITS, "outer": functools.partial(torch.optim.AdamW, lr=1e-3)}
    saved = make(**settings_of).train(6)
    checkpoint.save(tmp_path, saved.outer[0])
    again = make(**settings_of)
    checkpoint.load(tmp_path, again.outer[0])
    (file,) = tmp_path.glob("*/rank0.pt")
    maps = Path("/proc/self/maps")
    assert not maps.exists() or str(file) not in maps.read_text()
    file.write_bytes(b"")
    assert same(whole(again.outer[0]), whole(saved.outer[0]))
    again.made = saved.made
    assert torch.equal(again.train(4).weights[0], saved.train(4).weights[0])


def test_sgd_without_state_is_loaded() -> None:
    ranks = Ranks(1, inner=SGD, make=network, every=2, **FOUR_BITS)
    ranks.outer[0].load_state_dict(
        Ranks(1, inner=SGD, make=network, every=2, **FOUR_BITS).train(2).outer[0].state_dict()
    )


@pytest.mark.parametrize("step", [0, 0.0, torch.tensor(0.0), torch.tensor([3.0]), torch.tensor(2**24)])
def test_an_optimizer_may_have_made_any_number_of_steps(step: Any) -> None:
    check_optimizer("o", saved_adam(step=step), adam())


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({"step": -1}, "o/state/0/step: is -1; it should be a number of steps, 0 or more"),
        ({"step": "5"}, "o/state/0/step: is '5'; it should be a number of steps, 0 or more"),
        ({"step": torch.tensor(-1.0)}, "o/state/0/step: is float32 of shape .*; it should be one number of steps"),
        ({"step": torch.ones(2)}, "o/state/0/step: is float32 of shape .*; it should be one number of steps"),
        ({"step": torch.tensor(torch.inf)}, "o/state/0/step: .* not finite"),
        ({"exp_avg": None}, "o/state/0/exp_avg: is None; it should be a tensor"),
        ({"exp_avg": torch.ones(3, 2)}, r"o/state/0/exp_avg: has shape \(3, 2\); it should have \(2, 3\)"),
        ({"exp_avg": torch.ones(2, 3).to_sparse()}, "o/state/0/exp_avg: .* it should be a dense tensor"),
        ({"exp_avg": torch.full((2, 3), torch.nan)}, "o/state/0/exp_avg: .* 6 of its 6 elements are not finite"),
        ({"more": torch.tensor(torch.nan)}, "o/state/0/more: .* not finite"),
        ({"max_exp_avg_sq": torch.ones(2, 3)}, "o/state/1/max_exp_avg_sq: the entry is missing"),
    ],
)
def test_what_does_not_fit_a_parameter_is_named(entries: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=f"^{said}"):
        check_optimizer("o", saved_adam(**entries), adam())


def adam() -> torch.optim.Optimizer:
    return torch.optim.Adam([torch.nn.Parameter(torch.ones(2, 3)), torch.nn.Parameter(torch.ones(4))])


def saved_adam(**entries: Any) -> dict[str, Any]:
    """Return the state of an optimizer that has made a step, with some entries of its first parameter changed."""
    optimizer = adam()
    for parameter in optimizer.param_groups[0]["params"]:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    state = optimizer.state_dict()
    state["state"][0].update(entries)
    return state
