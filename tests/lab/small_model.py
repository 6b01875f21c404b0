# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A small model of a user's own, for ``gravac bench step``."""

import torch

from gravac.lab.bench.models import StepModel

SMALL = StepModel(
    "8 rows of numbers",
    lambda: torch.nn.Sequential(torch.nn.Linear(500, 500), torch.nn.ReLU(), torch.nn.Linear(500, 8)),
    lambda generator: (torch.randn(8, 500, generator=generator), torch.randint(8, (8,), generator=generator)),
)
