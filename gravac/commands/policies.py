# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The command ``gravac policies``: lists the policies that come with gravac, or shows the settings of a policy."""

from __future__ import annotations

import argparse

from gravac.commands.common import Commands, set_work
from gravac.policy import find_policy, load_policy, policy_names
from gravac.settings import SettingsError


def add(commands: Commands) -> None:
    """Register the subcommand ``gravac policies`` and its arguments with ``argparse``."""
    parser = commands.add_parser(
        "policies",
        help="list the policies that come with gravac, or show the settings of a policy",
        description="Lists the policies that come with gravac. With a name or a file, prints the policy's file and "
        "every setting of the policy; the exit status is 2 if the policy is not valid.",
    )
    parser.add_argument(
        "policy", nargs="?", metavar="NAME|PATH", help="name of a policy that comes with gravac, or a TOML file"
    )
    set_work(parser, _run)


def _run(options: argparse.Namespace) -> None:
    try:
        if options.policy is None:
            _print_list()
        else:
            _print_policy(options.policy)
    except UnicodeDecodeError as error:
        raise SettingsError(f"{options.policy}: the file is not text in UTF-8 ({error}); give a TOML file") from None


def policy_description(text: str) -> str:
    """Return a policy's description: the first comment after the licence; empty if there is none.

    Args:
        text: content of the policy's TOML file.
    """
    lines = (line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#"))
    return next((line for line in lines if line and not line.startswith("SPDX-")), "")


def aligned_table(rows: list[tuple[str, ...]]) -> str:
    """Return a table as text, one line for each row, with aligned columns.

    Args:
        rows: the cells of each row; the same number of cells in all rows, at least one row.
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    )


def _print_list() -> None:
    """Print a table of the policies that come with gravac."""
    rows: list[tuple[str, ...]] = [("name", "base", "cf_range", "controller", "description")]
    for name in policy_names():
        policy = load_policy(name)
        lowest_cf, highest_cf = policy.cf_range
        description = policy_description(find_policy(name).read_text(encoding="utf-8"))
        rows.append((name, policy.base.name, f"{lowest_cf:g} to {highest_cf:g}", policy.controller.name, description))
    print(aligned_table(rows))


def _print_policy(source: str) -> None:
    """Print the TOML file and all settings of a policy.

    Args:
        source: name of a policy that comes with gravac, or path of a TOML file.
    """
    path = find_policy(source)
    text = path.read_text(encoding="utf-8")
    policy = load_policy(path)
    print(f"{path}\n\n{text.rstrip()}\n\nAll settings, also those that the file leaves out:\n")
    settings = {**policy.as_dict(), "log_dir": str(policy.log_dir or "auto")}
    print(aligned_table([(name, _format_setting(setting)) for name, setting in sorted(settings.items())]))


def _format_setting(setting: str | int | float | bool) -> str:
    """Return a setting as text: as in TOML, but without quotes."""
    if isinstance(setting, bool):
        return "true" if setting else "false"
    return f"{setting:g}" if isinstance(setting, float) else str(setting)
