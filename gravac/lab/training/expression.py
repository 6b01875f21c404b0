# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Makes compressors, controllers and settings from Python expressions on a command line."""

from __future__ import annotations

import ast
from typing import Any

from gravac.compressors import COMPRESSORS, Compressor
from gravac.controllers import CONTROLLERS
from gravac.settings import SettingsError


def compressor(text: str) -> Compressor:
    """Return the compressor that a Python expression such as ``topk`` or ``topkc(chunk=64)`` describes.

    The expression may contain names of compressors, literals, and calls of compressors with settings. Anything else
    raises an error and is not evaluated.

    Example:
        >>> compressor("topkc(values=quantize(4), chunk=64)").name
        'topkc'

    Raises:
        ValueError: the text is not a Python expression, names no compressor, or has an unknown or wrong setting.
    """
    try:
        return _compressor_of_node(ast.parse(text.strip(), mode="eval").body)
    except SyntaxError:
        raise ValueError(f"{text!r} is not a compressor; use its name, such as topk, or topkc(chunk=64)") from None
    except SettingsError as error:
        raise ValueError(f"{text!r}: {error}") from None


def controller(text: str) -> Any:
    """Return the controller that a text such as ``gravac`` or ``gravac(epsilon=0.9)`` describes.

    Returns:
        The controller if the text has parentheses, with the settings in them. Otherwise the name as ``str``, since
        ``AdaptiveCompressor`` makes a controller from a name with default settings that may depend on the run.

    Example:
        >>> controller("gravac(epsilon=0.9)").epsilon
        0.9
        >>> controller("gravac")
        'gravac'

    Raises:
        ValueError: the text names no controller, or has an unknown or wrong setting.
    """
    name = text.partition("(")[0].strip()
    if name not in CONTROLLERS or name == "static":
        available_names = ", ".join(sorted(set(CONTROLLERS) - {"static"}))
        raise ValueError(f"there is no controller {name!r}; use one of {available_names}")
    return CONTROLLERS[name](**settings(text)) if "(" in text else name


def settings(text: str) -> dict[str, Any]:
    """Return the settings in the parentheses of a text such as ``outer(every=10)``, by name; none without parentheses.

    Example:
        >>> settings("outer(every=(1, 50), delay=2)"), settings("outer")
        ({'every': (1, 50), 'delay': 2}, {})

    Raises:
        ValueError: the parentheses contain anything other than settings ``name=literal``.
    """
    try:
        node = ast.parse(text.strip(), mode="eval").body
        if isinstance(node, ast.Name):
            return {}
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and not node.args
            and all(keyword.arg for keyword in node.keywords)
        ):
            return {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}
    except (SyntaxError, ValueError):
        pass
    raise ValueError(f"{text!r}: settings need names; write name=value, such as (every=10, delay=2)")


def _compressor_of_node(node: ast.expr) -> Compressor:
    """Return the compressor that a node of a parsed expression describes: a name, or a call with settings.

    Raises:
        ValueError: the node is another expression, or names no compressor.
        SettingsError: a setting is unknown or wrong.
    """
    if isinstance(node, ast.Name):
        if node.id not in COMPRESSORS:
            raise ValueError(f"there is no compressor {node.id!r}; use one of {', '.join(sorted(COMPRESSORS))}")
        return COMPRESSORS[node.id]()
    if isinstance(node, ast.Call):
        setting_by_name = {keyword.arg: _argument_of_node(keyword.value) for keyword in node.keywords if keyword.arg}
        return _compressor_of_node(node.func)(
            *(_argument_of_node(argument) for argument in node.args), **setting_by_name
        )
    raise ValueError(f"{ast.unparse(node)!r} is not a compressor; use its name, such as topk, or topkc(chunk=64)")


def _argument_of_node(node: ast.expr) -> Any:
    """Return the argument that a node of a parsed expression describes, for a call of a compressor.

    A name or a call describes a compressor, and any other node a literal, such as ``4`` or ``True``.
    """
    if isinstance(node, (ast.Name, ast.Call)):
        return _compressor_of_node(node)
    return ast.literal_eval(node)
