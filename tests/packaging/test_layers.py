# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Imports go down only, and never in a circle: every import of every module, those within functions too."""

from collections.abc import Mapping

import pytest

from tests.packaging.layers import LAYERS, Edge, circles, edges_of, layer_of, modules, read, room_of

KNOWN = {
    # the version, for the comparison of ranks
    Edge("gravac.adaptive", "gravac"),
    # the compressor that a hook's state is made into, within a function
    Edge("gravac.integrations.hook", "gravac.adaptive"),
    # kernels, where there is a GPU: loaded within functions, and they share the compressors' layouts
    Edge("gravac.compressors.chunks", "gravac.kernels"),
    Edge("gravac.compressors.chunks", "gravac.kernels.chunk_decode"),
    Edge("gravac.compressors.chunks", "gravac.kernels.chunks"),
    Edge("gravac.compressors.messages", "gravac.kernels"),
    Edge("gravac.compressors.messages", "gravac.kernels.quantize"),
    # types of arguments
    Edge("gravac.controllers.gravac_literal", "gravac.controllers.gravac"),
    Edge("gravac.lab.advise.verdict", "gravac.lab.advise.choices"),
}
"""Imports that break a rule. Each that goes is deleted here; none is added."""


def breaches(edges: Mapping[Edge, int], known: frozenset[Edge] | set[Edge] = frozenset()) -> list[str]:
    """Return what breaks a rule, in words.

    Args:
        edges: imports with their lines.
        known: edges that may break rules.
    """
    fresh = {edge: line for edge, line in edges.items() if edge not in known}
    rising = sorted(edge for edge in fresh if edge.goes_up)
    level = [edge for edge in fresh if not edge.goes_up]  # circles of others would be told twice
    said = [f"{edge.importer}, line {fresh[edge]}: imports {edge.imported}, which is above it" for edge in rising]
    said += [f"a circle of modules: {' -> '.join(circle)}" for circle in circles(level)]
    said += [f"a circle of rooms: {' -> '.join(circle)}" for circle in circles(edge.rooms for edge in level)]
    said += [f"KNOWN: {edge} no longer occurs; delete it there" for edge in sorted(known - edges.keys())]
    for edge in sorted(known & edges.keys()):
        if not breaches({other: line for other, line in edges.items() if other not in known or other == edge}):
            said.append(f"KNOWN: {edge} breaks no rule; delete it there")
    return said


PACKAGE = {
    "gravac/__init__.py": "from gravac import checkpoint\nfrom gravac.adaptive import AdaptiveCompressor",
    "gravac/adaptive.py": "",
    "gravac/checkpoint/__init__.py": "",
    "gravac/compressors/__init__.py": "from gravac.compressors.topk import topk",
    "gravac/compressors/topk.py": "",
    "gravac/kernels/__init__.py": "",
    "gravac/outer/__init__.py": "",
    "gravac/outer/buffers.py": "",
    "gravac/outer/rounds.py": "",
}


def imported(source: str, path: str = "gravac/outer/rounds.py") -> set[str]:
    """Return what a file of ``PACKAGE`` imports, given its text."""
    (importer,) = read({path: source})
    return {edge.imported for edge in edges_of(read({**PACKAGE, path: source})) if edge.importer == importer}


def test_imports_go_down_only() -> None:
    assert not (said := breaches(edges_of(modules()), KNOWN)), "\n".join(said)


def test_every_room_has_a_layer_and_every_layer_a_room() -> None:
    rooms = {room_of(name) for name in modules()}
    assert rooms == set(LAYERS)
    assert len(LAYERS) == len(rooms)


def test_a_room_without_a_layer_is_named_with_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"gravac\.attic\.box: LAYERS in .* lacks attic; insert"):
        layer_of("gravac.attic.box")


def test_integrations_of_frameworks_are_a_room_of_their_own() -> None:
    assert room_of("gravac.integrations.lightning") == "frameworks"
    assert room_of("gravac.integrations.ddp") == room_of("gravac.integrations") == "integrations"
    assert layer_of("gravac") > layer_of("gravac.outer.optimizer")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import gravac.adaptive", {"gravac.adaptive"}),
        ("import gravac", {"gravac"}),
        ("import torch, gravac.adaptive as adaptive", {"gravac.adaptive"}),
        ("from gravac.outer.buffers import Buffers", {"gravac.outer.buffers"}),
        ("from gravac.outer import buffers", {"gravac.outer.buffers"}),
        ("from torch import outer", set()),
        ("", set()),
    ],
)
def test_an_import_is_of_the_module_it_names(source: str, expected: set[str]) -> None:
    assert imported(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        "def late():\n    from gravac.adaptive import AdaptiveCompressor",
        "def late():\n    import gravac.adaptive",
        "class Holder:\n    def late(self):\n        if self:\n            import gravac.adaptive",
        "if TYPE_CHECKING:\n    from gravac.adaptive import AdaptiveCompressor",
        "try:\n    import gravac.adaptive\nexcept ImportError:\n    pass",
    ],
)
def test_an_import_is_seen_wherever_it_stands(source: str) -> None:
    assert imported(source) == {"gravac.adaptive"}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from gravac import kernels", {"gravac.kernels"}),
        ("from gravac import checkpoint", {"gravac.checkpoint"}),
        ("from gravac import AdaptiveCompressor", {"gravac"}),
        ("from gravac import AdaptiveCompressor, kernels as fast", {"gravac", "gravac.kernels"}),
        ("from gravac.compressors import topk", {"gravac.compressors"}),  # the object, not the module of that name
        ("from gravac.compressors.topk import topk", {"gravac.compressors.topk"}),
    ],
)
def test_a_name_from_a_package_is_its_submodule_or_what_the_package_binds(source: str, expected: set[str]) -> None:
    assert imported(source) == expected


@pytest.mark.parametrize(
    ("source", "path", "expected"),
    [
        ("from . import buffers", "gravac/outer/rounds.py", {"gravac.outer.buffers"}),
        ("from .buffers import Buffers", "gravac/outer/rounds.py", {"gravac.outer.buffers"}),
        ("from ..adaptive import AdaptiveCompressor", "gravac/outer/rounds.py", {"gravac.adaptive"}),
        ("from .. import kernels", "gravac/outer/rounds.py", {"gravac.kernels"}),
        ("from . import buffers", "gravac/outer/__init__.py", {"gravac.outer.buffers"}),
        ("from .buffers import Buffers", "gravac/outer/__init__.py", {"gravac.outer.buffers"}),
    ],
)
def test_a_relative_import_starts_from_its_package(source: str, path: str, expected: set[str]) -> None:
    assert imported(source, path) == expected


def test_an_import_from_above_is_refused_with_its_line() -> None:
    package = read({"gravac/settings.py": "\n\ndef late():\n    import gravac.outer", "gravac/outer.py": ""})
    assert breaches(edges_of(package)) == ["gravac.settings, line 4: imports gravac.outer, which is above it"]


def test_a_circle_of_modules_in_a_room_is_refused_with_its_path() -> None:
    package = read(
        {
            "gravac/outer/a.py": "from gravac.outer import b",
            "gravac/outer/b.py": "def late():\n    from gravac.outer.c import x",
            "gravac/outer/c.py": "from gravac.outer.a import y\nfrom gravac.outer import d",
            "gravac/outer/d.py": "",
            "gravac/outer/__init__.py": "",
        }
    )
    (said,) = breaches(edges_of(package))
    assert said == "a circle of modules: gravac.outer.a -> gravac.outer.b -> gravac.outer.c -> gravac.outer.a"


def test_circles_are_told_once_each_by_their_shortest_path() -> None:
    letters = [
        ("a", "b"),
        ("b", "c"),
        ("c", "a"),
        ("b", "a"),
        ("c", "d"),
        ("d", "e"),
        ("e", "d"),
        ("e", "f"),
        ("f", "f"),
    ]
    assert circles(Edge(*pair) for pair in letters) == [["a", "b", "a"], ["d", "e", "d"]]


def test_a_circle_of_rooms_needs_no_circle_of_modules() -> None:
    edges = [Edge("gravac.exchange.a", "gravac.averaging.b"), Edge("gravac.averaging.c", "gravac.exchange.d")]
    assert circles(edges) == []
    assert circles(edge.rooms for edge in edges) == [["averaging", "exchange", "averaging"]]


def test_a_known_breach_is_allowed_as_long_as_it_occurs_and_breaks_a_rule() -> None:
    package = read({"gravac/settings.py": "import gravac.outer", "gravac/outer.py": ""})
    known = Edge("gravac.settings", "gravac.outer")
    assert breaches(edges_of(package), {known}) == []
    mended = read({"gravac/settings.py": "", "gravac/outer.py": "import gravac.settings"})
    assert breaches(edges_of(mended), {known}) == [f"KNOWN: {known} no longer occurs; delete it there"]
    downward = Edge("gravac.outer", "gravac.settings")
    assert breaches(edges_of(mended), {downward}) == [f"KNOWN: {downward} breaks no rule; delete it there"]
