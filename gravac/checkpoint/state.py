# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Converts one rank's state to tensors and plain values, and back: residuals, controller, exchange groups, step."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch.distributed as dist

from gravac.checkpoint.fitting import as_tuples, check_fits, validate_rank_state
from gravac.checkpoint.ranks import Ranks
from gravac.engine.engine import Engine
from gravac.policy import Policy
from gravac.settings import SettingsError

VERSION = 7
"""Version of the states that ``pack`` returns, and the only version that is loaded."""

DCP_GUARD: Mapping[str, Any] = {
    "torch.distributed.checkpoint": {"needs gravac.checkpoint.Stateful(compressor)": True},
    "torch.distributed.checkpoint.needs gravac.checkpoint.Stateful(compressor)": True,
}
"""Entries of every state that make ``torch.distributed.checkpoint`` (DCP) raise an error if ``Stateful`` is not used.

DCP joins nested keys with dots, and refuses two entries whose joined keys are equal; the text of its error contains the
key. Without these entries DCP would restore one rank's residuals on all ranks.
"""

TENSOR_FIELDS = ("residual", "sums", "memory")
"""Fields of a state that hold tensors by parameter name."""


def pack(policy: Policy, engine: Engine, group: dist.ProcessGroup | None = None) -> dict[str, Any]:
    """Return the state of one rank. Its tensors are not copies: save or clone them before the next step.

    Args:
        policy: the run's settings.
        engine: engine of the run.
        group: process group of the ranks that will average, used if the engine has no executor yet; ``None``: the
            default group, or this process alone if there is none.
    """
    state, averager = engine.state, engine.averager
    if not engine.ready_to_run and state.world == 1:
        state.rank, state.world = averager.rank, averager.world = Ranks(group).rank_and_world
    controller_state = state.controller
    shard_places = {name: asdict(shard_place) for name, shard_place in engine.shard_places.items()}
    return {
        "version": VERSION,
        "base": policy.base.name,
        "controller": policy.controller.name,
        "controller_state": (
            engine.deciding.restored_controller_state
            if controller_state is None
            else policy.controller.dump(controller_state)
        ),
        **state.dump(),
        "aside": {name: aside for name in state.memory if (aside := averager.kept_aside(name)) is not None},
        **({"shards": shard_places} if shard_places else {}),
        **DCP_GUARD,
    }


def check_state(state: Mapping[str, Any], policy: Policy, engine: Engine) -> dict[str, Any]:
    """Check that a rank's saved state fits; return its fields, from which ``Engine.restore`` restores the engine.

    Args:
        state: what ``pack`` returned on this rank, or a merged state of all ranks.
        policy: settings of the present run.
        engine: engine to restore, before its first step.

    Raises:
        SettingsError: the state is wrong, or does not fit policy, model or rank.
    """
    fields = validate_state(state)
    for field, expected in (("base", policy.base.name), ("controller", policy.controller.name)):
        if fields[field] != expected:
            raise SettingsError(
                f"{field}: the state was made with {fields[field]!r}, but this compressor has {expected!r}; make "
                f"the compressor with {fields[field]!r}, or load another state"
            )
    if engine.ready_to_run:
        check_rank(fields, engine.state.rank, engine.state.world)
    check_fits({field: fields[field] for field in (*TENSOR_FIELDS, "aside")}, engine.form_by_name, policy.base)
    controller_state = state["controller_state"]
    if controller_state is not None and (check := getattr(policy.controller, "check", None)) is not None:
        check(controller_state)
    return fields


def check_loaded(engine: Engine, policy: Policy) -> None:
    """Check that a state fits the model, if it was loaded before the model was known.

    Args:
        engine: engine with the loaded state, which now knows the model.
        policy: the run's settings.

    Raises:
        SettingsError: a tensor of the state is of a parameter that the model lacks, or has another size or dtype.
    """
    check_fits({field: getattr(engine.state, field) for field in TENSOR_FIELDS}, engine.form_by_name, policy.base)


def validate_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Check a rank's state and its version; return its fields, with tuples in place of lists, without ``DCP_GUARD``.

    Lists in the field ``outer`` stay lists.

    Raises:
        SettingsError: ``state`` is no state of a rank, is wrong, or has another version.
    """
    if not isinstance(state, Mapping):
        raise SettingsError(
            f"state: {state!r:.80} is not a state of gravac; give what AdaptiveCompressor.state_dict() returned"
        )
    version = state.get("version")
    if type(version) is not int or version != VERSION:
        raise SettingsError(
            f"version: the state has version {version!r}, but this gravac reads version {VERSION}; load the state "
            "with the version of gravac that saved it"
        )
    # compare texts: a wrong state may have a tensor in place of a guard, which == would compare element by element
    guard_texts = {key: repr(guard) for key, guard in DCP_GUARD.items()}
    fields = {key: field for key, field in state.items() if key not in guard_texts or guard_texts[key] != repr(field)}
    validate_rank_state(fields)
    return {key: field if key == "outer" else as_tuples(field) for key, field in fields.items()}


def check_rank(state: Mapping[str, Any], rank: int, world: int) -> None:
    """Check that a state is of this rank, and of this number of ranks.

    Args:
        state: a rank's state. A state that ``merge_states`` returned has ``None`` as world, and fits every rank.
        rank: number of this rank.
        world: number of ranks that average.

    Raises:
        SettingsError: the state is of another rank or number of ranks; the message has the numbers.
    """
    if state["world"] is None:
        return
    if state["world"] != world:
        raise SettingsError(
            f"world: the state is of a run with {state['world']} ranks, but this run has {world}; use "
            "gravac.checkpoint.load, which fits a checkpoint to another number of ranks, or load what "
            "gravac.merge_states([...]) makes of the states of all ranks"
        )
    if state["rank"] != rank:
        raise SettingsError(
            f"rank: the state is of rank {state['rank']}, but this is rank {rank}; on each rank, load the state "
            "that this rank saved"
        )
