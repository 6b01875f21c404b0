# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Writes records to a file, one JSON object per line, and reads such files."""

import functools
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from gravac.settings import SettingsError
from gravac.telemetry.records import (
    DecisionRecord,
    EndRecord,
    ForecastsRecord,
    ModeRecord,
    ProgressRecord,
    Record,
    RunRecord,
    StepRecord,
)
from gravac.telemetry.sink_guard import SinkGuard

RECORD_CLASSES: dict[str, type[Record]] = {
    "run": RunRecord,
    "forecasts": ForecastsRecord,
    "step": StepRecord,
    "decision": DecisionRecord,
    "mode": ModeRecord,
    "progress": ProgressRecord,
    "end": EndRecord,
}
"""Class of the record for each ``"kind"`` that a line may have."""

RUN_VERSION = 6
"""Value of ``"version"`` in the line of a ``RunRecord``; lines of another version cannot be read."""

CheckRecord = Callable[[Record], None]
"""Function that is called with a record, and raises a ``ValueError`` (field and content) to reject the record."""

INTEGER_BOUND, LARGEST_NUMBER = 2**63, 1e100
"""Limits of the magnitude of a record's integers, and of its other finite numbers: sums of larger ones overflow."""

ACCEPTED_TEXTS = {
    "bool_type": "true or false",
    "dataclass_type": "an object",
    "dict_type": "an object",
    "float_type": "a number",
    "int_type": "an integer",
    "setting": "a word, a number, or true or false",
    "string_type": "a word",
    "too_long": "a list of 2",
    "tuple_type": "a list",
}
"""What a field accepts, as text for error messages, by the type of pydantic's error; ``"setting"``: a run's setting."""

_KIND_OF_CLASS = {record_class: kind for kind, record_class in RECORD_CLASSES.items()}
_encode_json = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=asdict).encode


class JSONLSink:
    """Sink that appends each record to a file as a line of valid JSON, and flushes every line at once.

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
            self._file.write(to_json(record) + "\n")  # line-buffered: each line is flushed at its end

    def close(self) -> None:
        """Close the file. May be called again; records that come later are dropped."""
        with self._guard:
            self._file.close()


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
        return _encode_json(parse_back(fields_by_name))


@functools.cache
def _field_names(record_class: type[Any]) -> tuple[str, ...]:
    """Return the names of a record's fields in the order of a line: inherited fields (keyword-only) come last."""
    return tuple(field.name for field in sorted(fields(record_class), key=lambda field: field.kw_only is True))


def parse_back(content: Any) -> Any:
    """Return plain values or dataclasses as they are after writing to JSON and reading; NaN and inf become ``None``."""
    return json.loads(json.dumps(content, default=asdict), parse_constant=lambda _: None)


def plain_settings(record: RunRecord) -> dict[str, str | int | float | bool]:
    """Return the run's settings, with strings such as ``"inf"`` and ``"nan"`` for numbers that JSON does not have."""
    return {
        name: str(setting) if isinstance(setting, float) and not math.isfinite(setting) else setting
        for name, setting in record.settings.items()
    }


def read_jsonl(path: str | Path, check: CheckRecord = lambda record: None) -> list[Record]:
    """Return the records of a file that ``JSONLSink`` wrote, of all runs in the file, in order.

    A line that a crash cut short is left out: the file's last line, or the last line before another run's first line. A
    ``null`` becomes ``nan`` in a field that must have a number.

    Args:
        path: file to read.
        check: function that is called with each record, and raises a ``ValueError`` to reject the record.

    Raises:
        ValueError: a line that no crash cut short is not a record, has a field with a forbidden value, is rejected by
            ``check``, or begins a run of another version. The message has file, line and what is wrong.
    """
    return list(_read_records(Path(path), check))


def _read_records(path: Path, check: CheckRecord) -> Iterator[Record]:
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
                parsed_line = json.loads(line, parse_int=_parse_integer, parse_float=_parse_number)
            except (ValueError, RecursionError) as error:
                line_fault = line_number, error
            else:
                try:
                    record = _record_from(parsed_line)
                    check(record)
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
            raise ValueError(_describe_fault(fault))
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


def _parse_integer(digits: str) -> int | str:
    """Convert the text of an integer to an int; if it is too large, return the text, which no integer field accepts."""
    return digits if len(digits) > 20 or abs(int(digits)) >= INTEGER_BOUND else int(digits)


def _parse_number(text: str) -> float | str:
    """Convert the text of a number to a float; if it is too large, return the text, which no number field accepts."""
    number = float(text)
    return text if LARGEST_NUMBER < abs(number) < math.inf else number


def _describe_fault(fault: ErrorDetails) -> str:
    """Return an error message about a fault that pydantic found in a line: the field, its content, what is allowed."""
    location, error_type = fault["loc"], fault["type"]
    # in the location of a setting, the last key names one of the types that a setting may have
    if location[:1] == ("settings",) and len(location) > 2:
        location, error_type = location[:2], "setting"
    elif error_type == "missing" and isinstance(location[-1], int):  # an element of a pair
        location, error_type = location[:-1], "too_long"
    field_path, content_text = "/".join(map(str, location)), f"{fault['input']!r:.80}"
    if error_type == "missing":
        return f"{field_path}: the field is missing"
    if error_type == "literal_error":
        allowed_values = fault["ctx"]["expected"].replace("'", "").replace(" or ", ", ")
        return f"{field_path}: {content_text} is none of {allowed_values}"
    return (
        f"{field_path}: {content_text} is not {ACCEPTED_TEXTS[error_type]}"
        if error_type in ACCEPTED_TEXTS
        else f"{field_path}: {content_text}: {fault['msg']}"
    )


def _ends_mid_line(path: Path) -> bool:
    """True if a file has content but does not end with a newline, because a crash cut its last line short."""
    if not path.is_file() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) != b"\n"
