# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Shows advice as a table, as JSON and as a plot. The table needs rich, the plot matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gravac.compressors import COMPRESSORS
from gravac.costmodel import Format, Load, Network
from gravac.lab.advise.choices import Advice, exchange_load, shapes_of
from gravac.lab.advise.option import Option
from gravac.lab.advise.verdict import EQUAL_RATIO
from gravac.lab.doctor.memory import format_bytes
from gravac.lab.json_file import write_json
from gravac.lab.links.rates import format_rate
from gravac.lab.mesh import Mesh
from gravac.lab.rounding import describe_number, describe_seconds
from gravac.lab.shapes import Shape

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.console import Console

BANDWIDTHS = tuple(10 ** (7 + step / 10) for step in range(41))
"""Bandwidths on the plot's axis, bits per second: 0.01 to 100 Gbit/s."""

WORKER_COUNTS = tuple(2**power for power in range(1, 13))
"""Numbers of workers, or of replicas of a model in shards, on the plot's axis: 2 to 4096."""

MAX_ROWS = 10
"""Number of choices (rows) in the table, unless the user requests all."""

NOT_MEASURED = (
    'All numbers are predicted, not measured. With the line after "in code:" gravac measures while training; '
    "gravac bench tta measures the time to an accuracy."
)
"""Text that tells the user that all numbers are predictions."""


def show(advice: Advice, console: Console | None = None, count: int | None = MAX_ROWS) -> None:
    """Print a line for each recommendation, line of code and reason, then a table of the best choices. Needs rich.

    Args:
        advice: advice to show.
        console: console to print on; ``None`` for standard output.
        count: number of choices in the table; ``None`` for all.
    """
    from rich.box import SIMPLE_HEAVY
    from rich.table import Table

    from gravac.lab.console import print_table, wide_console

    console = wide_console(console)
    for line in (
        f"in each step: {advice.each_step}",
        f"outer steps: {advice.outer}",
        advice.verdict,
        f"in code: {advice.code}",
        f"in code, fixed choice: {advice.fixed}",
        f"why: {advice.reason}",
        NOT_MEASURED,
        *([] if advice.mesh is None else [describe_mesh(advice)]),
    ):
        console.print(line, highlight=False, soft_wrap=True)
    network, machine = advice.network, advice.machine
    shown_choices = advice.by_progress if count is None else advice.best(count)
    hidden_count = len(advice.choices) - len(shown_choices)
    table = Table(
        box=SIMPLE_HEAVY,
        title=f"{advice.elements / 1e6:.1f} M parameters, {_ranks_text(advice)}, "
        f"{advice.batch_s:g} s a batch, {format_rate(float(f'{network.bandwidth:.4g}'))}, "
        f"{1e6 * network.alpha:.4g} µs a message",
        caption="Sorted by time to an accuracy, soonest first"
        f"{f'; {hidden_count} more with --all' if hidden_count else ''}. "
        "Coding (encode and decode) is estimated as the time of as many copies of a tensor as on a CPU, at"
        f" {machine.copy_bytes_per_s / 1e9:.4g} GB/s; the exchange can hide behind {machine.overlap:.0%} of backward. "
        "H: steps from one exchange to the next; native: by torch itself. Efficiency with ?: assumed, never measured.",
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("compressor", overflow="fold")
    table.add_column("mode", overflow="fold")
    has_costs = any(choice.cost is not None for choice in advice.choices)
    headings = [
        "CF",
        "H",
        "progress",
        "step",
        "coding",
        "waiting",
        "speed",
        "efficiency",
        "wire ratio",
        "break-even",
    ]
    for heading in [*headings, *(["cost / 1000 steps"] if has_costs else [])]:
        table.add_column(heading, justify="right", overflow="fold")
    for choice in shown_choices:
        cells = [
            choice.mode,
            f"{choice.cf:.4g}",
            str(choice.every),
            describe_number(choice.progress),
            describe_seconds(choice.step_s),
            describe_seconds(choice.compress_s),
            describe_seconds(choice.exposed_s),
            describe_number(choice.speed_up),
            f"{choice.efficiency:.2f}" if choice.measured else f"{choice.efficiency:.2f}?",
            describe_number(choice.wire_ratio),
            _break_even_text(choice.break_even),
            *([f"{choice.cost:.2f}"] if choice.cost is not None else []),
        ]
        is_better = not choice.reference and choice.recommendable and choice.progress > EQUAL_RATIO
        table.add_row(choice.compressor, *cells, style="bold green" if is_better else None)
    print_table(console, table)


def describe_mesh(advice: Advice) -> str:
    """Return a text on what ranks of a mesh exchange between replicas, and how much memory residuals take.

    Args:
        advice: advice for a model in shards on a mesh.
    """
    mesh = advice.mesh
    assert mesh is not None
    return (
        f"mesh {mesh}: {mesh.replicas} ranks hold the same shard, {advice.exchanged_elements / 1e6:.4g} M parameters, "
        f"and average its gradient. In dense float32 each rank sends {format_bytes(advice.dense_wire_bytes)} to other "
        "replicas. The ranks of a replica share its link. Residuals take up to "
        f"{format_bytes(4 * advice.exchanged_elements)} a rank. What torch exchanges within a replica is not "
        "predicted: add its time to --batch-seconds."
    )


def _ranks_text(advice: Advice) -> str:
    """Return a text that states the number of workers; on a mesh, the numbers of replicas and shards."""
    if advice.mesh is None:
        return f"{advice.workers} workers"
    return f"{advice.mesh.replicas} replicas of {advice.mesh.shards} shard{'s' if advice.mesh.shards > 1 else ''}"


def _break_even_text(bandwidth: float | None) -> str:
    if bandwidth is None:
        return "-"
    if bandwidth == 0:
        return "never"
    return "always" if math.isinf(bandwidth) else format_rate(float(f"{bandwidth:.2g}"))


def as_json(advice: Advice) -> dict[str, Any]:
    """Return advice as a dict of JSON types; ``break_even`` is in bits per second, or ``"always"`` or ``"never"``."""

    def fields_of(choice: Option) -> dict[str, Any]:
        break_even: float | str | None = choice.break_even
        if break_even in (0.0, math.inf):
            break_even = "never" if break_even == 0.0 else "always"
        fields = {name: getattr(choice, name) for name in (*Option.__slots__, "mode", "safe_progress", "recommendable")}
        return {**fields, "break_even": break_even}

    return {
        **{
            name: getattr(advice, name) for name in ("each_step", "outer", "verdict", "mode", "reason", "code", "fixed")
        },
        "workers": advice.workers,
        "mesh": None if advice.mesh is None else str(advice.mesh),
        "batch_seconds": advice.batch_s,
        "elements": advice.elements,
        "exchanged_elements": advice.exchanged_elements,
        "dense_wire_bytes": advice.dense_wire_bytes,
        "alpha": advice.network.alpha,
        "bandwidth": advice.network.bandwidth,
        "copy_bytes_per_s": advice.machine.copy_bytes_per_s,
        "overlap": advice.machine.overlap,
        "choices": [fields_of(choice) for choice in advice.choices],
    }


def save(advice: Advice, path: Path) -> None:
    """Write the JSON values that ``as_json`` returns to a file."""
    write_json(path, as_json(advice))


def plot(
    advice: Advice, model: str | torch.nn.Module | Sequence[Shape], path: Path, dense: Format = "bfloat16"
) -> None:
    """Write a PNG of the speed-up over 16 bit, by bandwidth and by number of workers or replicas. Needs matplotlib.

    The plot has a curve for each of the eight compressors with the most progress, at the compressor's best CF and with
    an exchange in each step. Like the table of the best choices, the plot has only ``Advice.eligible`` choices.

    Args:
        advice: predictions for the model.
        model: model that the advice is about.
        path: PNG file to write.
        dense: 16-bit format that the advice compares with.
    """
    from matplotlib.figure import Figure

    shapes = shapes_of(model)
    machine, network = advice.machine, advice.network
    best_by_compressor: dict[str, Option] = {}
    for choice in advice.eligible:
        if choice.mode == "hook":
            best_by_compressor.setdefault(choice.compressor, choice)
    plotted_choices = list(best_by_compressor.values())[:8]

    mesh = advice.mesh
    present_count, axis_label = (advice.workers, "workers") if mesh is None else (mesh.replicas, "replicas")

    def load_of(choice: Option | None, count: int) -> Load:
        compressor, cf = (None, 1.0) if choice is None else (COMPRESSORS[choice.compressor], choice.cf)
        workers = count if mesh is None else Mesh(count, mesh.shards)
        return exchange_load(shapes, compressor, cf, advice.batch_s, workers, machine, dense)

    def speed_ups(compressed_load: Load, sixteen_bit_load: Load, networks: Sequence[Network]) -> list[float]:
        return [
            sixteen_bit_load.over(net, machine).step_s / compressed_load.over(net, machine).step_s for net in networks
        ]

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    bandwidth_axes, workers_axes = figure.subplots(1, 2)
    networks = [Network(network.alpha, bandwidth) for bandwidth in BANDWIDTHS]
    sixteen_bit_load = load_of(None, present_count)
    sixteen_bit_load_by_count = {count: load_of(None, count) for count in WORKER_COUNTS}
    gbit_per_s = [bandwidth / 1e9 for bandwidth in BANDWIDTHS]
    for choice in plotted_choices:
        compressed_load = load_of(choice, present_count)
        bandwidth_axes.plot(gbit_per_s, speed_ups(compressed_load, sixteen_bit_load, networks), label=str(choice))
        speed_ups_by_count = [
            speed_ups(load_of(choice, count), sixteen_bit_load_by_count[count], [network])[0] for count in WORKER_COUNTS
        ]
        workers_axes.plot(WORKER_COUNTS, speed_ups_by_count, label=str(choice))
    _format_axes(bandwidth_axes, _ranks_text(advice), "bandwidth, Gbit/s", network.bandwidth / 1e9)
    bandwidth_text = format_rate(float(f"{network.bandwidth:.3g}"))
    _format_axes(workers_axes, bandwidth_text, axis_label, present_count)
    bandwidth_axes.set_ylabel("step time of 16 bit / step time")
    workers_axes.legend(fontsize=8)
    figure.savefig(path, format="png", dpi=120)


def _format_axes(axes: Axes, title: str, x_label: str, marked_x: float) -> None:
    """Format axes; a dotted line at ``marked_x`` marks the bandwidth or number of workers that the advice is about."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.axhline(1, color="black", linewidth=0.8)
    axes.axvline(marked_x, color="black", linewidth=0.8, linestyle=":")
    axes.set_title(title)
    axes.set_xlabel(x_label)
    axes.grid(alpha=0.3)
