# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Reads compressors, controllers and settings from a command line, written as in Python."""

from __future__ import annotations

import ast
from typing import Any

from gravac.compressors import COMPRESSORS, Compressor
from gravac.controllers import CONTROLLERS
from gravac.settings import SettingsError


def compressor(text: str) -> Compressor:
    """Return the compressor that a text describes as a Python expression.

    The text may have names of compressors, literals, and calls with settings; nothing else is evaluated.

    Example:
        >>> compressor("topkc(values=quantize(4), chunk=64)").name
        'topkc'

    Raises:
        ValueError: there is no such compressor, or a setting is unknown or not allowed.
    """
    try:
        return _compressor(ast.parse(text.strip(), mode="eval").body)
    except SyntaxError:
        raise ValueError(f"{text!r} is no compressor; use its name, such as topk, or topkc(chunk=64)") from None
    except SettingsError as error:
        raise ValueError(f"{text!r}: {error}") from None


def controller(text: str) -> Any:
    """Return the controller that a text describes by name and settings.

    Example:
        >>> controller("gravac(epsilon=0.9)").epsilon
        0.9
        >>> controller("gravac")
        'gravac'

    Returns:
        The name if the text has no settings, so that defaults that depend on the run stay; otherwise the controller.

    Raises:
        ValueError: there is no such controller, or a setting is unknown or not allowed.
    """
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        raise ValueError(f"{text!r} is no controller; use its name, such as gravac, or gravac(epsilon=0.9)") from None
    called = node.func if isinstance(node, ast.Call) else node
    if not isinstance(called, ast.Name) or called.id not in CONTROLLERS or called.id == "static":
        available = ", ".join(sorted(set(CONTROLLERS) - {"static"}))
        raise ValueError(f"there is no controller {ast.unparse(called)!r}; there are {available}")
    if not isinstance(node, ast.Call):
        return called.id
    if node.args:
        raise ValueError(f"{text!r}: name its settings, such as gravac(epsilon=0.9)")
    try:
        settings = {keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords if keyword.arg}
        return CONTROLLERS[called.id](**settings)
    except SettingsError as error:
        raise ValueError(f"{text!r}: {error}") from None


def settings(text: str) -> dict[str, Any]:
    """Return the settings in a text in parentheses, by name.

    Example:
        >>> settings("(every=(1, 50), delay=2)")
        {'every': (1, 50), 'delay': 2}

    Raises:
        ValueError: the text has anything but settings by name.
    """
    try:
        node = ast.parse(f"settings{text}", mode="eval").body
        if isinstance(node, ast.Call) and not node.args and all(keyword.arg for keyword in node.keywords):
            return {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}
    except (SyntaxError, ValueError):
        pass
    raise ValueError(f"{text!r} are no settings; name each, such as (every=10, fragments=2)")


def _compressor(node: ast.expr) -> Compressor:
    if isinstance(node, ast.Name):
        if node.id not in COMPRESSORS:
            raise ValueError(f"there is no compressor {node.id!r}; there are {', '.join(sorted(COMPRESSORS))}")
        return COMPRESSORS[node.id]()
    if isinstance(node, ast.Call):
        settings = {keyword.arg: _setting(keyword.value) for keyword in node.keywords if keyword.arg}
        return _compressor(node.func)(*(_setting(argument) for argument in node.args), **settings)
    raise ValueError(f"{ast.unparse(node)!r} is no compressor; use its name, such as topk, or topkc(chunk=64)")


def _setting(node: ast.expr) -> Any:
    """Return a compressor, or a literal."""
    if isinstance(node, (ast.Name, ast.Call)):
        return _compressor(node)
    return ast.literal_eval(node)
