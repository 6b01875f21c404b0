# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Kernels compile for a GPU, which need not be there: what an interpreter lets pass, a compiler may not."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from tests.kernels import kernels

kernels("quantize")

ROOT = Path(__file__).parents[2]


def test_kernels_compile_and_fuse_no_product_with_a_sum(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.kernels.compiled"]
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    for name, ptx in json.loads(ran.stdout).items():
        assert re.search(r"\bmul(\.rn)?\.f32", ptx), name
        assert not re.search(r"\bfma\b", ptx), name
