# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The candidates that a policy would have had in a recorded run, from what the run says of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gravac.candidate import Candidate
from gravac.compressors import Compressor
from gravac.policy import Policy
from gravac.replay.trace import same
from gravac.stepping.admission import Admission, admitted
from gravac.telemetry.records import RunRecord


def admit_recorded(run: RunRecord, policy: Policy) -> Admission:
    """The admission that a policy would have had in a recorded run.

    What the record knows of a compressor at a CF, admitted or dropped, is taken from there; of others the wire ratio
    is estimated, see ``gravac.replay.play``. What the run admitted stays: a record in words rounds wire ratios, so that
    they may not tell a candidate from another.

    Args:
        run: record of the run.
        policy: gives controller, base and range.
    """
    recorded = [*run.candidates, *(dropped.candidate for dropped in run.dropped)]
    start = policy.dense_format.cf
    as_then = any(one.dense and same(one.cf, start) for one in recorded)

    def predicted(compressor: Compressor, cf: float) -> Candidate:
        ours = [one for one in recorded if one.compressor == compressor.name]
        it = next((one for one in ours if same(one.cf, cf)), Candidate(compressor.name, cf, math.nan, math.nan))
        ratio, efficiency = it.wire_ratio, it.efficiency
        if not (math.isfinite(ratio) and ratio > 0):
            ratio = _ratio_at([(one.cf, one.wire_ratio) for one in ours], cf) if compressor.compresses else cf
        profile = compressor.profile(cf)
        known = efficiency if math.isfinite(efficiency) else profile.efficiency
        by_gain = profile.efficiency_by_gain
        return Candidate(compressor.name, cf, ratio, known, profile.family, by_gain, it.coding_s, it.exchange_s)

    def stays(one: Candidate) -> bool:
        then = (it for it in run.candidates if it.compressor == one.compressor and not it.dense)
        return as_then and any(same(it.cf, one.cf) for it in then)

    return admitted(policy, predicted, stays)


def _ratio_at(known: Sequence[tuple[float, float]], cf: float) -> float:
    """Log on log between known ratios; in proportion to CF beyond them; CF itself when nothing is known."""
    known = sorted((at, ratio) for at, ratio in known if math.isfinite(ratio) and ratio > 0)
    if not known:
        return cf
    (lowest, its), (highest, other) = known[0], known[-1]
    if cf < lowest:
        return its * cf / lowest
    if cf > highest:
        return other * cf / highest
    cfs, ratios = np.log(known).T
    return math.exp(np.interp(np.log(cf), cfs, ratios))
