# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What commands share: exit statuses, missing extras, complaints."""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import sys
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from gravac.settings import SettingsError

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""What a command adds its parser to."""

WRONG_USE = 2
"""Exit status when arguments are wrong or an extra is missing."""

FAILED = 1

Made = TypeVar("Made")
"""Settings of what a command runs."""

Work = Callable[[argparse.Namespace], int | None]
"""What a command does; it returns its exit status, or nothing where it did what was asked."""


def runs(parser: argparse.ArgumentParser, work: Work, *failures: type[Exception]) -> None:
    """Have a command do its work, return its exit status, and say on standard error what went wrong.

    Args:
        parser: the command's.
        work: what it does.
        failures: exceptions, besides ``OSError``, that say that it failed; any other ``ValueError`` is wrong use.
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


def settings(kind: Callable[..., Made], options: argparse.Namespace, **others: Any) -> Made:
    """Make settings from the options of the same names, lists as tuples, and from ``others``."""
    given = {**vars(options), **others}
    values = {name: given[name] for name in inspect.signature(kind).parameters}
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


def rate(text: str) -> float:
    """Read an argument that is a link's rate; return bits per second."""
    from gravac.lab.links.rates import parse_rate

    try:
        return parse_rate(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def require(extra: str, *modules: str) -> None:
    """Refuse to go on without an extra's modules.

    Raises:
        SettingsError: some are not installed; names them, and the extra to install.
    """
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        raise SettingsError(f"{', '.join(missing)} is not installed; pip install 'gravac[{extra}]'")
