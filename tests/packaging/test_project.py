# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The project's own files: dependencies, licences, no leaks, links, examples that run."""

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gravac.modes.native import SUM_DELAY_STEPS
from gravac.telemetry import DecisionRecord, StepRecord, read_jsonl

ROOT = Path(__file__).parents[2]
CODE = [path for folder in ("gravac", "tests", "examples", "docs") for path in sorted((ROOT / folder).rglob("*.py"))]
KINDS = {".cff", ".json", ".md", ".py", ".sh", ".toml", ".txt", ".yaml", ".yml", ""}
FOLDERS = ("gravac", "policies", "tests", "examples", "docs", ".ci")
TEXT = [
    path
    for path in sorted([*ROOT.iterdir(), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))])
    if path.is_file() and path.suffix in KINDS and path.name != ".git"
]

# with brackets, so that this file passes too
LEAKS = re.compile(
    "/wor[k]/|/roo[t]/|/hom[e]/|/op[t]/|inde[x]-url|find-link[s]|pypi[.]org|pythonhosted[.]|npmjs[.]|debian[.]org"
)


def project() -> str:
    return (ROOT / "pyproject.toml").read_text()


def test_runtime_dependencies_are_the_four() -> None:
    (listed,) = re.findall(r"^dependencies = \[(.*)\]$", project(), re.MULTILINE)
    names = {re.split(r"[<>=\[ ]", entry.strip(' "'))[0] for entry in listed.split(",")}
    assert names == {"torch", "numpy", "pydantic", "tensorboard"}


def test_importing_gravac_needs_no_extra_and_opens_no_tensorboard() -> None:
    script = (
        "import sys; sys.modules.update(dict.fromkeys(['rich', 'matplotlib', 'sklearn'])); import gravac; "
        "print('tensorboard' in sys.modules, gravac.AdaptiveCompressor(gravac.topk).cf)"
    )
    ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "1.0"]


def test_every_file_names_its_licence() -> None:
    head = ["# SPDX-FileCopyrightText: 2026 The gravac developers", "# SPDX-License-Identifier: Apache-2.0"]
    assert not [str(path.relative_to(ROOT)) for path in CODE if path.read_text().splitlines()[:2] != head]


def test_no_file_tells_of_a_machine_or_a_registry() -> None:
    found = {str(path.relative_to(ROOT)): LEAKS.findall(path.read_text(encoding="utf-8")) for path in TEXT}
    assert not {path: leaks for path, leaks in found.items() if leaks}


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_relative_links_of_documents_outside_the_site_lead_somewhere(name: str) -> None:
    paths = re.findall(r"\]\((?!https?://)([^)#\s]+)", (ROOT / name).read_text(encoding="utf-8"))
    assert not [path for path in paths if not (ROOT / path).exists()]


def test_constraints_pin_exactly_and_once_for_a_python() -> None:
    files = [ROOT / "constraints.txt", ROOT / "constraints-integrations.txt"]
    read = [line for file in files for line in file.read_text().splitlines()]
    lines = [line for line in read if not line.startswith("#") and line != "-c constraints.txt"]
    pins = [re.fullmatch(r"([\w.-]+)==([\w.]+)(?:; python_version (>=|<) \"3\.11\")?", line) for line in lines]
    assert all(pins), [line for line, pin in zip(lines, pins, strict=True) if pin is None]
    keys = [(pin[1].lower().replace("_", "-"), pin[3]) for pin in pins if pin]
    assert len(set(keys)) == len(keys)
    assert ("torch", None) in keys


def test_the_example_runs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    example = str(ROOT / "examples" / "ddp_topk.py")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [*command, example, "--steps", "100"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert ran.returncode == 0, ran.stderr
    assert "step 100: loss" in ran.stdout
    records = read_jsonl(tmp_path / "runs" / "ddp" / "gravac.jsonl")
    steps = [record for record in records if isinstance(record, StepRecord)]
    assert steps[0].step == 0
    for before, after in itertools.pairwise(steps):
        # while the ranks agree to leave native steps, or to make others of 16 or of 32 bits, some are made that no
        # record tells of
        unrecorded = after.step - (before.step + before.steps)
        left_native = before.mode == "native" and (after.mode, after.cf) != ("native", before.cf)
        assert 0 <= unrecorded <= (SUM_DELAY_STEPS if left_native else 0)
    assert steps[-1].step + steps[-1].steps <= 100  # what the ranks agree on last never comes
    changes = [record for record in records if isinstance(record, DecisionRecord) and record.changed]
    told = [line for line in ran.stdout.splitlines() if re.match(r"step \d+: run ", line)]
    assert told == [str(change) for change in changes]
    assert told[0].startswith("step 0: run ")
