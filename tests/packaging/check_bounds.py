# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Runs a part of the tests with the oldest versions that ``pyproject.toml`` allows: of what runs, the lab, the tests.

    python -m tests.packaging.check_bounds

torch stays as ``constraints.txt`` has it: on PyPI its older builds are for CUDA, gigabytes each. What was tried of them
stands in ``docs/reference/compatibility.md``.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.packaging.environments import ROOT, Environment

TESTS = (
    "tests/telemetry",
    "tests/averaging",
    "tests/lab/test_outcome.py",
    "tests/lab/test_tasks.py",
    "tests/test_settings.py",
)
"""Where numpy, pydantic, TensorBoard, matplotlib, scikit-learn and rich are used, and pytest's plug-ins."""


def bounds(project: str) -> list[str]:
    """Return ``name==version`` for the lower bounds of what gravac needs to run and to be tested, but for torch's."""
    lists = re.findall(r"^(?:dependencies|test) = \[(.*)\]$", project, re.MULTILINE)
    found = [
        re.fullmatch(r"([\w-]+)>=([\d.]+)(; .*)?", one) for text in lists for one in re.findall(r'"([^"]+)"', text)
    ]
    return [f"{one[1]}=={one[2]}{one[3] or ''}" for one in found if one and one[1] != "torch"]


def main() -> int:
    """Install and test; return the tests' exit status."""
    pins = bounds((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        oldest = Path(folder, "oldest.txt")
        torch = re.findall(r"^torch==.*$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
        oldest.write_text("\n".join([*torch, *pins]))
        environment = Environment(Path(folder, "venv"), str(oldest))
        environment.install("torch")
        environment.install(f"{ROOT}[test]")
        print("\n".join(pins), flush=True)
        command = [str(environment.bin / "python"), "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
        return subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
