# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Computes the states to load if the number of ranks, or the device mesh, is not the one that saved the checkpoint."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import torch

from gravac.averaging.plan import ShardPlace
from gravac.checkpoint.ranks import RankShards
from gravac.checkpoint.state import validate_state
from gravac.saved import misfit
from gravac.settings import SettingsError

OnResize = Literal["mean", "keep", "drop"]
"""What becomes of residuals if a checkpoint is loaded by another number of ranks, or on another device mesh.

- ``"mean"``: every rank gets the mean of all ranks' residuals. Error feedback depends on this mean alone.
- ``"keep"``: each earlier rank gets its own residuals, new ranks get none, and residuals of missing ranks are lost. If
  the model is in shards, each replica gets the residuals of the saved replica with the same number, if any.
- ``"drop"``: all residuals are dropped, and all tensors that compressors keep from step to step, such as a momentum.

Decisions and the number of steps are always restored.
"""

State = Mapping[str, Any]
"""A rank's state, as ``AdaptiveCompressor.state_dict`` returns it."""


def check_on_resize(on_resize: str) -> None:
    """Check that ``on_resize`` is ``"mean"``, ``"keep"`` or ``"drop"``.

    Raises:
        SettingsError: ``on_resize`` is anything else.
    """
    if on_resize not in get_args(OnResize):
        raise SettingsError(
            f"on_resize: {on_resize!r} is unknown; use 'mean' (every rank gets the mean of the residuals), 'keep' "
            "(each rank keeps its own residuals, and new ranks get none) or 'drop' (no rank gets residuals)"
        )


def state_to_load(
    saved_world: int,
    world: int,
    rank: int,
    on_resize: OnResize,
    state_of: Callable[[int], State],
    shards: RankShards | None = None,
) -> dict[str, Any]:
    """Return the state that this rank loads: the one that it saved, or one computed for the present ranks and mesh.

    Args:
        saved_world: number of ranks that saved their states.
        world: number of ranks that load.
        rank: number of this rank.
        on_resize: what becomes of residuals if the number of ranks or the mesh has changed; see ``OnResize``.
        state_of: function that gets a saved rank's number, and returns the state that this rank saved; called only for
            states that are needed.
        shards: this rank's shards of the model; ``None`` if each rank has the whole model.

    Raises:
        SettingsError: ``on_resize`` is not known, or cannot be used with these states.
    """
    check_on_resize(on_resize)
    own_state = state_of(rank) if saved_world == world else None
    if own_state is not None and (shards is None or own_state.get("world") == shards.replicas):
        return dict(own_state)
    if on_resize == "drop":
        return _without_rank_or_shards(_require_valid(state_of(0)), shards)
    states = [_require_valid(state_of(saved_rank)) for saved_rank in range(saved_world)]
    if shards is not None:
        return reshard_states(states, shards, on_resize)
    if states[0]["world"] != saved_world:
        raise SettingsError(
            f"on_resize: {on_resize!r} needs a model in shards, since the saved model was in shards "
            f"({states[0]['world']} of {saved_world} ranks held each shard); attach a model in shards before you "
            "load, or use 'drop'"
        )
    merged_state = merge_states(states)
    if on_resize == "mean":
        return merged_state
    if rank >= saved_world:
        return {**merged_state, "residual": {}}
    return {**merged_state, "residual": _sum_unsent(states[rank])}


def _without_rank_or_shards(state: State, shards: RankShards | None) -> dict[str, Any]:
    """Return a copy of a state without what depends on the rank, such as residuals, or on its shards.

    If the state or this rank has shards, the state of outer steps is left out. Outer steps then begin anew, from the
    weights that all replicas share.

    Args:
        state: a rank's saved state.
        shards: shards of the rank that will load the state; ``None`` if each rank has the whole model.
    """
    state_without_rank = without_ranks(state)
    if shards is None and state.get("shards") is None:
        return state_without_rank
    return {**state_without_rank, "outer": None, "shards": None}


def reshard_states(states: Sequence[State], shards: RankShards, on_resize: OnResize) -> dict[str, Any]:
    """Return the state that this rank of a new mesh loads, with residuals cut out of the residuals of saved shards.

    The tensors that compressors keep from step to step are dropped, and outer steps begin anew.

    Args:
        states: the states of all ranks that saved.
        shards: this rank's shards.
        on_resize: ``"mean"``: this rank gets the mean of the saved replicas' residuals. ``"keep"``: it gets the
            residuals of the saved replica with the same number as its own replica, or none if there is no such replica.

    Raises:
        SettingsError: a state does not say where its shards are, or a tensor does not fit its shard.
    """
    if any(state.get("shards") is None for state in states):
        raise SettingsError(
            f"on_resize: {on_resize!r} needs the positions of the saved shards, but the states have none (they were "
            "saved without shards, or with a version of torch that does not give positions); use 'drop'"
        )
    source_states = [state for state in states if on_resize == "mean" or state["rank"] == shards.replica]
    residuals_of_states = [_sum_unsent(state) for state in source_states]
    return {
        **_without_rank_or_shards(states[0], shards),
        "residual": _cut_out_shards("residual", source_states, residuals_of_states, shards.places),
    }


def _cut_out_shards(
    path: str,
    states: Sequence[State],
    tensors_of_states: Sequence[Mapping[str, torch.Tensor]],
    places: Mapping[str, ShardPlace],
) -> dict[str, torch.Tensor]:
    """Cut the tensors of new shards out of the tensors of saved shards; return them flat, by parameter name.

    Each element is the mean over all states whose shards contain the element; a missing tensor counts as zeros.

    Args:
        path: path of the tensors within a state, for messages.
        states: saved states; each has the positions of its shards.
        tensors_of_states: for each state, flat tensors of its shards in their padded shapes, by parameter name.
        places: positions of the new shards in the whole parameters, by parameter name.
    """
    tensor_by_name = {}
    for name, own_place in places.items():
        shard_sum = torch.zeros(own_place.padded_shape, dtype=torch.float32, device="cpu")
        shards_per_element, has_tensor = torch.zeros_like(shard_sum), False
        for state, tensors in zip(states, tensors_of_states, strict=True):
            saved_place, tensor = state["shards"].get(name), tensors.get(name)
            common_regions = None if saved_place is None else _common_regions(f"shards/{name}", own_place, saved_place)
            if common_regions is None:
                continue
            own_region, saved_region = common_regions
            shards_per_element[own_region] += 1
            if tensor is not None:
                saved_shape = torch.Size(saved_place["padded_shape"])
                if tensor.numel() != saved_shape.numel():
                    raise misfit(
                        f"{path}/{name}",
                        f"has {tensor.numel()} elements",
                        f"have {saved_shape.numel()}, as its shard has",
                    )
                shard_sum = shard_sum.to(torch.promote_types(shard_sum.dtype, tensor.dtype))
                shard_sum[own_region] += tensor.cpu().view(saved_shape)[saved_region]
                has_tensor = True
        if has_tensor:
            tensor_by_name[name] = (shard_sum / shards_per_element.clamp(min=1)).view(-1)
    return tensor_by_name


Region = tuple[slice, ...]
"""Rectangular part of a tensor: a slice for each dimension."""


def _common_regions(
    path: str, own_place: ShardPlace, saved_place: Mapping[str, Sequence[int]]
) -> tuple[Region, Region] | None:
    """Return the elements that two shards of a parameter have in common; ``None`` if there are none.

    Args:
        path: path of the saved shard's position within a state, for messages.
        own_place: position of the new shard in the whole parameter.
        saved_place: position of the saved shard, by the names of ``ShardPlace``'s fields.

    Returns:
        The common elements as slices of the new shard, and as slices of the saved shard.

    Raises:
        SettingsError: the positions have different numbers of dimensions.
    """
    if not len(own_place.shape) == len(saved_place["offset"]) == len(saved_place["shape"]):
        raise misfit(path, f"has {len(saved_place['shape'])} dimensions", f"have {len(own_place.shape)}")
    own_slices, saved_slices = [], []
    for own_start, own_size, saved_start, saved_size in zip(
        own_place.offset, own_place.shape, saved_place["offset"], saved_place["shape"], strict=True
    ):
        common_start, common_end = max(own_start, saved_start), min(own_start + own_size, saved_start + saved_size)
        if common_start >= common_end:
            return None
        own_slices.append(slice(common_start - own_start, common_end - own_start))
        saved_slices.append(slice(common_start - saved_start, common_end - saved_start))
    return tuple(own_slices), tuple(saved_slices)


def without_ranks(state: State) -> dict[str, Any]:
    """Return a copy of a state without fields that only a certain rank, or number of ranks, can load."""
    cleared_fields: dict[str, Any] = {"world": None, "rank": None, "pending": []}
    return {**state, **cleared_fields, **{field: {} for field in ("sums", "residual", "memory", "aside")}}


def merge_states(states: Sequence[State]) -> dict[str, Any]:
    """Merge all ranks' states of an earlier run into a single state for any world size.

    Every rank's residual becomes the mean of the earlier residuals. The mean over the ranks is therefore the same as
    before, and error feedback depends on nothing else. An unsent rest that the compressor itself keeps, such as the
    error of quantizing a mean, is added to the residual. Other tensors that compressors keep become the ranks' mean.

    Args:
        states: the states of all earlier ranks, in any order.

    Raises:
        SettingsError: ranks are missing, their states are of different steps or models, or a state is wrong.
    """
    states = [_require_valid(state) for state in states]
    if not states:
        raise SettingsError("states: the sequence is empty; give the states of all ranks of the earlier run")
    world = states[0]["world"]
    ranks = sorted(state["rank"] for state in states)
    steps = sorted({state["step"] for state in states})
    if ranks != list(range(world)) or len(steps) > 1:
        raise SettingsError(
            f"states: give one state of each of the {world} ranks, all of the same step; got ranks {ranks} "
            f"at steps {steps}"
        )
    names_with_aside = {name for state in states for name in state["aside"]}
    memory_names = [name for name in states[0]["memory"] if name not in names_with_aside]
    return {
        **without_ranks(states[0]),
        "sums": _mean_over_ranks("sums", [state["sums"] for state in states]),
        "residual": _mean_over_ranks("residual", [_sum_unsent(state) for state in states]),
        "memory": {
            name: _mean_over_ranks(f"memory/{name}", [state["memory"].get(name, {}) for state in states])
            for name in memory_names
        },
    }


def _sum_unsent(state: State) -> dict[str, torch.Tensor]:
    """Return a rank's residuals, by parameter name, each with the compressor's own part (``aside``) added."""
    aside_by_name = state["aside"]
    for name in aside_by_name.keys() & state["residual"].keys():
        _check_same_shape(f"aside/{name}", aside_by_name[name], state["residual"][name])
    return {
        name: residual + aside_by_name[name] if name in aside_by_name else residual
        for name, residual in state["residual"].items()
    }


def _require_valid(state: State) -> State:
    """Return a rank's state if it is valid and of this version.

    Raises:
        SettingsError: the state is not valid, or has another version; the message has the path of the wrong field.
    """
    validate_state(state)
    return state


def _check_same_shape(path: str, tensor: torch.Tensor, other: torch.Tensor) -> None:
    """Raise ``SettingsError`` if two ranks' tensors under the same path of their states differ in shape."""
    if tensor.shape != other.shape:
        raise SettingsError(
            f"{path}: has shape {tuple(tensor.shape)}, but {tuple(other.shape)} on another rank; give the states of "
            "all ranks of one run"
        )


def _mean_over_ranks(path: str, tensors_of_ranks: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Return the mean over ranks of tensors by name, in float32 or float64; a missing tensor counts as zero.

    Args:
        path: path of the tensors in a state, for messages.
        tensors_of_ranks: each rank's tensors by name.

    Raises:
        SettingsError: ranks have tensors of different shapes.
    """
    names = {name: None for tensors in tensors_of_ranks for name in tensors}
    for name in names:
        first_tensor, *further_tensors = (tensors[name] for tensors in tensors_of_ranks if name in tensors)
        for other in further_tensors:
            _check_same_shape(f"{path}/{name}", other, first_tensor)
    return {
        name: functools.reduce(
            torch.add, (_at_least_float32(tensors[name]) for tensors in tensors_of_ranks if name in tensors)
        )
        / len(tensors_of_ranks)
        for name in names
    }


def _at_least_float32(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in float32, or in its own dtype if that is wider."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
