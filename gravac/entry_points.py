# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Things by name: gravac's own, and those that installed packages offer by entry points.

A package of one's own offers a compressor or a controller in its ``pyproject.toml``::

    [project.entry-points."gravac.compressors"]
    mine = "my_package.mine:mine"          # the object, with default settings

    [project.entry-points."gravac.controllers"]
    steady = "my_package.steady:Steady"    # the class

The name on the left is the object's own ``name``.
"""

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar

from gravac.settings import SettingsError

T = TypeVar("T")


class Known(Mapping[str, T], Generic[T]):
    """What is known by name: built in, or offered by entry points, looked for at the first name that is not built in.

    An entry point is loaded when its name is asked for, or all are listed, and once. One that cannot be loaded raises
    where it is asked for, and is left out with a warning where all are listed. A name that is built in is not given
    away: an entry point of that name is refused, with a warning.

    Args:
        what: they are, in words.
        group: name of the group of entry points.
        built_in: what the package brings, by name.
        wrong: what is wrong with an object that an entry point gave, in words; empty when nothing is.
    """

    def __init__(self, what: str, group: str, built_in: Mapping[str, T], wrong: Callable[[object], str]) -> None:
        self._what = what
        self._group = group
        self._built_in = built_in
        self._wrong = wrong
        self._loaded: dict[str, T | SettingsError] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._built_in or name in self._offered

    def __getitem__(self, name: str) -> T:
        """What has that name.

        Raises:
            KeyError: nothing has.
            SettingsError: an entry point has, and cannot be loaded; names it, its package and why.
        """
        if name in self._built_in:
            return self._built_in[name]
        found = self._load(name)
        if isinstance(found, SettingsError):
            raise found
        return found

    def __iter__(self) -> Iterator[str]:
        yield from self._built_in
        for name in self._offered:
            first = name not in self._loaded
            found = self._load(name)
            if not isinstance(found, SettingsError):
                yield name
            elif first:
                warnings.warn(f"left out: {found}", stacklevel=2)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @functools.cached_property
    def _offered(self) -> dict[str, list[EntryPoint]]:
        """The group's entry points by name, but for those that are refused."""
        offered: dict[str, list[EntryPoint]] = {}
        for entry in entry_points(group=self._group):
            if entry.name in self._built_in:
                remedy = "is refused: gravac itself has one of that name; rename it"
                warnings.warn(f"{self._what} {entry.name!r} of {_package(entry)} {remedy}", stacklevel=4)
            else:
                offered.setdefault(entry.name, []).append(entry)
        return offered

    def _load(self, name: str) -> T | SettingsError:
        if name not in self._loaded:
            self._loaded[name] = self._loading(name, self._offered[name])
        return self._loaded[name]

    def _loading(self, name: str, entries: list[EntryPoint]) -> T | SettingsError:
        if len(entries) > 1:
            packages = " and ".join(map(_package, entries))
            return SettingsError(f"{self._what} {name!r}: {packages} each have one of that name; remove all but one")
        where = f"{self._what} {name!r}: {entries[0].value} of {_package(entries[0])}"
        try:
            found: T = entries[0].load()
        except Exception as error:
            return SettingsError(f"{where} cannot be loaded ({type(error).__name__}: {error}); repair or remove it")
        wrong = self._wrong(found)
        if not wrong and (own := getattr(found, "name", None)) != name:
            wrong = f"calls itself {own!r}; give the entry point and the object one name"
        return SettingsError(f"{where} {wrong}") if wrong else found


def _package(entry: EntryPoint) -> str:
    """The package that an entry point is of, in words."""
    return f"package {entry.dist.name} {entry.dist.version}" if entry.dist is not None else "an unknown package"
