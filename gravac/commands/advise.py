# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The command ``gravac advise``: predicts whether compression, or less frequent exchanges, would save time."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from gravac.commands.common import Commands, add_mesh_option, mesh_of, rate, require, set_work


def add(commands: Commands) -> None:
    """Register the subcommand ``gravac advise`` and its arguments with ``argparse``."""
    parser = commands.add_parser(
        "advise",
        help="predict whether compression, or exchanging less often (outer steps), saves time",
        description="Predicts the step time of every compressor for a model, a number of workers and a network: with "
        "an exchange in each step, and with outer steps (an exchange every H steps). Says which mode "
        "AdaptiveCompressor is expected to run. Measures nothing.",
    )
    parser.add_argument(
        "--model",
        required=True,
        help="name of the model: resnet50, resnet101, vgg16, vgg19, lstm, bert-base or bert-large",
    )
    parser.add_argument(
        "--batch-seconds",
        type=float,
        required=True,
        metavar="S",
        help="seconds of forward, backward and optimizer for a batch on a worker; on a mesh, including torch's "
        "exchange within a replica",
    )
    parser.add_argument("--workers", type=int, help="number of ranks (default: that of the calibration, or 8)")
    add_mesh_option(parser, "predict the exchange between replicas, in which each rank sends the gradient of its shard")
    network_options = parser.add_mutually_exclusive_group(required=True)
    network_options.add_argument(
        "--link", type=rate, help="rate of each worker's link, or of each replica's, such as 100mbit or 1gbit"
    )
    network_options.add_argument(
        "--calibration", type=Path, metavar="FILE", help="file that gravac calibrate --json FILE wrote"
    )
    parser.add_argument(
        "--latency-us",
        type=float,
        metavar="US",
        help="latency of a message in microseconds, for use with --link (default: 50)",
    )
    parser.add_argument(
        "--copy-gbyte",
        type=float,
        metavar="GB",
        help="gigabytes that a device copies per second (default: 14, a CPU core; a V100: 350)",
    )
    parser.add_argument(
        "--overlap",
        type=float,
        default=0.9,
        help="fraction of backward's time behind which the exchange can hide (default: 0.9)",
    )
    parser.add_argument(
        "--compressors",
        nargs="+",
        metavar="NAME",
        help="names of the compressors to predict (default: those whose efficiency was measured, except ladder)",
    )
    parser.add_argument(
        "--cf",
        type=float,
        nargs="+",
        help="compression factors to predict (default: 10 100 1000, or those of the compressor)",
    )
    parser.add_argument(
        "--price-per-hour",
        type=float,
        metavar="X",
        help="price of one worker's hour; adds the cost of 1000 steps to the table",
    )
    parser.add_argument("--all", action="store_true", help="show every choice instead of the ten best recommended")
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE.png",
        help="write a plot of the speed-up by bandwidth and by number of workers",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all predictions to this file")
    set_work(parser, _run)


def _run(options: argparse.Namespace) -> None:
    require("lab", "rich", *(["matplotlib"] if options.plot is not None else []))
    from gravac.costmodel import Machine, Network
    from gravac.lab.advise import COPY, LATENCY, advise, display
    from gravac.lab.calibrate import read_calibration

    mesh = mesh_of(options)
    # checked here, since the library has other units and names
    if options.latency_us is not None and not 0 <= options.latency_us < math.inf:
        raise ValueError(f"latency_us: {options.latency_us} is out of range; give microseconds, 0 or more")
    if options.copy_gbyte is not None and not 0 < options.copy_gbyte < math.inf:
        raise ValueError(f"copy_gbyte: {options.copy_gbyte} is out of range; give gigabytes per second, above 0")
    if options.calibration is None:
        latency = LATENCY if options.latency_us is None else 1e-6 * options.latency_us
        network, copy_bytes_per_s, workers = Network(latency, options.link), COPY, 8
    else:
        if options.latency_us is not None:
            raise ValueError(
                f"latency_us: {options.latency_us:g} cannot be used with a calibration, which has a latency; leave "
                "--latency-us out"
            )
        calibration = read_calibration(options.calibration)
        network, copy_bytes_per_s, workers = calibration.network, calibration.copy_bytes_per_s, calibration.workers
    if options.copy_gbyte is not None:
        copy_bytes_per_s = 1e9 * options.copy_gbyte
    advice = advise(
        options.model,
        options.batch_seconds,
        mesh or (workers if options.workers is None else options.workers),
        network,
        Machine(copy_bytes_per_s, options.overlap),
        options.compressors,
        options.cf,
        options.price_per_hour,
    )
    display.show(advice, count=None if options.all else display.MAX_ROWS)
    if options.json is not None:
        display.save(advice, options.json)
    if options.plot is not None:
        display.plot(advice, options.model, options.plot)
