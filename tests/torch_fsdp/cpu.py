# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Moves FSDP2's tests to the CPU: what they are run under besides the patches of DDP's tests, natively as with gravac.

Nothing of it touches a gradient, a collective or gravac.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import device_mesh

from tests.torch_ddp import cpu

RANKS = 4
"""Ranks of a test that takes as many as there are devices."""

PATCHES = {
    "`torch.cpu.device_count`, `DEVICE_COUNT`": f"{RANKS}: ranks of a test that takes as many as there are GPUs",
    "`init_device_mesh`, `DeviceMesh` of `cuda`": "of `cpu`",
    "`init_process_group` with NCCL": "gloo",
    "`requires_nccl_version`": "does not skip",
    "`_sleep`, `device_sleep`, `get_cycles_per_ms`": "no sleep, by which tests move a GPU's streams apart",
    "`FSDPTestMultiThread`": "a process for each rank, where torch has a thread in one process",
}
"""What is patched besides ``tests.torch_ddp.cpu.PATCHES``, and what stands there instead."""


def before_import() -> None:
    """Patch what the tests take from other modules while they are imported."""
    cpu.before_import()
    from torch.testing._internal import common_distributed, common_fsdp, common_utils

    def keep(test: Callable[..., Any]) -> Callable[..., Any]:
        return test

    common_distributed.requires_nccl_version = lambda *_, **__: keep
    common_utils.get_cycles_per_ms = lambda *_, **__: 1.0  # type: ignore[assignment]
    common_utils.device_sleep = lambda *_, **__: None
    common_fsdp.DEVICE_COUNT = RANKS
    common_fsdp.FSDPTestContinuous.world_size = RANKS
    torch.cpu.device_count = lambda: RANKS
    torch.cpu._sleep = lambda *_: None  # type: ignore[attr-defined]


def in_rank(tests: Any, rank: int, world: int) -> None:
    """Patch what names a device or a backend, in a rank's process.

    Args:
        tests: the module of torch's tests.
        rank: of this process.
        world: number of ranks.
    """
    cpu.in_rank(tests, rank, world)
    mesh_of, initialize = device_mesh.init_device_mesh, dist.init_process_group

    @functools.wraps(initialize)
    def over_gloo(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        initialize(backend if backend == "fake" else "gloo", *args, **kwargs)

    @functools.wraps(mesh_of)
    def mesh_on_cpu(device_type: str, *args: Any, **kwargs: Any) -> Any:
        return mesh_of(str(cpu.on_cpu(device_type)), *args, **kwargs)

    dist.init_process_group = over_gloo
    for name, moved in (("init_device_mesh", mesh_on_cpu), ("DeviceMesh", _MeshOnCPU)):
        if hasattr(tests, name):
            setattr(tests, name, moved)


class _MeshOnCPU:
    """Makes a ``DeviceMesh`` of the CPU, by its name or of process groups."""

    def __new__(cls, device_type: str, *args: Any, **kwargs: Any) -> Any:
        return device_mesh.DeviceMesh(str(cpu.on_cpu(device_type)), *args, **kwargs)

    @staticmethod
    def from_group(group: Any, device_type: str, *args: Any, **kwargs: Any) -> device_mesh.DeviceMesh:
        return device_mesh.DeviceMesh.from_group(group, str(cpu.on_cpu(device_type)), *args, **kwargs)
