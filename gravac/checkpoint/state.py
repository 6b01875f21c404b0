# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint holds: one rank's residuals and the shared decisions, as tensors and plain values."""

import math
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

from gravac.checkpoint.fitting import FormByName, as_tuples, check_fits, rank_state
from gravac.checkpoint.ranks import Ranks
from gravac.integrations.exchange_layout import ExchangeLayout
from gravac.policy import Policy
from gravac.settings import SettingsError
from gravac.stepping.agreement import LAST, LEFT, Layout
from gravac.stepping.state import StepState
from gravac.stepping.steps import Steps

VERSION = 3
"""Version of the states that are made. With 3 random numbers are drawn by position, the same on every device: a run
taken up from an earlier version draws other numbers than it would have; nothing else has changed. 2 says ``efficiency``
where 1 said *worth*, of candidates and in controllers' states, and names the numbers of the report on the last step,
where 1 had eight in a row. Both are read too."""

TAKEN_FOR_ONE: Mapping[str, Any] = {
    "torch.distributed.checkpoint": {"needs gravac.checkpoint.Stateful(compressor)": True},
    "torch.distributed.checkpoint.needs gravac.checkpoint.Stateful(compressor)": True,
}
"""Two entries of every state that torch.distributed.checkpoint, which joins keys by dots, finds to be one, so that it
refuses a compressor or a state as it is, in these words: it would restore one rank's residuals on all ranks."""

KEPT = ("residual", "sums", "held", "memory")
"""Parts of a state that are of single parameters, by name."""

LAST_OF_1 = ("waited", "coded", "learning_rate", "exchanged")
"""The slots after those of shadow CFs in version 1."""


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
    """Return the fields of a rank's state, of this version or an earlier one, lists as tuples.

    Raises:
        SettingsError: it is no such state.
    """
    if not isinstance(state, Mapping):
        raise SettingsError(f"state: {state!r:.80} is no state; give what state_dict() gave")
    now = upgraded(state)
    plain = {key: part for key, part in now.items() if key not in TAKEN_FOR_ONE or TAKEN_FOR_ONE[key] != part}
    rank_state(plain)
    return {"outer": None, **{key: part if key == "outer" else as_tuples(part) for key, part in plain.items()}}


def upgraded(state: Mapping[str, Any]) -> dict[str, Any]:
    """Read a state of this version, or make one of this version from an earlier one.

    Raises:
        SettingsError: the state is of a version that is not known.
    """
    version = state.get("version")
    if type(version) is not int or version not in range(1, VERSION + 1):
        raise SettingsError(f"version: the state has {version!r}, this gravac reads 1 to {VERSION}")
    now = {key: _renamed(value) for key, value in state.items()} if version == 1 else dict(state)
    later: dict[str, Any] = {"older_reports": [], "aside": {}}
    report = {"report": with_named_numbers(now["report"])} if "report" in now else {}
    return {**later, **now, **report, "version": VERSION}


def _renamed(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {"efficiency" if key == "worth" else key: _renamed(one) for key, one in value.items()}
    return [_renamed(one) for one in value] if isinstance(value, list) else value


def with_named_numbers(report: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Name the numbers of a report that has them in a row: the same slots, cut off after eight, which leaves nan."""
    if not isinstance(report, Mapping) or not isinstance(report.get("numbers"), (list, tuple)):
        return report
    if not isinstance(report.get("shadow"), (list, tuple)):
        return report
    slots = Layout(tuple(report["shadow"])).slots
    then = [slot for slot in slots if slot in LAST_OF_1 or slot not in (*LAST, LEFT)]
    return {**report, "numbers": dict.fromkeys(slots, math.nan) | dict(zip(then, report["numbers"], strict=False))}


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
