# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Converts one rank's state to tensors and plain values, and back: residuals, controller, exchange groups, step."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch.distributed as dist
from pydantic import ConfigDict

from gravac.averaging.plan import ShardPlace
from gravac.checkpoint.fitting import check_fits, check_plain
from gravac.checkpoint.ranks import Ranks
from gravac.engine.engine import Engine
from gravac.engine.run_state import SAVED_FIELDS, RunState
from gravac.policy import Policy
from gravac.ranges import Count, PositiveCount
from gravac.saved import FlatTensor, dump_fields, load_fields, misfit
from gravac.settings import SettingsError

VERSION = 9
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


@dataclass(frozen=True, slots=True)
class Header:
    """What a rank's state has besides the saved fields of ``RunState``.

    Attributes:
        version: version of the state.
        world: number of ranks that averaged; ``None``: the state is merged, and fits every rank.
        rank: number of the rank; ``None`` if ``world`` is.
        base: name of the compressor.
        controller: name of the controller.
        controller_state: state of the controller; ``None`` before the first step.
        aside: part of each parameter's unsent gradient that the compressor's memory has, not the residual; flat, by
            parameter name.
        shards: positions of this rank's shards in the whole parameters, by parameter name; ``None`` if each rank has
            whole parameters.
    """

    __pydantic_config__ = ConfigDict(arbitrary_types_allowed=True)

    version: int
    world: PositiveCount | None
    rank: Count | None
    base: str
    controller: str
    controller_state: dict[str, Any] | None
    aside: dict[str, FlatTensor]
    shards: dict[str, ShardPlace] | None


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
        "world": state.world,
        "rank": state.rank,
        **dump_fields(state),
        "aside": {name: aside for name in state.memory if (aside := averager.kept_aside(name)) is not None},
        "shards": shard_places or None,
        **DCP_GUARD,
    }


def check_state(state: Mapping[str, Any], policy: Policy, engine: Engine) -> RunState:
    """Check that a rank's saved state fits; return the run's state, from which ``Engine.restore`` restores the engine.

    Args:
        state: what ``pack`` returned on this rank, or a merged state of all ranks.
        policy: settings of the present run.
        engine: engine to restore, before its first step.

    Raises:
        SettingsError: the state is wrong, or does not fit policy, model or rank.
    """
    run_state = validate_state(state)
    for field, expected in (("base", policy.base.name), ("controller", policy.controller.name)):
        if state[field] != expected:
            raise SettingsError(
                f"{field}: the state was made with {state[field]!r}, but this compressor has {expected!r}; make "
                f"the compressor with {state[field]!r}, or load another state"
            )
    if engine.ready_to_run:
        check_rank(state, engine.state.rank, engine.state.world)
    check_fits({field: state[field] for field in (*TENSOR_FIELDS, "aside")}, engine.form_by_name, policy.base)
    controller_state = state["controller_state"]
    if controller_state is not None and (check := getattr(policy.controller, "check", None)) is not None:
        check(controller_state)
    return run_state


def check_loaded(engine: Engine, policy: Policy) -> None:
    """Check that a state fits the model, if it was loaded before the model was known.

    Args:
        engine: engine with the loaded state, which now knows the model.
        policy: the run's settings.

    Raises:
        SettingsError: a tensor of the state is of a parameter that the model lacks, or has another size or dtype.
    """
    check_fits({field: getattr(engine.state, field) for field in TENSOR_FIELDS}, engine.form_by_name, policy.base)


def validate_state(state: Mapping[str, Any]) -> RunState:
    """Check a rank's state and its version, and that its fields do not contradict each other; return the run's state.

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
    header = load_fields(Header, {key: field for key, field in fields.items() if key not in SAVED_FIELDS})
    run_state = load_fields(RunState, {key: field for key, field in fields.items() if key in SAVED_FIELDS})
    world, rank = header.world, header.rank
    if (world is None) != (rank is None) or (world and (rank or 0) >= world):
        expected_text = "be None, as world is" if world is None else f"be from 0 to {world - 1}"
        raise misfit("rank", f"is {rank}, while world (the number of ranks) is {world}", expected_text)
    steps = [recording.step for recording in run_state.pending]
    if steps != sorted(set(steps)) or (steps and steps[-1] >= run_state.step):
        raise misfit("pending", f"has the steps {steps}", f"have ascending steps before step {run_state.step}")
    if header.controller_state is not None:
        check_plain(header.controller_state, "controller_state")
    return run_state


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
