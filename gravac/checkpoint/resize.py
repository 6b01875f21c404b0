# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What ranks take over from the ranks of an earlier run, where these were more or fewer."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import torch

from gravac.checkpoint.state import checked
from gravac.settings import SettingsError

OnResize = Literal["mean", "keep", "drop"]
"""What becomes of residuals at another number of ranks: every rank gets their mean (error feedback depends on nothing
else); each rank that was there before keeps its own, new ones have none, and those of ranks that are gone are lost; or
nothing stays of them, nor of what compressors remember. Decisions and the number of steps stay in any case."""

State = Mapping[str, Any]


def check_on_resize(on_resize: str) -> None:
    """Raise where ``on_resize`` is none of the three.

    Raises:
        SettingsError: it is not.
    """
    if on_resize not in get_args(OnResize):
        raise SettingsError(
            f"on_resize: {on_resize!r} is not known; use 'mean' (every rank gets the mean of the residuals), 'keep' "
            "(each its own, new ranks none) or 'drop' (none)"
        )


def taken_over(
    world: int, ranks: int, rank: int, on_resize: OnResize, state_of: Callable[[int], State]
) -> dict[str, Any]:
    """Return what a rank is to load.

    Args:
        world: number of ranks that saved their states.
        ranks: number of ranks now.
        rank: number of this one.
        on_resize: what becomes of residuals where the two differ.
        state_of: gives the state that a rank saved; asked only for what is needed.

    Raises:
        SettingsError: ``on_resize`` is not known, or cannot be used with these states.
    """
    check_on_resize(on_resize)
    if world == ranks:
        return dict(state_of(rank))
    if on_resize == "drop":
        return without_ranks(whole(state_of(0)))
    states = [whole(state_of(r)) for r in range(world)]
    if states[0]["world"] != world:
        raise SettingsError(
            f"on_resize: {on_resize!r} needs residuals that all ranks averaged; of {world} ranks "
            f"{states[0]['world']} averaged each part of the model (HSDP); use 'drop'"
        )
    merged = merge_states(states)
    if on_resize == "mean":
        return merged
    if rank >= world:
        return {**merged, "residual": {}, "releasing": {}}
    return {**merged, "residual": _unsent(states[rank]), "releasing": dict(states[rank]["releasing"])}


def without_ranks(state: State) -> dict[str, Any]:
    """Return a state without what is one rank's own, or holds for one number of ranks."""
    of_this_rank: dict[str, Any] = {"world": None, "rank": None, "pending": []}
    return {**state, **of_this_rank, **{part: {} for part in ("sums", "residual", "releasing", "memory", "aside")}}


def merge_states(states: Sequence[State]) -> dict[str, Any]:
    """Make one state for any world size from all ranks' states of an earlier run.

    Every rank's residual becomes the mean of the old ones, so that the mean over ranks, which is all that error
    feedback depends on, is conserved; what a compressor keeps beside it (the second error of a quantized sum) joins it.
    Other memory becomes the ranks' mean.

    Args:
        states: the states of every old rank, in any order.

    Raises:
        SettingsError: ranks are missing, their states are of different steps or models, or a state is wrong.
    """
    states = [whole(state) for state in states]
    if not states:
        raise SettingsError("states: give the states of all ranks of the earlier run")
    world = states[0]["world"]
    ranks = sorted(state["rank"] for state in states)
    if ranks != list(range(world)) or len({state["step"] for state in states}) > 1:
        raise SettingsError(f"states: give one of each of the {world} ranks at one step; got ranks {ranks}")
    aside = {name for state in states for name in state["aside"]}
    remembered = [name for name in states[0]["memory"] if name not in aside]
    return {
        **without_ranks(states[0]),
        "sums": _mean("sums", [state["sums"] for state in states]),
        "residual": _mean("residual", [_unsent(state) for state in states]),
        "releasing": _mean("releasing", [state["releasing"] for state in states]),
        "memory": {
            name: _mean(f"memory/{name}", [state["memory"].get(name, {}) for state in states]) for name in remembered
        },
    }


def _unsent(state: State) -> dict[str, torch.Tensor]:
    """A rank's residuals, with what its compressor kept aside of them: shards that fit one number of ranks only."""
    aside = state["aside"]
    for name in aside.keys() & state["residual"].keys():
        _check_alike(f"aside/{name}", aside[name], state["residual"][name])
    return {name: one + aside[name] if name in aside else one for name, one in state["residual"].items()}


def whole(state: State) -> State:
    """Return a state of this version, if it is one.

    Raises:
        SettingsError: it is not; the message has the path of what is wrong.
    """
    checked(state)
    return state


def _check_alike(path: str, one: torch.Tensor, other: torch.Tensor) -> None:
    if one.shape != other.shape:
        raise SettingsError(f"{path}: shape {tuple(one.shape)}, {tuple(other.shape)} expected, as of another rank")


def _mean(path: str, parts: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """The mean over ranks by name, in float32 at least; a rank without one counts as zero."""
    names = {name: None for part in parts for name in part}
    for name in names:
        first, *others = (part[name] for part in parts if name in part)
        for other in others:
            _check_alike(f"{path}/{name}", other, first)
    return {
        name: functools.reduce(torch.add, (_wide(part[name]) for part in parts if name in part)) / len(parts)
        for name in names
    }


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
