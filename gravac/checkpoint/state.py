# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint holds: one rank's residuals and the shared decisions, as tensors and plain values."""

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from gravac.checkpoint.fitting import FormByName, as_tuples, check_fits, rank_state
from gravac.checkpoint.ranks import Ranks
from gravac.integrations.exchange_layout import ExchangeLayout
from gravac.policy import Policy
from gravac.settings import SettingsError
from gravac.stepping.state import StepState
from gravac.stepping.steps import Steps

VERSION = 3
"""Version of the states that are made, and of those that are read."""

TAKEN_FOR_ONE: Mapping[str, Any] = {
    "torch.distributed.checkpoint": {"needs gravac.checkpoint.Stateful(compressor)": True},
    "torch.distributed.checkpoint.needs gravac.checkpoint.Stateful(compressor)": True,
}
"""Two entries of every state that torch.distributed.checkpoint, which joins keys by dots, finds to be one, so that it
refuses a compressor or a state as it is, in these words: it would restore one rank's residuals on all ranks."""

KEPT = ("residual", "sums", "held", "memory")
"""Parts of a state that are of single parameters, by name."""


def pack(
    policy: Policy, steps: Steps, layout: ExchangeLayout, group: dist.ProcessGroup | None = None
) -> dict[str, Any]:
    """Return the state of one rank. Tensors are the live ones: save them before training goes on, or clone.

    Args:
        policy: what was set.
        steps: what runs.
        layout: exchange groups.
        group: ranks that will average, where nothing runs yet; ``None``: the default group, if there is one.
    """
    averager, feedback = steps.averager, steps.averager.feedback
    if not steps.ready and averager.world == 1:
        averager.rank, averager.world = Ranks(group).place
    kept, decides = averager.memory.kept, steps.state.controller
    return {
        "version": VERSION,
        "world": averager.world,
        "rank": averager.rank,
        "base": policy.base.name,
        "controller": policy.controller.name,
        "controller_state": steps.restored if decides is None else policy.controller.dump(decides),
        **steps.state.dump(),
        "groups": [list(names) for names in layout.fixed],
        "residual": dict(feedback.residual),
        "sums": dict(averager.diagnostics.sums),
        "held": dict(feedback.held),
        "memory": {name: dict(memory) for name, memory in kept.items() if memory},
        "aside": {name: aside for name in kept if (aside := averager.kept_aside(name)) is not None},
        **TAKEN_FOR_ONE,
    }


def unpack(state: Mapping[str, Any], policy: Policy, steps: Steps, forms: FormByName) -> ExchangeLayout:
    """Put a rank's state back, and return its exchange groups. See ``AdaptiveCompressor.load_state_dict``.

    Raises:
        SettingsError: it does not fit; nothing was changed.
    """
    fields = checked(state)
    for field, mine in (("base", policy.base.name), ("controller", policy.controller.name)):
        if fields[field] != mine:
            raise SettingsError(f"{field}: the state was made with {fields[field]!r}, this compressor has {mine!r}")
    if fields["outer"] is not None:
        raise SettingsError("outer: the state is an OuterOptimizer's; load it with one")
    if steps.ready:
        check_place(fields, steps.averager.rank, steps.averager.world)
    check_fits({part: fields[part] for part in (*KEPT, "aside")}, forms, policy.base)
    controller_state = state["controller_state"]
    if controller_state is not None and (check := getattr(policy.controller, "check", None)) is not None:
        check(controller_state)
    restored, layout = StepState.load(fields), ExchangeLayout(fields["groups"])
    sums = {name: total.clone() for name, total in fields["sums"].items()}
    steps.restore(restored, controller_state)
    steps.averager.feedback.load(fields["residual"], fields["held"])
    steps.averager.diagnostics.sums = sums
    steps.averager.memory.load(fields["memory"])
    return layout


def check_kept(steps: Steps, policy: Policy, forms: FormByName) -> None:
    """Check that what was loaded before the model was known fits it.

    Raises:
        SettingsError: it does not.
    """
    averager = steps.averager
    kept = (averager.feedback.residual, averager.diagnostics.sums, averager.feedback.held, averager.memory.kept)
    check_fits(dict(zip(KEPT, kept, strict=True)), forms, policy.base)


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
    plain = {key: part for key, part in state.items() if key not in TAKEN_FOR_ONE or TAKEN_FOR_ONE[key] != part}
    rank_state(plain)
    return {"outer": None, **{key: part if key == "outer" else as_tuples(part) for key, part in plain.items()}}


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
