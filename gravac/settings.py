# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The base of every settings object: frozen, unknown keys refused, errors that name the field."""

from __future__ import annotations

import numbers
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

if TYPE_CHECKING:
    from pydantic import ValidatorFunctionWrapHandler
    from typing_extensions import Self


class SettingsError(ValueError):
    """A setting is wrong. The message names the field, the value given and what is allowed."""


class Settings(BaseModel):
    """Frozen, validated settings. Calling an instance makes another with some fields changed.

    Nothing is guessed: text and bools are no numbers, numbers are no bools, and numbers are finite unless a field says
    ``allow_inf_nan``. A whole number is taken for a float, and a list for a tuple, as TOML has no tuples.

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
        """Return the same settings but for ``changes``."""
        return type(self)(**{**{name: getattr(self, name) for name in type(self).model_fields}, **changes})

    @field_validator("*", mode="wrap")
    @classmethod
    def _as_given(cls, given: Any, validate: ValidatorFunctionWrapHandler) -> Any:
        validated = validate(given)
        refuse_guesses(given, validated)
        return validated


def refuse_guesses(given: Any, validated: Any) -> None:
    """Refuse what pydantic would guess: a number from text or a bool, a bool from a number or text.

    Args:
        given: value of a field, as given.
        validated: the same as the field's type has it.

    Raises:
        ValueError: the value, or a part of it, is of another kind than what became of it.
    """
    if isinstance(given, (tuple, list)) and isinstance(validated, (tuple, list)):
        for part, validated_part in zip(given, validated, strict=False):
            refuse_guesses(part, validated_part)
    elif isinstance(validated, bool) and not isinstance(given, (bool, np.bool_)):
        raise ValueError("give True or False")
    elif is_number(validated) and not is_number(given):
        raise ValueError(f"give a number, not {'text' if isinstance(given, (str, bytes)) else 'True or False'}")


def is_number(value: object) -> bool:
    """Return whether a value is a real number, of Python or NumPy; a bool is none."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """Tell each fault with its field, what is wrong and the value given; for an unknown field, the known ones.

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
    for fault in error.errors(include_url=False):
        field = ".".join(str(part) for part in fault["loc"]) or model.__name__
        if fault["type"] == "extra_forbidden":
            known = ", ".join(sorted(model.model_fields))
            lines.append(f"{field}: unknown setting (value {shown(fault['input'])}); known settings: {known}")
        else:
            message = fault["msg"].removeprefix("Value error, ")
            lines.append(f"{field}: {message} (got {shown(fault['input'])})")
    return "; ".join(lines)


def shown(value: object, limit: int = 300) -> str:
    """Return a value's representation for a message: at most ``limit`` characters, whatever was given."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deeply; an integer of too many digits
        return f"a {type(value).__name__} that is too large to print"
    return text if len(text) <= limit else f"{text[:limit]}..."
