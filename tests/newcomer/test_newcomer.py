# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A newcomer's six changes, applied to a copy as patches: each touches few files, and works from end to end."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
PAGE = ROOT / "docs" / "how-to" / "extend.md"

FILES = {"compressor": 3, "controller": 3, "chart": 1, "quantity": 3, "framework": 3, "adapter": 1}
"""Number of files that each change touches: of the package, of its tests, and of the documentation."""

ONE_LINE = {
    "compressor": ("gravac/compressors/__init__.py", "tests/compressors/test_conformance.py"),
    "controller": ("gravac/controllers/__init__.py", "tests/controllers/test_conformance.py"),
}
"""Files that a change adds a single line to, beside the change's own file."""

LOGS = ("chart", "quantity", "framework")
"""Changes whose check gets a folder to write to."""

ANEW = """{name}.patch does not apply any more. To make it anew, in a clean checkout:
    git apply --reject tests/newcomer/{name}.patch    # then do by hand what is left in *.rej, and delete these
    git add --intent-to-add gravac tests docs && git diff -- gravac tests docs > {name}.patch
    git reset --quiet --hard
    mv {name}.patch tests/newcomer/                   # and bring docs/how-to/extend.md in line
git said:
{said}"""

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git, to apply patches"),
]


def touched(patch: str) -> dict[str, int]:
    """Files that a patch creates or changes, each with the number of lines that change there."""
    lines: dict[str, int] = {}
    for text in re.split(r"^diff --git .*\n", patch, flags=re.MULTILINE)[1:]:
        (path,) = re.findall(r"^\+\+\+ b/(.+)$", text, re.MULTILINE)
        lines[path] = len(re.findall(r"^[+-](?!\+\+ |-- )", text, re.MULTILINE))
    return lines


def added(patch: str) -> str:
    """What a patch adds and what stands beside it, as the files then read: hunk after hunk."""
    lines = [line for line in patch.splitlines() if line[:1] in ("+", " ") and not line.startswith("+++")]
    return "\n".join(line[1:] for line in lines)


def git_apply(name: str, copy: Path) -> None:
    """Apply a patch, with one line of context at least, in a folder that is no repository."""
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(copy.parent)}
    command = ["git", "apply", "-C1", "--whitespace=nowarn", str(HERE / f"{name}.patch")]
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=60)
    if done.returncode:
        pytest.fail(ANEW.format(name=name, said=done.stderr), pytrace=False)


@pytest.mark.parametrize("name", FILES)
def test_a_newcomers_change_touches_few_files_and_works(name: str, tmp_path: Path) -> None:
    patch = (HERE / f"{name}.patch").read_text(encoding="utf-8")
    assert len(touched(patch)) == FILES[name], touched(patch)
    assert {path: touched(patch)[path] for path in ONE_LINE.get(name, ())} == dict.fromkeys(ONE_LINE.get(name, ()), 1)
    copy = tmp_path / "copy"
    for folder in ("gravac", "policies", "tests", "docs/how-to"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    git_apply(name, copy)
    arguments = [str(tmp_path / "log")] if name in LOGS else []
    code = (
        "import sys, torch; torch.set_num_threads(1)\n"
        "import gravac; assert gravac.__file__.startswith(sys.argv[1]), gravac.__file__\n"
        f"from tests.newcomer import checks; checks.{name}(*sys.argv[2:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(copy), *arguments],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_shows_what_the_patches_do() -> None:
    """Every Python block of the page that has one of gravac's files as title stands in a patch, line by line."""
    there = [added(path.read_text(encoding="utf-8")) for path in sorted(HERE.glob("*.patch"))]
    blocks = re.findall(r'```python title="gravac/[^"]+"\n(.*?)\n```', PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 8
    for block in blocks:
        assert any(block in patch for patch in there), f"not in a patch:\n{block}"


def test_a_patch_that_does_not_apply_says_how_to_make_it_anew(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"make it anew(.|\n)*git apply --reject(.|\n)*__init__"):
        git_apply("compressor", tmp_path)
