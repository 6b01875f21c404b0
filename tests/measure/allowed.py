# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Figures in the documents that were not measured here: settings, published values, definitions."""

from pathlib import Path
from typing import NamedTuple

from tests.measure.tables import LANGUAGE, MATRICES, MEASUREMENTS, PAPER, README, RESULTS


class Allowed(NamedTuple):
    """Figures that are not measured: a pattern, in one document or in all of them, and why."""

    pattern: str
    reason: str
    document: Path | None = None


ALLOWED = (
    Allowed(r"\d+(?:\.\d+)?\s?[KMG]bit/s", "a link's rate, as set"),
    Allowed(
        r"\b[1-9]\d*x\b(?= and \d+x\b)|(?<=at )\d+x\b|(?<=\bto )64x",
        "a compression factor, as set",
    ),
    Allowed(r"(?:top-k|DGC|random-k|static) \d+x\b|-?\b1000x\b", "a compression factor, as set"),
    Allowed(r"95 % interval", "a definition"),
    Allowed(r"(?:above|below|at or below) 1\.05", "the bound of a regret"),
    Allowed(r"within 5 %", "the bound of a regret"),
    Allowed(r"ε (?:of )?0\.[79](?: and 0\.9)?", "the paper's setting"),
    Allowed(r"windows of 500 and 2000 steps", "the paper's setting"),
    Allowed(r"The paper's 3 to 7x", "a published value"),
    Allowed(r"momentum of 0\.9", "a setting"),
    Allowed(r"Python 3\.10|torch 2\.6", "a version", README),
    Allowed(r"runs of 200 steps|runs of 160 to 2000 steps", "how long runs were made", README),
    Allowed(r"above 2\.5 million", "above the 2 443 520 parameters of gpt2, the largest model of hsdp_links", README),
    Allowed(r"\(5 minutes\)", "how long a command takes, roughly", README),
    Allowed(r"Apache-2\.0|arXiv 2103\.00543", "a name", README),
    Allowed(r"after 80 % of its steps", "how a target is set", RESULTS),
    Allowed(r"runs of 300 steps, then of 2000", "how long runs were made", RESULTS),
    Allowed(r"an upper end of 1\.02", "the aim of a measurement", RESULTS),
    Allowed(r"are of 200 steps", "how long runs were made", MATRICES),
    Allowed(r"AdamW for 160 steps", "how long runs were made", LANGUAGE),
    Allowed(r"differences under some 15 % mean little", "a judgement, by the range of seeds", MATRICES),
    Allowed(r"between 10x and dense", "a compression factor, as set", PAPER),
    Allowed(r"\|\s+, [^|]*\| [\de.-]+ \|", "a learning rate, as set", MEASUREMENTS),
    Allowed(r"for forty steps|of the 12 means", "in words"),
)
"""Read with the sentences around them; each with its reason."""
