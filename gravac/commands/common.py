# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What commands share: exit statuses, missing extras, complaints."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

WRONG_USE = 2
"""Exit status when arguments are wrong or an extra is missing."""

FAILED = 1


def rate(text: str) -> float:
    """Read an argument that is a link's rate; return bits per second."""
    from gravac.lab.links.rates import parse_rate

    try:
        return parse_rate(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def has_extra(extra: str, *modules: str) -> bool:
    """Tell whether an extra's modules are installed; say which to install when they are not."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        print(f"gravac: {', '.join(missing)} is not installed; pip install 'gravac[{extra}]'", file=sys.stderr)
    return not missing


def complain(command: str, error: Exception, status: int) -> int:
    """Say what went wrong on standard error, and return the status."""
    print(f"gravac {command}: {error}", file=sys.stderr)
    return status
