# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Every Python block of README and docs runs; ``pages`` says how, and what few cannot."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from gravac.telemetry import DecisionRecord, read_jsonl
from tests.packaging.pages import COMMON, PAGES, ROOT, Block, blocks, changed, named, run
from tests.ranks import processes

BLOCKS = [block for page in PAGES for block in blocks(page)]

SCRIPTS = [block for block in BLOCKS if block.title == "train.py"]

PIECES = [block for block in BLOCKS if not block.title]
"""Blocks that run here."""

PATCHES = "how-to/extend.md"
"""The page whose blocks with a title are parts of patches, which ``tests/newcomer`` applies and runs."""

NOT_RUN = {"how-to/gpu.md": 1, "how-to/frameworks.md": 1, "how-to/hsdp.md": 1}
"""How many blocks of a page are not run, and say why."""

LAUNCH = {
    "lightning": [],
    "accelerate": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
    "transformers": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
}


def script(chosen: list[Block]) -> str:
    """Some blocks as one script, each after what comes before it, and before what comes after."""
    parts = [COMMON]
    for block in chosen:
        parts += [
            f"# {named(block.page)}:{block.line}",
            block.said.get("before", ""),
            block.code,
            block.said.get("after", ""),
        ]
    return "\n".join(parts)


def of(page: Path, needs: str = "") -> list[Block]:
    """The blocks of a page that run with a package, or without any."""
    return [
        one for one in PIECES if one.page == page and one.said.get("needs", "") == needs and "not run" not in one.said
    ]


@pytest.mark.parametrize("page", [page for page in PAGES if of(page)], ids=named)
def test_a_pages_blocks_run(page: Path, tmp_path: Path) -> None:
    ranks = processes(run, 2, str(tmp_path), script(of(page)))
    assert ranks[0] == ranks[1]


@pytest.mark.framework
@pytest.mark.parametrize("block", [one for one in PIECES if "needs" in one.said], ids=lambda one: named(one.page))
def test_a_block_runs_with_its_framework(block: Block, tmp_path: Path) -> None:
    if find_spec(block.said["needs"]) is None:
        pytest.skip(f"{block.said['needs']} is not installed")
    processes(run, 2, str(tmp_path), script([block]))


def test_few_blocks_are_not_run_and_say_why() -> None:
    silent = [block for block in PIECES if "not run" in block.said]
    assert {page: sum(named(block.page) == page for block in silent) for page in NOT_RUN} == NOT_RUN
    assert len(silent) == sum(NOT_RUN.values()), [f"{named(one.page)}:{one.line}" for one in silent]
    assert all(len(block.said["not run"]) > 10 for block in silent)
    assert {named(block.page) for block in BLOCKS if block.title and block not in SCRIPTS} <= {PATCHES}
    assert len(BLOCKS) >= 30


def test_the_start_page_has_a_script_for_each_way() -> None:
    assert [block.said.get("needs", "") for block in SCRIPTS] == ["", *LAUNCH]
    for block in SCRIPTS:
        told = [line for line in block.diff.splitlines() if line[:1] in ("+", "-")]
        assert 0 < len(told) <= 10, told
        assert len(changed(block.code, block.diff).splitlines()) > len(block.code.splitlines())


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_the_start_pages_script_runs(after: bool, tmp_path: Path) -> None:
    (block,) = (one for one in SCRIPTS if "needs" not in one.said)
    made = processes(run, 2, str(tmp_path), changed(block.code, block.diff) if after else block.code)
    assert made[0] == made[1]
    assert len(made[0]) == after
    if after:
        assert decided(tmp_path)


@pytest.mark.framework
@pytest.mark.timeout(600)
@pytest.mark.parametrize("block", [one for one in SCRIPTS if "needs" in one.said], ids=lambda one: one.said["needs"])
def test_a_frameworks_script_runs(block: Block, tmp_path: Path) -> None:
    framework = block.said["needs"]
    if find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    for code, made in ((block.code, False), (changed(block.code, block.diff), True)):
        (tmp_path / "train.py").write_text(code, encoding="utf-8")
        ran = subprocess.run(
            [sys.executable, *LAUNCH[framework], "train.py"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=250,
        )
        assert ran.returncode == 0, ran.stderr
        assert ("since" in ran.stdout) is made, ran.stdout
    assert decided(tmp_path)


def decided(folder: Path) -> list[DecisionRecord]:
    """The changes of what runs that the log of the start page's script tells of."""
    records = read_jsonl(folder / "runs" / "start" / "gravac.jsonl")
    return [one for one in records if isinstance(one, DecisionRecord) and one.changed]
