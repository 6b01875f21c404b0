# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Every Python block of README and docs runs, if no comment above it says why it cannot.

The blocks of a page share names and run in their order, on two ranks over gloo, in an empty folder, after ``COMMON``.
A comment right above a block, which no reader of the page sees, says more:

- ``<!-- before: CODE -->`` is run before the block; it may have several lines. ``<!-- after: CODE -->`` likewise.
- ``<!-- needs: PACKAGE -->``: the block runs where that is installed (``make test-integrations``).
- ``<!-- not run: REASON -->``: it cannot run here.

Blocks with the title ``train.py`` are whole scripts, and what follows them is the change that gravac takes. Blocks with
one of gravac's files as title are parts of that file, and do not run.
"""

import os
import re
import runpy
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from gravac import AdaptiveCompressor
from gravac.telemetry import DecisionRecord, read_jsonl
from tests.ranks import processes

ROOT = Path(__file__).parents[2]

DOCS = ROOT / "docs"

PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]

COMMON = """
import torch, torch.distributed as dist
import gravac
from torch.nn.parallel import DistributedDataParallel
from gravac import AdaptiveCompressor, quantize, topk

rank, world, batch_size = dist.get_rank(), dist.get_world_size(), 4
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8))
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
batches = [torch.randn(batch_size, 64) for _ in range(4)]
"""
"""What a page takes as given: a model of two layers, wrapped, with its optimizer and a few batches."""

COMMENT = r"(?:^ *<!-- (?:before|after|needs|not run):\s(?:(?!-->).)*-->\n)*"
FENCE = r"^(?P<indent> *)```python(?P<attributes>[^\n]*)\n(?P<code>.*?)^(?P=indent)```$"
BLOCK = re.compile(f"(?P<comments>{COMMENT}){FENCE}", re.MULTILINE | re.DOTALL)
SAID = re.compile(r"<!-- (before|after|needs|not run):\s(.*?)-->", re.DOTALL)
CHANGE = re.compile(r"^ *```diff\n(?P<diff>.*?)^ *```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """One block of Python.

    Attributes:
        page: file that it stands in.
        line: number of its first line there.
        code: what it says, without indentation.
        title: title that it is shown with; empty without one.
        said: what comments above it say, by their first word.
        diff: for a whole script, the change that follows it.
    """

    page: Path
    line: int
    code: str
    title: str
    said: Mapping[str, str]
    diff: str


def named(page: Path) -> str:
    """The page's path below ``docs``, or its name elsewhere: pages of two folders may have one name."""
    return page.relative_to(DOCS).as_posix() if page.is_relative_to(DOCS) else page.name


def example(name: str) -> str:
    """The block of Python, of all pages, that defines a class of that name.

    Raises:
        ValueError: no block does, or several do.
    """
    (code,) = (one.code for page in PAGES for one in blocks(page) if f"class {name}(" in one.code)
    return code


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in their order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in BLOCK.finditer(text):
        said = {word: textwrap.dedent(value).strip() for word, value in SAID.findall(match["comments"])}
        title = re.search(r'title="([^"]*)"', match["attributes"])
        change = CHANGE.search(text, match.end()) if title else None
        found.append(
            Block(
                page,
                text.count("\n", 0, match.start("code")) + 1,
                textwrap.dedent(match["code"]),
                title[1] if title else "",
                said,
                textwrap.dedent(change["diff"]) if change else "",
            )
        )
    return found


def changed(script: str, diff: str) -> str:
    """A script after a change, of which every hunk stands in it once, in order.

    Raises:
        ValueError: a hunk's lines are not there.
    """
    lines, at, made = script.splitlines(), 0, []
    for hunk in re.split(r"^@@.*\n", diff, flags=re.MULTILINE)[1:]:
        told = hunk.splitlines()
        old = [line[1:] for line in told if not line.startswith("+")]
        new = [line[1:] for line in told if not line.startswith("-")]
        start = next((i for i in range(at, len(lines)) if lines[i : i + len(old)] == old), None)
        if start is None:
            raise ValueError("not in the script:\n" + "\n".join(old))
        made += [*lines[at:start], *new]
        at = start + len(old)
    return "\n".join([*made, *lines[at:]]) + "\n"


def run(rank: int, world: int, folder: str, script: str) -> list[float]:
    """Run a script in a folder; the compression factors of the compressors that it made.

    The process group is there already: what the script calls to make it, and to end it, does nothing.
    """
    os.chdir(folder)
    torch.set_num_threads(1)
    told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29500}
    os.environ.update({name: str(value) for name, value in told.items()})  # as a launcher does; nobody listens there
    made: list[AdaptiveCompressor] = []
    known = AdaptiveCompressor.__init__

    def remembered(self: AdaptiveCompressor, *args: Any, **kwargs: Any) -> None:
        known(self, *args, **kwargs)
        made.append(self)

    path = Path(f"page{rank}.py")
    path.write_text(script, encoding="utf-8")
    with (
        patch.object(AdaptiveCompressor, "__init__", remembered),
        patch.object(dist, "init_process_group"),
        patch.object(dist, "destroy_process_group"),
    ):
        runpy.run_path(str(path))
    factors = [compressor.cf for compressor in made]
    for compressor in made:
        compressor.close()
    return factors


BLOCKS = [block for page in PAGES for block in blocks(page)]

SCRIPTS = [block for block in BLOCKS if block.title == "train.py"]

PIECES = [block for block in BLOCKS if not block.title]
"""Blocks that run here."""

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
        assert ("step 0: run " in ran.stdout) is made, ran.stdout
    assert decided(tmp_path)


def decided(folder: Path) -> list[DecisionRecord]:
    """The changes of what runs that the log of the start page's script tells of."""
    records = read_jsonl(folder / "runs" / "start" / "gravac.jsonl")
    return [one for one in records if isinstance(one, DecisionRecord) and one.changed]
