# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Which GPU, with which software; and how fast it copies."""

import importlib.metadata
from collections.abc import Iterator

import torch

from tests.measure.gpu.parts import Row
from tests.measure.gpu.timing import FLUSHED, GPU, copying, medians


def rows() -> Iterator[Row]:
    about = torch.cuda.get_device_properties(GPU)
    known = {name: _version(name) for name in ("triton", "pydantic", "numpy", "pytest")}
    known |= {"torch": torch.__version__, "cuda": torch.version.cuda, "nccl": list(torch.cuda.nccl.version())}
    yield {"case": "software", **known}
    yield {"case": "GPU", "name": about.name, "bytes": about.total_memory, "capability": [about.major, about.minor]}
    taken = medians({"copy": copying()})["copy"]
    yield {"case": "copy of 256 MiB", "gb_per_s": 2 * FLUSHED / taken.device / 1e6, **taken._asdict()}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
