# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Runs the compressor bench; shows progress while the bench runs, and a table of results afterwards. Needs rich."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from rich.box import SIMPLE_HEAVY
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from gravac.lab.bench.bench import Bench, Contender, contenders
from gravac.lab.bench.measure import BenchRow, Gradients, measure
from gravac.lab.console import wide_console
from gravac.lab.json_file import write_json
from gravac.lab.provenance import stamp


def run_bench(bench: Bench, console: Console | None = None) -> list[BenchRow]:
    """Measure all compressors, one after another; print a table of the results, and return its rows.

    The rows are also written to the file ``Bench.json``, if one is set. An interrupted bench prints and writes
    the finished rows.
    """
    console = wide_console(console)
    rows: list[BenchRow] = []
    provenance = stamp()
    try:
        _measure_all(bench, console, rows)
    finally:
        if rows:
            console.print(table(bench, rows))
        if rows and bench.json is not None:
            content = {"stamp": provenance.model_dump(), "rows": [asdict(row) for row in rows]}
            write_json(bench.json.absolute(), content)
    return rows


def _measure_all(bench: Bench, console: Console, rows: list[BenchRow]) -> None:
    """Measure all compressors, append a row for each to ``rows``, and show the progress."""
    all_contenders = contenders(bench)
    gradients = Gradients(bench.workers)
    if not console.is_terminal:
        for number, contender in enumerate(all_contenders, 1):
            rows.append(measure(bench, contender, gradients))
            console.print(
                f"{number}/{len(all_contenders)} {_result_line(rows[-1])}",
                highlight=False,
                soft_wrap=True,
                markup=False,
            )
        return
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn())
    # ``auto_refresh`` starts a thread, which would run while a compressor is timed.
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as progress:
        task = progress.add_task("", total=len(all_contenders))
        for contender in all_contenders:
            progress.update(task, description=_contender_title(contender), refresh=True)
            rows.append(measure(bench, contender, gradients))
            progress.update(task, advance=1, refresh=True)


def table(bench: Bench, rows: Sequence[BenchRow]) -> Table:
    """Return a table with a line for each compressor and CF. Times are given as time / time to copy the tensor once."""
    tensors_text = bench.model or " x ".join(map(str, bench.shapes[0]))
    title = (
        f"{tensors_text}: {rows[0].elements:,} elements, {bench.workers} workers, one thread; times as multiples of "
        "the time of a copy"
    )
    rich_table = Table(title=title, box=SIMPLE_HEAVY, pad_edge=False, collapse_padding=True)
    rich_table.add_column("\ncompressor", no_wrap=True)
    for heading in (
        "\nCF",
        "CF\nachieved",
        "wire\nratio",
        "\ngain",
        "\nvNMSE",
        "\nencode",
        "\ndecode",
        "\ntotal",
        "\nquartiles",
        "extra\nMiB",
        "\nGB/s",
        "host waits\nfor GPU",
    ):
        rich_table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        rich_table.add_row(
            row.compressor,
            f"{row.cf:.4g}",
            f"{row.achieved_cf:.4g}",
            f"{row.wire_ratio:.4g}",
            f"{row.gain:.4f}",
            f"{row.vnmse:.3g}",
            f"{row.encode_over_copy:.1f}",
            f"{row.decode_over_copy:.1f}",
            f"{row.total_over_copy:.1f}",
            f"{row.total_over_copy_low:.1f}-{row.total_over_copy_high:.1f}",
            f"{row.extra_bytes / 2**20:.1f}",
            f"{row.gb_per_s:.2f}",
            "?" if row.host_waits is None else "yes" if row.host_waits else "no",
        )
    return rich_table


def _contender_title(contender: Contender) -> str:
    return f"{contender.name} {contender.cf:.4g}x"


def _result_line(row: BenchRow) -> str:
    return (
        f"{row.compressor} {row.cf:.4g}x: {row.total_over_copy:.1f} times as long as a copy "
        f"({row.total_over_copy_low:.1f} to {row.total_over_copy_high:.1f}), "
        f"gain {row.gain:.4f}, wire ratio {row.wire_ratio:.4g}"
    )
