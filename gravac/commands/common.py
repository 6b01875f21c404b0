# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Functions that commands share: exit statuses, settings from options, checks of installed extras, error messages."""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import sys
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from gravac.settings import SettingsError

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""Object to which each command adds its parser."""

WRONG_USE = 2
"""Exit status when arguments are wrong or an extra is missing."""

FAILED = 1
"""Exit status when a command fails although its arguments are right."""

SettingsT = TypeVar("SettingsT")
"""Class of a command's settings."""

Work = Callable[[argparse.Namespace], int | None]
"""Function that does the work of a command, and returns its exit status; ``None``: success."""


def set_work(parser: argparse.ArgumentParser, work: Work, *failures: type[Exception]) -> None:
    """Set the function that a command runs; print its exceptions to standard error, and turn them into exit statuses.

    Args:
        parser: parser of the command.
        work: function that does the work of the command.
        failures: exceptions, besides ``OSError``, that mean ``FAILED``; any other ``ValueError`` means ``WRONG_USE``.
    """
    expected: tuple[type[Exception], ...] = (ValueError, OSError, *failures)

    def run(options: argparse.Namespace) -> int:
        try:
            return work(options) or 0
        except expected as error:
            print(f"{parser.prog}: {error}", file=sys.stderr)
            is_failure = isinstance(error, (OSError, *failures)) and not isinstance(error, SettingsError)
            return FAILED if is_failure else WRONG_USE

    parser.set_defaults(run=run)


def settings(kind: Callable[..., SettingsT], options: argparse.Namespace, **others: Any) -> SettingsT:
    """Return settings from the options of the same names, with tuples in place of lists.

    Args:
        kind: class of the settings.
        options: options of the command.
        others: settings that replace options of the same names, or are no options.
    """
    available = {**vars(options), **others}
    arguments = {name: available[name] for name in inspect.signature(kind).parameters}
    return kind(
        **{name: tuple(setting) if isinstance(setting, list) else setting for name, setting in arguments.items()}
    )


def rate(text: str) -> float:
    """Parse an argument such as ``100mbit``, a link's rate; return bits per second."""
    from gravac.lab.links.rates import parse_rate

    try:
        return parse_rate(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def require(extra: str, *modules: str) -> None:
    """Check that the modules of an extra are installed.

    Args:
        extra: name of the extra, for the message.
        modules: names of the modules.

    Raises:
        SettingsError: modules are not installed; the message has their names, and the extra to install.
    """
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        raise SettingsError(f"{', '.join(missing)} is not installed; pip install 'gravac[{extra}]'")
