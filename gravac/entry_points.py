# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Registries of compressors and controllers: gravac's own, and those that installed packages offer by entry points.

A package offers a compressor or a controller in its ``pyproject.toml``::

    [project.entry-points."gravac.compressors"]
    mine = "my_package.mine:mine"          # the object, with default settings

    [project.entry-points."gravac.controllers"]
    steady = "my_package.steady:Steady"    # the class

The name on the left must equal the object's attribute ``name``.
"""

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar

from gravac.settings import SettingsError

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """Compressors or controllers by name: gravac's own, and those that installed packages offer by entry points.

    An entry point is loaded once, when its name is looked up or all names are listed. If it cannot be loaded, a lookup
    of its name raises an error, and a list of all names omits it with a warning. An entry point with the name of a
    built-in object is refused with a warning.

    Args:
        kind: word for the objects in messages: ``"compressor"`` or ``"controller"``.
        group: name of the group of entry points, such as ``"gravac.compressors"``.
        built_in: objects of this package, by name.
        find_fault: function that returns what is wrong with a loaded object, as text; empty if nothing is wrong.
    """

    def __init__(self, kind: str, group: str, built_in: Mapping[str, T], find_fault: Callable[[object], str]) -> None:
        self._kind = kind
        self._group = group
        self._built_in = built_in
        self._find_fault = find_fault
        self._object_or_error_by_name: dict[str, T | SettingsError] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._built_in or name in self._offered_entries

    def __getitem__(self, name: str) -> T:
        """Return the object of a name.

        Raises:
            KeyError: no object has that name.
            SettingsError: the entry point of that name cannot be loaded; the message has its package and the cause.
        """
        if name in self._built_in:
            return self._built_in[name]
        object_or_error = self._load(name)
        if isinstance(object_or_error, SettingsError):
            raise object_or_error
        return object_or_error

    def __iter__(self) -> Iterator[str]:
        yield from self._built_in
        for name in self._offered_entries:
            is_first_time = name not in self._object_or_error_by_name
            object_or_error = self._load(name)
            if not isinstance(object_or_error, SettingsError):
                yield name
            elif is_first_time:
                warnings.warn(f"gravac ignores an entry point: {object_or_error}", stacklevel=2)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @functools.cached_property
    def _offered_entries(self) -> dict[str, list[EntryPoint]]:
        """The group's entry points by name, except those with the name of a built-in object."""
        entries_by_name: dict[str, list[EntryPoint]] = {}
        for entry in entry_points(group=self._group):
            if entry.name in self._built_in:
                refusal_text = f"is refused: gravac itself has a {self._kind} of that name; rename the entry point"
                warnings.warn(f"{self._kind} {entry.name!r} of {_package(entry)} {refusal_text}", stacklevel=4)
            else:
                entries_by_name.setdefault(entry.name, []).append(entry)
        return entries_by_name

    def _load(self, name: str) -> T | SettingsError:
        """Load the entry point of a name at the first call; return its object, or the error if loading failed."""
        if name not in self._object_or_error_by_name:
            self._object_or_error_by_name[name] = self._load_entry(name, self._offered_entries[name])
        return self._object_or_error_by_name[name]

    def _load_entry(self, name: str, entries: list[EntryPoint]) -> T | SettingsError:
        """Load the object of an entry point; return the object, or an error if loading fails or the object is wrong.

        Args:
            name: name of the entry point.
            entries: all entry points of that name.
        """
        if len(entries) > 1:
            packages_text = " and ".join(map(_package, entries))
            return SettingsError(
                f"{self._kind} {name!r}: {packages_text} each offer this name; uninstall all packages but one"
            )
        source_text = f"{self._kind} {name!r}: {entries[0].value} of {_package(entries[0])}"
        try:
            loaded_object: T = entries[0].load()
        except Exception as error:
            return SettingsError(
                f"{source_text} cannot be loaded ({type(error).__name__}: {error}); repair or uninstall that package"
            )
        fault = self._find_fault(loaded_object)
        if not fault and (own_name := getattr(loaded_object, "name", None)) != name:
            fault = f"calls itself {own_name!r}; give the entry point and the object the same name"
        return SettingsError(f"{source_text} {fault}") if fault else loaded_object


def _package(entry: EntryPoint) -> str:
    """Return name and version of the package that offers an entry point, for messages."""
    return f"package {entry.dist.name} {entry.dist.version}" if entry.dist is not None else "an unknown package"
