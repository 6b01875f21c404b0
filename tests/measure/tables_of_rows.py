# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Published tables that are made of the rows of one measurement, if a template with the rows alone does not do."""

from pathlib import Path
from typing import Any, NamedTuple

from tests.measure.published import rows
from tests.measure.rendering import render
from tests.measure.tables_of_runs import head, line
from tests.packaging.newcomer.measure import PATHS


def links() -> str:
    """All-reduces by rate and number of workers: torch's, gravac's, and a step's."""
    cases: dict[tuple[float, int], dict[str, dict[str, Any]]] = {}
    for row in rows("links"):
        if row["kind"] == "all-reduce":
            cases.setdefault((row["rate_mbit"], row["workers"]), {})[row["way"]] = row
    return render("tables/links", cases=sorted(cases.items()))


AIMS = (
    ("topkc", 10, 6),
    ("randomk(block=64)", 10, 5),
    ("quantize", 4, 12),
    ("quantize", 8, 15),
    ("quantize", 16, 15),
    ("quantize", 32, 15),
    ("topk", 100, 15),
    ("thc", 8, 25),
)
"""Compressor, CF, and the copies it was to take at most."""


def aims() -> str:
    """Copies that compressors take, against those they were to take."""
    by_name = {(row["compressor"], row["cf"]): row for row in rows("compressors")}
    return render("tables/aims", cases=[(by_name[name, cf], aim) for name, cf, aim in AIMS])


def newcomer() -> str:
    """Paths of newcomers, with the page of each where it is today; it may have moved since."""
    pages = {path: Path(page).relative_to("docs") for path, (_, page) in PATHS.items()}
    return render("tables/newcomer", rows=rows("newcomer"), pages=pages)


def datacentre() -> str:
    """Set-ups in which a compressor wins, by GPU and by what coding costs."""
    gpus = dict.fromkeys(row["gpu"] for row in rows("datacentre"))
    return render("tables/datacentre", gpus=gpus, wins=wins)


class Wins(NamedTuple):
    """Number of set-ups in which a compressor wins, and of all."""

    won: int
    setups: int

    def __str__(self) -> str:
        return f"{self.won} of {self.setups}"


def wins(costs: str, gpu: str, key: str, least_gbit: float = 0) -> Wins:
    """Count wins on links of so many Gbit/s at least, by ``key`` of the record's rows."""
    counted = [row for row in rows("datacentre") if (row["costs"], row["gpu"]) == (costs, gpu)]
    counted = [row for row in counted if row["gbit"] >= least_gbit]
    return Wins(sum(row[key] for row in counted), sum(row["setups"] for row in counted))


def chunks() -> str:
    """Errors of chunked top-k by chunk's size, beside plain top-k's, at equal bits; bold: the lowest."""
    sizes = (8, 16, 32, 64, 128, 256, 512)
    lines = head("bits per coordinate", "top-k", "topkc, chunk 8", *map(str, sizes[1:]), "chunk 128, permuted")
    for bits in dict.fromkeys(row["bits"] for row in rows("chunks")):
        by_size = {row["chunk"]: row for row in rows("chunks") if row["bits"] == bits}
        best = min(row["vnmse"] for size, row in by_size.items() if size)
        cells = []
        for size in sizes:
            error = f"{by_size[size]['vnmse']:.3f}" if size in by_size else ""
            cells.append(f"**{error}**" if size in by_size and by_size[size]["vnmse"] == best else error)
        permuted = f"{by_size[128]['vnmse_permuted']:.3f}"
        lines.append(line(f"{bits:g}", f"{by_size[None]['vnmse']:.3f}", *cells, permuted))
    return "\n".join(lines)


def cuda_audit() -> str:
    """Of 2^20 elements; of others where they differ."""
    lines = head("compressor", "CF", "host reads", "copies", "kernels, 2 ranks", "8 ranks", "2^17 and 2^24 elements")
    by_operators = [row for row in rows("cuda_audit") if (row["tensors"], row["by"]) == (1, "operators")]
    for row in by_operators:
        if row["world"] != 2 or row["elements"] != 1 << 20:
            continue
        same = [other for other in by_operators if all(other[name] == row[name] for name in ("compressor", "cf"))]
        kernels = {(other["world"], other["elements"]): other["kernels"] for other in same}
        lines.append(
            line(
                f"`{row['compressor']}`",
                f"{row['cf']:.4g}",
                str(max(other["waits"] for other in same)),
                str(max(other["copies"] for other in same)),
                str(row["kernels"]),
                str(kernels[8, 1 << 20]),
                f"{kernels[2, 1 << 17]}, {kernels[2, 1 << 24]}",
            )
        )
    return "\n".join(lines)


def memory() -> str:
    """Bytes for a parameter with residuals in float32, bfloat16; and for an element of a group, at most of these."""
    lines = head(
        "compressor",
        "CF",
        "between steps",
        "in a step",
        "overflow safety: between",
        "in a step",
        "a group, 2 ranks",
        "8 ranks",
    )
    for label in dict.fromkeys(row["compressor"] for row in rows("memory")):
        by_ranks = {
            ranks: [row for row in rows("memory") if (row["compressor"], row["world"]) == (label, ranks)]
            for ranks in (2, 8)
        }
        cells = [
            ", ".join(f"{row[key]:.1f}" for row in by_ranks[2] if row["overflow_safety"] == safe)
            for safe in (False, True)
            for key in ("kept", "within_a_step")
        ]
        groups = (f"{max(row['group'] for row in of_ranks):.1f}" for of_ranks in by_ranks.values())
        name, comma, residuals = label.partition(", ")
        cf = next(row["cf"] for row in rows("memory") if row["compressor"] == label)
        lines.append(line(f"`{name}`{comma}{residuals}", f"{cf:.4g}", *cells, *groups))
    return "\n".join(lines)


def cuda_audit_groups() -> str:
    """Of one tensor of 2^20 elements, and of 24 of 2^18 as one group; by operators and by kernels."""
    lines = head("compressor", "ranks", "one, by operators", "one, by kernels", "24, by operators", "24, by kernels")
    counts = {
        (row["compressor"], row["world"], row["tensors"], row["by"]): row["kernels"]
        for row in rows("cuda_audit")
        if row["tensors"] > 1 or row["elements"] == 1 << 20
    }
    for compressor, world in dict.fromkeys(key[:2] for key in counts if key[2] > 1):
        cells = [str(counts[compressor, world, tensors, by]) for tensors in (1, 24) for by in ("operators", "kernels")]
        lines.append(line(f"`{compressor}`", str(world), *cells))
    return "\n".join(lines)
