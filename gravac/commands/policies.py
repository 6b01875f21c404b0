# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The command ``gravac policies``: lists the policies that come with gravac, or shows a policy's settings."""

from __future__ import annotations

import argparse

from gravac.commands.common import Commands, set_work
from gravac.policy import find_policy, load_policy, policy_names
from gravac.settings import SettingsError


def add(commands: Commands) -> None:
    """Add the command and its arguments to the command line's parser."""
    parser = commands.add_parser(
        "policies",
        help="what policies there are, and what one sets",
        description="Lists the policies that come with gravac; with a name or a file, shows it, every setting that is "
        "in force with it, and whether it is valid (exit status 2 when not).",
    )
    parser.add_argument("policy", nargs="?", metavar="NAME|PATH", help="a shipped policy, or a TOML file")
    set_work(parser, _run)


def _run(options: argparse.Namespace) -> None:
    try:
        if options.policy is None:
            _list()
        else:
            _show(options.policy)
    except UnicodeDecodeError as error:
        raise SettingsError(f"{options.policy}: not a text file in UTF-8 ({error})") from None


def description(text: str) -> str:
    """Return a policy's description: the first comment in the text of its file, except for the licence."""
    lines = (line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#"))
    return next((line for line in lines if line and not line.startswith("SPDX-")), "")


def table(rows: list[tuple[str, ...]]) -> str:
    """Return a table as text, a line for each row; each column is as wide as its widest cell."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    )


def _list() -> None:
    rows: list[tuple[str, ...]] = [("name", "base", "cf_range", "controller", "what")]
    for name in policy_names():
        policy = load_policy(name)
        low, high = policy.cf_range
        summary = description(find_policy(name).read_text(encoding="utf-8"))
        rows.append((name, policy.base.name, f"{low:g} to {high:g}", policy.controller.name, summary))
    print(table(rows))


def _show(source: str) -> None:
    path = find_policy(source)
    text = path.read_text(encoding="utf-8")
    policy = load_policy(path)
    print(f"{path}\n\n{text.rstrip()}\n\nEvery setting, those that the file leaves out too:\n")
    print(table([(name, _format(setting)) for name, setting in sorted(policy.as_dict().items())]))


def _format(setting: str | int | float | bool) -> str:
    if isinstance(setting, bool):
        return "true" if setting else "false"
    return f"{setting:g}" if isinstance(setting, float) else str(setting)
