# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Converts a rank's state to CPU tensors and to bytes, which are safe to load from a file of unknown origin."""

import io
from collections.abc import Mapping
from typing import Any

import torch

from gravac.checkpoint.ranks import Checkpointed, Ranks
from gravac.settings import SettingsError

FORMAT = 1
"""Version of the containers of all ranks' states: a directory's manifest, and the dict that ``gather`` returns."""


def state_on_host(compressor: Checkpointed, ranks: Ranks) -> dict[str, Any]:
    """Return a rank's state with CPU tensors, none of them a view of a larger tensor.

    Raises:
        SettingsError: the compressor averaged over other ranks than those of its process group.
    """
    state = compressor.state_dict()
    if ranks.world % state["world"]:
        raise SettingsError(
            f"process_group: the compressor averages over {state['world']} ranks, and its process group has "
            f"{ranks.world}; save the state_dict() of each rank in memory, and of others before "
            "destroy_process_group()"
        )
    on_host: dict[str, Any] = _on_host(state)
    return on_host


def check_format(holder: Mapping[str, Any], what: str) -> None:
    """Check that a container of all ranks' states has the version that this gravac reads.

    Args:
        holder: the container: a manifest, or a dict that ``gather`` returned.
        what: name of the container, for the message.

    Raises:
        SettingsError: the container has another version.
    """
    version = holder.get("version")
    if type(version) is not int or version != FORMAT:
        raise SettingsError(
            f"version: {what} has {version!r}, this gravac reads {FORMAT}; read it with the gravac that wrote it"
        )


def to_bytes(state: Mapping[str, Any]) -> bytes:
    """Return the bytes that ``torch.save`` writes for a state."""
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def from_bytes(payload: bytes) -> dict[str, Any]:
    """Return the state whose bytes ``to_bytes`` returned; only tensors and plain values are loaded.

    Raises:
        SettingsError: the bytes cannot be read.
    """
    try:
        state: dict[str, Any] = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except Exception as failure:
        raise SettingsError(f"state: its bytes cannot be read: {failure}") from failure
    return state


def _on_host(state: Any) -> Any:
    """Return a state, or an entry of a state, with CPU tensors."""
    if isinstance(state, torch.Tensor):
        fills_storage = state.untyped_storage().nbytes() == state.numel() * state.element_size()
        return state.detach().cpu() if fills_storage else state.detach().cpu().clone()
    if isinstance(state, dict):
        return {key: _on_host(entry) for key, entry in state.items()}
    return [_on_host(entry) for entry in state] if isinstance(state, list) else state
