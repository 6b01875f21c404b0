# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Records as lines of JSON, an object per line, and the reader of such files."""

import functools
import json
import math
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import MISSING, asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

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

RecordT = TypeVar("RecordT")
"""A record, or a dataclass that is part of a record."""

RUN_VERSION = 6
"""``"version"`` in the line of a run; lines of runs with another version are refused."""

Check = Callable[[Record], None]
"""Function that raises ``ValueError``, with the field and its content, if a record has content that is not allowed."""

LARGEST_COUNT, LARGEST_NUMBER = 2**63, 1e100
"""Largest integer and largest finite number that a record may have: with larger numbers sums overflow."""

_KIND_OF = {record: kind for kind, record in KINDS.items()}
_hints: Callable[[Any], dict[str, Any]] = functools.cache(typing.get_type_hints)
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
    kind = type(record)
    fields_by_name: dict[str, Any] = {"kind": _KIND_OF[kind]}
    if isinstance(record, RunRecord):
        fields_by_name["version"] = RUN_VERSION
    fields_by_name.update((name, getattr(record, name)) for name in _hints(kind))
    if isinstance(record, RunRecord):
        fields_by_name["settings"] = plain_settings(record)
    try:
        return _encode(fields_by_name)
    except ValueError:
        return _encode(parse_back(fields_by_name))


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
                parsed = json.loads(line)
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
        ValueError: the line is no record that this gravac reads.
    """
    if not isinstance(parsed, dict) or not isinstance(name := parsed.get("kind"), str) or name not in KINDS:
        kinds = ", ".join(KINDS)
        raise ValueError(
            f"kind: {parsed.get('kind') if isinstance(parsed, dict) else parsed!r:.80}, one of {kinds} expected"
        )
    kind = KINDS[name]
    if kind is RunRecord and parsed.get("version") != RUN_VERSION:
        raise ValueError(f"version: {parsed.get('version')!r:.80}, and this gravac reads {RUN_VERSION}")
    return _build(kind, parsed, "")


def _build(kind: type[RecordT], parsed: Any, path: str) -> RecordT:
    """Build a record, or a dataclass that is part of a record, from a parsed JSON object.

    Args:
        kind: dataclass to build.
        parsed: the JSON object.
        path: path of the object in the line, for messages.

    Raises:
        ValueError: a field is missing, or its content is not allowed; the message has its path.
    """
    if not isinstance(parsed, dict):
        raise ValueError(f"{path}: {parsed!r:.80}, an object expected")
    prefix = f"{path}/" if path else ""
    untyped_kind: Any = kind
    for field in fields(untyped_kind):
        required = field.default is MISSING and field.default_factory is MISSING
        if required and field.name not in parsed:
            raise ValueError(f"{prefix}{field.name}: it is missing")
    hints = _hints(kind).items()
    return kind(**{name: _convert(parsed[name], hint, prefix + name) for name, hint in hints if name in parsed})


def _convert(parsed: Any, hint: Any, path: str) -> Any:
    """Convert parsed JSON to types that JSON does not have: tuples, dataclasses, and nan for a missing number.

    Args:
        parsed: content of a field, as ``json`` parsed it.
        hint: type of the field.
        path: path of the field in the line, for messages.

    Raises:
        ValueError: the content has another type, is too large, or is a string that the field does not allow.
    """
    allowed = typing.get_args(hint)
    if isinstance(hint, types.UnionType):
        return parsed if _has_type(parsed, allowed) else _refuse(parsed, path, " or ".join(map(_type_name, allowed)))
    if hint is float and parsed is None:
        return math.nan
    if isinstance(hint, type) and is_dataclass(hint):
        return _build(hint, parsed, path)
    if typing.get_origin(hint) is Literal:
        return parsed if parsed in allowed else _refuse(parsed, path, f"is none of {', '.join(allowed)}")
    if typing.get_origin(hint) is tuple:
        length = None if allowed[-1] is Ellipsis else len(allowed)
        if not isinstance(parsed, list) or len(parsed) != (len(parsed) if length is None else length):
            _refuse(parsed, path, "a list expected" if length is None else f"a list of {length} expected")
        hints = (allowed[0],) * len(parsed) if length is None else allowed
        return tuple(
            _convert(element, element_hint, f"{path}/{index}")
            for index, (element, element_hint) in enumerate(zip(parsed, hints, strict=True))
        )
    if typing.get_origin(hint) is dict:
        if not isinstance(parsed, dict):
            _refuse(parsed, path, "an object expected")
        entries = {name: math.nan if entry is None else entry for name, entry in parsed.items()}
        return {name: _convert(entry, allowed[1], f"{path}/{name}") for name, entry in entries.items()}
    return parsed if _has_type(parsed, (hint,)) else _refuse(parsed, path, _type_name(hint))


def _has_type(parsed: Any, kinds: tuple[Any, ...]) -> bool:
    """True if parsed JSON has one of some types, and is not too large; an integer counts as a float, too."""
    if type(parsed) is int and (int in kinds or float in kinds):
        return abs(parsed) < LARGEST_COUNT
    if type(parsed) is float and float in kinds:
        return abs(parsed) <= LARGEST_NUMBER or not math.isfinite(parsed)
    return type(parsed) in kinds


def _type_name(kind: Any) -> str:
    return {int: "an integer", float: "a number", str: "a word", bool: "true or false", type(None): "null"}[kind]


def _refuse(parsed: Any, path: str, expected: str) -> typing.NoReturn:
    shown = "an integer of many digits" if type(parsed) is int and parsed.bit_length() > 200 else f"{parsed!r:.80}"
    if expected.startswith(("an ", "a ", "true", "null")) and not expected.endswith("expected"):
        expected += " expected"
    raise ValueError(f"{path}: {shown}{' ' if expected.startswith('is ') else ', '}{expected}")


def _ends_mid_line(path: Path) -> bool:
    if not path.is_file() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) != b"\n"
