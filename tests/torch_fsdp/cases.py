# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""torch's FSDP2 tests, found in a clone of pytorch; and each as an object that runs."""

import hashlib
import importlib.util
import sys
import traceback
import unittest
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.torch_fsdp import cpu

FOLDER = Path("test", "distributed", "_composable")
PATTERNS = ("fsdp/test_*.py", "test_replicate*.py")
"""Files that have the tests, within ``FOLDER``."""


@dataclass(frozen=True)
class Origin:
    """Where a test is from.

    Attributes:
        path: file, from the clone's root.
        blob: git's name of the file's content.
        module: the file, imported.
        kind: class that has the test.
        method: name of the test's method.
    """

    path: str
    blob: str
    module: ModuleType
    kind: type[unittest.TestCase]
    method: str


@dataclass
class Collection:
    """The tests of a clone.

    Attributes:
        origins: where each test is from, by name: file, class and method.
        failed_imports: last line of the error of each file that the installed torch cannot import, by path.
    """

    origins: dict[str, Origin] = field(default_factory=dict)
    failed_imports: dict[str, str] = field(default_factory=dict)


def collect(sources: Path) -> Collection:
    """Import the files with tests, moved to the CPU; once per process.

    Args:
        sources: root of a clone of pytorch.
    """
    cpu.before_import()
    root = sources / FOLDER
    sys.path[:0] = [str(root / "fsdp"), str(root)]
    collection = Collection()
    for path in sorted(file for pattern in PATTERNS for file in root.glob(pattern)):
        _collect_file(path, str(path.relative_to(sources)), collection)
    return collection


def _collect_file(path: Path, name: str, collection: Collection) -> None:
    content = path.read_bytes()
    blob = hashlib.sha1(b"blob %d\0%s" % (len(content), content), usedforsecurity=False).hexdigest()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception:
        collection.failed_imports[name] = traceback.format_exc().strip().splitlines()[-1]
        return
    for kind in list(vars(module).values()):
        if isinstance(kind, type) and issubclass(kind, unittest.TestCase) and kind.__module__ == path.stem:
            for method in unittest.TestLoader().getTestCaseNames(kind):
                origin = Origin(name, blob, module, kind, method)
                collection.origins[f"{path.stem}::{kind.__name__}::{method}"] = origin


def world(origin: Origin) -> int:
    """Return the number of ranks of a test, as its class says; 1 of a test that is not distributed."""
    case: Any = origin.kind(origin.method)
    ranks = int(getattr(case, "world_size", 1))
    return ranks if ranks > 0 else cpu.RANKS
