# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What README and docs point at is there: links, files, functions, make targets, modules.

Links between the site's pages, and their anchors, are checked where it is built (``make docs``).
"""

import ast
import re
from pathlib import Path

import pytest

from tests.packaging.pages import DOCS, PAGES, ROOT, named

OUTSIDE = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
"""Documents that are not pages of the site."""

DOCUMENTS = [*OUTSIDE[1:], *PAGES]

MADE_BY_PATCHES = {
    "gravac/compressors/cyclic.py", "gravac/controllers/ratchet.py", "gravac/integrations/accumulation.py",
    "gravac/integrations/relay.py", "tests/integrations/test_relay.py",
    "compressors/cyclic.py", "controllers/ratchet.py", "integrations/accumulation.py", "integrations/relay.py",
}  # fmt: skip
"""Files that ``docs/how-to/extend.md`` has a reader write."""

SUFFIX = r"\.(?:py|toml|json|md|sh|patch|png)\b"
LINK = re.compile(r"\]\((?!https?://)([^)#\s]*)(?:#([^)\s]*))?\)")
NAMED = re.compile(rf"(?<![\w/.<-])(?:gravac|tests|policies|examples|docs)/[\w./-]*?(?:{SUFFIX}|/(?=[`\s)]))")
BELOW_GRAVAC = re.compile(rf"`([a-z_]+/[\w/]+{SUFFIX})`")
MODULE = re.compile(r"python -m (tests(?:\.\w+)+)")
SHELL = re.compile(r"```sh\n(.*?)```", re.DOTALL)
IN_SHELL = re.compile(r"^ *make ([a-z-]+)", re.MULTILINE)
IN_TEXT = re.compile(r"`make ([a-z-]+)(?![a-z-]*\.)")
FUNCTIONS = re.compile(r"`([a-z_/]+\.py)`((?:,? *\n?`\w+(?:\.\w+)*`)+)")


def said(document: Path) -> str:
    return document.read_text(encoding="utf-8")


def anchors(document: Path) -> set[str]:
    """The anchors of a document's headings."""
    heads = re.findall(r"^#+ (.*)$", said(document), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", head.lower(), flags=re.ASCII)).strip("-") for head in heads}


def names(source: str) -> set[str]:
    """Functions, classes, their methods and attributes, and constants of a file, by dotted name."""
    found = set()
    for node in ast.parse(source).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        found |= {target.id for target in targets if isinstance(target, ast.Name)}
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return found


@pytest.mark.parametrize("document", OUTSIDE, ids=lambda document: document.name)
def test_relative_links_lead_somewhere(document: Path) -> None:
    for path, anchor in LINK.findall(said(document)):
        there = document.parent / path if path else document
        assert there.exists(), path
        assert not anchor or anchor in anchors(there), f"{path}#{anchor}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_files_that_are_named_are_there(document: Path) -> None:
    text = said(document)
    below = [path for path in BELOW_GRAVAC.findall(text) if not path.startswith(("gravac/", "tests/", "policies/"))]
    missing = {path for path in NAMED.findall(text) if not (ROOT / path).exists()}
    missing |= {path for path in below if not any((ROOT / folder / path).exists() for folder in ("gravac", "."))}
    modules = {module: ROOT / module.replace(".", "/") for module in MODULE.findall(text)}
    missing |= {
        module
        for module, path in modules.items()
        if not path.with_suffix(".py").exists() and not (path / "__main__.py").exists()
    }
    assert missing - MADE_BY_PATCHES == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_make_targets_are_there(document: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    text = said(document)
    named = {*IN_TEXT.findall(text), *IN_SHELL.findall("\n".join(SHELL.findall(text)))}
    assert named - targets == set()


def test_functions_that_the_papers_page_names_are_there() -> None:
    found = 0
    for path, listed in FUNCTIONS.findall(said(DOCS / "explanation" / "papers.md")):
        there = names((ROOT / "gravac" / path).read_text(encoding="utf-8"))
        wanted = set(re.findall(r"[\w.]+", listed))
        assert wanted <= there, f"{path}: {wanted - there}"
        found += len(wanted)
    assert found >= 80


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("see `gravac/nowhere.py`", "gravac/nowhere.py"),
        ("in `tests/nowhere/`, too", "tests/nowhere/"),
        ("`compressors/nowhere.py`", "compressors/nowhere.py"),
        ("`python -m tests.measure.nowhere`", "tests.measure.nowhere"),
    ],
)
def test_what_is_not_there_is_found(text: str, missing: str, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(text, encoding="utf-8")
    with pytest.raises(AssertionError, match=missing):
        test_files_that_are_named_are_there(tmp_path / "page.md")
