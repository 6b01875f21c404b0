# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The page of charts that TensorBoard shows for a run: the charts in their order, with tags and units."""

from typing import Any

PREFIX = "gravac/"
"""Prefix of every tag, which tells gravac's scalars from those of the training program."""

CF = PREFIX + "cf"
"""Tag of the compression factor (CF) that runs: 1 is dense."""
OUTER_WIRE_RATIO = PREFIX + "wire_ratio_of_outer_steps"
"""Tag of the wire ratio of outer steps, which outer steps have in place of a CF."""
CF_LOG10 = PREFIX + "cf_log10"
"""Tag of the compression factor's decimal logarithm: 0 is dense."""
GAIN_TAGS = tuple(PREFIX + name for name in ("gain", "gain_low", "gain_high"))
"""Tags of a window's gain, and of the lowest and highest gain of its steps; written at decisions."""

STEP_TAGS = {
    "loss": PREFIX + "loss",
    "achieved_cf": PREFIX + "achieved_cf",
    "gain": PREFIX + "gain_of_steps",
    "t_system": PREFIX + "t_system",
    "t_compression": PREFIX + "t_compression",
    "wire_ratio": PREFIX + "wire_ratio",
    "payload_bytes": PREFIX + "payload_bytes",
    "wire_bytes": PREFIX + "wire_bytes",
    "seconds": PREFIX + "seconds/step",
    "compute_seconds": PREFIX + "seconds/compute",
    "forward_seconds": PREFIX + "seconds/forward",
    "compress_seconds": PREFIX + "seconds/compress",
    "exchange_seconds": PREFIX + "seconds/exchange",
    "input_wait_seconds": PREFIX + "seconds/input_wait",
}
"""Tag of each curve of means over steps, by field name of ``StepRecord``."""

EVERY = PREFIX + "every"
"""Tag of H, the number of training steps from one exchange to the next in outer steps."""

DELAY = PREFIX + "delay"
"""Tag of the number of training steps for which an exchange of outer steps is in flight."""

DRIFT = PREFIX + "drift"
"""Tag of the drift in a round of outer steps: 1 if all ranks move the same way, see ``AgreedNumbers``."""

STAIRCASE_FIELDS = ("achieved_cf", "wire_ratio", "payload_bytes", "wire_bytes")
"""Fields of ``StepRecord`` whose curves are staircases, as the CF's: points are added before and after each change."""

WIRE_GIGABYTES = PREFIX + "wire_gigabytes"
"""Tag of the bytes that a rank has sent so far, GB."""

DENSE_WIRE_GIGABYTES = PREFIX + "dense_wire_gigabytes"
"""Tag of the bytes that a rank would have sent so far by dense float32 all-reduces, GB."""

END_PREFIX = "gravac_end/"
"""Prefix of the tags of a run's totals, which are single points; tags of curves have the prefix ``PREFIX``."""

MODE_TEXT = PREFIX + "mode"
"""Tag of texts: each change of the mode in which steps run."""

MODE_SECONDS = PREFIX + "seconds/change_of_mode"
"""Tag of the seconds that each change of mode took."""

RUN_TEXT = PREFIX + "run"
"""Tag of a text: description of the run."""

DECISION_TEXT = PREFIX + "decision"
"""Tag of texts: description of each decision."""

CHANGES_TEXT = PREFIX + "changes"
"""Tag of a text: table of all changes of the candidate that runs."""


def _lines(*tags: str) -> list[Any]:
    """Return the description of a chart with a line for each tag, for ``LAYOUT``."""
    # TensorBoard takes each text as a regular expression for the beginning of a tag; "$" makes it match whole tags
    return ["Multiline", [tag + "$" for tag in tags]]


LAYOUT: dict[str, dict[str, list[Any]]] = {
    "gravac: compression factor and gain": {
        "Wire ratio: how many times fewer bytes than dense float32": _lines(STEP_TAGS["wire_ratio"]),
        "Compression factor, each method's own measure (1 is dense; the tab Text names the methods)": _lines(CF),
        "Compression factor, log10 (0 is dense)": _lines(CF_LOG10),
        "Gain of each window, and of its lowest and highest step": ["Margin", list(GAIN_TAGS)],
    },
    "gravac: throughput, time and bytes": {
        "Throughput, samples/s": _lines(STEP_TAGS["t_system"], STEP_TAGS["t_compression"]),
        "Time of a step, seconds": _lines(*(tag for tag in STEP_TAGS.values() if "/seconds/" in tag)),
        "Gain (mean of steps)": _lines(STEP_TAGS["gain"]),
        "Achieved CF (elements)": _lines(STEP_TAGS["achieved_cf"]),
        "Bytes a step, of one rank": _lines(STEP_TAGS["payload_bytes"], STEP_TAGS["wire_bytes"]),
        "Sent so far, GB, of one rank": _lines(WIRE_GIGABYTES, DENSE_WIRE_GIGABYTES),
    },
}
"""Layout of the charts, for ``SummaryWriter.add_custom_scalars``: category, chart title, kind of chart and tags.

Charts are in two categories, because within a category TensorBoard shows charts with bands after all others. The
function ``layout`` adds charts for outer steps.
"""


def layout(may_run_outer: bool) -> dict[str, dict[str, list[Any]]]:
    """Return the layout of a run's charts: ``LAYOUT``, with further charts if the run needs them.

    Args:
        may_run_outer: whether the run may make outer steps; if so, the layout has charts of their rounds.
    """
    round_charts = {
        "Wire ratio of outer steps (shown instead of a compression factor)": _lines(OUTER_WIRE_RATIO),
        "Outer steps: steps from one exchange to the next, and steps that an exchange is in flight": _lines(
            EVERY, DELAY
        ),
        "Drift (1: all ranks move the same way)": _lines(DRIFT),
    }
    first_category, *other_categories = LAYOUT.items()
    return dict(
        [(first_category[0], {**first_category[1], **(round_charts if may_run_outer else {})}), *other_categories]
    )
