# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Published table of ``gravac bench tta --mesh``: time to a loss of a model in shards, against torch's own HSDP."""

from gravac.candidate import Candidate
from gravac.lab.links.link import UNTHROTTLED
from gravac.lab.tta.record import TrainingRecord
from tests.measure.published import runs
from tests.measure.tables_of_runs import head, line

NATIVE, ADAPTIVE = "bf16", "adaptive"
"""Methods that are compared: torch's own HSDP that reduces in bfloat16, and ``AdaptiveCompressor()``."""


def hsdp_tta() -> str:
    """Return a row for each scale, link and seed: seconds to the target with both methods, and their ratio."""
    records = {(run.scale, run.link, run.seed, run.method): run for run in runs("hsdp_tta")}
    lines = head(
        "scale", "link", "seed", "the link's share of bfloat16's step", "loss to reach", "bfloat16", "gravac",
        "over bfloat16's", "a step: bfloat16, gravac", "ended with",
    )  # fmt: skip
    for scale, link, seed, method in sorted(records):
        if method != ADAPTIVE or link == UNTHROTTLED:
            continue
        native, adaptive = (records[scale, link, seed, of] for of in (NATIVE, ADAPTIVE))
        share = 1 - records[scale, UNTHROTTLED, seed, NATIVE].step_s / native.step_s
        ratio = adaptive.tta_s / native.tta_s if adaptive.tta_s and native.tta_s else None
        lines.append(
            line(
                f"{scale:g}",
                link,
                str(seed),
                f"{share:.0%}".replace("%", " %"),
                f"{native.target:.3f}",
                _seconds(native.tta_s),
                _seconds(adaptive.tta_s),
                "" if ratio is None else f"{ratio:.2f}",
                f"{native.step_s:.2f} s, {adaptive.step_s:.2f} s",
                str(_last_candidate(adaptive)),
            )
        )
    return "\n".join(lines)


def _seconds(seconds: float | None) -> str:
    """Return seconds as text; ``never`` if the target was not reached."""
    return "never" if seconds is None else f"{seconds:.0f} s"


def _last_candidate(run: TrainingRecord) -> Candidate:
    """Return the candidate that ran at the end of an adaptive run."""
    turn = run.turns[-1]
    return Candidate(turn.mode or "hook", turn.compressor, turn.cf, turn.every)
