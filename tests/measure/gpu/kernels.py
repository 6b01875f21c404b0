# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The Triton kernels' tests, on the GPU: ``pytest tests/kernels``."""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator

from tests.measure.gpu.parts import LINES, ROOT, Row

NEEDED = ("triton", "pytest", "hypothesis")


def rows() -> Iterator[Row]:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        yield {"case": "tests/kernels", "skipped": f"cannot import {', '.join(missing)}"}
        return
    # without the project's settings, which want plugins
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(ROOT), "tests/kernels"]
    command += ["--import-mode=importlib", "-p", "no:cacheprovider"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    said = ran.stdout.splitlines()
    yield {"case": "tests/kernels", "met": ran.returncode == 0, **tally(said[-1] if said else "")}
    if ran.returncode:
        yield {"case": "tests/kernels", "said": said[-4 * LINES :] + ran.stderr.splitlines()[-LINES:]}


def tally(line: str) -> Row:
    """Numbers of tests that passed, failed and so on, out of pytest's last line."""
    return {word: int(count) for count, word in re.findall(r"(\d+) (passed|failed|skipped|errors?)", line)}
