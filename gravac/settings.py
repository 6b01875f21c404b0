# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The base class of all settings: frozen objects that refuse unknown fields and name the wrong field in errors."""

from __future__ import annotations

import itertools
import numbers
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_origin

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

if TYPE_CHECKING:
    from pydantic import ValidatorFunctionWrapHandler
    from typing_extensions import Self


STATE_REMEDY = "load a state that the same version of gravac saved, with the same model and settings"
"""Remedy, for error messages, if a loaded state lacks a field or has an unknown field."""


class SettingsError(ValueError):
    """A setting is wrong. The message names the field, its value and the allowed range."""


class Settings(BaseModel):
    """Base class of frozen, validated settings. Calling an instance returns a copy with some fields changed.

    A value is not converted to another type: a number cannot be given as text or bool, nor a bool as a number. There
    are two exceptions: a float field accepts an integer, and a tuple field a list, since TOML has no tuples. Numbers
    must be finite unless a field allows infinity.

    Example:
        >>> class Size(Settings):
        ...     elements: int = 8
        >>> Size()(elements=16).elements
        16

    Raises:
        SettingsError: a field is unknown, of the wrong type, or outside its range.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)

    def __init__(self, /, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise SettingsError(explain(error, type(self))) from None

    def __call__(self, /, **changes: Any) -> Self:
        """Return a copy of the settings, with the fields in ``changes`` replaced; other defaults are chosen anew."""
        return type(self)(**{**{name: getattr(self, name) for name in self.model_fields_set}, **changes})

    @field_validator("*", mode="wrap")
    @classmethod
    def _validate_strictly(cls, raw: Any, validate: ValidatorFunctionWrapHandler) -> Any:
        """Return a field's value as pydantic validated it; raise ``ValueError`` if pydantic converted its type."""
        validated = validate(raw)
        refuse_guesses(raw, validated)
        return validated


def refuse_guesses(raw: Any, validated: Any) -> None:
    """Raise if pydantic converted a value to another type: text or a bool to a number, a number or text to a bool.

    Args:
        raw: value of a field, as the user wrote it.
        validated: the same value after pydantic's conversion.

    Raises:
        ValueError: the value, or an element of a tuple or list, was converted.
    """
    if isinstance(raw, (tuple, list)) and isinstance(validated, (tuple, list)):
        for element, validated_element in zip(raw, validated, strict=False):
            refuse_guesses(element, validated_element)
    elif isinstance(validated, bool) and not isinstance(raw, (bool, np.bool_)):
        raise ValueError("give True or False")
    elif is_number(validated) and not is_number(raw):
        raise ValueError(f"give a number, not {'text' if isinstance(raw, (str, bytes)) else 'True or False'}")


def is_number(x: object) -> bool:
    """True if ``x`` is a real number, of Python or NumPy; a bool is no number."""
    return isinstance(x, numbers.Real) and not isinstance(x, bool)


def explain(error: ValidationError, settings_class: type[BaseModel]) -> str:
    """Return the message of a validation error: for each fault the field, what is wrong, and the field's value.

    For an unknown field the message lists the fields that exist.

    Example:
        >>> class Size(Settings):
        ...     elements: int = 8
        >>> try:
        ...     Size(bytes=4)
        ... except SettingsError as error:
        ...     print(error)
        bytes: unknown setting (value 4); known settings: elements
    """
    lines = []
    for path, faults in itertools.groupby(error.errors(), lambda fault: _path_of(fault["loc"], settings_class)):
        field, (fault, *other_faults) = ".".join(map(str, path)), faults
        messages = [each["msg"].removeprefix("Value error, ") for each in (fault, *other_faults)]
        if not field:  # settings that contradict each other: the message names them
            lines += messages
        elif isinstance(fault.get("ctx", {}).get("error"), SettingsError):  # the message has the value
            lines.append(f"{field}: {messages[0]}")
        elif fault["type"] == "missing":
            lines.append(f"{field}: is missing; give {settings_class.__name__}({field}=...)")
        elif fault["type"] == "extra_forbidden":
            known_names = ", ".join(sorted(settings_class.model_fields))
            lines.append(
                f"{field}: unknown setting (value {short_repr(fault['input'])}); known settings: {known_names}"
            )
        else:
            lines.append(f"{field}: {', or '.join(messages)} (got {short_repr(fault['input'])})")
    return "; ".join(lines)


def _path_of(location: tuple[int | str, ...], settings_class: type[BaseModel]) -> tuple[int | str, ...]:
    """Return a field's name, and the key or indices in it, without the names of a union's types."""
    field = settings_class.model_fields.get(str(location[0])) if location else None
    has_keys = field is not None and get_origin(field.annotation) in (dict, Mapping)
    named, rest = location[: 1 + has_keys], location[1 + has_keys :]
    return (*named, *itertools.takewhile(lambda step: isinstance(step, int), rest))


def short_repr(x: object, limit: int = 100) -> str:
    """Return the ``repr`` of an object for a message, cut after ``limit`` characters."""
    try:
        text = repr(x)
    except (RecursionError, ValueError):  # nested too deeply; an integer of too many digits
        return f"a {type(x).__name__} that is too large to print"
    return text if len(text) <= limit else f"{text[:limit]}..."
