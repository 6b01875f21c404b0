# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Records as lines of JSON, an object per line, and the reader of such files."""

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
from gravac.telemetry.sink_guard import Quiet

KINDS: dict[str, type[Record]] = {
    "run": RunRecord,
    "forecasts": ForecastsRecord,
    "step": StepRecord,
    "decision": DecisionRecord,
    "mode": ModeRecord,
    "progress": ProgressRecord,
    "end": EndRecord,
}
"""Class of a record for each ``"kind"`` that a line may have."""

RUN_VERSION = 6
"""``"version"`` in the line of a run; lines of runs with another version are refused."""

Check = Callable[[Record], None]
"""Function that raises ``ValueError``, with the field and its content, if a record has content that is not allowed."""

INTEGERS, LARGEST = 2**63, 1e100
"""Bound of a record's integers, and its largest finite number: with larger numbers sums overflow."""

EXPECTED = {
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
"""What a field accepts, by the type of pydantic's error; settings have a type of their own."""

_KIND_OF = {record: kind for kind, record in KINDS.items()}
_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=asdict).encode


class JSONLSink:
    """A sink that appends each record to a file as a line of valid JSON; every line is flushed at once.

    A number that is not finite becomes ``null``, since JSON has no such numbers. In a run's settings ``inf`` is a
    possible setting, and becomes the string ``"inf"``. A step takes about 600 bytes: 60 MB for 100 000 steps.

    Args:
        path: file to append to; its folder is created when missing.

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
        self._quiet = Quiet(f"JSONLSink({str(path)!r})")

    def __call__(self, record: Record) -> None:
        """Write a record. Never raises: the first failure warns, later records are then dropped."""
        if self._file.closed or self._quiet.failed:
            return
        with self._quiet:
            self._file.write(to_json(record) + "\n")  # line-buffered: each line is flushed at its end

    def close(self) -> None:
        """Flush and close the file. May be called again; later records are dropped."""
        with self._quiet:
            self._file.close()


def to_json(record: Record) -> str:
    """Return a record as a line of JSON, ``"kind"`` first, without the line's end."""
    kind: Any = type(record)
    fields_by_name: dict[str, Any] = {"kind": _KIND_OF[kind]}
    if isinstance(record, RunRecord):
        fields_by_name["version"] = RUN_VERSION
    fields_by_name.update((name, getattr(record, name)) for name in _field_names(kind))
    if isinstance(record, RunRecord):
        fields_by_name["settings"] = plain_settings(record)
    try:
        return _encode(fields_by_name)
    except ValueError:
        return _encode(parse_back(fields_by_name))


@functools.cache
def _field_names(kind: type[Any]) -> tuple[str, ...]:
    """Return the names of a record's fields in the order of a line: inherited fields, all keyword-only, come last."""
    return tuple(field.name for field in sorted(fields(kind), key=lambda field: field.kw_only is True))


def parse_back(content: Any) -> Any:
    """Return plain values and dataclasses as JSON reads them back; numbers that are not finite become ``None``."""
    return json.loads(json.dumps(content, default=asdict), parse_constant=lambda _: None)


def plain_settings(record: RunRecord) -> dict[str, str | int | float | bool]:
    """Return the run's settings with the strings ``"inf"`` and ``"nan"`` for such numbers, which JSON does not have."""
    return {
        name: str(setting) if isinstance(setting, float) and not math.isfinite(setting) else setting
        for name, setting in record.settings.items()
    }


def read_jsonl(path: str | Path, check: Check = lambda record: None) -> list[Record]:
    """Read the records of a file that ``JSONLSink`` wrote, of all its runs, in order.

    A line that a crash cut short is left out: the file's last line, or a line before a run's first record. A ``null``
    for a number that a record must have becomes ``nan``.

    Args:
        path: file to read.
        check: function that is called with each record.

    Raises:
        ValueError: another line is not a record, has content that is not allowed, or is that of a run of another
            version; the message names file, line, field and content.
    """
    return list(_read_records(Path(path), check))


def _read_records(path: Path, check: Check) -> Iterator[Record]:
    torn: tuple[int, Exception] | None = None
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            record, fault = None, None
            try:
                parsed = json.loads(line, parse_int=_integer, parse_float=_number)
            except (ValueError, RecursionError) as error:
                fault = number, error
            else:
                try:
                    record = _record_from(parsed)
                    check(record)
                except ValueError as error:
                    raise ValueError(f"{path}, line {number}: not a record of gravac: {error}") from None
            if torn is not None and not isinstance(record, RunRecord):
                raise ValueError(f"{path}, line {torn[0]}: not a record of gravac ({torn[1]!r})")
            if record is not None:
                yield record
            torn = fault


def _record_from(parsed: Any) -> Record:
    """Return the record of a parsed line.

    Raises:
        ValueError: the line is no record that this gravac reads; the message names field and content.
    """
    name = parsed.get("kind") if isinstance(parsed, dict) else parsed
    if not isinstance(parsed, dict) or not isinstance(name, str) or name not in KINDS:
        raise ValueError(f"kind: {name!r:.80}, one of {', '.join(KINDS)} expected")
    kind = KINDS[name]
    if kind is RunRecord and parsed.get("version") != RUN_VERSION:
        raise ValueError(f"version: {parsed.get('version')!r:.80}, and this gravac reads {RUN_VERSION}")
    return _validated(kind, parsed)


def _validated(kind: Any, parsed: dict[str, Any]) -> Record:
    """Return the record of a parsed line, whose kind is known.

    A ``null`` becomes nan in a field that must be a number. In a field that may be ``None``, ``null`` is ``None``.

    Raises:
        ValueError: see ``_record_from``.
    """
    try:
        record: Record = _adapter(kind).validate_json(json.dumps(parsed), strict=True)
        return record
    except ValidationError as error:
        faults = error.errors(include_url=False)
    for fault in faults:
        if fault["type"] != "float_type" or fault["input"] is not None:
            raise ValueError(_describe(fault))
        *path, name = fault["loc"]
        container: Any = parsed
        for key in path:
            container = container[key]
        container[name] = math.nan
    return _validated(kind, parsed)


@functools.cache
def _adapter(kind: type[Record]) -> TypeAdapter[Any]:
    """Return pydantic's adapter of a record; made once."""
    return TypeAdapter(kind)


def _integer(digits: str) -> int | str:
    """Return an integer of a line; one that is too large stays text, which no field for an integer accepts."""
    return digits if len(digits) > 20 or abs(int(digits)) >= INTEGERS else int(digits)


def _number(text: str) -> float | str:
    """Return a number of a line; one that is too large stays text, which no field for a number accepts."""
    number = float(text)
    return text if LARGEST < abs(number) < math.inf else number


def _describe(fault: ErrorDetails) -> str:
    """Describe a fault that pydantic found in a line: path of the field, its content, and what is expected there."""
    keys, kind = fault["loc"], fault["type"]
    if keys[:1] == ("settings",) and len(keys) > 2:  # the last key names one of the types that a setting may have
        keys, kind = keys[:2], "setting"
    elif kind == "missing" and isinstance(keys[-1], int):  # an element of a pair
        keys, kind = keys[:-1], "too_long"
    path, content = "/".join(map(str, keys)), f"{fault['input']!r:.80}"
    if kind == "missing":
        return f"{path}: it is missing"
    if kind == "literal_error":
        allowed = fault["ctx"]["expected"].replace("'", "").replace(" or ", ", ")
        return f"{path}: {content} is none of {allowed}"
    return f"{path}: {content}, " + (f"{EXPECTED[kind]} expected" if kind in EXPECTED else fault["msg"])


def _ends_mid_line(path: Path) -> bool:
    if not path.is_file() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) != b"\n"
