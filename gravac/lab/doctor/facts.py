# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Facts about this machine: installed packages, devices, and environment variables that affect training."""

from __future__ import annotations

import os
import platform
from importlib import metadata

import torch
import torch.distributed as dist

from gravac.lab.links import network as links
from gravac.settings import Settings

PACKAGES = ("gravac", "torch", "numpy", "pydantic", "tensorboard")
"""Packages that gravac needs."""

OPTIONAL_PACKAGES = ("rich", "matplotlib", "scikit-learn", "lightning", "accelerate", "transformers")
"""Packages that extras and integrations need."""

ENVIRONMENT_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NCCL_LAUNCH_ORDER_IMPLICIT", "OMP_NUM_THREADS")
"""Environment variables that change how ranks connect, or how fast ranks are."""


class Facts(Settings):
    """Facts about this machine: installed packages, devices, and environment variables that affect training.

    Attributes:
        python: version of Python.
        packages: versions of the packages that gravac needs, by name.
        optional: versions of the packages that extras and integrations need, by name; ``None`` if not installed.
        backends: backends of ``torch.distributed`` that this torch was built with.
        cuda: version of CUDA that torch was built for; ``None`` if torch was built without CUDA.
        nccl: version of NCCL; ``None`` without NCCL or without a GPU.
        devices: name and compute capability of each GPU.
        cores: number of cores that the process may use.
        variables: settings of the environment variables in ``ENVIRONMENT_VARIABLES`` that are set, by name.
        links: reason why this machine cannot emulate slow links; ``None`` if it can.
    """

    python: str
    packages: dict[str, str]
    optional: dict[str, str | None]
    backends: tuple[str, ...]
    cuda: str | None
    nccl: str | None
    devices: tuple[str, ...]
    cores: int
    variables: dict[str, str]
    links: str | None


def facts() -> Facts:
    """Return the facts about this machine; tries to emulate links, which takes a moment."""
    has_gpu = torch.cuda.is_available()
    return Facts(
        python=platform.python_version(),
        packages={name: metadata.version(name) for name in PACKAGES},
        optional={name: _installed_version(name) for name in OPTIONAL_PACKAGES},
        backends=tuple(name for name in ("gloo", "nccl", "mpi", "ucc") if getattr(dist, f"is_{name}_available")()),
        cuda=torch.version.cuda,
        nccl=_nccl_version() if has_gpu and dist.is_nccl_available() else None,
        devices=tuple(_device_name(index) for index in range(torch.cuda.device_count())) if has_gpu else (),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        variables={name: os.environ[name] for name in ENVIRONMENT_VARIABLES if name in os.environ},
        links=links.emulation_obstacle(),
    )


def _installed_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _nccl_version() -> str:
    version_numbers: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return ".".join(str(number) for number in version_numbers)


def _device_name(index: int) -> str:
    major, minor = torch.cuda.get_device_capability(index)
    return f"{torch.cuda.get_device_name(index)} ({major}.{minor})"
