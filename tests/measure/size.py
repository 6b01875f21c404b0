# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""How much code there is in ``gravac/``, and how well it is documented, here and at another commit.

    python -m tests.measure.size [--against COMMIT]

A line of code is a line that holds anything but blanks, comments and documentation. Documentation is every string that
stands alone: docstrings, and the strings under constants. The total leaves out ``lab/``, which only measures
the rest. The counts inform; nothing is refused by them.
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import tarfile
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
PACKAGE, APART, TOP = "gravac", "lab", "(top)"

LONG = 40
"""Lines that a function may have without its docstring, before it counts as long."""

NAMED = 5
"""Longest files that are listed."""

Sources = Mapping[str, str]
"""Text of each Python file, by its path from the repository's root."""

SILENT = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
"""Tokens that do not make a line one of code."""


@dataclass(frozen=True)
class Size:
    """Counts of one file, or of many added up.

    Attributes:
        files: number of files.
        code: lines of code.
        functions: functions and methods.
        long: functions of more than ``LONG`` lines without their docstring.
        public: public modules, classes, functions and methods.
        documented: how many of them have a docstring.
        examples: docstrings' sections ``Example:``.
    """

    files: int = 0
    code: int = 0
    functions: int = 0
    long: int = 0
    public: int = 0
    documented: int = 0
    examples: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))


def size(source: str) -> Size:
    """Return the counts of one file's text."""
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    public = list(_public(tree))
    return Size(
        files=1,
        code=len(code_lines(source, tree)),
        functions=len(functions),
        long=sum(_own_lines(function) > LONG for function in functions),
        public=len(public),
        documented=sum(ast.get_docstring(node) is not None for node in public),
        examples=sum(
            line.strip() in ("Example:", "Examples:") for string in _strings(tree) for line in string.value.splitlines()
        ),
    )


def code_lines(source: str, tree: ast.Module | None = None) -> set[int]:
    """Return the numbers, from 1, of a text's lines of code."""
    documentation = [
        ((node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0))
        for node in _strings(tree or ast.parse(source))
    ]
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        is_documentation = token.type == tokenize.STRING and any(
            first <= token.start and token.end[0] <= last[0] for first, last in documentation
        )
        if token.type not in SILENT and not is_documentation:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines


def by_folder(sources: Sources) -> dict[str, Size]:
    """Return the counts of each folder of the package, ``TOP`` for the files beside the folders."""
    folders: dict[str, Size] = {}
    for path, source in sources.items():
        parts = PurePosixPath(path).parts
        folder = parts[1] if len(parts) > 2 else TOP
        folders[folder] = folders.get(folder, Size()) + size(source)
    return dict(sorted(folders.items()))


def total(folders: Mapping[str, Size]) -> Size:
    """Return the counts of all folders but ``APART``."""
    return sum((counts for folder, counts in folders.items() if folder != APART), Size())


def longest(sources: Sources) -> list[tuple[int, str]]:
    """Return lines and path of every file, longest first; all lines are counted, of code or not."""
    return sorted(((len(source.splitlines()), path) for path, source in sources.items()), reverse=True)


def here() -> dict[str, str]:
    """Read the package's files as they are now."""
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted((ROOT / PACKAGE).rglob("*.py"))
    }


def at(commit: str) -> dict[str, str]:
    """Read the package's files of a commit.

    Raises:
        ValueError: git knows no such commit, or it has no package.
    """
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", "--format=tar", commit, PACKAGE], capture_output=True, check=False
    )
    if archive.returncode:
        raise ValueError(f"--against: {commit!r}: {archive.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        members = [member for member in tar.getmembers() if member.isfile() and member.name.endswith(".py")]
        return {
            member.name: opened.read().decode() for member in members if (opened := tar.extractfile(member)) is not None
        }


def table(now: Sources, before: Sources | None = None) -> str:
    """Lay the counts out for a terminal: a line for each folder, the total, then what else is counted."""
    folders, old = by_folder(now), by_folder(before) if before is not None else None
    names = sorted({*folders, *(old or {})} - {APART})
    rows = [(name, folders.get(name, Size()), old and old.get(name, Size())) for name in names]
    rows.append((f"total without {APART}", total(folders), old and total(old)))
    rows.append((APART, folders.get(APART, Size()), old and old.get(APART, Size())))
    lines = ["lines of code" + (": before, now, difference" if old else "")]
    lines += [f"  {name:<20}" + _side_by_side(counts.code, was and was.code) for name, counts, was in rows]
    whole = (total(folders), old and total(old))
    lines += ["", f"all without {APART}/"]
    for words, name in (
        ("files", "files"),
        ("functions", "functions"),
        (f"over {LONG} lines", "long"),
        ("public", "public"),
        ("with docstring", "documented"),
        ("Example:", "examples"),
    ):
        lines.append(f"  {words:<20}" + _side_by_side(getattr(whole[0], name), whole[1] and getattr(whole[1], name)))
    lines += ["", "longest files"]
    lines += [f"  {count:6d}  {path}" for count, path in longest(now)[:NAMED]]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--against", metavar="COMMIT", help="also count the files of this commit, and print both counts"
    )
    options = parser.parse_args(arguments)
    now = here()
    try:
        before = at(options.against) if options.against else None
    except ValueError as error:
        parser.error(str(error))
    print(table(now, before))
    return 0


def _strings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Find the strings that stand alone: documentation."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value


def _public(
    node: ast.Module | ast.ClassDef,
) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Find what a user may name: the node, and the public functions and classes in it, but not within functions."""
    yield node
    for child in node.body:
        if isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
            yield from _public(child)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and not child.name.startswith("_"):
            yield child


def _own_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count a function's lines from ``def`` on, without its docstring."""
    lines = (function.end_lineno or 0) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is not None:
        lines -= (first.end_lineno or 0) - first.lineno + 1
    return lines


def _side_by_side(now: int, before: int | None) -> str:
    return f"{now:8d}" if before is None else f"{before:8d}{now:8d}{now - before:+8d}"


if __name__ == "__main__":
    raise SystemExit(main())
