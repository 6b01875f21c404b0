# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a source distribution and a wheel must hold, and nothing else: what git tracks, and what the format adds.

python tests/packaging/contents.py CHECKOUT SDIST WHEEL
"""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

LIMIT = 1_000_000
"""Bytes that a wheel stays below."""

NOT_IN_SDIST = (".ci/", ".pre-commit-config.yaml")

METADATA = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")


def expected_sdist(tracked: set[str]) -> set[str]:
    """Return the files of a source distribution: all that is tracked but what serves the repository alone."""
    return {name for name in tracked if not name.startswith(NOT_IN_SDIST)} | {"PKG-INFO"}


def expected_wheel(tracked: set[str], info: str) -> set[str]:
    """Return the files of a wheel, whose metadata are in the folder ``info``: the package and its policies."""
    policies = {f"gravac/_{name}" for name in tracked if name.startswith("policies/")}
    return {name for name in tracked if name.startswith("gravac/")} | policies | {f"{info}/{name}" for name in METADATA}


def differences(name: str, held: set[str], expected: set[str]) -> list[str]:
    """Return a line for every file that is missing or stray."""
    return [f"{name}: {one} is missing" for one in sorted(expected - held)] + [
        f"{name}: {one} is stray" for one in sorted(held - expected)
    ]


def main(checkout: str, sdist: str, wheel: str) -> int:
    """Compare both with what is tracked; return 1 where something is missing, stray or too large."""
    listed = subprocess.run(["git", "-C", checkout, "ls-files"], capture_output=True, text=True, check=True).stdout
    tracked = set(listed.splitlines())
    with tarfile.open(sdist) as archive:
        in_sdist = {member.name.split("/", 1)[1] for member in archive if member.isfile()}
    with zipfile.ZipFile(wheel) as file:
        in_wheel = {name for name in file.namelist() if not name.endswith("/")}
    info = next(name.split("/")[0] for name in in_wheel if ".dist-info/" in name)
    faults = differences("sdist", in_sdist, expected_sdist(tracked))
    faults += differences("wheel", in_wheel, expected_wheel(tracked, info))
    size = Path(wheel).stat().st_size
    if size >= LIMIT:
        faults.append(f"wheel: {size} bytes are not below {LIMIT}")
    print("\n".join([*faults, f"sdist: {len(in_sdist)} files; wheel: {len(in_wheel)} files, {size} bytes"]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
