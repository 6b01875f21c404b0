# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The command ``gravac demo``: trains a model in four ways over a slow link, and compares them."""

from __future__ import annotations

import argparse
from pathlib import Path

from gravac.commands.common import Commands, rate, require, set_work, settings


def add(commands: Commands) -> None:
    """Add the command and its arguments to the command line's parser."""
    parser = commands.add_parser(
        "demo",
        help="train over a slow link with dense and adaptive exchange, and compare",
        description="Trains a small transformer over a slow link with dense float32, dense float16, compressed "
        "gradients as AdaptiveCompressor decides, and with every=(1, 100), which also allows outer steps: each "
        "for the same time. Shows one plot and one table.",
    )
    parser.add_argument("--seconds", type=float, default=60.0, metavar="S", help="training time per method (60)")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="worker processes, 2 to 8 (2)")
    parser.add_argument("--rate", type=rate, default=100e6, help="of each worker's link: 20mbit, 1gbit (100mbit)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to this file")
    parser.add_argument("--log-dir", type=Path, metavar="DIR", help="TensorBoard logs (a new folder in runs/demo)")
    parser.add_argument("--paced", action="store_true", help="make no links; the exchange paces itself instead")
    set_work(parser, _run, RuntimeError)


def _run(options: argparse.Namespace) -> None:
    require("lab", "rich", "matplotlib")
    from gravac.lab.demo.demo import Demo, run_demo

    run_demo(settings(Demo, options))
