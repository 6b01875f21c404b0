# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint holds: one rank's residuals and the shared decisions, as tensors and plain values."""

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from gravac.checkpoint.fitting import as_tuples, check_fits, rank_state
from gravac.checkpoint.ranks import Ranks
from gravac.engine.engine import Engine
from gravac.policy import Policy
from gravac.settings import SettingsError

VERSION = 6
"""Version of the states that are made, and the only one that is read."""

TAKEN_FOR_ONE: Mapping[str, Any] = {
    "torch.distributed.checkpoint": {"needs gravac.checkpoint.Stateful(compressor)": True},
    "torch.distributed.checkpoint.needs gravac.checkpoint.Stateful(compressor)": True,
}
"""Two entries of every state that torch.distributed.checkpoint, which joins keys by dots, finds to be one, so that it
refuses a compressor or a state as it is, in these words: it would restore one rank's residuals on all ranks."""

TENSORS = ("residual", "sums", "releasing", "memory")
"""Parts of a state that are tensors of single parameters, by name."""


def pack(policy: Policy, engine: Engine, group: dist.ProcessGroup | None = None) -> dict[str, Any]:
    """Return the state of one rank. Tensors are the live ones: save them before training goes on, or clone.

    Args:
        policy: what was set.
        engine: runs the steps.
        group: ranks that will average, if no executor was given yet; ``None``: the default group, if there is one.
    """
    state, averager = engine.state, engine.averager
    if not engine.ready_to_run and state.world == 1:
        state.rank, state.world = averager.rank, averager.world = Ranks(group).place
    decides = state.controller
    return {
        "version": VERSION,
        "base": policy.base.name,
        "controller": policy.controller.name,
        "controller_state": engine.deciding.restored if decides is None else policy.controller.dump(decides),
        **state.dump(),
        "aside": {name: aside for name in state.memory if (aside := averager.kept_aside(name)) is not None},
        **TAKEN_FOR_ONE,
    }


def unpack(state: Mapping[str, Any], policy: Policy, engine: Engine) -> None:
    """Restore a rank's state. See ``AdaptiveCompressor.load_state_dict``.

    Raises:
        SettingsError: it does not fit; nothing was changed.
    """
    fields = checked(state)
    for field, expected in (("base", policy.base.name), ("controller", policy.controller.name)):
        if fields[field] != expected:
            raise SettingsError(f"{field}: the state was made with {fields[field]!r}, this compressor has {expected!r}")
    if engine.ready_to_run:
        check_place(fields, engine.state.rank, engine.state.world)
    check_fits({part: fields[part] for part in (*TENSORS, "aside")}, engine.form_by_name, policy.base)
    controller_state = state["controller_state"]
    if controller_state is not None and (check := getattr(policy.controller, "check", None)) is not None:
        check(controller_state)
    engine.restore(fields, controller_state)


def check_kept(engine: Engine, policy: Policy) -> None:
    """Check that what was loaded before the model was known fits it.

    Raises:
        SettingsError: it does not.
    """
    check_fits({part: getattr(engine.state, part) for part in TENSORS}, engine.form_by_name, policy.base)


def checked(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a rank's state, lists as tuples.

    Raises:
        SettingsError: it is no such state, or one of another version.
    """
    if not isinstance(state, Mapping):
        raise SettingsError(f"state: {state!r:.80} is no state; give what state_dict() gave")
    version = state.get("version")
    if type(version) is not int or version != VERSION:
        raise SettingsError(f"version: the state has {version!r}, this gravac reads {VERSION}")
    # as texts, since a tensor in an entry's place is compared element by element
    marks = {key: repr(mark) for key, mark in TAKEN_FOR_ONE.items()}
    plain = {key: part for key, part in state.items() if key not in marks or marks[key] != repr(part)}
    rank_state(plain)
    return {key: part if key == "outer" else as_tuples(part) for key, part in plain.items()}


def check_place(state: Mapping[str, Any], rank: int, world: int) -> None:
    """Refuse another rank's state, and another world size's unless merged.

    Raises:
        SettingsError: the state is of another rank or world size; the message says which.
    """
    if state["world"] is None:
        return
    if state["world"] != world:
        raise SettingsError(
            f"world: the state is of {state['world']} ranks and there are {world}; gravac.checkpoint.load takes a "
            "checkpoint up at another number, and gravac.merge_states([...]) makes one state of all old ranks'"
        )
    if state["rank"] != rank:
        raise SettingsError(f"rank: the state is of rank {state['rank']} and this is rank {rank}; each loads its own")
