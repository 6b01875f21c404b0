# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""All ranks' states as a single dict, for frameworks in which a rank writes a file that every rank reads."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gravac.checkpoint.ranks import Checkpointed, Ranks, restore_on_all
from gravac.checkpoint.resize import OnResize, check_on_resize, state_to_load
from gravac.checkpoint.serial import check_format, from_bytes, state_on_host, to_bytes
from gravac.ranges import Count, PositiveCount
from gravac.saved import load_fields
from gravac.settings import SettingsError

FORMAT = 1
"""Version of the dict that ``gather`` returns, and the only version that ``load_gathered`` reads."""


@dataclass(frozen=True, slots=True)
class GatheredStates:
    """The states of all ranks in one dict, as ``gather`` returns them."""

    version: int
    world: PositiveCount
    step: Count
    states: tuple[dict[str, Any], ...]


def gather(compressor: Checkpointed) -> dict[str, Any] | None:
    """Collect all ranks' states on rank 0. Called on every rank, between two steps.

    Returns:
        On rank 0 of the compressor's process group, a dict of CPU tensors and plain values, which
        ``torch.load(weights_only=True)`` can load. For each rank, the dict takes about four bytes per element of the
        compressed tensors. On other ranks, ``None``.

    Raises:
        SettingsError: the ranks that the compressor averages over are not those of its process group.
    """
    ranks = Ranks(compressor.process_group)
    payloads = ranks.gather(ranks.run_on_all(lambda: to_bytes(state_on_host(compressor, ranks))))
    if payloads is None:
        return None
    states = [from_bytes(payload) for payload in payloads]
    return {"version": FORMAT, "world": ranks.world, "step": states[0]["step"], "states": states}


def load_gathered(gathered: Mapping[str, Any], compressor: Checkpointed, on_resize: OnResize = "mean") -> None:
    """Restore a compressor from gathered states. Called on every rank, before the first backward.

    The states are loaded on all ranks, or on none.

    Args:
        gathered: the dict that ``gather`` returned on rank 0; the same on every rank. A rank that could not read the
            dict gives ``None``, so that all ranks raise the error.
        compressor: the compressor to restore; see ``load``.
        on_resize: what becomes of residuals if another number of ranks loads; see ``load``.

    Raises:
        SettingsError: ``gathered`` is not what ``gather`` returns on rank 0; or it is of another version, compressor,
            controller or model; or a field is missing or wrong; or ``on_resize`` is not known. Raised on all ranks.
        RuntimeError: the compressor has made steps already; raised on all ranks.
    """
    ranks = Ranks(compressor.process_group)

    def read_state() -> dict[str, Any]:
        check_on_resize(on_resize)
        if not isinstance(gathered, Mapping):
            raise SettingsError(
                f"gathered: {gathered!r} holds no states; give every rank what gather() returned on rank 0"
            )
        check_format(gathered, FORMAT, "the dict of gathered states")
        world = load_fields(GatheredStates, dict(gathered), "gathered").world
        states = gathered["states"]
        if len(states) != world:
            raise SettingsError(
                f"gathered/states: has {len(states)} states, but gathered/world is {world}; give what gather() returned"
            )
        return state_to_load(world, ranks.world, ranks.rank, on_resize, states.__getitem__, compressor.shards)

    restore_on_all(ranks, lambda: compressor.restoring(read_state()))
