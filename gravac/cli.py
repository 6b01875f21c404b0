# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The command ``gravac``: reads the command line and runs one of its commands."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import version
from types import FrameType

from gravac.commands import advise, bench, calibrate, demo, doctor, policies
from gravac.lab.links.rootless import restart_in_user_namespace


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the command line names, and return the exit status.

    Args:
        arguments: the command line without the program's name; ``None``: that of this process.

    Returns:
        0: success; 1: the command failed. Wrong use exits with 2, an interrupt with 128 + the signal's number.
    """
    parser = argparse.ArgumentParser(prog="gravac", description="Adaptive gradient compression for PyTorch.")
    parser.add_argument("--version", action="version", version=f"gravac {version('gravac')}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (demo, doctor, bench, advise, calibrate, policies):
        command.add(commands)
    options = parser.parse_args(arguments)
    if arguments is None and not getattr(options, "paced", True):  # a command that emulates links
        restart_in_user_namespace()
    previous_handlers = {
        signal_number: signal.signal(signal_number, _stop_on_signal)
        for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        return int(options.run(options))
    finally:
        for signal_number, previous_handler in previous_handlers.items():
            if (
                signal.getsignal(signal_number) is _stop_on_signal
            ):  # after an interrupt, signals stay ignored until the end
                signal.signal(signal_number, previous_handler)


def _stop_on_signal(signal_number: int, frame: FrameType | None) -> None:
    """Handle a signal: raise ``SystemExit``, and ignore later signals, so that they do not interrupt the cleanup."""
    for ignored_signal in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored_signal, signal.SIG_IGN)
    print(f"\ngravac: stopped by {signal.Signals(signal_number).name}, cleaning up", file=sys.stderr, flush=True)
    raise SystemExit(128 + signal_number)
