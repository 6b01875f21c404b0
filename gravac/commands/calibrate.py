# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The command ``gravac calibrate``: measures the network and the speed of a copy."""

from __future__ import annotations

import argparse
from pathlib import Path

from gravac.commands.common import Commands, set_work


def add(commands: Commands) -> None:
    """Add the command and its arguments to the command line's parser."""
    parser = commands.add_parser(
        "calibrate",
        help="measure the network between ranks, for advise",
        description="Measures latency, bandwidth and the speed of a copy, in seconds. Under torchrun between its "
        "ranks; otherwise between workers on this machine, which says something about this machine only.",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="for gravac advise --calibration FILE")
    parser.add_argument("--workers", type=int, default=2, help="to start on this machine, without torchrun (2)")
    parser.add_argument("--link", metavar="LINK", help="emulate each worker's link, such as 100mbit; needs root")
    set_work(parser, _run, RuntimeError)


def _run(options: argparse.Namespace) -> None:
    from gravac.lab import calibrate
    from gravac.lab.json_file import write_json
    from gravac.lab.local_ranks import under_torchrun
    from gravac.lab.provenance import stamp

    if under_torchrun():
        if options.link is not None:
            raise ValueError(f"link: {options.link!r} is not emulated between torchrun's ranks; leave --link out")
        measured = calibrate.measure_ranks(calibrate.say_aloud)
    else:
        measured = calibrate.measure_here(options.workers, options.link)
    if measured is None:
        return
    if options.json is not None:
        write_json(options.json, measured(stamp=stamp()).model_dump(mode="json"))
    print(calibrate.describe(measured))
    if options.json is not None:
        print(f"gravac calibrate: {options.json}")
