# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""torch's FSDP2 tests on gloo and the CPU, first natively and then with gravac attached to every model with replicas.

    python -m tests.torch_fsdp SOURCES [--only NAME ...] [--native] [--list] [--jobs N] [--json FILE]

SOURCES is a clone of pytorch, of the version that is installed: torch's package has no FSDP2 tests. Exit status 1 when
a test that passes natively fails with gravac, and ``reasons.py`` does not say why.
"""

import os

# one thread per process, and none in this one: it forks
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import sys

from tests.torch_fsdp.command import main

if __name__ == "__main__":
    sys.exit(main())
