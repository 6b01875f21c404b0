# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The command ``gravac demo``: trains a model by four methods over a slow link, and compares the results."""

from __future__ import annotations

import argparse
from pathlib import Path

from gravac.commands.common import Commands, rate, require, set_work, settings


def add(commands: Commands) -> None:
    """Register the subcommand ``gravac demo`` and its arguments with ``argparse``."""
    parser = commands.add_parser(
        "demo",
        help="train over a slow link with dense and adaptive exchange, and compare",
        description="Measures how long a step computes here, and takes a link that is slow for that. Trains a small "
        "transformer over this link with dense float32, dense float16, compressed "
        "gradients as AdaptiveCompressor decides, and with every=(1, 100), which also allows outer steps: each "
        "for the same time. Shows one plot and one table, and predicts what to expect on other links.",
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, metavar="S", help="seconds of training with each method (default: 60)"
    )
    parser.add_argument(
        "--workers", type=int, default=2, metavar="N", help="number of worker processes, 2 to 8 (default: 2)"
    )
    parser.add_argument(
        "--rate",
        type=rate,
        help="rate of each worker's link, such as 20mbit or 1gbit (default: of 10 to 200 Mbit/s, the rate at which "
        "float16's exchange takes about three times as long as a step computes here)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to this file")
    parser.add_argument(
        "--log-dir", type=Path, metavar="DIR", help="folder for TensorBoard logs (default: a new folder in runs/demo)"
    )
    parser.add_argument(
        "--paced", action="store_true", help="slow the exchanges down by sleeping, instead of emulating links"
    )
    set_work(parser, _run, RuntimeError)


def _run(options: argparse.Namespace) -> None:
    require("lab", "rich", "matplotlib")
    from gravac.lab.demo.demo import Demo, run_demo

    run_demo(settings(Demo, options))
