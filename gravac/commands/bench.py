# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The command ``gravac bench``: measures compressors, or the time that methods need to reach an accuracy."""

from __future__ import annotations

import argparse
from pathlib import Path

from gravac.commands.common import FAILED, Commands, add_mesh_option, mesh_of, require, set_work, settings


def add(commands: Commands) -> None:
    """Register the subcommand ``gravac bench`` and its arguments with ``argparse``."""
    parser = commands.add_parser(
        "bench",
        help="measure compressors, or time to accuracy, on this machine",
        description="Measures compressors or methods.",
    )
    benches = parser.add_subparsers(title="benches", metavar="BENCH", required=True)
    _add_compressors(benches)
    _add_step(benches)
    _add_tta(benches)


def _add_compressors(benches: Commands) -> None:
    """Register the subcommand ``gravac bench compressors`` and its arguments with ``argparse``."""
    parser = benches.add_parser(
        "compressors",
        help="measure time, error and memory of every compressor",
        description="Runs every compressor on heavy-tailed synthetic gradients, on one thread and without a network. "
        "Shows each compressor's time in multiples of a copy's time, beside plain PyTorch code for the same purpose.",
    )
    size_options = parser.add_mutually_exclusive_group()
    size_options.add_argument(
        "--elements",
        type=int,
        default=2560 * 2560,
        metavar="N",
        help="number of elements of the square tensor to compress (default: 6553600)",
    )
    size_options.add_argument(
        "--shapes",
        dest="model",
        metavar="MODEL",
        help="compress the tensors of this model instead, such as resnet101, vgg16, lstm or bert-large",
    )
    parser.add_argument(
        "--cf",
        type=float,
        nargs="+",
        default=[10, 100, 1000],
        dest="cfs",
        metavar="CF",
        help="compression factors (default: 10 100 1000)",
    )
    parser.add_argument(
        "--workers", type=int, default=2, metavar="N", help="number of ranks, 2 to 64 (default: 2); rank 0 is timed"
    )
    parser.add_argument(
        "--repeats", type=int, default=7, metavar="R", help="number of timed calls of each compressor (default: 7)"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="NAME",
        help="measure only these compressors, written as in Python, such as randomk(block=64)",
    )
    parser.add_argument("--also", nargs="+", default=[], metavar="NAME", help="measure these compressors, too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to this file")
    set_work(parser, _run_compressors)


def _run_compressors(options: argparse.Namespace) -> None:
    require("lab", "rich")
    from gravac.lab.bench.bench import Bench
    from gravac.lab.bench.display import run_bench

    run_bench(settings(Bench, options))


def _add_step(benches: Commands) -> None:
    """Register the subcommand ``gravac bench step`` and its arguments with ``argparse``."""
    parser = benches.add_parser(
        "step",
        help="measure what a training step of a usual model takes, by method",
        description="Trains a model of 40 to 140 M parameters on random inputs over a link, and shows the seconds of a "
        "step and the memory of a rank for each method, beside DDP in float32 and torch's float16 hook. The methods "
        "take turns, each time in new processes. Methods and links are those of gravac bench tta.",
    )
    parser.add_argument(
        "--model",
        default="resnet101",
        help="gpt2, lstm, resnet101 (the default) or vgg16; or MODULE:NAME of a gravac.lab.bench.models.StepModel",
    )
    parser.add_argument(
        "--link",
        default="unthrottled",
        metavar="LINK",
        help="link of each worker, such as 1gbit (default: unthrottled)",
    )
    parser.add_argument(
        "--methods", nargs="+", metavar="METHOD", help="methods to compare with fp32 and fp16 (default: a short list)"
    )
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="number of ranks, 2 to 8 (default: 2)")
    parser.add_argument(
        "--warmup", type=int, default=3, metavar="STEPS", help="steps of each turn that are not timed (default: 3)"
    )
    parser.add_argument("--steps", type=int, default=8, metavar="STEPS", help="timed steps of each turn (default: 8)")
    parser.add_argument(
        "--turns", type=int, default=2, metavar="N", help="number of times each method is measured (default: 2)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to this file")
    set_work(parser, _run_step, RuntimeError)


def _run_step(options: argparse.Namespace) -> None:
    require("lab", "rich")
    from gravac.lab.bench.step import DEFAULT_METHODS, StepBench, run_step_bench

    run_step_bench(settings(StepBench, options, methods=tuple(options.methods or DEFAULT_METHODS)))


def _add_tta(benches: Commands) -> None:
    """Register the subcommand ``gravac bench tta`` (time to accuracy) and its arguments with ``argparse``."""
    parser = benches.add_parser(
        "tta",
        help="compare the time to accuracy of methods over links",
        description="Trains each task with every method over every link until a target that dense training reaches, "
        "and writes times, bytes and curves to files, with plots. Runs that the file already contains are not "
        "repeated. "
        "Methods: fp32, fp16, bf16, torch-powersgd(RANK), a compressor at a CF (topk@10, quantize(4)), a controller "
        "over a compressor (gravac:ladder@2-1000), outer steps (outer:ladder, outer(every=10):quantize(2)), "
        "and what the controller of an adaptive method chose in its run, in random order (matched:outer:ladder). "
        "Links: 100mbit, 50mbit/10mbit (down/up), 1gbit,30s:50mbit (a schedule), 100mbit,rank1:20mbit, unthrottled.",
    )
    parser.add_argument(
        "--task",
        nargs="+",
        default=["charlm"],
        dest="tasks",
        metavar="TASK",
        help="tasks to train, such as charlm, lstm or denoise (default: charlm)",
    )
    parser.add_argument(
        "--link",
        nargs="+",
        default=["100mbit"],
        dest="links",
        metavar="LINK",
        help="links to compare over, each given as the link of a worker, or of a replica of a mesh (default: 100mbit)",
    )
    parser.add_argument(
        "--methods", nargs="+", metavar="METHOD", help="methods to compare (default: a short list, another on a mesh)"
    )
    parser.add_argument(
        "--workers", type=int, metavar="N", help="number of worker processes, 2 to 8 (default: 2, or those of the mesh)"
    )
    add_mesh_option(parser, "each replica has a link, which its ranks share; fp32, fp16 and bf16 are torch's own HSDP")
    parser.add_argument(
        "--seeds", type=int, default=3, metavar="N", help="number of runs of each method, one seed each (default: 3)"
    )
    parser.add_argument("--first-seed", type=int, default=0, metavar="S", help="first seed (default: 0)")
    parser.add_argument(
        "--more-seeds",
        type=int,
        default=0,
        metavar="N",
        help="maximum number of additional seeds if times differ by more than 10 %% (default: 0)",
    )
    parser.add_argument(
        "--scale",
        type=float,
        default=1.0,
        help="size of the tasks' models: 1 for two cores, more for GPUs (default: 1)",
    )
    parser.add_argument(
        "--target",
        type=float,
        help="validation metric to reach (default: the metric of dense training at 80 %% of its budget)",
    )
    parser.add_argument(
        "--budget", type=int, metavar="STEPS", help="number of steps of the dense reference run (default: the task's)"
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=6.0,
        metavar="X",
        help="stop a run after X times the reference run's time to the target (default: 6)",
    )
    parser.add_argument(
        "--paced", action="store_true", help="slow the exchanges down by sleeping, instead of emulating links"
    )
    parser.add_argument("--data", default="", metavar="DIR", help="folder of the data of resnet101 and vgg16")
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="file of results; runs in the file are not repeated. For runs.json, the bench also writes "
        "runs-evaluations.csv, runs-loss.png and runs-times.png",
    )
    parser.add_argument("--log-dir", type=Path, metavar="DIR", help="folder for TensorBoard logs (default: no logs)")
    set_work(parser, _run_tta, RuntimeError)


def _run_tta(options: argparse.Namespace) -> int:
    require("lab", "rich", "matplotlib")
    from gravac.lab.tta.display import run_tta
    from gravac.lab.tta.matrix import DEFAULT_MESH_METHODS, DEFAULT_METHODS, RunMatrix

    mesh = mesh_of(options)
    matrix = settings(
        RunMatrix,
        options,
        seeds=tuple(range(options.first_seed, options.first_seed + options.seeds)),
        methods=options.methods or (DEFAULT_METHODS if mesh is None else DEFAULT_MESH_METHODS),
        workers=(options.workers or 2) if mesh is None else mesh.ranks,
        mesh=mesh,
    )
    return FAILED if run_tta(matrix) else 0
