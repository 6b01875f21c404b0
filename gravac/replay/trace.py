# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Reads a recorded run back from its trace."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from gravac.replay.fitting import check_record
from gravac.replay.old_records import run_of_words
from gravac.settings import SettingsError
from gravac.telemetry.jsonl import read_jsonl
from gravac.telemetry.records import DecisionRecord, RunRecord, StepRecord

SAME_CF = 1e-5
"""Relative difference below which two CFs are the same: records write them with six digits."""


@dataclass(frozen=True, slots=True)
class Trace:
    """What was recorded of one run.

    Attributes:
        run: settings, ranks and candidates of the run.
        steps: every step recorded, in order, without a gap.
        decisions: every decision recorded.
    """

    run: RunRecord
    steps: tuple[StepRecord, ...]
    decisions: tuple[DecisionRecord, ...]

    @property
    def every(self) -> tuple[int, ...]:
        """Numbers of steps that a round could have, ascending; none where the run exchanged gradients."""
        numbers = {one.candidate.every for one in self.run.forecasts}
        return tuple(sorted(numbers)) if "outer.every" in self.run.settings or numbers - {1} else ()

    def number(self, setting: str) -> float | None:
        """A setting of the run that is a number; ``None`` where it is a word, such as ``"auto"``, or missing."""
        value = self.run.settings.get(setting)
        return value if isinstance(value, (int, float)) else None


def read_trace(path: str | Path, run: int = -1) -> Trace:
    """Read one run of a file that ``JSONLSink`` wrote (``gravac.jsonl`` in ``log_dir``), of any version so far.

    Args:
        path: file to read.
        run: number of the run among those with steps, counted from 0; negative from the end.

    Raises:
        SettingsError: there is no such file or run, or a line is not a record or holds what it may not hold; the
            message names file, line, field and value.
    """
    path = Path(path)
    try:
        records = read_jsonl(path, run_of_words, check_record)
    except OSError as error:
        raise SettingsError(f"trace: cannot read {str(path)!r} ({error.strerror}); give a gravac.jsonl") from None
    except ValueError as error:
        raise SettingsError(f"trace: {error}") from None
    runs: list[tuple[RunRecord, list[StepRecord], list[DecisionRecord]]] = []
    for record in records:
        if isinstance(record, RunRecord):
            runs.append((record, [], []))
        elif not runs:
            raise SettingsError(f"trace: {path} does not begin with a run record; give a whole gravac.jsonl")
        elif isinstance(record, StepRecord):
            runs[-1][1].append(record)
        elif isinstance(record, DecisionRecord):
            runs[-1][2].append(record)
    whole = [one for one in runs if one[1]]
    if not whole:
        raise SettingsError(
            f"trace: {path} has no step records, so there is nothing to replay; record with log_dir, two steps or more"
        )
    if not -len(whole) <= run < len(whole):
        raise SettingsError(f"run: {run} is not one of the {len(whole)} runs with steps in {path}")
    settings, steps, decisions = whole[run]
    return Trace(settings, tuple(steps), tuple(decisions))


def same(a: float, b: float) -> bool:
    """Whether two CFs are the same, up to how records round them."""
    return math.isclose(a, b, rel_tol=SAME_CF)
