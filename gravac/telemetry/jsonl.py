# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Writes records to a file, one JSON object per line, and reads such files."""

import functools
import json
import math
import platform
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, fields, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TextIO

import torch
from pydantic import TypeAdapter, ValidationError

from gravac.settings import SettingsError
from gravac.telemetry.records import (
    DecisionRecord,
    EndRecord,
    ForecastsRecord,
    ModeRecord,
    Record,
    RunRecord,
    StepRecord,
)
from gravac.telemetry.sink_guard import SinkGuard
from gravac.version import __version__

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

RECORD_CLASSES: dict[str, type[Record]] = {
    "run": RunRecord,
    "forecasts": ForecastsRecord,
    "step": StepRecord,
    "decision": DecisionRecord,
    "mode": ModeRecord,
    "end": EndRecord,
}
"""Class of the record for each ``"kind"`` that a line may have."""

RUN_VERSION = 7
"""Value of ``"version"`` in the line of a ``RunRecord``; lines of another version cannot be read."""

_KIND_OF_CLASS = {record_class: kind for kind, record_class in RECORD_CLASSES.items()}
_encode_json = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=asdict).encode


class JSONLSink:
    """Sink that appends each record to a file as a line of valid JSON, and flushes every line at once.

    The line of a run also has the time, the host's name and the versions of gravac, torch and Python.

    A number that is not finite becomes ``null``, since JSON has no such numbers. In a run's settings, however, ``inf``
    becomes the string ``"inf"``. A step takes about 600 bytes: 60 MB for 100 000 steps.

    Args:
        path: file to append to; its folder is created if missing.

    Raises:
        SettingsError: ``path`` cannot be written to.
    """

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", encoding="utf-8", buffering=1)
            if not _lock(self._file):
                warnings.warn(
                    f"gravac: another run is writing to {str(path)!r}, where the records of both are mixed now; give "
                    "each run a log_dir of its own",
                    stacklevel=2,
                )
            if _ends_mid_line(path):
                self._file.write("\n")
        except OSError as error:
            raise SettingsError(
                f"path: cannot write to {str(path)!r} ({error.strerror}); give a file in a folder you may write to"
            ) from None
        self._guard = SinkGuard(f"JSONLSink({str(path)!r})")

    def __call__(self, record: Record) -> None:
        """Write a record. Never raises: the first failure causes a warning, and later records are dropped."""
        if self._file.closed or self._guard.has_failed:
            return
        with self._guard:
            if isinstance(record, RunRecord):
                record = with_origin(record)
            self._file.write(to_json(record) + "\n")  # line-buffered: each line is flushed at its end

    def close(self) -> None:
        """Close the file. May be called again; records that come later are dropped."""
        with self._guard:
            if not self._file.closed:
                _unlock(self._file)
            self._file.close()


def with_origin(record: RunRecord) -> RunRecord:
    """Return the record of a run with the present time, this machine's name, and versions; unchanged if it has them."""
    if record.begun:
        return record
    versions = {"gravac": __version__, "torch": str(torch.__version__), "python": platform.python_version()}
    begun = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return replace(record, begun=begun, host=platform.node(), versions=versions)


def _lock(file: TextIO) -> bool:
    """Mark an open file as being written to; return False if another run has marked the file.

    Returns True, too, if the operating system or the file system has no locks.
    """
    if fcntl is None:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _unlock(file: TextIO) -> None:
    """Undo ``_lock`` at once, although a forked process, such as a data loader's worker, may still have the file."""
    if fcntl is not None:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)


def to_json(record: Record) -> str:
    """Return a record as a line of JSON, ``"kind"`` first, without a newline."""
    record_class: Any = type(record)
    fields_by_name: dict[str, Any] = {"kind": _KIND_OF_CLASS[record_class]}
    if isinstance(record, RunRecord):
        fields_by_name["version"] = RUN_VERSION
    fields_by_name.update((name, getattr(record, name)) for name in _field_names(record_class))
    if isinstance(record, RunRecord):
        fields_by_name["settings"] = plain_settings(record)
    try:
        return _encode_json(fields_by_name)
    except ValueError:
        fields_by_name = json.loads(json.dumps(fields_by_name, default=asdict), parse_constant=lambda _: None)
        return _encode_json(fields_by_name)


@functools.cache
def _field_names(record_class: type[Any]) -> tuple[str, ...]:
    """Return the names of a record's fields in the order of a line: inherited fields (keyword-only) come last."""
    return tuple(field.name for field in sorted(fields(record_class), key=lambda field: field.kw_only is True))


def plain_settings(record: RunRecord) -> dict[str, str | int | float | bool]:
    """Return the run's settings, with strings such as ``"inf"`` and ``"nan"`` for numbers that JSON does not have."""
    return {
        name: str(setting) if isinstance(setting, float) and not math.isfinite(setting) else setting
        for name, setting in record.settings.items()
    }


def read_jsonl(path: str | Path) -> list[Record]:
    """Return the records of a file that ``JSONLSink`` wrote, of all runs in the file, in order.

    A line that a crash cut short is left out: the file's last line, or the last line before another run's first line. A
    ``null`` becomes ``nan`` in a field that must have a number.

    Args:
        path: file to read.

    Raises:
        ValueError: a line that no crash cut short is not a record, has a field with a forbidden value, or begins a run
            of another version. The message has file, line and what is wrong.
    """
    return list(_read_records(Path(path)))


def _read_records(path: Path) -> Iterator[Record]:
    """Yield the records of a file one by one, without lines that a crash cut short.

    Arguments and exceptions are those of ``read_jsonl``.
    """
    cut_line: tuple[int, Exception] | None = None
    with path.open("rb") as file:
        for line_number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            record, line_fault = None, None
            try:
                parsed_line = json.loads(line)
            except (ValueError, RecursionError) as error:
                line_fault = line_number, error
            else:
                try:
                    record = _record_from(parsed_line)
                except ValueError as error:
                    raise ValueError(f"{path}, line {line_number}: not a record of gravac: {error}") from None
            if cut_line is not None and not isinstance(record, RunRecord):
                raise ValueError(
                    f"{path}, line {cut_line[0]}: not a record of gravac: not JSON "
                    f"({getattr(cut_line[1], 'msg', cut_line[1])}); remove the line"
                )
            if record is not None:
                yield record
            cut_line = line_fault


def _record_from(parsed_line: Any) -> Record:
    """Convert a line, as ``json.loads`` returned it, to a record of the class that its ``"kind"`` names.

    Raises:
        ValueError: the line is no record that this gravac reads; the message names field and content.
    """
    kind = parsed_line.get("kind") if isinstance(parsed_line, dict) else parsed_line
    if not isinstance(parsed_line, dict) or not isinstance(kind, str) or kind not in RECORD_CLASSES:
        raise ValueError(f"kind: {kind!r:.80} is none of {', '.join(RECORD_CLASSES)}; give a file that gravac wrote")
    record_class = RECORD_CLASSES[kind]
    if record_class is RunRecord and parsed_line.get("version") != RUN_VERSION:
        raise ValueError(
            f"version: {parsed_line.get('version')!r:.80} cannot be read; this gravac reads version {RUN_VERSION} "
            "only: read the file with the gravac that wrote it, or record the run again"
        )
    return _validate(record_class, parsed_line)


def _validate(record_class: Any, parsed_line: dict[str, Any]) -> Record:
    """Convert a line, as ``json.loads`` returned it, to a record of a class, while pydantic checks the fields.

    A ``null`` becomes nan in a field that must have a number, and ``None`` in a field that may be ``None``.

    Raises:
        ValueError: the line lacks a field, or a field has forbidden content; the message names the field.
    """
    try:
        record: Record = _type_adapter(record_class).validate_json(json.dumps(parsed_line), strict=True)
        return record
    except ValidationError as error:
        faults = error.errors(include_url=False)
    for fault in faults:
        if fault["type"] != "float_type" or fault["input"] is not None:
            field_path = "/".join(map(str, fault["loc"]))
            raise ValueError(f"{field_path}: {fault['input']!r:.80}: {fault['msg']}")
        *container_keys, field_name = fault["loc"]
        parent_of_field: Any = parsed_line
        for container_key in container_keys:
            parent_of_field = parent_of_field[container_key]
        parent_of_field[field_name] = math.nan
    return _validate(record_class, parsed_line)


@functools.cache
def _type_adapter(record_class: type[Record]) -> TypeAdapter[Any]:
    """Return pydantic's adapter that checks the fields of a class of records; create the adapter only once."""
    return TypeAdapter(record_class)


def _ends_mid_line(path: Path) -> bool:
    """True if a file has content but does not end with a newline, because a crash cut its last line short."""
    if not path.is_file() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) != b"\n"
