# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Empty environments, made to be thrown away: what a user has who installs gravac there."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

CONSTRAINTS = {
    "lightning": "constraints-integrations.txt",
    "accelerate": "constraints-integrations.txt",
    "transformers": "constraints-integrations.txt",
}
"""Which file has the tested set of an extra; the others are in ``constraints.txt``."""


class Environment:
    """A virtual environment that holds pip and nothing else.

    Args:
        folder: where it is made.
        constraints: file of the repository whose versions pip keeps to.
    """

    def __init__(self, folder: Path, constraints: str = "constraints.txt") -> None:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        self.bin, self._constraints = folder / "bin", ROOT / constraints

    def install(self, *requirements: str) -> None:
        """Install by pip.

        Raises:
            CalledProcessError: pip failed; what it said is seen.
        """
        pip = [str(self.bin / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "-c", str(self._constraints), *requirements], check=True)

    def run(self, command: list[str], folder: Path, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """Run a program of this environment in a folder, as after ``activate``; standard error is with the output."""
        return subprocess.run(
            command, cwd=folder, env=self.variables(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=timeout, check=False,
        )  # fmt: skip

    def variables(self) -> dict[str, str]:
        """Return the variables of its programs: no path of this repository, and its programs first."""
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
        return {**kept, "PATH": os.pathsep.join([str(self.bin), kept.get("PATH", "")])}


def wheel(folder: Path) -> Path:
    """Build the wheel of this checkout into a folder, by the ``build`` of the Python that runs.

    Raises:
        CalledProcessError: it cannot be built; what was said is seen.
    """
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (built,) = folder.glob("*.whl")
    return built
