# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The command ``gravac report``: writes a page with the results of ``gravac bench tta``."""

from __future__ import annotations

import argparse
from pathlib import Path

from gravac.commands.common import Commands, require, set_work


def add(commands: Commands) -> None:
    """Add the command and its arguments to the command line's parser."""
    parser = commands.add_parser(
        "report",
        help="a page of what bench tta measured",
        description="Writes one self-contained HTML page and PNGs from the results of `gravac bench tta`.",
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="files of gravac bench tta --json")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the page")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="replace the tables between this file's marks")
    parser.add_argument("--mixed", action="store_true", help="put runs of several commits into one table, and say so")
    set_work(parser, _run)


def _run(options: argparse.Namespace) -> None:
    require("lab", "matplotlib", "jinja2")
    from gravac.lab.report.markdown import insert
    from gravac.lab.report.page import write_report
    from gravac.lab.tta import record

    runs = record.read(options.runs)
    made_with = record.commits_of(options.runs, runs, options.mixed)
    page = write_report(runs, options.out, made_with)
    if options.markdown is not None:
        insert(options.markdown, runs, made_with)
    if made_with:
        print(f"gravac report: {made_with}")
    print(f"gravac report: {page}")
