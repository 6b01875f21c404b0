# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The candidates that a policy would have had in a recorded run, from what the run says of its own."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from gravac.candidate import DENSE, Candidate
from gravac.policy import Policy
from gravac.replay.recording import between
from gravac.replay.trace import same
from gravac.stepping.admission import alike
from gravac.telemetry.records import RunRecord

_ADMITTED = re.compile(
    r"^(?P<name>\S+) (?P<cf>[0-9.e+-]+)x "
    r"\(predicted wire ratio (?P<ratio>[0-9.e+-]+)(?:, worth (?P<worth>[0-9.e+-]+))?"
    r"(?:, coding (?P<coding>[0-9.e+-]+) ms, exchange (?P<exchange>[0-9.e+-]+) ms)?\)"
)


_DROPPED = re.compile(
    r"^(?P<name>\S+) (?P<cf>[0-9.e+-]+)x: "
    r"would send (?P<times>[0-9.e+-]+) times the bytes of dense (?P<other>[0-9.e+-]+)x"
)


def admit_recorded(run: RunRecord, policy: Policy) -> tuple[tuple[Candidate, ...], tuple[str, ...]]:
    """The candidates that a policy would have had in a recorded run, and those dropped, in words.

    CFs are what the policy's controller proposes. Their wire ratios are the predictions that the run record holds in
    words, with two digits after the point; where it holds none, see the module's text.
    """
    known, admitted, dense_ratio = _ratios(run)
    seconds = _seconds(run)
    dense, *sixteen = (
        Candidate(
            DENSE,
            form.cf,
            dense_ratio.get(form.cf, form.cf),
            form.profile(form.cf).efficiency,
            form.profile(form.cf).family,
            (),
            *seconds.get((DENSE, form.cf), ()),
        )
        for form in policy.dense_formats
    )
    if not policy.base.compresses:
        return (dense,), ()
    reach = policy.base.candidates(policy.cf_range)
    name = policy.base.name
    proposed = policy.controller.propose(policy.cf_range, reach)
    worth = _worths(run)

    def candidate(cf: float) -> Candidate:
        profile, ratio = policy.base.profile(cf), _ratio_at(known.get(name, []), cf)
        expected = worth.get((name, cf), profile.efficiency)
        times = seconds.get((name, cf), ())
        return Candidate(name, cf, ratio, expected, profile.family, profile.efficiency_by_gain, *times)

    wanted = [candidate(cf) for cf in proposed]
    if policy.controller.keeps_all:
        return (dense, *wanted), ()

    before = admitted.get(name, ()) if dense.cf in dense_ratio else ()  # two digits may not tell it from dense
    stay = [dense]
    dropped = []
    for one in (*sixteen, *sorted(wanted, key=lambda one: (one.wire_ratio, one.cf))):
        recorded = not one.dense and any(same(one.cf, cf) for cf in before)
        twin = next((other for other in stay if alike(one, other)), None)
        least = next(other for other in reversed(stay) if other.dense)
        if not recorded and one.wire_ratio <= least.wire_ratio:
            dropped.append(f"{one}: would send {least.wire_ratio / one.wire_ratio:.2f} times the bytes of {least}")
        elif not recorded and twin is not None:
            dropped.append(f"{one}: would send what {twin} does")
        else:
            stay.append(one)
    return tuple(stay), tuple(dropped)


def _ratios(run: RunRecord) -> tuple[dict[str, list[tuple[float, float]]], dict[str, list[float]], dict[float, float]]:
    """By compressor, ``(cf, wire ratio)`` that a run record knows and the CFs it admitted; dense ratios by CF."""
    known: dict[str, list[tuple[float, float]]] = {}
    admitted: dict[str, list[float]] = {}
    dense: dict[float, float] = {}
    for words in run.candidates:
        if (found := _ADMITTED.match(words)) is None:
            continue
        name, cf, ratio = found["name"], float(found["cf"]), float(found["ratio"])
        if name == DENSE:
            dense[cf] = ratio
        else:
            known.setdefault(name, []).append((cf, ratio))
            admitted.setdefault(name, []).append(cf)
    for words in run.dropped:
        found = _DROPPED.match(words)
        if found is None or float(found["other"]) not in dense or not float(found["times"]) > 0:
            continue
        name, cf, ratio = found["name"], float(found["cf"]), dense[float(found["other"])] / float(found["times"])
        if name == DENSE:
            dense[cf] = ratio
        else:
            known.setdefault(name, []).append((cf, ratio))
    return {name: sorted(pairs) for name, pairs in known.items()}, admitted, dense


def _worths(run: RunRecord) -> dict[tuple[str, float], float]:
    """By compressor and CF: what a step was expected to be worth on the recorded model."""
    found = [it for it in map(_ADMITTED.match, run.candidates) if it is not None and it["worth"] is not None]
    return {(it["name"], float(it["cf"])): float(it["worth"]) for it in found}


def _seconds(run: RunRecord) -> dict[tuple[str, float], tuple[float, float]]:
    """By compressor and CF: what coding and exchange were expected to take."""
    found = [it for it in map(_ADMITTED.match, run.candidates) if it is not None and it["coding"] is not None]
    return {(it["name"], float(it["cf"])): (1e-3 * float(it["coding"]), 1e-3 * float(it["exchange"])) for it in found}


def _ratio_at(known: Sequence[tuple[float, float]], cf: float) -> float:
    """Log on log between known ratios; in proportion to CF beyond them; CF itself when nothing is known."""
    known = [(at, ratio) for at, ratio in known if ratio > 0]
    if not known:
        return cf
    for at, ratio in known:
        if same(at, cf):
            return ratio
    (lowest, its), (highest, other) = known[0], known[-1]
    if cf < lowest:
        return its * cf / lowest
    if cf > highest:
        return other * cf / highest
    logs = [math.log(at) for at, _ in known]
    return math.exp(between(math.log(cf), logs, lambda index: math.log(known[index][1])))
