# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The layers of the package: the room of each module, the order of rooms, and what imports what.

A room is a folder of the package or a single module beside the folders. The package's own ``__init__`` is the room
``gravac``, the face that users import.
"""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "gravac"

FOLDER = Path(__file__).parents[2] / PACKAGE

LAYERS = (
    "settings", "version", "guarded", "texts", "closeable", "entry_points", "beliefs", "candidate", "agreed",
    "collectives", "compressors", "costmodel", "exchange", "measurement", "averaging", "telemetry", "controllers",
    "policy", "engine", "sources", "checkpoint", "modes", "building", "attaching", "restoring", "opening", "connection",
    "adaptive", "integrations", "gravac", "testing", "replay", "lab", "commands", "cli", "__main__",
)  # fmt: skip
"""Rooms, lowest first. A module imports from its own room and from rooms before that."""


def room_of(module: str) -> str:
    """Return the room of a module.

    Args:
        module: dotted name, such as ``gravac.engine.engine``.
    """
    return module.split(".")[1] if "." in module else PACKAGE


def layer_of(module: str) -> int:
    """Return the position of a module's room in ``LAYERS``.

    Args:
        module: dotted name, such as ``gravac.engine.engine``.

    Raises:
        ValueError: ``LAYERS`` lacks that room.
    """
    room = room_of(module)
    if room not in LAYERS:
        raise ValueError(
            f"{module}: LAYERS in tests/packaging/layers.py lacks {room}; insert the room where it belongs"
        )
    return LAYERS.index(room)


@dataclass(frozen=True, order=True)
class Edge:
    """An import of one module by another.

    Attributes:
        importer: dotted name of the module with the import.
        imported: dotted name of the module that is imported.
    """

    importer: str
    imported: str

    def __str__(self) -> str:
        return f"{self.importer} -> {self.imported}"

    @property
    def rooms(self) -> "Edge":
        """The same between the rooms of both."""
        return Edge(room_of(self.importer), room_of(self.imported))

    @property
    def goes_up(self) -> bool:
        """True if the imported module lies in a layer above the importer's."""
        return layer_of(self.imported) > layer_of(self.importer)


@dataclass(frozen=True)
class Module:
    """A module of the package, as text.

    Attributes:
        name: dotted name; of a package's ``__init__`` the package's.
        source: its text.
        is_package: whether it is an ``__init__``.
    """

    name: str
    source: str
    is_package: bool = False

    @property
    def package(self) -> str:
        """Dotted name of the package that relative imports start from."""
        return self.name if self.is_package else self.name.rpartition(".")[0]


def read(sources: Mapping[str, str]) -> dict[str, Module]:
    """Return modules by dotted name.

    Args:
        sources: text of each file, by its path from the folder that holds the package, such as ``gravac/closeable.py``.
    """
    known = {}
    for path, source in sources.items():
        name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        known[name] = Module(name, source, is_package=path.endswith("/__init__.py"))
    return known


def modules() -> dict[str, Module]:
    """Return all modules of the package, by dotted name."""
    files = sorted(FOLDER.rglob("*.py"))
    return read({path.relative_to(FOLDER.parent).as_posix(): path.read_text(encoding="utf-8") for path in files})


def edges_of(known: Mapping[str, Module]) -> dict[Edge, int]:
    """Return every import of one known module by another, with the line of its first occurrence.

    All import statements count: in functions, below ``if TYPE_CHECKING`` and relative ones too.
    """
    edges: dict[Edge, int] = {}
    for module in known.values():
        for imported, line in imports(module, known):
            if imported != module.name:
                edges.setdefault(Edge(module.name, imported), line)
    return edges


def imports(module: Module, known: Mapping[str, Module]) -> Iterator[tuple[str, int]]:
    """Give the modules that a module imports, each with the line, as far as they are known.

    ``from package import name`` is an import of the submodule ``package.name`` if there is one, unless the package's
    ``__init__`` gives that name to something else; otherwise an import of the package.
    """
    for node in ast.walk(ast.parse(module.source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in known:
                    yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = origin(node, module)
            for alias in node.names:
                submodule = f"{base}.{alias.name}"
                if submodule in known and (
                    base == module.name or base not in known or alias.name not in bound(known[base])
                ):
                    yield submodule, node.lineno
                elif base in known:
                    yield base, node.lineno


def origin(node: ast.ImportFrom, module: Module) -> str:
    """Return the dotted name of the module or package that ``from ... import`` names."""
    if not node.level:
        return node.module or ""
    parts = module.package.split(".")
    return ".".join([*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])])


def bound(package: Module) -> set[str]:
    """Return the names that a package's ``__init__`` itself defines or imports from elsewhere than the package."""
    names: set[str] = set()
    for node in ast.parse(package.source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom) and origin(node, package) != package.name:
            names.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names.update(target.id for target in targets if isinstance(target, ast.Name))
    return names


def circles(edges: Iterable[Edge]) -> list[list[str]]:
    """Return the circles of a graph: of each set of nodes that reach each other, the shortest circle through its first.

    Args:
        edges: edges between modules, or between rooms; those from a node to itself are left out.

    Returns:
        Nodes of each circle in the order of the edges, the first one again at the end.
    """
    after: dict[str, list[str]] = defaultdict(list)
    for edge in sorted(edges):
        if edge.importer != edge.imported:
            after[edge.importer].append(edge.imported)
    ways = {node: _ways(node, after) for node in sorted(after)}
    shortest: list[list[str]] = []
    listed: set[str] = set()
    for node, way in ways.items():
        if node in way and node not in listed:
            listed |= {other for other in way if node in ways.get(other, {})}
            shortest.append([node, *way[node]])
    return shortest


def _ways(start: str, after: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Return the shortest way from a node to each node that can be reached, without the start."""
    ways: dict[str, list[str]] = {}
    frontier: list[tuple[str, list[str]]] = [(start, [])]
    for node, way in frontier:  # which grows
        for following in after.get(node, ()):
            if following not in ways:
                ways[following] = [*way, following]
                frontier.append((following, ways[following]))
    return ways
