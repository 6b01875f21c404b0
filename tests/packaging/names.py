# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Find names in ``gravac/`` that would fit anything: everyday words where the field has a noun.

``make lint`` runs it. CONTRIBUTING says what to write instead.

    python -m tests.packaging.names [FOLDER ...]
"""

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]

WORDS = frozenset({
    "apart", "asked", "at", "before", "behind", "chosen", "data", "drawn", "folded", "found", "given", "held",
    "here", "it", "item", "kept", "known", "last", "least", "left", "made", "mine", "most", "now", "obj", "old",
    "one", "own", "part", "parts", "place", "plain", "ran", "reach", "res", "said", "share", "taken", "there",
    "tmp", "together", "told", "turn", "value", "wanted", "where", "whole", "words",
})  # fmt: skip
"""Words that say nothing of what they name."""

ALLOWED = {
    ("gravac/beliefs/tables.py", "apart"): "key in shipped.json",
    ("gravac/beliefs/tables.py", "least"): "key in shipped.json",
    ("gravac/candidate.py", "apart"): "field of logged forecasts",
    ("gravac/candidate.py", "behind"): "field of logged forecasts",
    ("gravac/checkpoint/fitting.py", "left"): "key of checkpoints",
    ("gravac/checkpoint/fitting.py", "made"): "key of checkpoints",
    ("gravac/checkpoint/fitting.py", "own"): "key of checkpoints",
    ("gravac/compressors/powersgd.py", "left"): "left factor of a matrix product",
    ("gravac/compressors/sparse.py", "parts"): "summands of a sparse tensor",
    ("gravac/compressors/thc.py", "reach"): "setting that users write",
    ("gravac/controllers/progress.py", "asked"): "key of checkpoints",
    ("gravac/controllers/progress.py", "before"): "stretch before the candidate's, beside the one after",
    ("gravac/controllers/progress.py", "made"): "key of checkpoints",
    ("gravac/engine/run_state.py", "made"): "key of checkpoints",
    ("gravac/lab/calibrate.py", "where"): "key of calibrations",
    ("gravac/lab/tasks/__init__.py", "data"): "setting that users write: folder of a task's data",
    ("gravac/lab/tasks/cifar.py", "data"): "setting that users write: folder of a task's data",
    ("gravac/lab/training/run.py", "data"): "setting that users write: folder of a task's data",
    ("gravac/lab/training/session.py", "data"): "setting that users write: folder of a task's data",
    ("gravac/lab/tta/matrix.py", "data"): "setting that users write: folder of a task's data",
    ("gravac/modes/native.py", "made"): "key of checkpoints",
    ("gravac/modes/outer/anchors.py", "data"): "attribute of torch's tensors",
    ("gravac/modes/outer/fragments.py", "data"): "attribute of torch's tensors",
    ("gravac/replay/play.py", "ran"): "field of replays in JSON",
    ("gravac/sources/fsdp2_outer.py", "data"): "attribute of torch's tensors",
    ("gravac/telemetry/records.py", "before"): "field of logged records, beside after",
}
"""Names that stay, by file and name, with the reason."""


class Definition(NamedTuple):
    """A name that a file defines.

    Attributes:
        line: line of the definition, from 1.
        name: the name, without underscores around it.
    """

    line: int
    name: str


def definitions(source: str) -> Iterator[Definition]:
    """Yield all names that a module defines: functions, classes, parameters, variables and attributes."""
    for node in ast.walk(ast.parse(source)):
        name = ""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = node.name
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = node.attr
        if name:
            yield Definition(node.lineno, name.strip("_"))


def opaque(source: str) -> list[Definition]:
    """Return the definitions of a module whose name is one of ``WORDS``, by line.

    Example:
        >>> opaque("at, position = 0, 1")
        [Definition(line=1, name='at')]
    """
    return sorted(definition for definition in definitions(source) if definition.name in WORDS)


def complaints(files: Iterable[Path], root: Path = ROOT) -> Iterator[str]:
    """Yield a line for each opaque name that ``ALLOWED`` lacks, and for each entry of it that nothing needs."""
    needed, seen = set(), set()
    for file in files:
        path = file.relative_to(root).as_posix()
        seen.add(path)
        for definition in opaque(file.read_text(encoding="utf-8")):
            needed.add((path, definition.name))
            if (path, definition.name) not in ALLOWED:
                yield f"{path}:{definition.line}: {definition.name!r} fits anything; use the field's noun"
    for path, name in sorted(ALLOWED.keys() - needed):
        if path in seen:
            yield f"{path}: ALLOWED in tests/packaging/names.py has {name!r}, which the file does not define"


def main() -> int:
    folders = [Path(argument).resolve() for argument in sys.argv[1:]] or [ROOT / "gravac"]
    lines = list(complaints(sorted(file for folder in folders for file in folder.rglob("*.py"))))
    print(*lines, sep="\n", end="\n" if lines else "")
    return bool(lines)


if __name__ == "__main__":
    raise SystemExit(main())
