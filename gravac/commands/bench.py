# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The command ``gravac bench``: measures compressors, or time to accuracy, on this machine."""

from __future__ import annotations

import argparse
from pathlib import Path

from gravac.commands.common import FAILED, Commands, require, set_work, settings


def add(commands: Commands) -> None:
    """Add the command and its arguments to the command line's parser."""
    parser = commands.add_parser("bench", help="measure a part on this machine", description="Measures one part.")
    benches = parser.add_subparsers(title="benches", metavar="BENCH", required=True)
    _add_compressors(benches)
    _add_tta(benches)


def _add_compressors(benches: Commands) -> None:
    parser = benches.add_parser(
        "compressors",
        help="time, loss and memory of every compressor",
        description="Runs every compressor on heavy-tailed synthetic gradients, on one thread and without a network, "
        "and shows its time in copies of the tensor, beside plain PyTorch code for the same purpose.",
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--elements", type=int, default=2560 * 2560, metavar="N", help="of one square tensor (6553600)")
    size.add_argument(
        "--shapes", dest="model", metavar="MODEL", help="the tensors of resnet101, vgg16, vgg19, lstm or bert-large"
    )
    parser.add_argument(
        "--cf", type=float, nargs="+", default=[10, 100, 1000], dest="cfs", metavar="CF", help="factors (10 100 1000)"
    )
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="ranks, 2 to 64 (2); rank 0 is timed")
    parser.add_argument("--repeats", type=int, default=7, metavar="R", help="timed calls of each (7)")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="NAME", help="these alone, as in Python: randomk(block=64)"
    )
    parser.add_argument("--also", nargs="+", default=[], metavar="NAME", help="these besides")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to this file")
    set_work(parser, _compressors)


def _compressors(options: argparse.Namespace) -> None:
    require("lab", "rich")
    from gravac.lab.bench.bench import Bench
    from gravac.lab.bench.display import run_bench

    run_bench(settings(Bench, options))


def _add_tta(benches: Commands) -> None:
    parser = benches.add_parser(
        "tta",
        help="time to accuracy of methods on links, side by side",
        description="Trains each task with every method over every link until a target that dense training reaches, "
        "and writes what it took. Runs that the file holds already are not repeated. Methods: fp32, fp16, bf16, "
        "torch-powersgd(RANK), a compressor at a CF (topk@10, quantize(4)), a controller over one "
        "(gravac:ladder@2-1000), outer steps (outer:ladder, outer(every=10):quantize(2)), torchft-diloco(every=10), "
        "torchft-localsgd(every=10), and the choices of an adaptive one at random times (matched:outer:ladder). Links: "
        "100mbit, 50mbit/10mbit (down/up), 1gbit,30s:50mbit (a schedule), 100mbit,rank1:20mbit, unthrottled.",
    )
    parser.add_argument(
        "--task", nargs="+", default=["charlm"], dest="tasks", metavar="TASK", help="charlm lstm denoise ... (charlm)"
    )
    parser.add_argument(
        "--link", nargs="+", default=["100mbit"], dest="links", metavar="LINK", help="of each worker (100mbit)"
    )
    parser.add_argument("--methods", nargs="+", metavar="METHOD", help="what is compared (a short list)")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="worker processes, 2 to 8 (2)")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="runs of each, from seed 0 on (3)")
    parser.add_argument("--first-seed", type=int, default=0, metavar="S", help="begin with another seed (0)")
    parser.add_argument(
        "--more-seeds", type=int, default=0, metavar="N", help="up to N more where seeds differ by over 10 %% (0)"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="of the tasks: 1 for two cores, more for GPUs (1)")
    parser.add_argument("--target", type=float, help="of the metric (what dense reaches at 80%% of its budget)")
    parser.add_argument("--budget", type=int, metavar="STEPS", help="of the dense reference run (the task's own)")
    parser.add_argument("--limit", type=float, default=6.0, metavar="X", help="give up at X times the limit (6)")
    parser.add_argument("--factored", action="store_true", help="static methods: steps once, times per link")
    parser.add_argument("--times-each-seed", action="store_true", help="with --factored: times for every seed anew")
    parser.add_argument("--paced", action="store_true", help="make no links; the exchange paces itself instead")
    parser.add_argument("--data", default="", metavar="DIR", help="of tasks that bring no data (resnet101, vgg16)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="results, also to resume from")
    parser.add_argument("--log-dir", type=Path, metavar="DIR", help="TensorBoard logs (none)")
    set_work(parser, _tta, RuntimeError)


def _tta(options: argparse.Namespace) -> int:
    require("lab", "rich")
    from gravac.lab.tta.display import run_tta
    from gravac.lab.tta.matrix import METHODS, Matrix

    seeds = tuple(range(options.first_seed, options.first_seed + options.seeds))
    matrix = settings(Matrix, options, seeds=seeds, methods=options.methods or METHODS)
    return FAILED if run_tta(matrix) else 0
