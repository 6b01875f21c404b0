# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The page of charts that gravac makes in TensorBoard: charts, their order, tags and units."""

from collections.abc import Sequence
from typing import Any

PREFIX = "gravac/"
"""Prefix of every tag, which keeps gravac's scalars apart from those of the training program."""

CF = PREFIX + "cf"
"""Tag of the present compression factor: 1 is dense."""
OUTER_WIRE_RATIO = PREFIX + "wire_ratio_of_outer_steps"
"""Tag of the wire ratio of outer steps, which is shown in place of a CF."""
CF_LOG10 = PREFIX + "cf_log10"
"""Tag of the compression factor's decimal logarithm: 0 is dense."""
GAIN = tuple(PREFIX + name for name in ("gain", "gain_low", "gain_high"))
"""Tags of a window's gain, and of the lowest and highest gain of its steps; written at decisions."""

STEPS = {
    "loss": PREFIX + "loss",
    "probe": PREFIX + "probe",
    "achieved_cf": PREFIX + "achieved_cf",
    "gain": PREFIX + "gain_of_steps",
    "t_system": PREFIX + "t_system",
    "t_compression": PREFIX + "t_compression",
    "wire_ratio": PREFIX + "wire_ratio",
    "payload_bytes": PREFIX + "payload_bytes",
    "wire_bytes": PREFIX + "wire_bytes",
    "seconds": PREFIX + "seconds/step",
    "compute_seconds": PREFIX + "seconds/compute",
    "compress_seconds": PREFIX + "seconds/compress",
    "exchange_seconds": PREFIX + "seconds/exchange",
    "input_wait_seconds": PREFIX + "seconds/input_wait",
}
"""Tag of each mean over steps, by its name in ``StepRecord``."""

EVERY = PREFIX + "every"
"""Tag of the number of steps from one exchange to the next, of outer steps."""

DELAY = PREFIX + "delay"
"""Tag of the number of steps during which an exchange of outer steps is in flight."""

STEPS_OF_RANKS = PREFIX + "steps_of_ranks/"
"""Prefix of the tags of the number of steps that each rank makes in a round; the rank follows."""

DRIFT = PREFIX + "drift"
"""Tag of the drift of ranks in a round, see ``Measurement``."""

STAIRS = ("achieved_cf", "wire_ratio", "payload_bytes", "wire_bytes")
"""Fields that change with the CF: their curves are staircases too, with extra points when the CF changes."""

WIRE_GIGABYTES = PREFIX + "wire_gigabytes"
"""Tag of the bytes that a rank has sent so far, GB."""

DENSE_WIRE_GIGABYTES = PREFIX + "dense_wire_gigabytes"
"""Tag of the bytes that a rank would have sent so far by dense float32 all-reduces, GB."""

END = "gravac_end/"
"""Prefix of the tags of a run's totals, which are apart from the curves, because a total is a single point."""

PROGRESS_TEXT = PREFIX + "progress"
"""Tag of texts: results of a candidate's trials."""

MODE_TEXT = PREFIX + "mode"
"""Tag of texts: changes of mode."""

MODE_SECONDS = PREFIX + "seconds/change_of_mode"
"""Tag of the seconds that a change of mode took."""

RUN_TEXT = PREFIX + "run"
"""Tag of a text: description of the run."""

DECISION_TEXT = PREFIX + "decision"
"""Tag of texts: description of each decision."""

CHANGES_TEXT = PREFIX + "changes"
"""Tag of a text: table of all changes of the candidate."""


def _lines(*tags: str) -> list[Any]:
    # TensorBoard takes each tag as a regular expression, which it matches with the beginning of tags
    return ["Multiline", [tag + "$" for tag in tags]]


LAYOUT: dict[str, dict[str, list[Any]]] = {
    "gravac: compression factor and gain": {
        "Wire ratio: how many times fewer bytes than dense float32": _lines(STEPS["wire_ratio"]),
        "Compression factor, each method's own measure (1 is dense; names: see Text)": _lines(CF),
        "Compression factor, log10 (0 is dense)": _lines(CF_LOG10),
        "Gain (window, band)": ["Margin", list(GAIN)],
    },
    "gravac: throughput, time and bytes": {
        "Throughput, samples/s": _lines(STEPS["t_system"], STEPS["t_compression"]),
        "Time of a step, seconds": _lines(*(tag for tag in STEPS.values() if "/seconds/" in tag)),
        "Gain (mean of steps)": _lines(STEPS["gain"]),
        "Achieved CF (elements)": _lines(STEPS["achieved_cf"]),
        "Bytes a step, of one rank": _lines(STEPS["payload_bytes"], STEPS["wire_bytes"]),
        "Sent so far, GB, of one rank": _lines(WIRE_GIGABYTES, DENSE_WIRE_GIGABYTES),
    },
}
"""Layout for ``SummaryWriter.add_custom_scalars``: category, chart title, kind of chart and tags; see ``layout``.

There are two categories, because within a category TensorBoard shows charts with bands after all others.
"""


def efficiency_tags(name: str) -> tuple[str, str, str]:
    """Return the tags of a candidate's statistical efficiency, and of its lower and upper bound.

    Args:
        name: name of the candidate.
    """
    tag = PREFIX + "efficiency/" + name
    return tag, tag + "/low", tag + "/high"


def layout(outer: bool, measured: Sequence[str] = ()) -> dict[str, dict[str, list[Any]]]:
    """Return the layout of a run.

    Args:
        outer: whether the run may make outer steps: if so, with charts of rounds.
        measured: names of the candidates whose progress was measured: each gets a chart of its efficiency.
    """
    rounds = {
        "Wire ratio of outer steps, which have no compression factor of a step": _lines(OUTER_WIRE_RATIO),
        "Steps from one exchange to the next, and behind which it travels": _lines(EVERY, DELAY),
        "Steps of each rank in a round": _lines(STEPS_OF_RANKS + r"\d+"),
        "Drift (1: ranks go the same way)": _lines(DRIFT),
    }
    first, *others = LAYOUT.items()
    bands: dict[str, list[Any]] = {
        f"Efficiency of {name}: progress of a step / of a dense step": ["Margin", list(efficiency_tags(name))]
        for name in measured
    }
    return dict([(first[0], {**first[1], **(rounds if outer else {}), **bands}), *others])
