# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Whether a state of outer steps fits the model and the optimizers that are to load it.

Its fields are told in ``gravac.checkpoint.fitting``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
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
from gravac.outer.buffers import Buffers
from gravac.outer.fragments import Fragment
from gravac.settings import SettingsError

Load = Callable[[str, torch.optim.Optimizer, Mapping[str, Any]], None]
"""Has an optimizer load a copy of a state, of which the path is given first."""


def check_outer(
    plain: Any,
    fragments: Sequence[Fragment],
    buffers: Buffers,
    outer: torch.optim.Optimizer,
    inner: torch.optim.Optimizer,
) -> None:
    """Check that what ``OuterOptimizer.state_dict`` has besides the compressor's state fits.

    Args:
        plain: that part of the state.
        fragments: parts of the model that is to load it.
        buffers: buffers of that model.
        outer: optimizer of the anchors.
        inner: optimizer of the model.

    Raises:
        SettingsError: it does not; the message has the path of what is wrong.
    """
    state = fitted(OuterState, plain, "outer")
    then, now = [[*one.anchors] for one in state.fragments], [[*one.anchors] for one in fragments]
    if then != now:
        raise SettingsError(
            f"fragments: the state has {len(then)} with {sum(map(len, then))} parameters, and this one {len(now)} "
            f"with {sum(map(len, now))}, or they have other names"
        )
    for at, (one, fragment) in enumerate(zip(state.fragments, fragments, strict=True)):
        path = f"outer/fragments/{at}"
        check_tensors(f"{path}/anchors", one.anchors, fragment.anchors)
        check_tensors(f"{path}/own", one.own, fragment.parameters)
        check_tensors(f"{path}/left", one.left, fragment.parameters, some=True)
        if one.left:
            check_names(f"{path}/left", one.left, fragment.parameters)
    check_tensors("outer/buffers/anchors", state.buffers.anchors, buffers.anchors)
    check_tensors("outer/buffers/own", state.buffers.own, buffers.own)
    check_optimizer("outer/optimizer", state.optimizer, outer)
    check_optimizer("outer/inner", state.inner, inner)


def check_shares(plain: Any, world: int | None) -> None:
    """Check that what is known of all ranks' steps is of as many ranks as there were.

    Args:
        plain: what ``Shares.state_dict`` gave.
        world: number of ranks that saved; ``None``: it is not used.

    Raises:
        SettingsError: it is not.
    """
    shares = fitted(SharesState, plain, "outer/rounds/shares")
    if world is None:
        return
    for name, numbers, count in (("seconds", shares.seconds, world), ("samples", shares.samples, world)):
        if len(numbers) not in (0, count):
            raise SettingsError(f"outer/rounds/shares/{name}: {len(numbers)} numbers, {count} expected")
    if len(shares.own) not in (0, 2):
        raise SettingsError(f"outer/rounds/shares/own: {len(shares.own)} numbers, seconds and samples expected")
    if shares.samples and not sum(shares.samples):
        raise SettingsError("outer/rounds/shares/samples: all are 0, and ranks count by them")


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
