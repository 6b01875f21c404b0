# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""One JSON object a line for every record, and the reader that gives the records back."""

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
from gravac.telemetry.quiet import Quiet
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

KINDS: dict[str, type[Record]] = {
    "run": RunRecord,
    "forecasts": ForecastsRecord,
    "step": StepRecord,
    "decision": DecisionRecord,
    "mode": ModeRecord,
    "progress": ProgressRecord,
    "end": EndRecord,
}
"""The value of ``"kind"`` in a line, and the record it stands for."""

Made = TypeVar("Made")
"""A record, or a dataclass that stands in one."""

RUN_VERSION = 6
"""Value of ``"version"`` in the line of a run; lines of runs with another are refused."""

Check = Callable[[Record], None]
"""A function that raises ``ValueError``, naming field and value, where a record holds what it may not hold."""

LARGEST_COUNT, LARGEST_NUMBER = 2**63, 1e100
"""Largest integer and largest finite number that a record holds: with larger ones sums overflow."""

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


def read_jsonl(path: str | Path, check: Check = lambda record: None) -> list[Record]:
    """Read the records of a file that ``JSONLSink`` wrote, of all its runs, in order.

    A line cut short by a crash is left out: the last one, or one before a run's first record. A ``null`` where a
    record holds a plain number comes back as ``nan``.

    Args:
        path: file to read.
        check: called with each record.

    Raises:
        ValueError: any other line is not a record, holds what it may not hold, or is a run's of another version; the
            message names file, line, field and value.
    """
    return list(_records(Path(path), check))


def _records(path: Path, check: Check) -> Iterator[Record]:
    torn: tuple[int, Exception] | None = None
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            record, fault = None, None
            try:
                values = json.loads(line)
            except (ValueError, RecursionError) as error:
                fault = number, error
            else:
                try:
                    record = _from_json(values)
                    check(record)
                except ValueError as error:
                    raise ValueError(f"{path}, line {number}: not a record of gravac: {error}") from None
            if torn is not None and not isinstance(record, RunRecord):
                raise ValueError(f"{path}, line {torn[0]}: not a record of gravac ({torn[1]!r})")
            if record is not None:
                yield record
            torn = fault


def _from_json(values: Any) -> Record:
    if not isinstance(values, dict) or not isinstance(told := values.get("kind"), str) or told not in KINDS:
        kinds = ", ".join(KINDS)
        raise ValueError(
            f"kind: {values.get('kind') if isinstance(values, dict) else values!r:.80}, one of {kinds} expected"
        )
    kind = KINDS[told]
    if kind is RunRecord and values.get("version") != RUN_VERSION:
        raise ValueError(f"version: {values.get('version')!r:.80}, and this gravac reads {RUN_VERSION}")
    return _made(kind, values, "")


def _made(kind: type[Made], values: Any, path: str) -> Made:
    """Make a record, or a part of one, of a line's values.

    Raises:
        ValueError: a value is missing, or none that the record may hold; names its path.
    """
    if not isinstance(values, dict):
        raise ValueError(f"{path}: {values!r:.80}, an object expected")
    prefix = f"{path}/" if path else ""
    given: Any = kind
    for field in fields(given):
        required = field.default is MISSING and field.default_factory is MISSING
        if required and field.name not in values:
            raise ValueError(f"{prefix}{field.name}: it is missing")
    hints = _hints(kind).items()
    return kind(**{name: _typed(values[name], hint, prefix + name) for name, hint in hints if name in values})


def _typed(value: Any, hint: Any, path: str) -> Any:
    """What JSON cannot say: tuples, dataclasses, and nan for a number that may not be missing.

    Raises:
        ValueError: the value is of another type, or too large, or a word is none of those the record may hold.
    """
    allowed = typing.get_args(hint)
    if isinstance(hint, types.UnionType):
        return value if _is_one_of(value, allowed) else _refuse(value, path, " or ".join(map(_told, allowed)))
    if hint is float and value is None:
        return math.nan
    if isinstance(hint, type) and is_dataclass(hint):
        return _made(hint, value, path)
    if typing.get_origin(hint) is Literal:
        return value if value in allowed else _refuse(value, path, f"is none of {', '.join(allowed)}")
    if typing.get_origin(hint) is tuple:
        length = None if allowed[-1] is Ellipsis else len(allowed)
        if not isinstance(value, list) or len(value) != (len(value) if length is None else length):
            _refuse(value, path, "a list expected" if length is None else f"a list of {length} expected")
        hints = (allowed[0],) * len(value) if length is None else allowed
        return tuple(_typed(part, its, f"{path}/{at}") for at, (part, its) in enumerate(zip(value, hints, strict=True)))
    if typing.get_origin(hint) is dict:
        if not isinstance(value, dict):
            _refuse(value, path, "an object expected")
        numbers = {name: math.nan if part is None else part for name, part in value.items()}
        return {name: _typed(part, allowed[1], f"{path}/{name}") for name, part in numbers.items()}
    return value if _is_one_of(value, (hint,)) else _refuse(value, path, _told(hint))


def _is_one_of(value: Any, kinds: tuple[Any, ...]) -> bool:
    if type(value) is int and (int in kinds or float in kinds):
        return abs(value) < LARGEST_COUNT
    if type(value) is float and float in kinds:
        return abs(value) <= LARGEST_NUMBER or not math.isfinite(value)
    return type(value) in kinds


def _told(kind: Any) -> str:
    return {int: "an integer", float: "a number", str: "a word", bool: "true or false", type(None): "null"}[kind]


def _refuse(value: Any, path: str, expected: str) -> typing.NoReturn:
    shown = "an integer of many digits" if type(value) is int and value.bit_length() > 200 else f"{value!r:.80}"
    if expected.startswith(("an ", "a ", "true", "null")) and not expected.endswith("expected"):
        expected += " expected"
    raise ValueError(f"{path}: {shown}{' ' if expected.startswith('is ') else ', '}{expected}")


def _ends_inside_a_line(path: Path) -> bool:
    if not path.is_file() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) != b"\n"
