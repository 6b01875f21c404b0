# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Verdicts as text: the best option in each step, the best outer steps, and the mode that gravac is expected to run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gravac.costmodel import Prediction
from gravac.lab.advise.option import Option
from gravac.lab.advise.outer_steps import MAX_EVERY

MARGIN = 1.05
"""Ratio of two predicted step times below which they count as equal: predictions are no more exact."""


def each_step_verdict(choices: Sequence[Option], sixteen_bit: Prediction) -> tuple[str, str]:
    """Return the best option with an exchange of gradients in each step, and the reason, a line of text each.

    Args:
        choices: options that compress.
        sixteen_bit: predicted step in 16 bit.
    """
    best = max(choices, key=lambda choice: choice.progress)
    fastest = max(choices, key=lambda choice: choice.speed_up)
    step = (
        f"a native step in 16 bit takes {_milliseconds(sixteen_bit.step_s)}, "
        f"{_milliseconds(sixteen_bit.exposed_s)} of it waiting for the exchange"
    )
    if fastest.speed_up <= MARGIN:
        return (
            "stay native: nothing is predicted to make a step more than 5 % shorter than 16 bit",
            f"{step}; nearest comes {fastest}, {fastest.speed_up:.2f} times as fast",
        )
    if best.progress <= MARGIN:
        return (
            "stay native: no choice is expected to make more than 5 % more progress per second than 16 bit",
            f"{step}; {fastest} makes steps {fastest.speed_up:.2f} times as fast, but less of each; nearest comes "
            f"{best}, {best.progress:.2f} times the progress",
        )
    reason = f"{step}; with {best} {_milliseconds(best.step_s)}, {_milliseconds(best.compress_s)} of it coding, "
    reason += f"each expected to make {best.efficiency:.0%} of a dense step's progress"
    mildest = min(
        (choice for choice in choices if choice.progress >= 0.95 * best.progress), key=lambda choice: choice.cf
    )
    if mildest.cf < 0.8 * best.cf:
        reason += f"; {mildest}, which is milder, comes within 5 %"
    return f"try {best}: {best.progress:.2f} times the progress per second of 16 bit", reason


def outer_steps_verdict(choices: Sequence[Option]) -> str:
    """Return a text that names the best outer steps.

    Args:
        choices: options with outer steps; empty if a single worker trains.
    """
    if not choices:
        return "nothing: one worker has nobody to exchange with"
    best = safest(choices)
    return (
        f"{best}: {best.progress:.2f} times the progress per second of 16 bit in each step, a step "
        f"{_milliseconds(best.step_s)}, worth {best.efficiency:.0%} of a dense one; {best.safe_progress:.2f} times if "
        f"a step makes {_minimum_progress(best)}"
    )


def expected_choice(in_each: Sequence[Option], outer: Sequence[Option]) -> tuple[Option, str]:
    """Return the option that gravac is expected to choose, and the reason as text.

    Options are compared by the lower bound of their progress (``Option.safe_progress``). Outer steps must be better by
    more than ``MARGIN``.

    Args:
        in_each: options with an exchange of gradients in each step, DDP's own among them.
        outer: options with outer steps.
    """
    native = max((choice for choice in in_each if choice.reference), key=lambda choice: choice.progress)
    best = max(in_each, key=lambda choice: choice.safe_progress)
    best = best if best.safe_progress > MARGIN * native.safe_progress else native
    safest_outer = safest(outer) if outer else None
    if safest_outer is not None and safest_outer.safe_progress > MARGIN * best.safe_progress:
        return safest_outer, (
            f"expect outer steps: {safest_outer}, {safest_outer.safe_progress / best.safe_progress:.2f} times the "
            f"progress per second of the best in each step even if a step makes {_minimum_progress(safest_outer)}"
        )
    if best is native:
        waiting = native.exposed_s / native.step_s
        reason = (
            f"expect native steps, by DDP itself in {_dense_format(native)}, which wait for {waiting:.0%} of their time"
        )
    else:
        ratio = best.safe_progress / native.safe_progress
        reason = f"expect compressed gradients in each step: {best}, {ratio:.2f} times the progress of native steps"
    if safest_outer is None:
        return best, reason
    best_outer = _mildest(outer, lambda choice: choice.progress)
    if best_outer.progress <= MARGIN * best.progress:
        return best, f"{reason}; outer steps are not expected to make more than 5 % more progress per second"
    return best, (
        f"{reason}; outer steps would bring {best_outer.progress / best.progress:.2f} times that ({best_outer}), but "
        f"{best_outer.safe_progress / best.safe_progress:.2f} times if a step makes {_minimum_progress(best_outer)}: "
        "too little to be chosen"
    )


def adaptive_code(choice: Option) -> str:
    """Return the line of code by which gravac decides while training, among modes that include the choice's."""
    every = f"every=(1, {MAX_EVERY})" if choice.mode == "outer" else ""
    return f"AdaptiveCompressor({every}).attach(ddp, optimizer)"


def safest(choices: Sequence[Option]) -> Option:
    """Return the option of the lowest CF among those within 5 % of the maximum ``safe_progress``."""
    return _mildest(choices, lambda choice: choice.safe_progress)


def _mildest(choices: Sequence[Option], progress: Callable[[Option], float]) -> Option:
    maximum = max(map(progress, choices))
    near = (choice for choice in choices if progress(choice) >= 0.95 * maximum)
    return min(near, key=lambda choice: (choice.cf, -progress(choice)))


def _minimum_progress(choice: Option) -> str:
    return f"as little progress as it may, {choice.least_efficiency:.2f} of a dense step's"


def _dense_format(choice: Option) -> str:
    return "float32" if choice.cf == 1 else "16 bit"


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.4g} ms"
