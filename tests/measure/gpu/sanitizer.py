# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Training over NCCL under torch's CUDA sanitizer, which raises at races between streams; a few steps: it is slow."""

import os
from collections.abc import Iterator
from functools import partial

import torch

from tests.measure.gpu.nccl import CASES, trained
from tests.measure.gpu.parts import Row, attempts
from tests.measure.gpu.timing import GPU
from tests.measure.gpu.training import one_rank

STEPS = 6


def rows() -> Iterator[Row]:
    from torch.cuda import _sanitizer

    yield {
        "case": "enabled",
        "met": os.environ.get("TORCH_CUDA_SANITIZER") == "1" and _sanitizer.cuda_sanitizer.enabled,
    }
    with one_rank():
        yield from attempts({f"{name}: no race": partial(raceless, *case) for name, *case in CASES})


def raceless(*case: object) -> Row:
    try:
        trained(*case, GPU, STEPS)  # type: ignore[arg-type]
    except Exception as failure:
        races = [str(race) for race in getattr(failure, "errors", ())]
        return {"met": False, "said": "\n".join([str(failure), *races])[:4000]}
    torch.cuda.synchronize()
    return {"met": True}
