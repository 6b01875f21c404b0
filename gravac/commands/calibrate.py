# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The command ``gravac calibrate``: measures the network between ranks, and how fast a device copies tensors."""

from __future__ import annotations

import argparse
from pathlib import Path

from gravac.commands.common import Commands, set_work


def add(commands: Commands) -> None:
    """Register the subcommand ``gravac calibrate`` and its arguments with ``argparse``."""
    parser = commands.add_parser(
        "calibrate",
        help="measure the network between ranks, for advise",
        description="Measures latency, bandwidth and the speed of a copy, which takes seconds: between torchrun's "
        "ranks if torchrun started the command, otherwise between workers on this machine, without your network.",
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write the calibration to this file, for gravac advise --calibration FILE",
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=2,
        help="number of workers to start on this machine, without torchrun (default: 2)",
    )
    parser.add_argument("--link", metavar="LINK", help="link of each worker to emulate, such as 100mbit; needs root")
    set_work(parser, _run, RuntimeError)


def _run(options: argparse.Namespace) -> None:
    from gravac.lab import calibrate
    from gravac.lab.json_file import write_json
    from gravac.lab.local_ranks import under_torchrun
    from gravac.lab.provenance import stamp

    if under_torchrun():
        if options.link is not None:
            raise ValueError(f"link: {options.link!r} cannot be emulated between torchrun's ranks; leave --link out")
        calibration = calibrate.measure_ranks(calibrate.print_to_stderr)
    else:
        calibration = calibrate.measure_here(options.workers, options.link)
    if calibration is None:
        return
    if options.json is not None:
        write_json(options.json, calibration(stamp=stamp()).model_dump(mode="json"))
    print(calibrate.describe(calibration))
    if options.json is not None:
        print(f"gravac calibrate: wrote {options.json}")
