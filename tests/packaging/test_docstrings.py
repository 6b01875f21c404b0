# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Docstrings say what a thing is without its signature: the part of that rule that a program can check.

1. No public docstring, and no entry of ``Args:`` or ``Attributes:``, starts with a bare preposition: "Of the ranks."
   cannot be understood by itself, "Number of ranks." can.
2. A public function that takes or returns a tensor tells its shape, or its class or module does.
"""

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

FILES = sorted((ROOT / "gravac").rglob("*.py"))

PREPOSITION = re.compile(
    r"(about|above|across|after|against|among|as|at|before|behind|below|beside|between|but|by|during|for|from|in|into|of|"
    r"off|on|onto|over|per|since|than|through|to|toward|towards|under|until|up|upon|via|with|within|without)\b",
    re.IGNORECASE,
)

ENTRY = re.compile(r"^(?P<indent> *)(?P<names>[\w*]+(?:, [\w*]+)*)(?: \([^)]*\))?: (?P<said>.*)$")

SHAPE = re.compile(
    r"shape|``\([^`]*\)``|scalar|element|flat|one[- ]dimensional|1-D|2-D|matri|vector|\bn\b.*(long|numbers)",
    re.IGNORECASE,
)
"""What counts as telling a shape: the word, a tuple in code, or a name that fixes the number of dimensions."""

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def public(node: Documented, name: str = "") -> Iterator[tuple[str, Documented, list[Documented]]]:
    """Every public thing of a file, by its dotted name, with what it stands in."""
    yield name, node, []
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not child.name.startswith("_"):
            full = f"{name}.{child.name}".lstrip(".")
            if isinstance(child, ast.ClassDef):
                for inner, found, around in public(child, full):
                    yield inner, found, [*around, node]
            else:
                yield full, child, [node]


def constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The strings that stand below assignments, with the name assigned to."""
    for owner in ast.walk(tree):
        body = getattr(owner, "body", None)
        if not isinstance(body, list):
            continue
        for before, after in itertools.pairwise(body):
            if not isinstance(before, ast.Assign | ast.AnnAssign) or not isinstance(after, ast.Expr):
                continue
            target = before.targets[0] if isinstance(before, ast.Assign) else before.target
            if isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
                yield ast.unparse(target), after.value.value


def entries(docstring: str) -> Iterator[tuple[str, str]]:
    """Names and texts of ``Args:`` and ``Attributes:``."""
    within, indent = False, None
    for line in docstring.splitlines():
        if line.strip() in ("Args:", "Attributes:"):
            within, indent = True, None
        elif line and not line.startswith(" "):
            within = False
        elif within and (found := ENTRY.match(line)):
            indent = len(found["indent"]) if indent is None else indent
            if len(found["indent"]) == indent:
                yield found["names"], found["said"]


def bare(source: str) -> list[str]:
    """What starts with a bare preposition, as ``name: text``."""
    tree = ast.parse(source)
    said = list(constants(tree))
    for name, node, _ in public(tree):
        docstring = ast.get_docstring(node)
        if docstring:
            said += [(name, docstring.splitlines()[0])]
            said += [(f"{name}({entry})", text) for entry, text in entries(docstring)]
    return [f"{name}: {text.splitlines()[0]}" for name, text in said if PREPOSITION.match(text.strip())]


def shapeless(source: str) -> list[str]:
    """Public functions with a tensor among arguments and result, of which no docstring around tells a shape."""
    found = []
    for name, node, around in public(ast.parse(source)):
        if isinstance(node, ast.ClassDef | ast.Module):
            continue
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        notes = [ast.unparse(one) for one in (*(argument.annotation for argument in arguments), node.returns) if one]
        told = " ".join(ast.get_docstring(one) or "" for one in (node, *around))
        if any(re.search(r"\bTensor\b", note) for note in notes) and not SHAPE.search(told):
            found.append(name)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_docstring_starts_with_a_bare_preposition(path: Path) -> None:
    assert bare(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_public_tensor_function_tells_a_shape(path: Path) -> None:
    assert shapeless(path.read_text(encoding="utf-8")) == []


def test_the_rule_finds_what_it_is_for() -> None:
    source = '''"""Of many things."""

LIMIT = 3
"""With this, all is well."""

def one(x: Tensor, ranks: int) -> None:
    """Tell.

    Args:
        x: a tensor.
        ranks: of the group,
            as: it goes on here.
    """

def two(x: Tensor) -> None:
    """Return x, ``(n,)``."""

def _three(x: Tensor) -> None:
    """Of a private thing."""
'''
    assert bare(source) == ["LIMIT: With this, all is well.", ": Of many things.", "one(ranks): of the group,"]
    assert shapeless(source) == ["one"]
