# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""torch's DDP tests on gloo and the CPU, first natively and then with gravac attached to every DDP they make.

    python -m tests.torch_ddp [--only NAME ...] [--native] [--list] [--jobs N] [--json FILE]

Exit status 1 when a test that passes natively fails with gravac, and ``reasons.py`` does not say why.
"""

import os

# one thread per process, and none in this one: it forks
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import sys

from tests.torch_ddp.command import main

if __name__ == "__main__":
    sys.exit(main())
