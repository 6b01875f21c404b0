# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Whether a state of outer steps fits the model and the optimizers that are to load it.

Its fields are told in ``gravac.checkpoint.fitting``.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from gravac.checkpoint.fitting import (
    OuterState,
    SharesState,
    check_names,
    check_optimizer,
    check_tensors,
    copied,
    fitted,
)
from gravac.modes.outer.round_state import RoundState
from gravac.settings import SettingsError

Load = Callable[[str, torch.optim.Optimizer, Mapping[str, Any]], None]
"""Has an optimizer load a copy of a state, of which the path is given first."""


def check_outer(plain: Any, own: RoundState, world: int | None) -> None:
    """Check that a dumped state of outer steps fits.

    Args:
        plain: what ``RoundState.dump`` gave.
        own: state that is to take its place.
        world: number of ranks that saved; ``None``: each rank's share of a round is not restored.

    Raises:
        SettingsError: it does not; the message has the path of what is wrong.
    """
    state = fitted(OuterState, plain, "outer")
    then, now = [[*fragment.anchors] for fragment in state.fragments], [[*part.anchors] for part in own.fragments]
    if then != now:
        raise SettingsError(
            f"fragments: the state has {len(then)} with {sum(map(len, then))} parameters, and this one {len(now)} "
            f"with {sum(map(len, now))}, or they have other names"
        )
    for at, (saved, fragment) in enumerate(zip(state.fragments, own.fragments, strict=True)):
        path = f"outer/fragments/{at}"
        check_tensors(f"{path}/anchors", saved.anchors, fragment.anchors)
        check_tensors(f"{path}/own", saved.own, fragment.parameters)
        check_tensors(f"{path}/left", saved.left, fragment.parameters, some=True)
        if saved.left:
            check_names(f"{path}/left", saved.left, fragment.parameters)
    check_tensors("outer/buffers/anchors", state.buffers.anchors, own.buffers.anchors)
    check_tensors("outer/buffers/own", state.buffers.own, own.buffers.own)
    check_optimizer("outer/optimizer", state.optimizer, own.outer)
    if len(state.inner) != len(own.inner):
        raise SettingsError(f"outer/inner: {len(state.inner)} optimizers, {len(own.inner)} expected")
    for at, (saved_state, optimizer) in enumerate(zip(state.inner, own.inner, strict=True)):
        check_optimizer(f"outer/inner/{at}", saved_state, optimizer)
    if (state.every > 0) != (state.phase == "decided"):
        raise SettingsError(f"outer/every: {state.every} steps in a round that is {state.phase!r}")
    if state.shares is not None and world is not None:
        _check_shares(state.shares, world)


def _check_shares(shares: SharesState, world: int) -> None:
    """Check that what is known of all ranks' steps is of as many ranks as there were.

    Raises:
        SettingsError: it is not.
    """
    for name, numbers in (("seconds", shares.seconds), ("samples", shares.samples)):
        if len(numbers) not in (0, world):
            raise SettingsError(f"outer/shares/{name}: {len(numbers)} numbers, {world} expected")
    if len(shares.own) not in (0, 2):
        raise SettingsError(f"outer/shares/own: {len(shares.own)} numbers, seconds and samples expected")
    if shares.samples and not sum(shares.samples):
        raise SettingsError("outer/shares/samples: all are 0, and ranks count by them")


@contextmanager
def loaded_or_as_before(*optimizers: torch.optim.Optimizer) -> Iterator[Load]:
    """Give a function that has an optimizer load a state; give all of them back what they had if anything raises.

    Raises:
        SettingsError: an optimizer refused a state, or lacks a setting afterwards.
    """
    before = [(optimizer, optimizer.state, optimizer.param_groups) for optimizer in optimizers]
    copies = [[dict(group) for group in groups] for _, _, groups in before]

    def load(path: str, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
        try:
            optimizer.load_state_dict(copied(state))
        except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
            raise SettingsError(f"{path}: {type(optimizer).__name__} refuses it: {error!r}") from error

    try:
        yield load
    except BaseException:
        for (optimizer, kept, groups), were in zip(before, copies, strict=True):
            for group, settings in zip(groups, were, strict=True):
                group.clear()
                group.update(settings)
            optimizer.state, optimizer.param_groups = kept, groups
        raise
