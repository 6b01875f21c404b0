# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""``gravac bench step``: the seconds of a training step of a usual model over a link, and what they are spent on."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAVY
from rich.console import Console
from rich.table import Table

from gravac.lab.bench.models import find_step_model
from gravac.lab.console import print_table, wide_console
from gravac.lab.json_file import check_writable, write_json
from gravac.lab.links.link import UNTHROTTLED, parse_link
from gravac.lab.links.network import MAX_WORKERS, EmulatedNetwork
from gravac.lab.local_ranks import spawn
from gravac.lab.provenance import stamp
from gravac.lab.training.methods import Method

DEFAULT_METHODS = ("fp32", "fp16", "quantize(4)", "quantize(2)", "powersgd@32", "topk@100")
"""Methods that are compared if the user names none."""

REFERENCE_METHODS = ("fp32", "fp16")
"""Methods that every table has: those with which a step's time and memory are compared."""

LONGEST_TURN_SECONDS = 1800.0
"""Seconds after which the ranks of one turn are stopped."""


@dataclass(frozen=True)
class StepBench:
    """Settings of ``gravac bench step``; the constructor refuses wrong settings.

    Attributes:
        model: name of the model, see ``find_step_model``.
        link: link of each worker, such as ``"1gbit"``.
        methods: methods of exchanging gradients; ``fp32`` and ``fp16`` are added if they are missing.
        workers: number of ranks, each a process with one thread.
        warmup: number of steps of each turn that are not timed.
        steps: number of timed steps of each turn.
        turns: number of times that each method is measured; the methods take turns.
        json: file to write the results to; ``None`` writes no file.

    Raises:
        ValueError: a setting is wrong; the message names the argument, the value and what is allowed.
    """

    model: str = "resnet101"
    link: str = UNTHROTTLED
    methods: tuple[str, ...] = DEFAULT_METHODS
    workers: int = 2
    warmup: int = 3
    steps: int = 8
    turns: int = 2
    json: Path | None = None

    def __post_init__(self) -> None:
        find_step_model(self.model)
        parse_link(self.link)
        for method in self.methods:
            Method.parse(method)
        if not 2 <= self.workers <= MAX_WORKERS:
            raise ValueError(f"workers: {self.workers} is outside 2 to {MAX_WORKERS}; use 2")
        for name in ("warmup", "steps", "turns"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} is below 1; use {getattr(StepBench, name)}")
        if self.json is not None:
            check_writable("json", self.json)

    @property
    def all_methods(self) -> tuple[str, ...]:
        """The methods to measure, each once, those for comparison first."""
        return tuple(dict.fromkeys((*REFERENCE_METHODS, *self.methods)))


@dataclass(frozen=True)
class StepRow:
    """What a method's step takes: medians over the turns of rank 0, but for the ends of a range and the memory.

    Attributes:
        method: text of the method.
        running: what the method ran in its last step.
        seconds: seconds of a step.
        over_fp32: seconds / seconds of ``fp32`` in the same turn.
        over_fp32_low: lowest of these ratios.
        over_fp32_high: highest of these ratios.
        compute_s: seconds of a step without any exchange.
        waiting_s: seconds of a step in which training stood still for the exchange.
        coding_s: seconds of encode and decode in a step, hidden behind backward or not; ``None`` if not known.
        exchange_s: seconds of a step in which collectives were in flight; ``None`` if not known.
        peak_bytes: most memory of a rank, in bytes: the highest of all turns and ranks.
    """

    method: str
    running: str
    seconds: float
    over_fp32: float
    over_fp32_low: float
    over_fp32_high: float
    compute_s: float
    waiting_s: float
    coding_s: float | None
    exchange_s: float | None
    peak_bytes: int


def run_step_bench(bench: StepBench, console: Console | None = None) -> list[StepRow]:
    """Measure all methods turn by turn, print a line after each and a table at the end, and return the table's rows.

    An interrupted bench prints and writes the turns that are complete.

    Raises:
        RuntimeError: a rank failed, or the link cannot be emulated.
    """
    console = wide_console(console)
    provenance = stamp()
    turns: list[dict[str, list[dict[str, Any]]]] = []
    try:
        turns.extend(_turns(bench, console))
    finally:
        rows = rows_of(turns)
        if rows:
            print_table(console, table(bench, rows))
        if rows and bench.json is not None:
            settings = {name: setting for name, setting in asdict(bench).items() if name != "json"}
            content = {"stamp": provenance.model_dump(), "settings": settings, "rows": [asdict(row) for row in rows]}
            write_json(bench.json.absolute(), content)
    return rows


def _turns(bench: StepBench, console: Console) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """Yield, for each turn, the results of all ranks by method."""
    link = parse_link(bench.link)
    with ExitStack() as stack:
        network = None
        if link.lowest_rate_bps is not None or link.delay_ms or link.loss_percent:
            network = stack.enter_context(EmulatedNetwork(bench.workers, link))
        for turn in range(bench.turns):
            result_by_method = {}
            for method in bench.all_methods:
                with tempfile.TemporaryDirectory(prefix="gravac-bench-step-") as folder_text:
                    folder = Path(folder_text)
                    arguments = (bench.model, method, str(bench.warmup), str(bench.steps))
                    spawn(
                        "gravac.lab.bench.step_worker",
                        folder,
                        bench.workers,
                        *arguments,
                        timeout_s=LONGEST_TURN_SECONDS,
                        network=network,
                    )
                    texts = [(folder / f"rank-{rank}.json").read_text() for rank in range(bench.workers)]
                result_by_method[method] = [json.loads(text) for text in texts]
                seconds = statistics.median(result_by_method[method][0]["step_s"])
                console.print(
                    f"turn {turn + 1}/{bench.turns} {method}: {seconds:.3f} s a step",
                    highlight=False,
                    soft_wrap=True,
                    markup=False,
                )
            yield result_by_method


def rows_of(turns: Sequence[dict[str, list[dict[str, Any]]]]) -> list[StepRow]:
    """Return a row for each method, from the results of all ranks by method in each turn."""
    rows = []
    for method in turns[0] if turns else ():
        results = [turn[method][0] for turn in turns]
        step_seconds = [statistics.median(result["step_s"]) for result in results]
        ratios = [
            seconds / statistics.median(turn["fp32"][0]["step_s"])
            for seconds, turn in zip(step_seconds, turns, strict=True)
        ]
        rows.append(
            StepRow(
                method=method,
                running=results[-1]["running"],
                seconds=statistics.median(step_seconds),
                over_fp32=statistics.median(ratios),
                over_fp32_low=min(ratios),
                over_fp32_high=max(ratios),
                compute_s=statistics.median(result["compute_s"] for result in results),
                waiting_s=statistics.median(result["waiting_s"] for result in results),
                coding_s=_median_of_known(result["coding_s"] for result in results),
                exchange_s=_median_of_known(result["exchange_s"] for result in results),
                peak_bytes=max(result["peak_bytes"] for turn in turns for result in turn[method]),
            )
        )
    return rows


def _median_of_known(numbers: Iterator[float | None]) -> float | None:
    known_numbers = [number for number in numbers if number is not None]
    return statistics.median(known_numbers) if known_numbers else None


def table(bench: StepBench, rows: Sequence[StepRow]) -> Table:
    """Return a table with a line for each method."""
    title = (
        f"{bench.model} ({find_step_model(bench.model).description} a rank), {bench.link}, {bench.workers} ranks, one "
        "thread each"
    )
    fp16_bytes = next(row.peak_bytes for row in rows if row.method == "fp16")
    rich_table = Table(title=title, box=SIMPLE_HEAVY, pad_edge=False)
    rich_table.add_column("method", no_wrap=True)
    for heading in (
        "s/step",
        "/ fp32",
        "range",
        "compute s",
        "waiting s",
        "coding s",
        "exchange s",
        "peak MiB",
        "over fp16",
    ):
        rich_table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        rich_table.add_row(
            f"{row.method}: {row.running}" if Method.parse(row.method).adaptive else row.method,
            f"{row.seconds:.3f}",
            f"{row.over_fp32:.2f}",
            f"{row.over_fp32_low:.2f}-{row.over_fp32_high:.2f}",
            f"{row.compute_s:.3f}",
            f"{row.waiting_s:.3f}",
            "?" if row.coding_s is None else f"{row.coding_s:.3f}",
            "?" if row.exchange_s is None else f"{row.exchange_s:.3f}",
            f"{row.peak_bytes / 2**20:.0f}",
            f"{(row.peak_bytes - fp16_bytes) / 2**20:+.0f}",
        )
    return rich_table
