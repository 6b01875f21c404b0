# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The command ``gravac report``: writes an HTML page with the results of ``gravac bench tta``."""

from __future__ import annotations

import argparse
from pathlib import Path

from gravac.commands.common import Commands, require, set_work


def add(commands: Commands) -> None:
    """Register the subcommand ``gravac report`` and its arguments with ``argparse``."""
    parser = commands.add_parser(
        "report",
        help="write an HTML page of the results of gravac bench tta",
        description="Writes one self-contained HTML page and PNGs from the results of `gravac bench tta`.",
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="files that gravac bench tta --json wrote")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write the page to")
    parser.add_argument(
        "--markdown", type=Path, metavar="FILE", help="Markdown file whose tables, between marks, are replaced"
    )
    parser.add_argument("--mixed", action="store_true", help="allow runs of several commits in one table, with a note")
    set_work(parser, _run)


def _run(options: argparse.Namespace) -> None:
    require("lab", "matplotlib", "jinja2")
    from gravac.lab.report.markdown import insert_tables
    from gravac.lab.report.page import write_report
    from gravac.lab.tta import record

    runs = record.read(options.runs)
    provenance_note = record.commits_of(options.runs, runs, options.mixed)
    page_path = write_report(runs, options.out, provenance_note)
    if options.markdown is not None:
        insert_tables(options.markdown, runs, provenance_note)
    if provenance_note:
        print(f"gravac report: {provenance_note}")
    print(f"gravac report: wrote {page_path}")
