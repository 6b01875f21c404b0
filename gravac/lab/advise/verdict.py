# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What to take, in words: the best in each step, the best with outer steps, and the mode that gravac should come to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gravac.costmodel import Prediction
from gravac.lab.advise.option import Option
from gravac.lab.advise.outer_steps import MOST_EVERY

MARGIN = 1.05
"""Ratio of two predicted step times below which they count as equal: predictions are not more exact than that."""


def in_each_step(choices: Sequence[Option], sixteen: Prediction) -> tuple[str, str]:
    """What is best with an exchange of gradients in each step, and why, a line each.

    Args:
        choices: compressed ones.
        sixteen: a step in 16 bit.
    """
    best = max(choices, key=lambda choice: choice.progress)
    fastest = max(choices, key=lambda choice: choice.speed_up)
    step = (
        f"a native step in 16 bit takes {_ms(sixteen.step_s)}, {_ms(sixteen.exposed_s)} of it waiting for the exchange"
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
    reason = f"{step}; with {best} {_ms(best.step_s)}, {_ms(best.compress_s)} of it coding, each expected to make "
    reason += f"{best.efficiency:.0%} of a dense step's progress"
    mild = min((c for c in choices if c.progress >= 0.95 * best.progress), key=lambda choice: choice.cf)
    if mild.cf < 0.8 * best.cf:
        reason += f"; {mild}, which is milder, comes within 5 %"
    return f"try {best}: {best.progress:.2f} times the progress per second of 16 bit", reason


def with_outer_steps(choices: Sequence[Option]) -> str:
    """What is best with outer steps, in words.

    Args:
        choices: those of outer steps; none where one worker trains.
    """
    if not choices:
        return "nothing: one worker has nobody to exchange with"
    best = safest(choices)
    return (
        f"{best}: {best.progress:.2f} times the progress per second of 16 bit in each step, a step {_ms(best.step_s)}, "
        f"worth {best.efficiency:.0%} of a dense one; {best.safe_progress:.2f} times if a step makes {_of_a_step(best)}"
    )


def expected(in_each: Sequence[Option], outer: Sequence[Option]) -> tuple[Option, str]:
    """Return the choice that gravac is expected to come to, and why, in words.

    Choices are compared by the lower bound of their progress (``Option.safe_progress``). Outer steps must be better by
    more than ``MARGIN``.

    Args:
        in_each: choices with an exchange of gradients in each step, native ones among them.
        outer: choices with outer steps.
    """
    usual = max((choice for choice in in_each if choice.reference), key=lambda choice: choice.progress)
    best = max(in_each, key=lambda choice: choice.safe_progress)
    best = best if best.safe_progress > MARGIN * usual.safe_progress else usual
    apart = safest(outer) if outer else None
    if apart is not None and apart.safe_progress > MARGIN * best.safe_progress:
        return apart, (
            f"expect outer steps: {apart}, {apart.safe_progress / best.safe_progress:.2f} times the progress per "
            f"second of the best in each step even if a step makes {_of_a_step(apart)}"
        )
    if best is usual:
        wait = usual.exposed_s / usual.step_s
        said = f"expect native steps, by DDP itself in {_bits(usual)}, which wait for {wait:.0%} of their time"
    else:
        share = best.safe_progress / usual.safe_progress
        said = f"expect compressed gradients in each step: {best}, {share:.2f} times the progress of native steps"
    if apart is None:
        return best, said
    hoped = _mildest(outer, lambda choice: choice.progress)
    if hoped.progress <= MARGIN * best.progress:
        return best, f"{said}; outer steps are not expected to make more than 5 % more progress per second"
    return best, (
        f"{said}; outer steps would bring {hoped.progress / best.progress:.2f} times that ({hoped}), but "
        f"{hoped.safe_progress / best.safe_progress:.2f} times if a step makes {_of_a_step(hoped)}: too little to be "
        "chosen"
    )


def line(chosen: Option) -> str:
    """Return the line to paste, by which gravac decides among the modes of which one is expected."""
    every = f"every=(1, {MOST_EVERY})" if chosen.mode == "outer" else ""
    return f"AdaptiveCompressor({every}).attach(ddp, optimizer)"


def safest(choices: Sequence[Option]) -> Option:
    """Return the choice of the lowest CF among those that come within 5 % of the most progress that is sure."""
    return _mildest(choices, lambda choice: choice.safe_progress)


def _mildest(choices: Sequence[Option], progress: Callable[[Option], float]) -> Option:
    most = max(map(progress, choices))
    return min((one for one in choices if progress(one) >= 0.95 * most), key=lambda one: (one.cf, -progress(one)))


def _of_a_step(choice: Option) -> str:
    return f"as little progress as it may, {choice.least_efficiency:.2f} of a dense step's"


def _bits(choice: Option) -> str:
    return "float32" if choice.cf == 1 else "16 bit"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.4g} ms"
