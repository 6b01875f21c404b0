# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Functions that commands share: exit statuses, settings from options, checks of optional packages, error messages."""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from gravac.settings import SettingsError

if TYPE_CHECKING:
    from gravac.lab.mesh import Mesh

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""The ``argparse`` object to which each command adds a parser."""

WRONG_USE = 2
"""Exit status if an argument is wrong, or if an optional package is missing."""

FAILED = 1
"""Exit status if a command fails although its arguments are right."""

SettingsT = TypeVar("SettingsT")
"""Class of a command's settings."""

Work = Callable[[argparse.Namespace], int | None]
"""Function that takes the parsed command line, does the work of a command, and returns the exit status.

``None`` means success.
"""


def set_work(parser: argparse.ArgumentParser, work: Work, *failures: type[Exception]) -> None:
    """Set the function that a command runs, and convert its exceptions to error messages and exit statuses.

    ``SettingsError`` and ``ValueError`` give the exit status ``WRONG_USE``; ``OSError`` gives ``FAILED``. Other
    exceptions are raised.

    Args:
        parser: parser of the command.
        work: function that takes the parsed command line, does the work of the command, and returns the exit status;
            ``None``: success.
        failures: further classes of exceptions that give the exit status ``FAILED``; may include ``ValueError``.
    """
    reported_errors: tuple[type[Exception], ...] = (ValueError, OSError, *failures)

    def run(options: argparse.Namespace) -> int:
        try:
            for option in ("json", "plot"):
                path = vars(options).get(option)
                if isinstance(path, Path):  # a flag of doctor has the same name
                    from gravac.lab.json_file import check_writable

                    check_writable(option, path)
            return work(options) or 0
        except reported_errors as error:
            print(f"{parser.prog}: {error}", file=sys.stderr)
            is_failure = isinstance(error, (OSError, *failures)) and not isinstance(error, SettingsError)
            return FAILED if is_failure else WRONG_USE

    parser.set_defaults(run=run)


def settings(settings_class: Callable[..., SettingsT], options: argparse.Namespace, **replacements: Any) -> SettingsT:
    """Create a command's settings from the command-line options that have the same names; a list becomes a tuple.

    Args:
        settings_class: class of the settings, called with keyword arguments, whose names are those of the options.
        options: parsed command line.
        replacements: settings by name, used in place of options of these names, or if there is no such option.
    """
    all_settings = {**vars(options), **replacements}
    arguments = {name: all_settings[name] for name in inspect.signature(settings_class).parameters}
    return settings_class(
        **{name: tuple(setting) if isinstance(setting, list) else setting for name, setting in arguments.items()}
    )


def rate(text: str) -> float:
    """Return the bits per second of a rate such as ``100mbit``; for ``add_argument(type=rate)``.

    Raises:
        argparse.ArgumentTypeError: the text is no rate, or the rate is out of range.
    """
    from gravac.lab.links.rates import parse_rate

    try:
        return parse_rate(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_mesh_option(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Add the option ``--mesh`` to a command; ``mesh_of`` reads the option.

    Args:
        parser: parser of the command.
        meaning: text for the help that says what the command does with a mesh (replicas times shards).
    """
    parser.add_argument(
        "--mesh", metavar="RxS", help=f"model in shards (HSDP) of R replicas, each of S shards, such as 2x4: {meaning}"
    )


def mesh_of(options: argparse.Namespace) -> Mesh | None:
    """Return the mesh (replicas times shards) that the option ``--mesh`` names; ``None`` without the option.

    Raises:
        ValueError: the text is no mesh, or the user also gave the option ``--workers``.
    """
    from gravac.lab.mesh import parse_mesh

    if options.mesh is None:
        return None
    mesh = parse_mesh(options.mesh)
    workers = vars(options).get("workers")
    if workers is not None:
        raise ValueError(
            f"workers: {workers} cannot be used with --mesh, which sets {mesh.ranks} ranks; leave --workers out"
        )
    return mesh


def require(extra: str, *modules: str) -> None:
    """Raise an error if a module of an extra (a list of optional packages of gravac) is not installed.

    Args:
        extra: name of the extra, such as ``"lab"``, for the message.
        modules: names of the modules.

    Raises:
        SettingsError: a module is not installed; the message has the missing modules, and the extra to install.
    """
    missing_modules = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing_modules:
        verb = "is" if len(missing_modules) == 1 else "are"
        raise SettingsError(f"{' and '.join(missing_modules)} {verb} not installed; pip install 'gravac[{extra}]'")
