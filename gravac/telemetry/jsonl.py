# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Records as lines of JSON, an object per line, and the reader of such files."""

import functools
import json
import math
import operator
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import MISSING, asdict, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, TypeAdapter, ValidationError, create_model
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

LARGEST_COUNT, LARGEST_NUMBER = 2**63, 1e100
"""Largest integer and largest finite number that a record may have: with larger numbers sums overflow."""

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
    kind = type(record)
    fields_by_name: dict[str, Any] = {"kind": _KIND_OF[kind]}
    if isinstance(record, RunRecord):
        fields_by_name["version"] = RUN_VERSION
    fields_by_name.update((field.name, getattr(record, field.name)) for field in fields(record))
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
                    record = _record_from(line, parsed)
                    check(record)
                except ValueError as error:
                    raise ValueError(f"{path}, line {number}: not a record of gravac: {error}") from None
            if torn is not None and not isinstance(record, RunRecord):
                raise ValueError(f"{path}, line {torn[0]}: not a record of gravac ({torn[1]!r})")
            if record is not None:
                yield record
            torn = fault


def _record_from(line: bytes, parsed: Any) -> Record:
    """Return the record of a line.

    Args:
        line: the line.
        parsed: content of the line, as ``json`` parsed it.

    Raises:
        ValueError: the line is no record that this gravac reads; the message names field and content.
    """
    name = parsed.get("kind") if isinstance(parsed, dict) else parsed
    if not isinstance(parsed, dict) or not isinstance(name, str) or name not in KINDS:
        raise ValueError(f"kind: {name!r:.80}, one of {', '.join(KINDS)} expected")
    kind = KINDS[name]
    if kind is RunRecord and parsed.get("version") != RUN_VERSION:
        raise ValueError(f"version: {parsed.get('version')!r:.80}, and this gravac reads {RUN_VERSION}")
    try:
        record: Record = _adapter(kind).validate_json(line, strict=True)
    except ValidationError as error:
        raise ValueError(_describe(error.errors(include_url=False)[0])) from None
    return record


@functools.cache
def _adapter(kind: type[Record]) -> TypeAdapter[Any]:
    """Return pydantic's adapter that reads a record; made once."""
    return TypeAdapter(_readable(kind))


def _readable(hint: Any) -> Any:
    """Return the type by which pydantic reads a field from JSON: tuples are lists, dataclasses are objects.

    Numbers in it are limited, and ``null`` is nan for a number that cannot be ``None``.

    Args:
        hint: type of the field, or a dataclass.
    """
    if hint in _READABLE:
        return _READABLE[hint]
    if is_dataclass(hint):
        return _readable_dataclass(hint)
    arguments = tuple(map(_readable, typing.get_args(hint)))
    if isinstance(hint, types.UnionType):
        return functools.reduce(operator.or_, arguments)
    origin: Any = typing.get_origin(hint)
    return origin[arguments] if arguments else hint


def _readable_dataclass(kind: Any) -> Any:
    """Return the type by which pydantic reads a dataclass; keys that are no fields are ignored."""
    hints, definitions = typing.get_type_hints(kind), dict[str, Any]()
    for field in fields(kind):
        required = field.default is MISSING and field.default_factory is MISSING
        definitions[field.name] = (_readable(hints[field.name]), ... if required else None)
    model = create_model(kind.__name__, **definitions)

    def build(parsed: BaseModel) -> Any:
        return kind(**{name: getattr(parsed, name) for name in parsed.model_fields_set})

    return Annotated[model, AfterValidator(build)]


def _nan_for_null(parsed: Any) -> Any:
    return math.nan if parsed is None else parsed


def _limited(number: float) -> float:
    limit = LARGEST_COUNT if isinstance(number, int) else LARGEST_NUMBER
    if limit < abs(number) < math.inf:
        raise ValueError(f"a number up to {limit:.3g} expected")
    return number


def _pair(parsed: Any) -> Any:
    if not isinstance(parsed, list) or len(parsed) != 2:
        raise ValueError("a list of 2 expected")
    return tuple(parsed)


def _scalar(parsed: Any) -> Any:
    if isinstance(parsed, (dict, list)):
        raise ValueError("a word, a number, or true or false expected")
    return _limited(parsed) if isinstance(parsed, (int, float)) else _nan_for_null(parsed)


_Number = Annotated[float, BeforeValidator(_nan_for_null), AfterValidator(_limited)]

_READABLE: dict[Any, Any] = {
    float: _Number,
    int: Annotated[int, AfterValidator(_limited)],
    tuple[float, float]: Annotated[tuple[_Number, _Number], BeforeValidator(_pair)],
    str | int | float | bool: Annotated[Any, AfterValidator(_scalar)],
}
"""Types by which pydantic reads numbers, pairs of numbers, and settings."""

_EXPECTED = {
    "bool_type": "true or false",
    "dict_type": "an object",
    "float_type": "a number",
    "int_type": "an integer",
    "model_type": "an object",
    "string_type": "a word",
    "tuple_type": "a list",
}
"""What JSON must have, by the type of pydantic's error."""


def _describe(fault: ErrorDetails) -> str:
    """Describe what is wrong with a line: path of the field, its content, and what is expected."""
    path, kind = "/".join(map(str, fault["loc"])) or "line", fault["type"]
    if kind == "missing":
        return f"{path}: it is missing"
    text = f"{path}: {fault['input']!r:.80}"
    if kind == "literal_error":
        allowed = fault["ctx"]["expected"].replace("'", "").replace(" or ", ", ")
        return f"{text} is none of {allowed}"
    return f"{text}, {_EXPECTED[kind]} expected" if kind in _EXPECTED else f"{text}, {fault['msg'].split(', ', 1)[-1]}"


def _ends_mid_line(path: Path) -> bool:
    if not path.is_file() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) != b"\n"
