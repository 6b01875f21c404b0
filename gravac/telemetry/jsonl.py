# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""One JSON object a line for every record, and the reader that gives the records back."""

import functools
import json
import math
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from gravac.settings import SettingsError
from gravac.telemetry.quiet import Quiet
from gravac.telemetry.records import DecisionRecord, EndRecord, Record, RunRecord, StepRecord

KINDS: dict[str, type[Record]] = {"run": RunRecord, "step": StepRecord, "decision": DecisionRecord, "end": EndRecord}
"""The value of ``"kind"`` in a line, and the record it stands for."""

Made = TypeVar("Made")
"""A record, or a dataclass that stands in one."""

RUN_VERSION = 2
"""Value of ``"version"`` in the line of a run; a line without one is of version 1, which had candidates in words."""

OldRun = Callable[[dict[str, Any]], RunRecord]
"""A function that makes a run's record from the values in its line of version 1."""

_KIND_OF = {record: kind for kind, record in KINDS.items()}
_hints: Callable[[Any], dict[str, Any]] = functools.cache(typing.get_type_hints)
_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=asdict).encode


class JSONLSink:
    """A sink that appends each record as one line of valid JSON; every line is handed to the system at once.

    A number that is not finite becomes ``null``, as JSON has no word for it; in a run's settings, where ``inf`` is a
    choice, it becomes the string ``"inf"``. A step takes about 600 bytes: 60 MB for 100 000 steps.

    Args:
        path: file to append to; its folder is made when missing.

    Raises:
        SettingsError: ``path`` cannot be written to.
    """

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", encoding="utf-8", buffering=1)
            if _ends_inside_a_line(path):
                self._file.write("\n")
        except OSError as error:
            raise SettingsError(
                f"path: cannot write to {str(path)!r} ({error.strerror}); give a file in a folder you may write to"
            ) from None
        self._quiet = Quiet(f"JSONLSink({str(path)!r})")

    def __call__(self, record: Record) -> None:
        """Write one record. Never raises: the first failure warns, later records are then dropped."""
        if self._file.closed or self._quiet.failed:
            return
        with self._quiet:
            self._file.write(to_json(record) + "\n")  # line-buffered: a whole line goes to the system at once

    def close(self) -> None:
        """Flush and close the file. May be called again; records that come later are dropped."""
        with self._quiet:
            self._file.close()


def to_json(record: Record) -> str:
    """The record as one line of JSON, ``"kind"`` first, without the line's end."""
    kind = type(record)
    values: dict[str, Any] = {"kind": _KIND_OF[kind]}
    if isinstance(record, RunRecord):
        values["version"] = RUN_VERSION
    values.update((name, getattr(record, name)) for name in _hints(kind))
    if isinstance(record, RunRecord):
        values["settings"] = plain_settings(record)
    try:
        return _encode(values)
    except ValueError:
        return _encode(finite(values))


def finite(values: Any) -> Any:
    """Plain values and dataclasses as JSON gives them back, with ``None`` for each number that is not finite."""
    return json.loads(json.dumps(values, default=asdict), parse_constant=lambda _: None)


def plain_settings(record: RunRecord) -> dict[str, str | int | float | bool]:
    """The run's settings with ``inf`` and ``nan`` as words, which every reader of JSON takes."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in record.settings.items()
    }


def read_jsonl(path: str | Path, old_run: OldRun | None = None) -> list[Record]:
    """Read the records of a file that ``JSONLSink`` wrote, of all its runs, in order.

    A line cut short by a crash is left out: the last one, or one before a run's first record. A ``null`` where a
    record holds a plain number comes back as ``nan``.

    Args:
        path: file to read.
        old_run: reads the runs of version 1, whose candidates are words; ``gravac.replay.old_records.run_of_words``.

    Raises:
        ValueError: any other line is not a record, or a run is of a version that is not read; the message names file
            and line.
    """
    return list(_records(Path(path), old_run))


class _VersionError(Exception):
    """A run's line is whole, and of a version that is not read."""


def _records(path: Path, old_run: OldRun | None) -> Iterator[Record]:
    torn: tuple[int, Exception] | None = None
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            record, fault = None, None
            try:
                record = _from_json(line, old_run)
            except _VersionError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
            except (ValueError, KeyError, TypeError) as error:
                fault = number, error
            if torn is not None and not isinstance(record, RunRecord):
                raise ValueError(f"{path}, line {torn[0]}: not a record of gravac ({torn[1]!r})")
            if record is not None:
                yield record
            torn = fault


def _from_json(line: bytes, old_run: OldRun | None) -> Record:
    values = json.loads(line)
    kind = KINDS[values["kind"]]
    version = values.get("version", 1) if kind is RunRecord else RUN_VERSION
    if version == 1 and old_run is not None:
        return old_run(values)
    if version != RUN_VERSION:
        raise _VersionError(
            f"a run of version {version!r}, this gravac reads {RUN_VERSION}; version 1 is read with "
            "old_run=gravac.replay.old_records.run_of_words"
        )
    return _made(kind, values)


def _made(kind: type[Made], values: dict[str, Any]) -> Made:
    return kind(**{name: _typed(values[name], hint) for name, hint in _hints(kind).items() if name in values})


def _typed(value: Any, hint: Any) -> Any:
    """What JSON cannot say: tuples, dataclasses, and nan for a number that may not be missing.

    Raises:
        ValueError: a word is none of those the record may hold.
    """
    if value is None:
        return None if isinstance(hint, types.UnionType) else math.nan
    if isinstance(hint, type) and is_dataclass(hint):
        return _made(hint, value)
    if isinstance(value, list):
        return tuple(_typed(item, typing.get_args(hint)[0]) for item in value)
    if isinstance(value, dict):
        return {name: math.nan if item is None else item for name, item in value.items()}
    if typing.get_origin(hint) is Literal and value not in typing.get_args(hint):
        raise ValueError(f"{value!r} is none of {', '.join(typing.get_args(hint))}")
    return value


def _ends_inside_a_line(path: Path) -> bool:
    if not path.is_file() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) != b"\n"
