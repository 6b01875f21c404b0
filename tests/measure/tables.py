# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Put what ``docs/measurements/*.json`` hold into the documents, between the marks that name a table.

    python -m tests.measure.tables [--check] [--mixed]

With ``--check`` nothing is written: it is an error if a document says something else than its records, or has a figure
that neither a table nor a sentence covers; see ``tests.measure.check``.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gravac.settings import SettingsError
from tests.measure import (
    beliefs,
    changing_link,
    fast_links,
    going_over,
    hsdp_links,
    judgement,
    ladder,
    nanogpt_links,
    native,
    programs_links,
    published,
    slow_links,
    switching,
    tables_of_demo,
    tables_of_hsdp,
    tables_of_outer,
    tables_of_progress,
    tables_of_rows,
    tables_of_runs,
    worth,
)
from tests.measure.rendering import render
from tests.torch_fsdp import page

Table = tuple[str, Callable[[], str]]
"""The record's name, and a function without arguments that returns the table, as Markdown."""

REPORT = "gravac report"
"""The table that stands between marks of its own."""

README, EVIDENCE = Path("README.md"), Path("docs/evidence")
RESULTS, MATRICES, LANGUAGE = EVIDENCE / "results.md", EVIDENCE / "matrices.md", EVIDENCE / "language.md"
PAPER, MEASUREMENTS = EVIDENCE / "paper-comparisons.md", EVIDENCE / "measurements.md"
ADVISE, BELIEFS, GPU = EVIDENCE / "advise.md", EVIDENCE / "beliefs.md", EVIDENCE / "gpu.md"
BELIEVED = Path("docs/explanation/beliefs.md")
OUTER, MODES, HSDP = EVIDENCE / "outer.md", EVIDENCE / "modes.md", EVIDENCE / "hsdp.md"


def by_template(record: str) -> Table:
    """Return the table whose template has the record's name, and takes its rows."""
    return record, lambda: render(f"tables/{record}", rows=published.rows(record))


def by_function(record: str, markdown: Callable[[list[dict[str, Any]]], str]) -> Table:
    """Return the table that a function makes of a record's rows."""
    return record, lambda: markdown(published.rows(record))


DOCUMENTS: dict[Path, dict[str, Table]] = {
    README: {
        "demo": ("demo", tables_of_demo.demo_in_short),
        "speed": ("tta", tables_of_runs.speed),
    },
    RESULTS: {
        "speed": ("tta", tables_of_runs.speed),
        "outer_in_short": ("outer_tta", tables_of_outer.outer_in_short),
    },
    MATRICES: {
        "hindsight": ("tta", tables_of_runs.hindsight),
        "judgement": ("judgement", tables_of_runs.judgement_table),
        "judgement_topk": ("judgement_topk", lambda: tables_of_runs.judgement_table("judgement_topk")),
        "charlm": ("tta_charlm", tables_of_runs.charlm),
        "efficiency": by_template("efficiency"),
        "probed": ("probed", tables_of_runs.probed),
        REPORT: ("tta", tables_of_runs.matrix),
    },
    LANGUAGE: {
        "language": ("language", tables_of_runs.language),
        "language_steps": ("language", tables_of_runs.language_steps),
        "language_hindsight": ("language", lambda: judgement.table(published.language_verdicts())),
    },
    PAPER: {
        "paper": ("talk", tables_of_runs.published_comparisons),
        "talk": ("talk", tables_of_runs.talk_table),
    },
    GPU: {
        "cuda_audit": ("cuda_audit", tables_of_rows.cuda_audit),
        "memory": ("memory", tables_of_rows.memory),
        "cuda_audit_groups": ("cuda_audit", tables_of_rows.cuda_audit_groups),
    },
    MEASUREMENTS: {
        "soak": by_template("soak"),
        "multilevel": by_template("multilevel"),
        "overhead": by_template("overhead"),
        "agreement": by_template("agreement"),
        "demo": ("demo", tables_of_demo.demo),
        "links": ("links", tables_of_rows.links),
        "factored": by_template("factored"),
        "schedule": ("tta_schedule", tables_of_runs.schedule),
        "switching": by_function("switching", switching.table),
        "worth": by_function("worth", worth.table),
        "lowrank": ("lowrank", tables_of_runs.low_rank),
        "ladder": by_function("ladder", ladder.table),
        "compressors": by_template("compressors"),
        "aims": ("compressors", tables_of_rows.aims),
        "chunks": ("chunks", tables_of_rows.chunks),
        "telemetry": by_template("telemetry"),
        "newcomer": ("newcomer", tables_of_rows.newcomer),
        "before_after": by_template("before_after"),
    },
    OUTER: {
        "outer_efficiency": ("outer_efficiency", tables_of_outer.outer_efficiency),
        "outer_rates": ("outer_efficiency", tables_of_outer.outer_rates),
        "outer_rates_more": ("outer_ranks", tables_of_outer.outer_rates_more),
        "outer_race": ("outer_tta", tables_of_outer.outer_race),
        "outer_frontier": ("outer_efficiency", tables_of_outer.outer_frontier),
        "outer_ranks": ("outer_ranks", tables_of_outer.outer_ranks),
        "outer_race_more": ("outer_tta_more", lambda: tables_of_outer.outer_race("outer_tta_more")),
        "outer_race_four": ("outer_tta_four", lambda: tables_of_outer.outer_race("outer_tta_four")),
        "outer_race_long": ("outer_tta_long", lambda: tables_of_outer.outer_race("outer_tta_long")),
        "outer_judged": ("outer_tta", tables_of_outer.outer_judged),
        "outer_costs": ("outer_costs", tables_of_outer.outer_costs),
        "outer_delays": ("outer_delays", tables_of_outer.outer_delays),
        "outer_long": ("outer_long", tables_of_outer.outer_long),
        "outer_compressed": ("outer_efficiency", tables_of_outer.outer_compressed),
        "outer_memory": ("outer_memory", tables_of_outer.outer_memory),
        "outer_traffic": ("outer_traffic", tables_of_outer.outer_traffic),
        "nanogpt": ("nanogpt", tables_of_outer.nanogpt),
        "nanogpt_configuration": ("nanogpt", tables_of_outer.nanogpt_configuration),
    },
    MODES: {
        "native": by_function("native", native.table),
        "fast_links": by_function("fast_links", fast_links.table),
        "slow_links": by_function("slow_links", slow_links.table),
        "changing_link": by_function("changing_link", changing_link.table),
        "changing_link_changes": by_function("changing_link", changing_link.changes_table),
        "going_over": by_function("going_over", going_over.held_table),
        "going_over_changes": by_function("going_over", going_over.changes_table),
        "nanogpt_links": by_function("nanogpt_links", nanogpt_links.table),
    },
    BELIEFS: {
        "beliefs": by_function("progress", beliefs.table),
        "switchback": ("switchback", tables_of_progress.switchback),
        "overstated": ("switchback", tables_of_progress.table_of_overstated),
        "settling": ("switchback", tables_of_progress.settling),
        "predictors": ("predictors", tables_of_progress.predictors),
        "programs_links": by_function("programs_links", programs_links.table),
        "programs_links_careful": by_function("programs_links", programs_links.table_of_careful),
        "programs_links_checked": by_function("programs_links", programs_links.table_of_checked),
        "programs_links_long": by_function("programs_links", programs_links.table_of_long),
        "outer_optimizers": ("outer-optimizers", tables_of_progress.outer_optimizers),
        "outer_optimizers_at_constant_rates": (
            "outer-optimizers",
            tables_of_progress.outer_optimizers_at_constant_rates,
        ),
    },
    BELIEVED: {"admitted": by_function("progress", beliefs.table_of_admitted)},
    HSDP: {
        "hsdp": by_template("hsdp"),
        "hsdp_links": by_function("hsdp_links", hsdp_links.table),
        "hsdp_tta": ("hsdp_tta", tables_of_hsdp.hsdp_tta),
        "torch_fsdp": by_function("torch_fsdp", page.table),
    },
    ADVISE: {
        "predictions": by_template("predictions"),
        "datacentre": ("datacentre", tables_of_rows.datacentre),
    },
}
"""Every table with measured figures, by document and by the name in its marks."""


def marks(name: str) -> tuple[str, str]:
    """The lines before and after a table."""
    label = name if name == REPORT else f"table {name}"
    return f"<!-- {label}: begin -->", f"<!-- {label}: end -->"


def insert(text: str, name: str, table: str) -> str:
    """The document with what stands between a table's marks replaced.

    Raises:
        SettingsError: it does not have both marks, once.
    """
    begin, end = marks(name)
    if text.count(begin) != 1 or text.count(end) != 1:
        raise SettingsError(f"table {name}: the document needs {begin!r} and {end!r}, once each")
    start, rest = text.split(begin)
    _, tail = rest.split(end)
    return f"{start}{begin}\n\n{table.strip()}\n\n{end}{tail}"


def missing(record: str) -> str | None:
    """What is said of a record that is not there."""
    path = published.FOLDER / f"{record}.json"
    return None if path.exists() else f"{path}: the record is missing; run make measure-{record.replace('_', '-')}"


def table_text(table: Table) -> str:
    """A table with a line on the commits, if they are several."""
    record, markdown = table
    text = markdown()
    note = published.commits(record)
    several = note.startswith("runs of") and note[1:] not in text
    return f"{text}\n\n{note[0].upper()}{note[1:]}." if several else text


def update(document: Path) -> list[str]:
    """Write a document's tables; return what records are missing."""
    text, faults = document.read_text(encoding="utf-8"), []
    for name, table in DOCUMENTS[document].items():
        if fault := missing(table[0]):
            faults.append(fault)
        else:
            text = insert(text, name, table_text(table))
    document.write_text(text, encoding="utf-8")
    return faults


def main(arguments: list[str] | None = None) -> int:
    """Write or check all documents; return 1 if a figure has no record, or is not what its record says."""
    from tests.measure import check

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, print what is wrong")
    parser.add_argument("--mixed", action="store_true", help="allow rows of several commits in one table, with a note")
    options = parser.parse_args(arguments)
    published.MIXED[0] = options.mixed
    try:
        find_faults = check.faults if options.check else update
        faults = [fault for document in DOCUMENTS for fault in find_faults(document)]
    except SettingsError as error:
        faults = [str(error)]
    print("\n".join(dict.fromkeys(faults)) or "every figure in the documents is that of its record")
    print(f"\nnot covered: {check.NOT_COVERED}")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
