# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Draw texts of the project at random, for a reader who judges whether each is understood at first reading.

CONTRIBUTING has the rules to judge by. Take a seed that nobody took before: texts that were read are mended.

    python -m tests.packaging.draw docstrings --number 100 --seed 7
    python -m tests.packaging.draw messages --number 50 --seed 7
    python -m tests.packaging.draw sentences --number 100 --seed 7
    python -m tests.packaging.draw names --number 100 --seed 7
"""

import argparse
import ast
import random
import re
from collections.abc import Callable, Iterator

from tests.packaging.names import ROOT, definitions

USER_FOLDERS = ("docs/tutorials", "docs/how-to", "docs/reference", "docs/explanation")

LOGGING = frozenset({"warn", "warning", "warning_once", "error", "info", "print"})
"""Names of functions whose text a user sees."""


def sources() -> Iterator[tuple[str, str, ast.Module]]:
    """Yield path, text and syntax tree of each file of ``gravac/``."""
    for path in sorted((ROOT / "gravac").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        yield str(path.relative_to(ROOT)), text, ast.parse(text)


def docstrings() -> Iterator[str]:
    """Yield each docstring, with its place and signature; the strings below constants and fields count, too."""
    for path, text, tree in sources():
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if not isinstance(body, list):
                continue
            for number, statement in enumerate(body):
                if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Constant):
                    continue
                if not isinstance(statement.value.value, str):
                    continue
                about = node if number == 0 else body[number - 1]
                line = getattr(about, "lineno", 1)
                head = text.splitlines()[line - 1].strip() if not isinstance(about, ast.Module) else "(the file)"
                yield f"{path}:{line}  {head}\n{statement.value.value}"


def messages() -> Iterator[str]:
    """Yield the source of each raised, warned, logged or printed text, with its place."""
    for path, text, tree in sources():
        for node in ast.walk(tree):
            call = node.exc if isinstance(node, ast.Raise) else node
            if not isinstance(call, ast.Call):
                continue
            called = call.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if not isinstance(node, ast.Raise) and name not in LOGGING:
                continue
            if any(isinstance(inner, ast.JoinedStr | ast.Constant) for inner in ast.walk(call)):
                yield f"{path}:{node.lineno}\n{ast.get_source_segment(text, node)}"


def sentences() -> Iterator[str]:
    """Yield each sentence of README and the user's pages, with its place; code and tables are left out."""
    pages = [ROOT / "README.md", ROOT / "docs/index.md"]
    pages += [page for folder in USER_FOLDERS for page in sorted((ROOT / folder).rglob("*.md"))]
    for page in pages:
        if not page.exists():
            continue
        prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for paragraph in re.split(r"\n\s*\n", prose):
            if paragraph.lstrip().startswith(("|", "<", "#", "!")):
                continue
            for sentence in re.split(r"(?<=[.!?:])\s+(?=[A-Z`\[*-])", " ".join(paragraph.split())):
                if len(sentence.split()) > 3:
                    yield f"{page.relative_to(ROOT)}\n{sentence}"


def names() -> Iterator[str]:
    """Yield each name that ``gravac/`` defines, with three lines of its code."""
    for path, text, _ in sources():
        lines, seen = text.splitlines(), set()
        for line, name in definitions(text):
            if name and name not in seen | {"self", "cls"}:
                seen.add(name)
                yield f"{path}:{line}  **{name}**\n" + "\n".join(lines[max(0, line - 2) : line + 1])


KINDS: dict[str, Callable[[], Iterator[str]]] = {
    "docstrings": docstrings,
    "messages": messages,
    "sentences": sentences,
    "names": names,
}


def main() -> int:
    """Print the texts drawn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--number", type=int, default=100, help="number of texts to draw")
    parser.add_argument("--seed", type=int, required=True, help="seed of the random numbers")
    options = parser.parse_args()
    texts = list(KINDS[options.kind]())
    for number, text in enumerate(random.Random(options.seed).sample(texts, min(options.number, len(texts))), 1):
        print(f"[{number}] {text}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
