# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""State of a run, counted: attributes of the classes whose objects live as long as a run, and names with many owners.

    python -m tests.measure.attributes [--json FILE]

Everything is read by ``ast``; nothing is run. What is counted follows from rules, so that two commits compare:

- *Rooms*: all rooms of the package (``tests.packaging.layers``) but ``WITHOUT``, which configure, describe or show runs
  and do not make them.
- *Classes*: those with instance attributes that can change: no frozen dataclass, ``NamedTuple``, ``Protocol``,
  ``TypedDict``, settings or exception.
- *Attributes*: names assigned as ``self.name`` in any method, and fields of dataclasses. Inherited ones count once, for
  the class that has them.
- An attribute is *stateful* if it changes during a run: it is a mutable container, or it is assigned outside
  construction, in the class or in a module that names the class. Construction is ``__init__``, ``__post_init__`` and
  private methods that only these call.
- *Run state* are the classes of which an object lives as long as the run: those that ``gravac/__init__.py`` exports,
  and every class that such a class holds. A class holds another one by the annotation of a dataclass's field, or by an
  assignment to ``self.name`` in construction: of a call of that class, of a call of a function that is annotated to
  return it, or of a parameter annotated with it. Objects in a field's container, and objects for which ``None`` stands
  at first, are made later, for a step or a round, and are not run state.
- *Executors* are the classes that have all methods of a ``Protocol`` that run state names, with what these hold. A run
  has one of them.

*Run state* is the definition that comes nearest to an earlier count of 215 attributes in 25 classes.

Homonyms are counted besides: in how many classes and modules of the package without ``lab`` a method or function of
each name in ``HOMONYMS`` is defined.
"""

import argparse
import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.measure.results import Rows, keep
from tests.packaging.layers import PACKAGE, Module, modules, room_of

WITHOUT = frozenset(
    {
        "settings", "guarded", "texts", "live", "entry_points", "candidate", "compressors", "kernels", "costmodel",
        "telemetry", "controllers", "policy", "checkpoint", "gravac", "conformance", "frameworks", "replay", "lab",
        "commands", "cli", "__main__",
    }
)  # fmt: skip
"""Rooms whose classes are not counted."""

HOMONYMS = ("start", "begin", "agreed", "wait", "commit")
"""Names of functions that have had many owners."""

FIXED = frozenset({"NamedTuple", "Protocol", "TypedDict", "Settings", "BaseModel", "Exception", "RuntimeError"})
"""Bases of classes whose objects do not change, or hold nothing."""

CONTAINERS = frozenset(
    {"list", "dict", "set", "bytearray", "deque", "defaultdict", "Counter", "OrderedDict", "SimpleQueue", "Queue"}
)
"""Types that change in place."""

CONSTRUCTION = frozenset({"__init__", "__post_init__", "__new__"})

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Class:
    """A class and what is known of it.

    Attributes:
        name: its name.
        module: dotted name of its module.
        node: its definition.
        attributes: names of its instance attributes.
        stateful: those of them that change during a run.
        holds: names of types and of functions whose results it holds from construction on.
        awaits: names of the types of attributes that are ``None`` at first.
    """

    name: str
    module: str
    node: ast.ClassDef
    attributes: set[str] = field(default_factory=set)
    stateful: set[str] = field(default_factory=set)
    holds: set[str] = field(default_factory=set)
    awaits: set[str] = field(default_factory=set)

    @property
    def bases(self) -> set[str]:
        """Names of its bases."""
        return {names[-1] for base in self.node.bases if (names := names_in(base))}

    @property
    def methods(self) -> list[Function]:
        """Its methods."""
        return [child for child in self.node.body if isinstance(child, Function)]

    @property
    def is_protocol(self) -> bool:
        """True if it only says what others have."""
        return "Protocol" in self.bases

    @property
    def changes(self) -> bool:
        """True if objects of it have attributes that may change."""
        return bool(self.attributes) and not is_frozen(self.node) and self.bases.isdisjoint(FIXED)


@dataclass(frozen=True)
class Package:
    """All classes of the counted rooms, and what their modules say.

    Attributes:
        classes: classes by name.
        returned: names in the annotation of what each function returns, by the function's name.
        exported: names that the package itself exports.
    """

    classes: Mapping[str, Class]
    returned: Mapping[str, set[str]]
    exported: set[str]

    def run_state(self) -> dict[str, Class]:
        """Return the classes of run state, by name."""
        return self._held(name for name in self.exported if name in self.classes)

    def executors(self) -> dict[str, Class]:
        """Return the classes with the methods of a protocol that run state holds, and what these hold, by name."""
        run = self.run_state()
        named = {name for holder in run.values() for name in self._types(holder.holds | holder.awaits)}
        protocols = [self.classes[name] for name in named if self.classes[name].is_protocol]
        having = (name for name, each in self.classes.items() if any(has(each, protocol) for protocol in protocols))
        return {name: each for name, each in self._held(having).items() if name not in run}

    def _held(self, roots: Iterable[str]) -> dict[str, Class]:
        waiting, seen = sorted(roots), dict[str, Class]()
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen[name] = self.classes[name]
                waiting += sorted(self._types(seen[name].holds))
        return {name: each for name, each in sorted(seen.items()) if each.changes}

    def _types(self, names: Iterable[str]) -> set[str]:
        """Return the classes among names, and those that functions among them return."""
        held = set().union(*({name} | self.returned.get(name, set()) for name in names))
        return held & self.classes.keys()


def package(known: Mapping[str, Module]) -> Package:
    """Read the counted rooms of a package."""
    trees = {name: ast.parse(module.source) for name, module in known.items()}
    counted = {name: tree for name, tree in trees.items() if room_of(name) not in WITHOUT}
    classes: dict[str, Class] = {}
    returned: dict[str, set[str]] = defaultdict(set)
    for name, tree in counted.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                key = f"{name}:{node.name}" if node.name in classes else node.name
                classes[key] = class_of(node, name)
            elif isinstance(node, Function) and node.returns is not None:
                returned[node.name].update(names_in(node.returns))
    for tree in counted.values():
        mentioned = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        mentioned |= {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        outside = {attribute for owner, attribute in assigned(tree) if owner != "self"}
        for name in mentioned & classes.keys():
            classes[name].stateful |= classes[name].attributes & outside
    exported = {
        alias.name for node in ast.walk(trees[PACKAGE]) if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    return Package(classes, returned, exported)


def class_of(node: ast.ClassDef, module: str) -> Class:
    """Read a class."""
    made = Class(node.name, module, node)
    if is_dataclass(node):
        for child in node.body:
            if isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
                names = names_in(child.annotation)
                if "ClassVar" not in names:
                    made.attributes.add(child.target.id)
                    made.holds.update(direct(child.annotation))
                    if not CONTAINERS.isdisjoint(names[:1]):
                        made.stateful.add(child.target.id)
    building = construction(made.methods)
    for method in made.methods:
        own = {attribute for owner, attribute in assigned(method) if owner == "self"}
        made.attributes |= own
        if method.name not in building:
            made.stateful |= own
            continue
        parameters = {each.arg: each.annotation for each in (*method.args.args, *method.args.kwonlyargs)}
        for targets, value, annotation in assignments(method):
            written = {attribute for owner, attribute in targets if owner == "self"}
            if not written:
                continue
            if is_container(value, annotation):
                made.stateful |= written
            if annotation is not None:
                starts_empty = isinstance(value, ast.Constant) and value.value is None
                (made.awaits if starts_empty else made.holds).update(direct(annotation))
            for part in ast.walk(value) if value is not None else ():
                if isinstance(part, ast.Call):
                    made.holds.update(names_in(part.func)[-1:])
                elif isinstance(part, ast.Name) and (of := parameters.get(part.id)) is not None:
                    made.holds.update(direct(of))
    return made


def construction(methods: Sequence[Function]) -> frozenset[str]:
    """Return the names of the methods that run only while an object is made: private ones that only these call too."""
    names = {method.name for method in methods}
    callers: dict[str, set[str]] = defaultdict(set)
    handed_on: set[str] = set()  # to a thread, or to whoever calls later
    for method in methods:
        called = {id(node.func) for node in ast.walk(method) if isinstance(node, ast.Call)}
        for node in ast.walk(method):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in names:
                callers[node.attr].add(method.name)
                if id(node) not in called:
                    handed_on.add(node.attr)
    makers = {method.name for method in methods if any("classmethod" in names_in(d) for d in method.decorator_list)}
    building = CONSTRUCTION & names
    private = {name for name in names - handed_on if name.startswith("_") and callers[name]}
    while more := {name for name in private - building if callers[name] <= building | makers}:
        building |= more
    return frozenset(building)


def assignments(
    tree: ast.AST,
) -> Iterator[tuple[list[tuple[str, str]], ast.expr | None, ast.expr | None]]:
    """Give what is assigned to attributes: owners' and attributes' names, the value, and the annotation."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            yield [pair for target in node.targets for pair in attributes_in(target)], node.value, None
        elif isinstance(node, ast.AnnAssign):
            yield [*attributes_in(node.target)], node.value, node.annotation
        elif isinstance(node, ast.AugAssign | ast.For | ast.NamedExpr):
            yield [*attributes_in(node.target)], None, None
        elif isinstance(node, ast.Delete):
            yield [pair for target in node.targets for pair in attributes_in(target)], None, None


def assigned(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Give the owner and the name of each attribute that is assigned."""
    for targets, _, _ in assignments(tree):
        yield from targets


def attributes_in(target: ast.expr) -> Iterator[tuple[str, str]]:
    """Give owner and name of the attributes in an assignment's target; the owner is the last name before the dot."""
    if isinstance(target, ast.Tuple | ast.List):
        for element in target.elts:
            yield from attributes_in(element)
    elif isinstance(target, ast.Starred):
        yield from attributes_in(target.value)
    elif isinstance(target, ast.Attribute):
        owner = target.value
        yield (owner.id if isinstance(owner, ast.Name) else ast.unparse(owner)), target.attr


def names_in(node: ast.expr) -> list[str]:
    """Return all names in an expression, those in quoted annotations too, in their order."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        try:
            node = ast.parse(node.value, mode="eval").body
        except SyntaxError:
            return []
    found = [part for part in ast.walk(node) if isinstance(part, ast.Name | ast.Attribute)]
    found.sort(key=lambda part: (part.end_lineno or 0, part.end_col_offset or 0))
    return [part.id if isinstance(part, ast.Name) else part.attr for part in found]


def direct(annotation: ast.expr) -> list[str]:
    """Return the types that an annotation names by themselves or beside ``None``, not those in containers."""
    if isinstance(annotation, ast.BinOp):
        return [*direct(annotation.left), *direct(annotation.right)]
    if isinstance(annotation, ast.Subscript):
        return direct(annotation.value)
    return names_in(annotation)[-1:]


def is_container(value: ast.expr | None, annotation: ast.expr | None) -> bool:
    """True if an attribute is a container that changes in place."""
    if annotation is not None and not CONTAINERS.isdisjoint(direct(annotation)):
        return True
    if isinstance(value, ast.Call):
        return not CONTAINERS.isdisjoint(names_in(value.func)[-1:])
    return isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp)


def is_dataclass(node: ast.ClassDef) -> bool:
    """True if a class is a dataclass."""
    return any("dataclass" in names_in(decorator) for decorator in node.decorator_list)


def is_frozen(node: ast.ClassDef) -> bool:
    """True if a class is a frozen dataclass."""
    calls = [decorator for decorator in node.decorator_list if isinstance(decorator, ast.Call)]
    return any(each.arg == "frozen" and ast.unparse(each.value) == "True" for call in calls for each in call.keywords)


def has(owner: Class, protocol: Class) -> bool:
    """True if a class that is no protocol has all methods of one."""
    wanted = {method.name for method in protocol.methods}
    return not owner.is_protocol and bool(wanted) and wanted <= {method.name for method in owner.methods}


def homonyms(known: Mapping[str, Module], names: Iterable[str] = HOMONYMS) -> dict[str, list[str]]:
    """Return where functions of given names are defined: ``module`` or ``module:Class``, without ``lab``."""
    places: dict[str, list[str]] = {name: [] for name in names}
    for module in known.values():
        if room_of(module.name) == "lab":
            continue
        tree = ast.parse(module.source)
        owners: list[tuple[str, ast.Module | ast.ClassDef]] = [(module.name, tree)]
        owners += [(f"{module.name}:{node.name}", node) for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        for place, owner in owners:
            for name in {child.name for child in owner.body if isinstance(child, Function)} & places.keys():
                places[name].append(place)
    return places


def rows(known: Mapping[str, Module]) -> Rows:
    """Return the record: totals, then each class, then each homonym."""
    read = package(known)
    every = {name: each for name, each in read.classes.items() if each.changes}
    kinds = {"run state": read.run_state(), "executor": read.executors()}
    kinds["other"] = {name: each for name, each in every.items() if not any(name in kind for kind in kinds.values())}
    totals: Rows = [
        {
            "what": f"total of {kind}",
            "classes": len(classes),
            "attributes": sum(len(each.attributes) for each in classes.values()),
            "stateful": sum(len(each.stateful) for each in classes.values()),
        }
        for kind, classes in (*kinds.items(), ("all", every))
    ]
    each_class: list[dict[str, Any]] = [
        {
            "what": kind,
            "class": name,
            "module": each.module,
            "attributes": len(each.attributes),
            "stateful": len(each.stateful),
            "names": sorted(each.attributes),
        }
        for kind, classes in kinds.items()
        for name, each in sorted(classes.items(), key=lambda pair: (pair[1].module, pair[0]))
    ]
    owners = [
        {"what": "homonym", "name": name, "definitions": len(places), "places": places}
        for name, places in homonyms(known).items()
    ]
    return [*totals, *each_class, *owners]


def table(record: Rows) -> str:
    """Lay a record out for a terminal."""
    lines = [f"{'':<64}attributes  stateful"]
    for row in record:
        if "class" in row:
            name = f"{row['what']:<10} {row['module']}:{row['class']}"
            lines.append(f"{name:<64}{row['attributes']:10d}{row['stateful']:10d}")
    lines.append("")
    for row in record:
        if "classes" in row:
            name = f"{row['what']}, {row['classes']} classes"
            lines.append(f"{name:<64}{row['attributes']:10d}{row['stateful']:10d}")
    lines.append("")
    lines += [
        f"{row['name']}: {row['definitions']} definitions: {', '.join(row['places'])}"
        for row in record
        if "places" in row
    ]
    return "\n".join(lines)


def main() -> None:
    """Count, print, and keep the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the record to this file")
    arguments = parser.parse_args()
    record = rows(modules())
    print(table(record))
    if arguments.json:
        keep(record, arguments.json)


if __name__ == "__main__":
    main()
