# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Imports go down only, and never in a circle: every import of every module, those within functions too.

A room is a folder of the package or a single module beside the folders. The package's own ``__init__`` is the room
``gravac``, the face that users import.
"""

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "gravac"

LAYERS = (
    "settings", "version", "guarded", "texts", "closeable", "ranges", "saved", "beliefs", "candidate", "measurement",
    "collectives", "compressors", "costmodel", "exchange", "averaging", "telemetry", "controllers",
    "policy", "engine", "sources", "checkpoint", "modes", "restoring", "attach",
    "adaptive", "integrations", "gravac", "testing", "lab", "commands", "cli", "__main__",
)  # fmt: skip
"""Rooms, lowest first. A module imports from its own room and from rooms before that."""


def layer_of(module: str) -> int:
    """Return the position of a module's room in ``LAYERS``."""
    room = module.split(".")[1] if "." in module else module
    assert room in LAYERS, f"{module}: LAYERS in {Path(__file__).name} lacks {room}; insert the room where it belongs"
    return LAYERS.index(room)


def imports(source: str, modules: Mapping[str, object]) -> Iterator[str]:
    """Yield the known modules that a text imports, wherever the import stands.

    ``from package import name`` is an import of the submodule ``package.name`` if there is one, else of the package.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "relative imports are not read; name the module from gravac on"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                found = name if name in modules else node.module
                if found in modules:
                    yield str(found)


def breach(sources: Mapping[str, str]) -> str:
    """Return the first import that breaks a rule, in words; empty if none does.

    Args:
        sources: text of each module, by dotted name.
    """
    graph = {module: set(imports(source, sources)) - {module} for module, source in sources.items()}
    for module, imported in graph.items():
        for other in sorted(imported):
            if layer_of(other) > layer_of(module):
                return f"{module} imports {other}, which is above it"
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return f"a circle of modules: {' -> '.join(error.args[1])}"
    return ""


def test_imports_go_down_only_and_never_in_a_circle() -> None:
    files = sorted(FOLDER.rglob("*.py"))
    names = [".".join(path.relative_to(FOLDER.parent).with_suffix("").parts) for path in files]
    texts = (path.read_text(encoding="utf-8") for path in files)
    assert not (said := breach(dict(zip((name.removesuffix(".__init__") for name in names), texts, strict=True)))), said


@pytest.mark.parametrize(
    "source",
    [
        "from gravac.adaptive import AdaptiveCompressor",
        "def late():\n    import gravac.adaptive",
        "if TYPE_CHECKING:\n    from gravac import adaptive",
    ],
)
def test_an_import_from_above_and_a_circle_are_found(source: str) -> None:
    package = {"gravac.adaptive": "", "gravac.modes.rounds": source, "gravac.modes.buffers": ""}
    assert breach(package) == "gravac.modes.rounds imports gravac.adaptive, which is above it"
    package["gravac.modes.rounds"] = "def late():\n    from gravac.modes import buffers"
    assert breach(package) == ""
    package["gravac.modes.buffers"] = "from gravac.modes.rounds import Rounds"
    assert breach(package).startswith("a circle of modules: gravac.modes.")
