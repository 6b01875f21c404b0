# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Imports go down only, and never in a circle: every import of every module, those within functions too."""

from collections.abc import Mapping

import pytest

from tests.packaging.layers import LAYERS, Edge, circles, edges_of, layer_of, modules, read, room_of


def breaches(edges: Mapping[Edge, int]) -> list[str]:
    """Return what breaks a rule, in words.

    Args:
        edges: imports with their lines.
    """
    rising = sorted(edge for edge in edges if edge.goes_up)
    level = [edge for edge in edges if not edge.goes_up]  # circles of others would be told twice
    said = [f"{edge.importer}, line {edges[edge]}: imports {edge.imported}, which is above it" for edge in rising]
    said += [f"a circle of modules: {' -> '.join(circle)}" for circle in circles(level)]
    said += [f"a circle of rooms: {' -> '.join(circle)}" for circle in circles(edge.rooms for edge in level)]
    return said


PACKAGE = {
    "gravac/__init__.py": "from gravac import checkpoint\nfrom gravac.adaptive import AdaptiveCompressor",
    "gravac/adaptive.py": "",
    "gravac/checkpoint/__init__.py": "",
    "gravac/compressors/__init__.py": "from gravac.compressors.topk import topk",
    "gravac/compressors/topk.py": "",
    "gravac/compressors/kernels/__init__.py": "",
    "gravac/modes/__init__.py": "",
    "gravac/modes/buffers.py": "",
    "gravac/modes/rounds.py": "",
}


def imported(source: str, path: str = "gravac/modes/rounds.py") -> set[str]:
    """Return what a file of ``PACKAGE`` imports, given its text."""
    (importer,) = read({path: source})
    return {edge.imported for edge in edges_of(read({**PACKAGE, path: source})) if edge.importer == importer}


def test_imports_go_down_only() -> None:
    assert not (said := breaches(edges_of(modules()))), "\n".join(said)


def test_every_room_has_a_layer_and_every_layer_a_room() -> None:
    rooms = {room_of(name) for name in modules()}
    assert rooms == set(LAYERS)
    assert len(LAYERS) == len(rooms)


def test_a_room_without_a_layer_is_named_with_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"gravac\.attic\.box: LAYERS in .* lacks attic; insert"):
        layer_of("gravac.attic.box")


def test_what_users_import_lies_above_what_it_is_made_of() -> None:
    assert room_of("gravac.sources.ddp") == room_of("gravac.sources") == "sources"
    assert layer_of("gravac") > layer_of("gravac.adaptive") > layer_of("gravac.modes.outer.rounds")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import gravac.adaptive", {"gravac.adaptive"}),
        ("import gravac", {"gravac"}),
        ("import torch, gravac.adaptive as adaptive", {"gravac.adaptive"}),
        ("from gravac.modes.buffers import Buffers", {"gravac.modes.buffers"}),
        ("from gravac.modes import buffers", {"gravac.modes.buffers"}),
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
        ("from gravac.compressors import kernels", {"gravac.compressors.kernels"}),
        ("from gravac import checkpoint", {"gravac.checkpoint"}),
        ("from gravac import AdaptiveCompressor", {"gravac"}),
        ("from gravac import AdaptiveCompressor, checkpoint as saved", {"gravac", "gravac.checkpoint"}),
        ("from gravac.compressors import topk", {"gravac.compressors"}),  # the object, not the module of that name
        ("from gravac.compressors.topk import topk", {"gravac.compressors.topk"}),
    ],
)
def test_a_name_from_a_package_is_its_submodule_or_what_the_package_binds(source: str, expected: set[str]) -> None:
    assert imported(source) == expected


@pytest.mark.parametrize(
    ("source", "path", "expected"),
    [
        ("from . import buffers", "gravac/modes/rounds.py", {"gravac.modes.buffers"}),
        ("from .buffers import Buffers", "gravac/modes/rounds.py", {"gravac.modes.buffers"}),
        ("from ..adaptive import AdaptiveCompressor", "gravac/modes/rounds.py", {"gravac.adaptive"}),
        ("from .. import checkpoint", "gravac/modes/rounds.py", {"gravac.checkpoint"}),
        ("from . import buffers", "gravac/modes/__init__.py", {"gravac.modes.buffers"}),
        ("from .buffers import Buffers", "gravac/modes/__init__.py", {"gravac.modes.buffers"}),
    ],
)
def test_a_relative_import_starts_from_its_package(source: str, path: str, expected: set[str]) -> None:
    assert imported(source, path) == expected


def test_an_import_from_above_is_refused_with_its_line() -> None:
    package = read({"gravac/settings.py": "\n\ndef late():\n    import gravac.modes", "gravac/modes.py": ""})
    assert breaches(edges_of(package)) == ["gravac.settings, line 4: imports gravac.modes, which is above it"]


def test_a_circle_of_modules_in_a_room_is_refused_with_its_path() -> None:
    package = read(
        {
            "gravac/modes/a.py": "from gravac.modes import b",
            "gravac/modes/b.py": "def late():\n    from gravac.modes.c import x",
            "gravac/modes/c.py": "from gravac.modes.a import y\nfrom gravac.modes import d",
            "gravac/modes/d.py": "",
            "gravac/modes/__init__.py": "",
        }
    )
    (said,) = breaches(edges_of(package))
    assert said == "a circle of modules: gravac.modes.a -> gravac.modes.b -> gravac.modes.c -> gravac.modes.a"


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
