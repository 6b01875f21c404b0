# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Whether documents say what their records do, and nothing that no record holds.

1. Each table of ``tests.measure.tables`` is made again and must stand in its document letter by letter.
2. Each sentence of ``tests.measure.claims``, filled in from the records, must stand there, whatever its line breaks.
3. What remains of a document is searched for figures: numbers with a decimal point, or before a unit. Each must be
   allowed in ``tests.measure.allowed``, with the reason why it is not measured here.
4. Tables outside marks must have no figures at all.
"""

import re
from pathlib import Path

from tests.measure import claims, tables
from tests.measure.allowed import ALLOWED

SCANNED = (tables.README, tables.RESULTS, tables.MATRICES, tables.LANGUAGE, tables.PAPER)
"""Documents whose prose must have no figure without a record."""

NOT_COVERED = (
    "prose of measurements.md, advise.md and modes.md in docs/evidence but for what tests/measure/templates/sentences "
    "has of it (their tables are covered); prose of docs/evidence/outer.md, docs/evidence/gpu.md and "
    "docs/evidence/beliefs.md (their tables are covered); all other pages of docs, and docstrings; figures within "
    "code; counts without a unit, such as 'three cells', and whether words such as 'faster' fit the figures beside them"
)
"""Where a wrong figure would not be found."""

IGNORED_LINES = re.compile(r"^\|.*$", re.MULTILINE)
"""Tables, which have a rule of their own."""

UNITS = (
    r"(?:\s?[xX×](?!\w)|\s?%|\s?(?:ms|µs|s|KB|MB|GB|bytes|nats|dB|steps|copies|minutes|hours|times)\b"
    r"|\s?[KMG]bit/s)"
)

FIGURE = re.compile(rf"(?<![\w/@.-])[-+]?\d[\d,]*(?:\.\d+(?![\w.]*\.\d)|(?:\.\d+)?(?={UNITS}))(?:{UNITS})?")

IGNORED = re.compile(r"```.*?```|`[^`\n]*`|<!--.*?-->|\]\([^)]*\)|https?://\S+", re.DOTALL)
"""Code, comments and addresses."""


def faults(document: Path) -> list[str]:
    """Return what is wrong with a document, in words; nothing if all is well."""
    text = document.read_text(encoding="utf-8")
    wrong: list[str] = []
    for name, table in tables.DOCUMENTS[document].items():
        begin, end = tables.marks(name)
        if fault := tables.missing(table[0]):
            wrong.append(fault)
        elif text != tables.insert(text, name, tables.table_text(table)):
            wrong.append(
                f"{document}: table {name} is not what {table[0]}.json gives; run python -m tests.measure.tables"
            )
        text = text.split(begin)[0] + text.split(end)[1] if begin in text and end in text else text
    wrong += [
        f"{document}: a table outside marks has figures: {line}"
        for line in text.splitlines()
        if line.startswith("|") and figures(line, document)
    ]
    prose = flat(IGNORED_LINES.sub(" ", text))
    for claim in map(flat, claims.CLAIMS.get(document, list)()):
        if claim not in prose:
            wrong.append(f"{document}: a sentence that the records give is missing: {claim}")
        prose = prose.replace(claim, " ")
    if document in SCANNED:
        wrong += [f"{document}: no record holds {figure}" for figure in figures(prose, document)]
    return wrong


def figures(text: str, document: Path) -> list[str]:
    """Return figures that are not allowed, each with some words around it."""
    text = IGNORED.sub(" ", text)
    for allowed in ALLOWED:
        if allowed.document in (None, document):
            text = re.sub(allowed.pattern, " ", text)
    return [
        f"{match.group().strip()!r} (…{text[max(0, match.start() - 40) : match.end() + 20]}…)"
        for match in FIGURE.finditer(text)
    ]


def flat(text: str) -> str:
    """Return a text with every run of white space as one space."""
    return " ".join(text.split())
