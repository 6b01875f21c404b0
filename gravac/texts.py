# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Settings as text: equal settings give equal texts in every process, different settings different texts."""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel

DEPTH = 6
"""Levels of objects within objects that ``text_of`` looks into: an object may hold itself."""

LARGE = 64
"""Number of elements above which the text of an array or a tensor has shape and dtype alone."""


def texts_of(settings: BaseModel) -> dict[str, str]:
    """Return every setting as text, by dotted name.

    Example:
        >>> from gravac import Static, quantize
        >>> from gravac.policy import Policy
        >>> texts = texts_of(Policy(base=quantize, controller=Static(cf=8)))
        >>> texts["seed"], texts["controller"], texts["controller.cf"]
        ('0', 'static', '8.0')
    """
    texts = {}
    for field, value in settings:
        texts[field] = _named(value) if isinstance(value, BaseModel) else text_of(value)
        if isinstance(value, BaseModel):
            texts |= {f"{field}.{name}": text_of(part) for name, part in value}
    return texts


def text_of(value: Any, depth: int = DEPTH) -> str:
    """Return a text that tells values apart. No object's address is in it, so that all processes make the same.

    Args:
        value: a setting. Of a function or class the text has the name. Of an object it has the class, and what is in
            settings, data classes and containers; of any other the public attributes, if it is not in an object itself.
        depth: levels of objects within objects to look into.

    Example:
        >>> text_of({"lr": 0.5, "betas": (0.9, 0.99)})
        '{betas: (0.9, 0.99), lr: 0.5}'
    """
    if isinstance(value, (np.generic, np.ndarray, torch.Tensor)):
        if np.prod(value.shape) > LARGE:
            return f"{type(value).__qualname__} {list(value.shape)} {value.dtype}"
        value = value.tolist()
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return repr(value)
    if isinstance(value, (torch.dtype, torch.device, Path)):
        return str(value)
    if callable(value) and hasattr(value, "__qualname__"):
        return str(value.__qualname__)
    if depth == 0:
        return type(value).__qualname__
    if isinstance(value, functools.partial):
        arguments = [text_of(part, depth - 1) for part in value.args]
        return f"{text_of(value.func, depth - 1)}({', '.join([*arguments, *_parts(value.keywords, depth, '=')])})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(sorted(_parts(value, depth, ': ')))}}}"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(text_of(part, depth - 1) for part in value)})"
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(text_of(part, depth - 1) for part in value))}}}"
    return f"{_named(value)}({', '.join(_parts(_attributes(value, depth), depth, '='))})"


def _parts(mapping: Mapping[Any, Any], depth: int, between: str) -> list[str]:
    named = ((key if isinstance(key, str) else text_of(key, 0), part) for key, part in mapping.items())
    return [f"{name}{between}{text_of(part, depth - 1)}" for name, part in named]


def _attributes(value: object, depth: int) -> dict[str, Any]:
    """Return fields of settings and data classes, and the public attributes of an object that is in no other."""
    if isinstance(value, BaseModel):
        return dict(value)
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    known = getattr(value, "__dict__", {}) if depth == DEPTH else {}
    return {name: part for name, part in sorted(known.items()) if not name.startswith("_")}


def _named(value: object) -> str:
    """Name an object: what policies call it, and the class where that is a user's."""
    kind, name = type(value), getattr(value, "name", None)
    if not isinstance(name, str):
        return kind.__qualname__
    return name if kind.__module__.startswith("gravac.") else f"{name} ({kind.__qualname__})"
