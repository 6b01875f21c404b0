# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What to take, in words: the best with DDP's hook, the best with outer steps, and which of the two."""

from __future__ import annotations

from collections.abc import Sequence

from gravac.candidate import DENSE
from gravac.costmodel import Format, Prediction
from gravac.lab.advise.option import Option
from gravac.lab.advise.outer_steps import code

MARGIN = 1.05
"""Ratio of two predicted step times below which they count as equal: predictions are not more exact than that."""


def with_hook(choices: Sequence[Option], sixteen: Prediction, dense: Format) -> tuple[str, str]:
    """What is best with DDP's hook, and why, a line each.

    Args:
        choices: compressed ones.
        sixteen: a step in 16 bit.
        dense: the 16-bit format.
    """
    short = short_name(dense)
    best = max(choices, key=lambda choice: choice.progress)
    fastest = max(choices, key=lambda choice: choice.speed_up)
    step = f"a step takes {_ms(sixteen.step_s)} in {short}, {_ms(sixteen.exposed_s)} of it waiting for the exchange"
    if fastest.speed_up <= MARGIN:
        return (
            f"stay with {short}: nothing is predicted to make a step more than 5 % shorter",
            f"{step}; nearest comes {fastest}, {fastest.speed_up:.2f} times as fast",
        )
    if best.progress <= MARGIN:
        return (
            f"stay with {short}: no choice is expected to make more than 5 % more progress per second",
            f"{step}; {fastest} makes steps {fastest.speed_up:.2f} times as fast, but less of each; nearest comes "
            f"{best}, {best.progress:.2f} times the progress",
        )
    reason = f"{step}; with {best} {_ms(best.step_s)}, {_ms(best.compress_s)} of it coding, each expected to make "
    reason += f"{best.efficiency:.0%} of a dense step's progress"
    mild = min((c for c in choices if c.progress >= 0.95 * best.progress), key=lambda choice: choice.cf)
    if mild.cf < 0.8 * best.cf:
        reason += f"; {mild}, which is milder, comes within 5 %"
    return f"try {best}: {best.progress:.2f} times the progress per second of {short}", reason


def with_outer_steps(choices: Sequence[Option], dense: Format) -> str:
    """What is best with outer steps, in words.

    Args:
        choices: those of outer steps; none where one worker trains.
        dense: the 16-bit format that DDP's hook is taken with.
    """
    if not choices:
        return "nothing: one worker has nobody to exchange with"
    best = mildest(choices)
    said = f"{best.progress:.2f} times the progress per second of {short_name(dense)} with DDP's hook"
    return f"{best}: {said}, a step {_ms(best.step_s)}, worth {best.efficiency:.0%} of a dense one"


def which(hook: Sequence[Option], outer: Sequence[Option], dense: Format) -> tuple[str, str]:
    """Which of the two to take and by how much, in words; and the code that does.

    Outer steps must be more than ``MARGIN`` better: what they are worth is known less well.

    Args:
        hook: choices with DDP's hook, dense ones among them.
        outer: choices with outer steps.
        dense: the 16-bit format.
    """
    usual = max((choice for choice in hook if choice.reference), key=lambda choice: choice.progress)
    best = max(hook, key=lambda choice: choice.progress)
    best = best if best.progress > MARGIN * usual.progress else usual
    apart = mildest(outer) if outer else best
    if apart.progress > MARGIN * best.progress:
        share = apart.progress / best.progress
        measured = apart.compressor == DENSE
        known = (
            "which was measured on small tasks at a constant learning rate" if measured else "which is partly assumed"
        )
        return (
            f"take outer steps: {share:.2f} times the progress per second of DDP's hook, if a step is worth that, "
            f"{known} (docs/outer.md)",
            code(apart.compressor, apart.cf, apart.every, dense),
        )
    how = DENSE if best is usual else f"with {best}"
    return (
        f"take DDP's hook, {how}: outer steps are not expected to make more than 5 % more progress per second",
        code(best.compressor, best.cf, None, dense),
    )


def mildest(choices: Sequence[Option]) -> Option:
    """Return the choice of the lowest CF among those that come within 5 % of the best."""
    most = max(choice.progress for choice in choices)
    return min((one for one in choices if one.progress >= 0.95 * most), key=lambda one: (one.cf, -one.progress))


def short_name(dense: Format) -> str:
    """Return a 16-bit format's short name."""
    return {"bfloat16": "bf16", "float16": "fp16"}.get(dense, dense)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.4g} ms"
