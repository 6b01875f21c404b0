# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Checks that a saved state of outer steps fits the model and the optimizers that are to load it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any, Literal

import torch
from pydantic import ConfigDict, Field

from gravac.checkpoint.fitting import check_names, check_tensors, copy_state
from gravac.checkpoint.fitting_optimizer import check_optimizer
from gravac.modes.outer.round_state import RoundState
from gravac.ranges import Count, Fraction, Seconds
from gravac.saved import DenseTensor, FiniteTensor, load_fields, misfit
from gravac.settings import SettingsError
from gravac.sources.local_model import optimizer_of_user

LoadIntoOptimizer = Callable[[str, torch.optim.Optimizer, Mapping[str, Any]], None]
"""Function of a path (which names the state in errors), an optimizer, and a state that it copies into the optimizer."""


@dataclass(frozen=True, slots=True)
class SharesState:
    """Speeds of the ranks in outer steps, as ``Shares.state_dict`` returns them.

    Attributes:
        seconds: seconds that a step takes on each rank, by rank; empty if not known yet.
        samples: samples that a step uses on each rank, by rank; empty if not known yet.
        own: this rank's seconds (median of the last round) and samples of a step; empty before the first round ends.
    """

    seconds: tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...]
    samples: tuple[Seconds, ...]
    own: tuple[Seconds, ...]


@dataclass(frozen=True, slots=True)
class FragmentState:
    """State of a fragment (a part of the model that is exchanged by itself) in outer steps.

    ``Fragment.state_dict`` returns this state.

    Attributes:
        anchors: weights after the last exchange, the same on all ranks, by parameter name.
        own: this rank's weights, by parameter name.
        due: earliest step of this rank, by number, at which it applies the anchors to its weights; ``None``: nothing is
            to be applied.
        left: this rank's weights when its pseudo-gradient was sent, by parameter name; may be empty.
        keeps: k, in [0, 1): when the rank applies the anchors, its weights become k * weights + (1 - k) * anchors.
        applied: whether the newest mean of pseudo-gradients was applied to the anchors.
    """

    __pydantic_config__ = ConfigDict(arbitrary_types_allowed=True)

    anchors: dict[str, FiniteTensor]
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
        refused: numbers of the newest few rounds in which at least one mean was not applied.
        verdicts: an entry ``(round, applied)`` for each round that has not been counted yet. ``round`` is the round's
            number; ``applied`` has a bool for each mean that has arrived: whether the mean was applied.
    """

    skipped: Count
    counted_from: Count
    on_end: tuple[Count, ...]
    refused: tuple[Count, ...]
    verdicts: tuple[tuple[Count, tuple[bool, ...]], ...]


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
    shares: SharesState | None
    fragments: tuple[FragmentState, ...]
    buffers: BuffersState
    optimizer: dict[str, Any]
    inner: tuple[dict[str, Any], ...]
    refusals: RefusalsState


def check_outer(dumped: Any, current: RoundState, world: int | None) -> None:
    """Check that a saved state of outer steps fits the present model, optimizers and number of fragments.

    Args:
        dumped: the state, as ``RoundState.dump`` returned it.
        current: state that ``dumped`` is to replace.
        world: number of ranks that saved the state; ``None``: the ranks' step times and samples (``Shares``) are not to
            be restored, and are not checked.

    Raises:
        SettingsError: the state does not fit; the message has the path of the field that is wrong.
    """
    state = load_fields(OuterState, dumped, "outer")
    saved_names = [[*fragment.anchors] for fragment in state.fragments]
    current_names = [[*fragment.anchors] for fragment in current.fragments]
    if saved_names != current_names:
        saved_parameter_names, current_parameter_names = (
            {*chain.from_iterable(names)} for names in (saved_names, current_names)
        )
        unshared_names = sorted(saved_parameter_names ^ current_parameter_names)
        difference_text = f", and only one of them has the parameter {unshared_names[0]}" if unshared_names else ""
        raise SettingsError(
            f"outer/fragments: the state has {len(saved_names)} fragments with {sum(map(len, saved_names))} "
            f"parameters, and this run has {len(current_names)} with {sum(map(len, current_names))}{difference_text}; "
            "all fragments must have the same parameters as before: use the same model and number of fragments"
        )
    for index, (saved_fragment, fragment) in enumerate(zip(state.fragments, current.fragments, strict=True)):
        path = f"outer/fragments/{index}"
        check_tensors(f"{path}/anchors", saved_fragment.anchors, fragment.anchors)
        check_tensors(f"{path}/own", saved_fragment.own, fragment.parameters)
        check_tensors(f"{path}/left", saved_fragment.left, fragment.parameters, may_lack_names=True)
        if saved_fragment.left:
            check_names(f"{path}/left", saved_fragment.left, fragment.parameters)
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
    if state.shares is not None and world is not None:
        _check_shares(state.shares, world)


def _check_shares(shares: SharesState, world: int) -> None:
    """Check that the saved step times and samples have a number for each rank that saved the state.

    Raises:
        SettingsError: a list has another length, or no rank has samples.
    """
    for name, numbers in (("seconds", shares.seconds), ("samples", shares.samples)):
        if len(numbers) not in (0, world):
            raise SettingsError(
                f"outer/shares/{name}: {len(numbers)} numbers, but {world} ranks saved the state; load the state as it "
                "was saved"
            )
    if len(shares.own) not in (0, 2):
        raise SettingsError(
            f"outer/shares/own: {len(shares.own)} numbers, but it must have 2, seconds and samples of a step; load the "
            "state as it was saved"
        )
    if shares.samples and not sum(shares.samples):
        raise SettingsError(
            "outer/shares/samples: all are 0, but at least one rank must have samples; load the state as it was saved"
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
