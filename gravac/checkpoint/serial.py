# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Converts a rank's state to CPU tensors and to bytes; loading such bytes from an unknown file runs no code."""

import io
from collections.abc import Mapping
from typing import Any

import torch

from gravac.checkpoint.ranks import Checkpointed, Ranks
from gravac.settings import SettingsError


def state_on_host(compressor: Checkpointed, ranks: Ranks) -> dict[str, Any]:
    """Return a compressor's state on this rank, as CPU tensors that are not views of larger tensors, and plain values.

    Args:
        compressor: the compressor; its ``state_dict`` waits until the exchange has ended.
        ranks: the ranks of the compressor's process group.

    Raises:
        SettingsError: the ranks that the compressor averages over are not those of its process group.
    """
    state = compressor.state_dict()
    if ranks.world % state["world"]:
        raise SettingsError(
            f"process_group: the compressor averages over {state['world']} ranks, but its process group has "
            f"{ranks.world}; save before destroy_process_group(); if ranks are simulated, save each rank's "
            "state_dict()"
        )
    on_host: dict[str, Any] = _on_host(state)
    return on_host


def check_format(checkpoint_fields: Mapping[str, Any], expected_version: int, what: str) -> None:
    """Check that a checkpoint of all ranks has the version of the format that this gravac reads.

    Args:
        checkpoint_fields: fields of a directory's manifest, or the dict that ``gather`` returned.
        expected_version: the version that this gravac reads.
        what: description of ``checkpoint_fields``, for the message.

    Raises:
        SettingsError: ``checkpoint_fields`` has another version.
    """
    version = checkpoint_fields.get("version")
    if type(version) is not int or version != expected_version:
        raise SettingsError(
            f"version: {what} has version {version!r}, but this gravac reads version {expected_version}; load the "
            "checkpoint with the version of gravac that saved it"
        )


def to_bytes(state: Mapping[str, Any]) -> bytes:
    """Return the bytes that ``torch.save`` writes for a state."""
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def from_bytes(payload: bytes) -> dict[str, Any]:
    """Return the state that ``to_bytes`` converted to bytes; only tensors and plain values are loaded.

    Raises:
        SettingsError: the bytes cannot be read.
    """
    try:
        state: dict[str, Any] = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except Exception as failure:
        raise SettingsError(
            f"state: the bytes cannot be read ({failure}), so the checkpoint is damaged; load another checkpoint"
        ) from failure
    if not isinstance(state, dict):
        raise SettingsError(
            f"state: the bytes hold {type(state).__name__}, not a rank's state; load another checkpoint"
        )
    return state


def _on_host(state: Any) -> Any:
    """Return a state, or an entry of a state, with CPU tensors that are not views of larger tensors."""
    if isinstance(state, torch.Tensor):
        fills_storage = state.untyped_storage().nbytes() == state.numel() * state.element_size()
        return state.detach().cpu() if fills_storage else state.detach().cpu().clone()
    if isinstance(state, dict):
        return {key: _on_host(entry) for key, entry in state.items()}
    return [_on_host(entry) for entry in state] if isinstance(state, list) else state
