# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The layers of the package: which room each module belongs to, and which rooms lie below which.

A room is a folder of the package or a single module beside the folders. The package's own ``__init__`` is the room
``gravac``, the face that users import.
"""

PACKAGE = "gravac"

LAYERS = (
    "settings", "guarded", "texts", "live", "entry_points", "candidate", "collectives", "compressors", "kernels",
    "costmodel", "exchange", "averaging", "telemetry", "controllers", "policy", "stepping", "integrations",
    "checkpoint", "adaptive", "outer", "gravac", "conformance", "frameworks", "replay", "lab", "commands", "cli",
    "__main__",
)  # fmt: skip
"""Rooms, lowest first. A module imports from its own room and from rooms before that."""

FRAMEWORKS = frozenset(
    {"frameworks", "lightning_hooks", "lightning", "pytorch_lightning", "accelerate", "transformers"}
)
"""Modules of ``integrations`` that know no more of gravac than its users do; they are the room ``frameworks``."""


def room_of(module: str) -> str:
    """Return the room of a module.

    Args:
        module: dotted name, such as ``gravac.stepping.steps``.
    """
    parts = module.split(".")
    if len(parts) == 1:
        return PACKAGE
    is_framework = parts[1] == "integrations" and not FRAMEWORKS.isdisjoint(parts[2:3])
    return "frameworks" if is_framework else parts[1]


def layer_of(module: str) -> int:
    """Return the position of a module's room in ``LAYERS``.

    Args:
        module: dotted name, such as ``gravac.stepping.steps``.

    Raises:
        ValueError: ``LAYERS`` lacks that room.
    """
    room = room_of(module)
    if room not in LAYERS:
        raise ValueError(
            f"{module}: LAYERS in tests/packaging/layers.py lacks {room}; insert the room where it belongs"
        )
    return LAYERS.index(room)
