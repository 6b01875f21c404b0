# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What torch's flight recorder knows of this process's collectives: their groups, names and bytes."""

import json
from dataclasses import dataclass

import torch
import torch.distributed as dist

IS_THERE = hasattr(torch._C._distributed_c10d, "_dump_fr_trace_json")
"""Whether this torch records what gloo sends."""

ELEMENT_BYTES = {
    "Bool": 1,
    "Byte": 1,
    "Char": 1,
    "Short": 2,
    "Half": 2,
    "BFloat16": 2,
    "Int": 4,
    "Float": 4,
    "Long": 8,
    "Double": 8,
}
"""Bytes of an element, by the recorder's names of dtypes."""


@dataclass(frozen=True)
class Collective:
    """A collective that this process took part in. Point-to-point messages are not recorded.

    Attributes:
        number: number of the collective among all that the process recorded.
        group_name: name of the process group.
        name: name of the collective, such as ``"gloo:all_reduce"``.
        input_bytes: bytes of the tensors that this rank gave.
    """

    number: int
    group_name: str
    name: str
    input_bytes: int


def collectives() -> list[Collective]:
    """Return the collectives in the recorder's buffer, whose size in entries is ``TORCH_FR_BUFFER_SIZE``."""
    trace = json.loads(torch._C._distributed_c10d._dump_fr_trace_json())
    return [
        Collective(
            number=entry["record_id"],
            group_name=entry["process_group"][0],
            name=entry["profiling_name"],
            input_bytes=sum(
                torch.Size(shape).numel() * ELEMENT_BYTES[dtype]
                for shape, dtype in zip(entry["input_sizes"], entry["input_dtypes"], strict=True)
            ),
        )
        for entry in trace.get("entries", [])
    ]


def newest() -> int:
    """Return the number of the newest recorded collective; -1 if there is none."""
    return max((each.number for each in collectives()), default=-1)


def collectives_of(group: dist.ProcessGroup, after: int = -1) -> list[Collective]:
    """Return the recorded collectives of a process group whose number is above ``after``."""
    return [each for each in collectives() if each.group_name == group.group_name and each.number > after]
