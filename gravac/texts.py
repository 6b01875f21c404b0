# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Converts settings to texts that ranks can compare: equal settings give equal texts in every process."""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel

MAX_DEPTH = 6
"""Number of levels of nested objects that ``text_of`` includes; limited, since an object may contain itself."""

LARGE_ARRAY = 64
"""Number of elements above which the text of an array or a tensor contains shape and dtype, but no elements."""


def texts_of(settings: BaseModel) -> dict[str, str]:
    """Return every setting as text, by dotted name, such as ``"controller.cf"``.

    Example:
        >>> from gravac import Static, quantize
        >>> from gravac.policy import Policy
        >>> texts = texts_of(Policy(base=quantize, controller=Static(cf=8)))
        >>> texts["seed"], texts["controller"], texts["controller.cf"]
        ('0', 'static', '8.0')
    """
    texts = {}
    for field, setting in settings:
        texts[field] = _name_of(setting) if isinstance(setting, BaseModel) else text_of(setting)
        if isinstance(setting, BaseModel):
            texts |= {f"{field}.{name}": text_of(nested_setting) for name, nested_setting in setting}
    return texts


def text_of(setting: Any, depth: int = MAX_DEPTH) -> str:
    """Return a text that differs for different settings, and is the same in all processes.

    The text never contains a memory address. It consists of the following parts, by the type of the setting:

    - a function or class: its name;
    - settings or a dataclass: the class, and the fields by name;
    - a container: the texts of its elements;
    - any other object: its class, and its public attributes unless the object is nested in another object.

    Args:
        setting: any object.
        depth: number of levels of nested objects whose content the text contains.

    Example:
        >>> text_of({"lr": 0.5, "betas": (0.9, 0.99)})
        '{betas: (0.9, 0.99), lr: 0.5}'
    """
    if isinstance(setting, (np.generic, np.ndarray, torch.Tensor)):
        if np.prod(setting.shape) > LARGE_ARRAY:
            return f"{type(setting).__qualname__} {list(setting.shape)} {setting.dtype}"
        setting = setting.tolist()
    if setting is None or isinstance(setting, (bool, int, float, complex, str, bytes)):
        return repr(setting)
    if isinstance(setting, (torch.dtype, torch.device, Path)):
        return str(setting)
    if callable(setting) and hasattr(setting, "__qualname__"):
        return str(setting.__qualname__)
    if depth == 0:
        return type(setting).__qualname__
    if isinstance(setting, functools.partial):
        arguments = [text_of(argument, depth - 1) for argument in setting.args]
        keywords = _entry_texts(setting.keywords, depth, "=")
        return f"{text_of(setting.func, depth - 1)}({', '.join([*arguments, *keywords])})"
    if isinstance(setting, Mapping):
        return f"{{{', '.join(sorted(_entry_texts(setting, depth, ': ')))}}}"
    if isinstance(setting, (tuple, list)):
        return f"({', '.join(text_of(element, depth - 1) for element in setting)})"
    if isinstance(setting, (set, frozenset)):
        return f"{{{', '.join(sorted(text_of(element, depth - 1) for element in setting))}}}"
    return f"{_name_of(setting)}({', '.join(_entry_texts(_attributes_by_name(setting, depth), depth, '='))})"


def _entry_texts(mapping: Mapping[Any, Any], depth: int, separator: str) -> list[str]:
    """Return a text for each entry of a mapping: the key, the separator, and the text of the entry's value.

    Args:
        mapping: settings or attributes, by name.
        depth: number of levels of nested objects that the texts include, counting the mapping.
        separator: text between key and value.
    """
    names_and_entries = ((key if isinstance(key, str) else text_of(key, 0), entry) for key, entry in mapping.items())
    return [f"{name}{separator}{text_of(entry, depth - 1)}" for name, entry in names_and_entries]


def _attributes_by_name(setting: object, depth: int) -> dict[str, Any]:
    """Return fields or attributes by name, as ``text_of`` includes them.

    For settings or a dataclass: the fields. For another object: its public attributes if ``depth`` is ``MAX_DEPTH``
    (the object is not nested), otherwise nothing.
    """
    if isinstance(setting, BaseModel):
        return dict(setting)
    if dataclasses.is_dataclass(setting):
        return {field.name: getattr(setting, field.name) for field in dataclasses.fields(setting)}
    attributes = getattr(setting, "__dict__", {}) if depth == MAX_DEPTH else {}
    return {name: attribute for name, attribute in sorted(attributes.items()) if not name.startswith("_")}


def _name_of(setting: object) -> str:
    """Return an object's ``name`` or, if it has none, the name of its class; both if the class is not gravac's."""
    setting_class, name = type(setting), getattr(setting, "name", None)
    if not isinstance(name, str):
        return setting_class.__qualname__
    return name if setting_class.__module__.startswith("gravac.") else f"{name} ({setting_class.__qualname__})"
