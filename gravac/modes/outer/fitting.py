# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Checks that a saved state of outer steps fits the model and the optimizers that are to load it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pydantic import ConfigDict

from gravac.checkpoint.fitting import check_names, check_tensors, copy_state
from gravac.checkpoint.fitting_optimizer import check_optimizer
from gravac.modes.outer.round_state import RoundState
from gravac.ranges import Count, Fraction
from gravac.saved import DenseTensor, FiniteTensor, load_fields, misfit
from gravac.settings import SettingsError
from gravac.sources.local_model import optimizer_of_user

LoadIntoOptimizer = Callable[[str, torch.optim.Optimizer, Mapping[str, Any]], None]
"""Function of a path (which names the state in errors), an optimizer, and a state that it copies into the optimizer."""


@dataclass(frozen=True, slots=True)
class AnchorState:
    """State of the anchor in outer steps, as ``Anchor.state_dict`` returns it.

    Attributes:
        weights: weights after the last exchange, the same on all ranks, by parameter name.
        own: this rank's weights, by parameter name.
        due: earliest step of this rank, by number, at which it applies the anchor to its weights; ``None``: nothing is
            to be applied.
        left: this rank's weights when its pseudo-gradient was sent, by parameter name; may be empty.
        keeps: k, in [0, 1): when the rank applies the anchor, its weights become k * weights + (1 - k) * anchor.
        applied: whether the newest mean of pseudo-gradients was applied to the anchor.
    """

    __pydantic_config__ = ConfigDict(arbitrary_types_allowed=True)

    weights: dict[str, FiniteTensor]
    own: dict[str, FiniteTensor]
    due: Count | None
    left: dict[str, FiniteTensor]
    keeps: Fraction
    applied: bool


@dataclass(frozen=True, slots=True)
class BuffersState:
    """State of a model's buffers in outer steps, as ``Buffers.state_dict`` returns it.

    Attributes:
        anchors: buffers after the last exchange, the same on all ranks, by name, of any dtype; elements need
            not be finite.
        own: this rank's buffers, by name, of any dtype; elements need not be finite.
        keeps: k, in [0, 1): when the rank applies the anchors, its buffers become k * buffers + (1 - k) * anchors.
    """

    __pydantic_config__ = ConfigDict(arbitrary_types_allowed=True)

    anchors: dict[str, DenseTensor]
    own: dict[str, DenseTensor]
    keeps: Fraction


@dataclass(frozen=True, slots=True)
class RefusalsState:
    """A rank's record of exchanges in outer steps whose mean was not finite, and was not applied.

    ``Refusals.state_dict`` returns this state.

    Attributes:
        skipped: number of exchanges so far whose mean was not applied.
        counted_from: number of the first round that may appear in ``on_end``: 0, or the round in which gravac last
            raised an error because ``on_end`` was too long.
        on_end: numbers of the newest consecutive rounds in which no mean was applied.
        refused: numbers of the newest few rounds whose mean was not applied.
        verdicts: an entry ``(round, applied)`` for each round that has not been counted yet: the round's number, and
            whether its mean was applied.
    """

    skipped: Count
    counted_from: Count
    on_end: tuple[Count, ...]
    refused: tuple[Count, ...]
    verdicts: tuple[tuple[Count, bool], ...]


@dataclass(frozen=True, slots=True)
class OuterState:
    """The state of outer steps, as ``RoundState.dump`` returns it; ``RoundState`` explains the fields."""

    __pydantic_config__ = ConfigDict(arbitrary_types_allowed=True)

    phase: Literal["timing", "undecided", "decided"]
    ended: Count
    steps: Count
    in_round: Count
    every: Count
    delay: Count
    anchor: AnchorState
    buffers: BuffersState
    optimizer: dict[str, Any]
    inner: tuple[dict[str, Any], ...]
    refusals: RefusalsState


def check_outer(dumped: Any, current: RoundState) -> None:
    """Check that a saved state of outer steps fits the present model and optimizers.

    Args:
        dumped: the state, as ``RoundState.dump`` returned it.
        current: state that ``dumped`` is to replace.

    Raises:
        SettingsError: the state does not fit; the message has the path of the field that is wrong.
    """
    state = load_fields(OuterState, dumped, "outer")
    check_tensors("outer/anchor/weights", state.anchor.weights, current.anchor.weights)
    check_tensors("outer/anchor/own", state.anchor.own, current.anchor.parameters)
    check_tensors("outer/anchor/left", state.anchor.left, current.anchor.parameters, may_lack_names=True)
    if state.anchor.left:
        check_names("outer/anchor/left", state.anchor.left, current.anchor.parameters)
    check_tensors("outer/buffers/anchors", state.buffers.anchors, current.buffers.anchors, may_be_infinite=True)
    check_tensors("outer/buffers/own", state.buffers.own, current.buffers.all_buffers, may_be_infinite=True)
    check_optimizer("outer/optimizer", state.optimizer, current.outer)
    if len(state.inner) != len(current.inner):
        raise SettingsError(
            f"outer/inner: the state has {len(state.inner)} optimizers, but this run has {len(current.inner)}; give "
            "attach the same optimizers as in the run that saved the state"
        )
    for index, (saved_state, optimizer) in enumerate(zip(state.inner, current.inner, strict=True)):
        check_optimizer(f"outer/inner/{index}", saved_state, optimizer)
    if (state.every > 0) != (state.phase == "decided"):
        raise misfit(
            "outer/every",
            f"is {state.every}, while outer/phase is {state.phase!r}",
            "be 1 or more" if state.phase == "decided" else "be 0, since that phase comes before the decision",
        )


@contextmanager
def loading_all_or_none(*optimizers: torch.optim.Optimizer) -> Iterator[LoadIntoOptimizer]:
    """Return a context with a function that loads a state into an optimizer.

    If the function or the context's body raises, all optimizers get back the states that they had on entry.

    Args:
        optimizers: all optimizers that are loaded in the context.

    Raises:
        SettingsError: an optimizer refused a state.
    """
    states_before = [
        (optimizer, optimizer.state, optimizer.param_groups) for optimizer in map(optimizer_of_user, optimizers)
    ]
    settings_before = [[dict(group) for group in groups] for _, _, groups in states_before]

    def load(path: str, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
        try:
            optimizer.load_state_dict(copy_state(state))
        except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
            name = type(optimizer_of_user(optimizer)).__name__
            raise SettingsError(
                f"{path}: {name} refuses this state: {error!r}; load the state of the same optimizer"
            ) from error

    try:
        yield load
    except BaseException:
        for (optimizer, state, groups), group_settings in zip(states_before, settings_before, strict=True):
            for group, settings in zip(groups, group_settings, strict=True):
                group.clear()
                group.update(settings)
            optimizer.state, optimizer.param_groups = state, groups
        raise
