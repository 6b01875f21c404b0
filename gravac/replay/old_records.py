# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The record of a run of version 1, which told its candidates in words: read once, here, into data."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from gravac.candidate import Candidate, Cause, Dropped, Forecast
from gravac.telemetry.records import RunRecord

_NUMBER = r"[0-9.e+-]+"
_NAME = rf"(?P<name>\S+) (?P<cf>{_NUMBER})x"
_CANDIDATE = re.compile(
    rf"^{_NAME} \(predicted wire ratio (?P<ratio>{_NUMBER})(?:, worth (?P<worth>{_NUMBER}))?"
    rf"(?:, coding (?P<coding>{_NUMBER}) ms, exchange (?P<exchange>{_NUMBER}) ms)?\)"
)
_DROPPED = re.compile(
    rf"^{_NAME}: would send (?:(?P<times>{_NUMBER}) times the bytes of|what) (?P<other>\S+ {_NUMBER}x)"
)


def run_of_words(values: dict[str, Any]) -> RunRecord:
    """Make a run's record from the values in its line of version 1.

    What the words do not say stays unknown: efficiency is nan where they have none, family and ``by_gain`` are empty.
    Wire ratios are rounded to two digits after the point. Words that cannot be read are left out.

    Raises:
        KeyError, TypeError: the values are not those of a run.
    """
    forecasts = tuple(one for words in values.get("candidates", ()) if (one := _forecast(words)) is not None)
    known = {str(one.candidate): one for one in forecasts}
    dropped: list[Dropped] = []
    for words in values.get("dropped", ()):
        if (less := _dropped(words, known)) is not None:
            dropped.append(less)
            known.setdefault(str(less.forecast.candidate), less.forecast)
    return RunRecord(values["settings"], values["world_size"], forecasts, tuple(dropped))


def _forecast(words: str) -> Forecast | None:
    if (found := _CANDIDATE.match(words)) is None:
        return None
    coding, exchange = (None if found[name] is None else 1e-3 * float(found[name]) for name in ("coding", "exchange"))
    worth = math.nan if found["worth"] is None else float(found["worth"])
    candidate = Candidate("hook", found["name"], float(found["cf"]))
    return Forecast(candidate, float(found["ratio"]), worth, coding_s=coding, exchange_s=exchange)


def _dropped(words: str, known: Mapping[str, Forecast]) -> Dropped | None:
    """Its wire ratio follows from the other's: to two digits, or to 1 % where both were said to send the same."""
    if (found := _DROPPED.match(words)) is None or (other := known.get(found["other"])) is None:
        return None
    cause: Cause = "not_fewer_bytes" if found["times"] else "same_bytes"
    ratio = float(found["times"] or 1)
    sends = other.wire_ratio / ratio if ratio > 0 else math.nan
    return Dropped(Forecast(Candidate("hook", found["name"], float(found["cf"])), sends, math.nan), cause, other, ratio)
