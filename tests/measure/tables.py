# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Puts what ``docs/measurements/*.json`` hold into the documents, between the marks that name a table.

    python -m tests.measure.tables [--check] [--mixed]

With ``--check`` nothing is written: it is an error where a document says something else than its records, or a figure
that neither a table nor a claim covers; see ``tests.measure.check``.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

from gravac.settings import SettingsError
from tests.measure import (
    before_after,
    beliefs,
    judgement,
    modes_page,
    published,
    tables_of_demo,
    tables_of_outer,
    tables_of_progress,
    tables_of_rows,
    tables_of_runs,
)

Table = tuple[str, Callable[[], str]]
"""The record's name, and what makes Markdown of it."""

REPORT = "gravac report"
"""The table that stands between marks of its own."""

README, EVIDENCE = Path("README.md"), Path("docs/evidence")
RESULTS, MATRICES, LANGUAGE = EVIDENCE / "results.md", EVIDENCE / "matrices.md", EVIDENCE / "language.md"
PAPER, MEASUREMENTS = EVIDENCE / "paper-comparisons.md", EVIDENCE / "measurements.md"
ADVISE, BELIEFS, GPU = EVIDENCE / "advise.md", EVIDENCE / "beliefs.md", EVIDENCE / "gpu.md"
OUTER, MODES = EVIDENCE / "outer.md", EVIDENCE / "modes.md"

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
        "efficiency": ("efficiency", tables_of_runs.efficiency),
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
        "soak": ("soak", tables_of_rows.soak),
        "multilevel": ("multilevel", tables_of_rows.multilevel),
        "overhead": ("overhead", tables_of_rows.overhead),
        "agreement": ("agreement", tables_of_rows.agreement),
        "demo": ("demo", tables_of_demo.demo),
        "links": ("links", tables_of_rows.links),
        "factored": ("factored", tables_of_rows.factored),
        "schedule": ("tta_schedule", tables_of_runs.schedule),
        "switching": ("switching", tables_of_rows.switching),
        "worth": ("worth", tables_of_rows.worth),
        "lowrank": ("lowrank", tables_of_runs.low_rank),
        "ladder": ("ladder", tables_of_rows.ladder),
        "compressors": ("compressors", tables_of_rows.compressors),
        "aims": ("compressors", tables_of_rows.aims),
        "chunks": ("chunks", tables_of_rows.chunks),
        "telemetry": ("telemetry", tables_of_rows.telemetry),
        "newcomer": ("newcomer", tables_of_rows.newcomer),
        "before_after": ("before_after", lambda: before_after.table(published.rows("before_after"))),
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
    MODES: modes_page.TABLES,
    BELIEFS: {
        "beliefs": ("progress", lambda: beliefs.table(published.rows("progress"))),
        "switchback": ("switchback", tables_of_progress.switchback),
        "settling": ("switchback", tables_of_progress.settling),
        "predictors": ("predictors", tables_of_progress.predictors),
        "programs_links": ("programs_links", tables_of_progress.programs_on_links),
        "programs_links_careful": ("programs_links", tables_of_progress.careful_on_links),
        "programs_links_long": ("programs_links", tables_of_progress.long_on_links),
        "outer_optimizers": ("outer-optimizers", tables_of_progress.outer_optimizers),
    },
    ADVISE: {
        "predictions": ("predictions", tables_of_rows.predictions),
        "datacentre": ("datacentre", tables_of_rows.datacentre),
    },
}
"""Every table with measured figures, by document and by the name in its marks."""

SECTIONS = {MEASUREMENTS: {"before_after": before_after.SECTION}, MODES: modes_page.SECTIONS}
"""Sections that a document has only where there is a record: text with the table's marks, appended by ``update``."""


def marks(name: str) -> tuple[str, str]:
    """The lines before and after a table."""
    of = name if name == REPORT else f"table {name}"
    return f"<!-- {of}: begin -->", f"<!-- {of}: end -->"


def insert(text: str, name: str, table: str) -> str:
    """The document with what stands between a table's marks replaced.

    Raises:
        SettingsError: it does not have both marks, once.
    """
    begin, end = marks(name)
    if text.count(begin) != 1 or text.count(end) != 1:
        raise SettingsError(f"table {name}: the document needs {begin!r} and {end!r}, once each")
    before, rest = text.split(begin)
    _, after = rest.split(end)
    return f"{before}{begin}\n\n{table.strip()}\n\n{end}{after}"


def missing(record: str) -> str | None:
    """What is said of a record that is not there."""
    path = published.FOLDER / f"{record}.json"
    return None if path.exists() else f"{path}: there is no such record; make measure-{record.replace('_', '-')}"


def expected(document: Path) -> dict[str, Table]:
    """The tables that a document has: all but those of ``SECTIONS`` without a record."""
    optional = SECTIONS.get(document, {})
    return {
        name: table for name, table in DOCUMENTS[document].items() if name not in optional or missing(table[0]) is None
    }


def made(table: Table) -> str:
    """A table with a line on the commits, where they are several."""
    name, make = table
    text = make()
    said = published.commits(name)
    several = said.startswith("runs of") and said[1:] not in text
    return f"{text}\n\n{said[0].upper()}{said[1:]}." if several else text


def update(document: Path) -> list[str]:
    """Writes a document's tables; returns what records are missing."""
    text, faults = document.read_text(encoding="utf-8"), []
    for name, table in expected(document).items():
        if fault := missing(table[0]):
            faults.append(fault)
        else:
            if marks(name)[0] not in text and name in SECTIONS.get(document, {}):
                text = f"{text.rstrip()}\n\n{SECTIONS[document][name]}"
            text = insert(text, name, made(table))
    document.write_text(text, encoding="utf-8")
    return faults


def main(arguments: list[str] | None = None) -> int:
    """Writes or checks all documents; returns 1 when a figure has no record, or is not what its record says."""
    from tests.measure import check

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, tell what is wrong")
    parser.add_argument("--mixed", action="store_true", help="put rows of several commits into one table, and say so")
    options = parser.parse_args(arguments)
    published.MIXED[0] = options.mixed
    try:
        faults = [fault for one in DOCUMENTS for fault in (check.faults(one) if options.check else update(one))]
    except SettingsError as error:
        faults = [str(error)]
    print("\n".join(dict.fromkeys(faults)) or "every figure is that of its record")
    print(f"\nnot covered: {check.NOT_COVERED}")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
