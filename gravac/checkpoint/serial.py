# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A rank's state on its way out of the process: on the host, and as bytes that load without trust."""

import io
from collections.abc import Mapping
from typing import Any

import torch

from gravac.checkpoint.ranks import Checkpointed, Ranks
from gravac.settings import SettingsError

FORMAT = 1
"""Version of what holds all ranks' states: a directory's manifest, and what ``gather`` gives."""


def state_on_host(compressor: Checkpointed, ranks: Ranks) -> dict[str, Any]:
    """Return a rank's state with its tensors on the host, none of them part of a larger one.

    Raises:
        SettingsError: the ranks that averaged are not those that would be saved together.
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
    """Raise where all ranks' states are held in a way that is not known.

    Raises:
        SettingsError: the version is not known; ``what`` names the thing.
    """
    version = holder.get("version")
    if type(version) is not int or version != FORMAT:
        raise SettingsError(
            f"version: {what} has {version!r}, this gravac reads {FORMAT}; a newer gravac wrote it, or it is not one"
        )


def to_bytes(state: Mapping[str, Any]) -> bytes:
    """Return a state as ``torch.save`` writes it."""
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def from_bytes(payload: bytes) -> dict[str, Any]:
    """Return what ``to_bytes`` was given; nothing else than tensors and plain values is loaded.

    Raises:
        SettingsError: these are not such bytes.
    """
    try:
        state: dict[str, Any] = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except Exception as failure:
        raise SettingsError(f"state: its bytes cannot be read: {failure}") from failure
    return state


def _on_host(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        whole = value.untyped_storage().nbytes() == value.numel() * value.element_size()
        return value.detach().cpu() if whole else value.detach().cpu().clone()
    if isinstance(value, dict):
        return {key: _on_host(one) for key, one in value.items()}
    return [_on_host(one) for one in value] if isinstance(value, list) else value
