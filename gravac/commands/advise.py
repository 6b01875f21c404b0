# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The command ``gravac advise``: predicts whether compression, or an exchange in fewer steps, would save time."""

from __future__ import annotations

import argparse
from pathlib import Path

from gravac.commands.common import Commands, rate, require, set_work


def add(commands: Commands) -> None:
    """Add the command and its arguments to the command line's parser."""
    parser = commands.add_parser(
        "advise",
        help="predict which compression, if any, makes steps shorter, and whether outer steps pay",
        description="Predicts the step time of every compressor for a model, a number of workers and a network, in "
        "each step and in outer steps, and says which mode AdaptiveCompressor should come to. Measures nothing.",
    )
    parser.add_argument("--model", required=True, help="such as resnet50, resnet101, vgg16, lstm, bert-base")
    parser.add_argument("--batch-seconds", type=float, required=True, metavar="S", help="of one batch on one worker")
    parser.add_argument("--workers", type=int, help="ranks (those of the calibration, else 8)")
    network = parser.add_mutually_exclusive_group(required=True)
    network.add_argument("--link", type=rate, help="of each worker: 100mbit, 1gbit, 10gbit")
    network.add_argument("--calibration", type=Path, metavar="FILE", help="written by gravac calibrate --json FILE")
    parser.add_argument("--latency-us", type=float, metavar="US", help="of a message, with --link (50)")
    parser.add_argument(
        "--copy-gbyte", type=float, metavar="GB", help="copied per second (14, a CPU core; a V100: 350)"
    )
    parser.add_argument("--overlap", type=float, default=0.9, help="share of backward that hides exchange (0.9)")
    parser.add_argument("--compressors", nargs="+", metavar="NAME", help="all, unless some are named")
    parser.add_argument("--cf", type=float, nargs="+", help="compression factors (10 100 1000, or what there is)")
    parser.add_argument("--price-per-hour", type=float, metavar="X", help="of one worker; adds the cost of 1000 steps")
    parser.add_argument("--all", action="store_true", help="show every choice, not the ten best")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="speed-up by bandwidth and by workers")
    parser.add_argument("--json", type=Path, metavar="FILE", help="everything predicted")
    set_work(parser, _run)


def _run(options: argparse.Namespace) -> None:
    require("lab", "rich", *(["matplotlib"] if options.plot is not None else []))
    from gravac.costmodel import Machine, Network
    from gravac.lab.advise import COPY, LATENCY, advise, display
    from gravac.lab.calibrate import read_calibration

    if options.calibration is None:
        latency = LATENCY if options.latency_us is None else 1e-6 * options.latency_us
        network, copy, workers = Network(latency, options.link), COPY, 8
    else:
        if options.latency_us is not None:
            raise ValueError(f"latency_us: {options.latency_us:g} given beside a calibration; leave one out")
        calibration = read_calibration(options.calibration)
        network, copy, workers = calibration.network, calibration.copy_bytes_per_s, calibration.workers
    if options.copy_gbyte is not None:
        copy = 1e9 * options.copy_gbyte
    advice = advise(
        options.model,
        options.batch_seconds,
        workers if options.workers is None else options.workers,
        network,
        Machine(copy, options.overlap),
        options.compressors,
        options.cf,
        options.price_per_hour,
    )
    display.show(advice, count=None if options.all else display.SHOWN)
    if options.json is not None:
        display.save(advice, options.json)
    if options.plot is not None:
        display.plot(advice, options.model, options.plot)
