# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""One JSON object a line for every record, and the reader that gives the records back."""

import json
import math
import types
import typing
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, TextIO

from gravac.settings import SettingsError
from gravac.telemetry.quiet import Quiet
from gravac.telemetry.records import DecisionRecord, EndRecord, Record, RunRecord, StepRecord

KINDS: dict[str, type[Record]] = {"run": RunRecord, "step": StepRecord, "decision": DecisionRecord, "end": EndRecord}
"""The value of ``"kind"`` in a line, and the record it stands for."""

_KIND_OF = {record: kind for kind, record in KINDS.items()}
_FIELDS = {record: tuple(field.name for field in fields(record)) for record in _KIND_OF}
_HINTS = {record: typing.get_type_hints(record) for record in _KIND_OF}
_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode


class JSONLSink:
    """Appends each record as one line of valid JSON; every line is handed to the system at once.

    A number that is not finite becomes ``null``, as JSON has no word for it; in a run's settings, where ``inf`` is a
    choice, it becomes the string ``"inf"``. A step takes about 530 bytes: 53 MB for 100 000 steps.

    Args:
        path: file to append to; its folder is made when missing.

    Raises:
        SettingsError: ``path`` cannot be written to.
    """

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: TextIO | None = path.open("a", encoding="utf-8", buffering=1)
            if _ends_inside_a_line(path):
                self._file.write("\n")
        except OSError as error:
            raise SettingsError(
                f"path: cannot write to {str(path)!r} ({error.strerror}); give a file in a folder you may write to"
            ) from None
        self._quiet = Quiet(f"JSONLSink({str(path)!r})")

    def __call__(self, record: Record) -> None:
        """Write one record. Never raises: the first failure warns, later records are then dropped."""
        if self._file is None or self._quiet.failed:
            return
        with self._quiet:
            self._file.write(to_json(record) + "\n")  # line-buffered: a whole line goes to the system at once

    def close(self) -> None:
        """Flush and close the file. May be called again; records that come later are dropped."""
        file, self._file = self._file, None
        if file is not None:
            with self._quiet:
                file.close()


def to_json(record: Record) -> str:
    """The record as one line of JSON, ``"kind"`` first, without the line's end."""
    kind = type(record)
    values = {"kind": _KIND_OF[kind], **{name: getattr(record, name) for name in _FIELDS[kind]}}
    if isinstance(record, RunRecord):
        values["settings"] = plain_settings(record)
    try:
        return _encode(values)
    except ValueError:
        return _encode(json.loads(json.dumps(values), parse_constant=lambda _: None))


def plain_settings(record: RunRecord) -> dict[str, str | int | float | bool]:
    """The run's settings with ``inf`` and ``nan`` as words, which every reader of JSON takes."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in record.settings.items()
    }


def read_jsonl(path: str | Path) -> list[Record]:
    """The records of a file that ``JSONLSink`` wrote, of all its runs, in order.

    A line cut short by a crash is left out: the last one, or one before a run's first record. A ``null`` where a
    record holds a plain number comes back as ``nan``.

    Raises:
        ValueError: any other line is not a record; the message names file and line.
    """
    return list(_records(Path(path)))


def _records(path: Path) -> Iterator[Record]:
    torn: tuple[int, Exception] | None = None
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                record = _from_json(line)
            except (ValueError, KeyError, TypeError) as error:
                if torn is None:
                    torn = number, error
                    continue
                record = None
            if torn is not None and not isinstance(record, RunRecord):
                raise ValueError(f"{path}, line {torn[0]}: not a record of gravac ({torn[1]!r})")
            torn = None
            if record is not None:
                yield record


def _from_json(line: bytes) -> Record:
    values = json.loads(line)
    kind = KINDS[values["kind"]]
    return kind(**{name: _typed(values[name], _HINTS[kind][name]) for name in _FIELDS[kind] if name in values})


def _typed(value: Any, hint: Any) -> Any:
    """What JSON cannot say: tuples, and nan for a number that may not be missing."""
    if value is None:
        return None if isinstance(hint, types.UnionType) else math.nan
    if isinstance(value, list):
        return tuple(_typed(item, typing.get_args(hint)[0]) for item in value)
    if isinstance(value, dict):
        return {name: math.nan if item is None else item for name, item in value.items()}
    return value


def _ends_inside_a_line(path: Path) -> bool:
    if not path.is_file() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) != b"\n"
