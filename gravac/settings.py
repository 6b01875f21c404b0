# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The base of every settings object: frozen, unknown keys refused, errors that name the field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

if TYPE_CHECKING:
    from typing_extensions import Self


class SettingsError(ValueError):
    """A setting is wrong. The message names the field, the value given and what is allowed."""


class Settings(BaseModel):
    """Frozen, validated settings. Calling an instance makes another with some fields changed.

    Example:
        >>> class Size(Settings):
        ...     elements: int = 8
        >>> Size()(elements=16).elements
        16

    Raises:
        SettingsError: a field is unknown, of the wrong type, or outside its range.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True, validate_default=True)

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise SettingsError(explain(error, type(self))) from None

    def __call__(self, **changes: Any) -> Self:
        """Return the same settings but for ``changes``."""
        return type(self)(**{**{name: getattr(self, name) for name in type(self).model_fields}, **changes})


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
            lines.append(f"{field}: unknown setting (value {fault['input']!r}); known settings: {known}")
        else:
            message = fault["msg"].removeprefix("Value error, ")
            lines.append(f"{field}: {message} (got {fault['input']!r})")
    return "; ".join(lines)
