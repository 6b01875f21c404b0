# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The command ``gravac``. Each command adds its arguments here and imports what it needs when it runs."""

from __future__ import annotations

import argparse
import importlib.util
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

WRONG_USE = 2
"""Exit status when arguments are wrong or an extra is missing."""

FAILED = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status: 0, 1 (it failed), 2 (wrong use), 128 + signal (interrupted)."""
    parser = argparse.ArgumentParser(prog="gravac", description="Adaptive gradient compression for PyTorch.")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add in (_add_demo, _add_bench, _add_report):
        add(commands)
    options = parser.parse_args(arguments)
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        return int(options.run(options))
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is _interrupt:  # once interrupted, further signals stay ignored until the end
                signal.signal(number, handler)


def _add_demo(commands: Commands) -> None:
    parser = commands.add_parser(
        "demo",
        help="train over a slow link with dense and adaptive exchange, and compare",
        description="Trains a small transformer over a slow link with dense float32, dense float16 and adaptive "
        "compression, each for the same time, and shows one table.",
    )
    parser.add_argument("--seconds", type=float, default=70.0, metavar="S", help="training time per method (70)")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="worker processes, 2 to 8 (2)")
    parser.add_argument("--rate", type=_rate, default=100e6, help="of each worker's link: 20mbit, 1gbit (100mbit)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result to this file")
    parser.add_argument("--log-dir", type=Path, metavar="DIR", help="TensorBoard logs (a new folder in runs/demo)")
    parser.add_argument("--paced", action="store_true", help="make no links; the exchange paces itself instead")
    parser.set_defaults(run=_demo)


def _demo(options: argparse.Namespace) -> int:
    if not _has_extra("lab", "rich"):
        return WRONG_USE
    from gravac.lab.demo import Demo, run_demo
    from gravac.lab.links import LinkError
    from gravac.lab.run import RunFailed

    try:
        demo = Demo(
            seconds=options.seconds,
            workers=options.workers,
            rate=options.rate,
            log_dir=options.log_dir,
            json=options.json,
            paced=options.paced,
        )
    except ValueError as error:
        return _complain("demo", error, WRONG_USE)
    try:
        run_demo(demo)
    except (RunFailed, LinkError, OSError) as error:
        return _complain("demo", error, FAILED)
    return 0


def _add_bench(commands: Commands) -> None:
    parser = commands.add_parser("bench", help="measure a part on this machine", description="Measures one part.")
    benches = parser.add_subparsers(title="benches", metavar="BENCH", required=True)
    _add_bench_compressors(benches)
    _add_bench_tta(benches)


def _add_bench_compressors(benches: Commands) -> None:
    parser = benches.add_parser(
        "compressors",
        help="time, loss and memory of every compressor",
        description="Runs every compressor on heavy-tailed synthetic gradients, on one thread and without a network, "
        "and shows its time in copies of the tensor, beside plain PyTorch code for the same purpose.",
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--elements", type=int, default=2560 * 2560, metavar="N", help="of one square tensor (6553600)")
    size.add_argument("--shapes", metavar="MODEL", help="the tensors of resnet101, vgg16, vgg19, lstm or bert-large")
    parser.add_argument("--cf", type=float, nargs="+", default=[10, 100, 1000], help="factors (10 100 1000)")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="ranks, 2 to 64 (2); rank 0 is timed")
    parser.add_argument("--repeats", type=int, default=7, metavar="R", help="timed calls of each (7)")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="measure these alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to this file")
    parser.set_defaults(run=_bench_compressors)


def _bench_compressors(options: argparse.Namespace) -> int:
    if not _has_extra("lab", "rich"):
        return WRONG_USE
    from gravac.lab.bench import Bench
    from gravac.lab.bench_display import run_bench

    try:
        bench = Bench(
            elements=options.elements,
            model=options.shapes,
            cfs=tuple(options.cf),
            workers=options.workers,
            repeats=options.repeats,
            only=tuple(options.only),
            json=options.json,
        )
    except ValueError as error:
        return _complain("bench compressors", error, WRONG_USE)
    try:
        run_bench(bench)
    except OSError as error:
        return _complain("bench compressors", error, FAILED)
    return 0


def _add_bench_tta(benches: Commands) -> None:
    parser = benches.add_parser(
        "tta",
        help="time to accuracy of methods on links, side by side",
        description="Trains each task with every method over every link until a target that dense training reaches, "
        "and writes what it took. Runs that the file holds already are not repeated. Methods: fp32, fp16, bf16, "
        "torch-powersgd(RANK), a compressor at a CF (topk@10, quantize(4)), a controller over one "
        "(gravac:ladder@2-1000). Links: 100mbit, 50mbit/10mbit (down/up), 1gbit,30s:50mbit (a schedule), unthrottled.",
    )
    parser.add_argument(
        "--task", nargs="+", default=["charlm"], metavar="TASK", help="charlm lstm denoise ... (charlm)"
    )
    parser.add_argument("--link", nargs="+", default=["100mbit"], metavar="LINK", help="of each worker (100mbit)")
    parser.add_argument("--methods", nargs="+", metavar="METHOD", help="what is compared (a short list)")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="worker processes, 2 to 8 (2)")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="runs of each, from seed 0 on (3)")
    parser.add_argument("--first-seed", type=int, default=0, metavar="S", help="begin with another seed (0)")
    parser.add_argument("--scale", type=float, default=1.0, help="of the tasks: 1 for two cores, more for GPUs (1)")
    parser.add_argument("--target", type=float, help="of the metric (what dense reaches at 80%% of its budget)")
    parser.add_argument("--budget", type=int, metavar="STEPS", help="of the dense reference run (the task's own)")
    parser.add_argument("--limit", type=float, default=6.0, metavar="X", help="give up at X times the limit (6)")
    parser.add_argument("--factored", action="store_true", help="static methods: steps once, times per link")
    parser.add_argument("--paced", action="store_true", help="make no links; the exchange paces itself instead")
    parser.add_argument("--data", default="", metavar="DIR", help="of tasks that bring no data (resnet101, vgg16)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="results, also to resume from")
    parser.add_argument("--log-dir", type=Path, metavar="DIR", help="TensorBoard logs (none)")
    parser.set_defaults(run=_bench_tta)


def _bench_tta(options: argparse.Namespace) -> int:
    if not _has_extra("lab", "rich"):
        return WRONG_USE
    from gravac.lab.links import LinkError
    from gravac.lab.run import RunFailed
    from gravac.lab.tta import METHODS, Matrix
    from gravac.lab.tta_display import run_tta

    try:
        matrix = Matrix(
            tasks=tuple(options.task),
            links=tuple(options.link),
            methods=tuple(options.methods or METHODS),
            workers=options.workers,
            seeds=tuple(range(options.first_seed, options.first_seed + options.seeds)),
            scale=options.scale,
            target=options.target,
            budget=options.budget,
            limit=options.limit,
            factored=options.factored,
            paced=options.paced,
            data=options.data,
            json=options.json,
            log_dir=options.log_dir,
        )
        return FAILED if run_tta(matrix) else 0
    except ValueError as error:
        return _complain("bench tta", error, WRONG_USE)
    except (RunFailed, LinkError, OSError) as error:
        return _complain("bench tta", error, FAILED)


def _add_report(commands: Commands) -> None:
    parser = commands.add_parser(
        "report",
        help="a page of what bench tta measured",
        description="Writes one self-contained HTML page and PNGs from the results of `gravac bench tta`.",
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="files of gravac bench tta --json")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the page")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="replace the tables between this file's marks")
    parser.set_defaults(run=_report)


def _report(options: argparse.Namespace) -> int:
    if not _has_extra("lab", "matplotlib"):
        return WRONG_USE
    from gravac.lab import record
    from gravac.lab.report.markdown import insert
    from gravac.lab.report.page import write_report

    try:
        runs = record.read(options.runs)
        page = write_report(runs, options.out)
        if options.markdown is not None:
            insert(options.markdown, runs)
    except ValueError as error:
        return _complain("report", error, WRONG_USE)
    except OSError as error:
        return _complain("report", error, FAILED)
    print(f"gravac report: {page}")
    return 0


def _rate(text: str) -> float:
    from gravac.lab.rates import parse_rate

    try:
        return parse_rate(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _has_extra(extra: str, *modules: str) -> bool:
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        print(f"gravac: {', '.join(missing)} is not installed; pip install 'gravac[{extra}]'", file=sys.stderr)
    return not missing


def _complain(command: str, error: Exception, status: int) -> int:
    print(f"gravac {command}: {error}", file=sys.stderr)
    return status


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Unwinds the stack once; what is cleaned up on the way is not interrupted again."""
    for later in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(later, signal.SIG_IGN)
    print(f"\ngravac: stopped by {signal.Signals(number).name}, cleaning up", file=sys.stderr, flush=True)
    raise SystemExit(128 + number)
