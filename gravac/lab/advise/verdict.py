# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Recommendations as text: best option in each step, best outer steps, and the mode that gravac is expected to run.

Only options with ``Option.recommendable`` are recommended: their efficiency was measured, and is not too low.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gravac.costmodel import Prediction
from gravac.lab.advise.option import LEAST_RECOMMENDED_EFFICIENCY, Option
from gravac.lab.advise.outer_steps import MAX_EVERY
from gravac.lab.advise.wrapping import IN_DDP, Wrapping
from gravac.lab.rounding import describe_number, describe_seconds

EQUAL_RATIO = 1.05
"""Ratio up to which two predicted step times or values of progress count as equal, as predictions are not exact."""


def each_step_verdict(
    choices: Sequence[Option], sixteen_bit_prediction: Prediction, wrapping: Wrapping = IN_DDP
) -> tuple[str, str]:
    """Return two lines of text: the best option that exchanges gradients in each step, and the reason.

    Args:
        choices: options that compress gradients in each step.
        sixteen_bit_prediction: prediction of a step in which torch itself exchanges in 16 bit.
        wrapping: texts that differ between a model in DDP and a model in shards.
    """
    fastest_option = max(choices, key=lambda choice: choice.speed_up)
    recommendable_options = [choice for choice in choices if choice.recommendable]
    best_option = max(recommendable_options, key=lambda choice: choice.progress, default=None)
    native_step_text = (
        f"{wrapping.native_step} in 16 bit takes {describe_seconds(sixteen_bit_prediction.step_s)}, "
        f"{describe_seconds(sixteen_bit_prediction.exposed_s)} of it waiting for the exchange"
    )
    if fastest_option.speed_up <= EQUAL_RATIO:
        return (
            f"{wrapping.stay_text}: no compressed step is predicted to be more than 5 % faster than a step in 16 bit",
            f"{native_step_text}; the fastest compressed step is {fastest_option}, "
            f"{describe_number(fastest_option.speed_up)} times as fast",
        )
    if best_option is None:
        return (
            f"{wrapping.stay_text}: no choice has a measured efficiency whose lower bound is at least "
            f"{LEAST_RECOMMENDED_EFFICIENCY:g}",
            f"{native_step_text}; {_describe_doubtful_speed(fastest_option)}",
        )
    if best_option.progress <= EQUAL_RATIO:
        return (
            f"{wrapping.stay_text}: no choice is expected to make more than 5 % more progress per second than 16 bit",
            f"{native_step_text}; {_describe_doubtful_speed(fastest_option)}; "
            f"the most progress per second is that of {best_option}, {best_option.progress_text} times that of 16 bit",
        )
    reason = f"{native_step_text}; with {best_option} a step takes {describe_seconds(best_option.step_s)}, "
    reason += f"{describe_seconds(best_option.compress_s)} of it encode and decode, "
    reason += f"and is expected to make {best_option.efficiency:.0%} of a dense step's progress"
    lower_cf_option = min(
        (choice for choice in recommendable_options if choice.progress >= 0.95 * best_option.progress),
        key=lambda choice: choice.cf,
    )
    if lower_cf_option.cf < 0.8 * best_option.cf:
        reason += f"; {lower_cf_option}, which compresses less, makes at most 5 % less progress per second"
    return f"try {best_option}: {best_option.progress_text} times the progress per second of 16 bit", reason


def outer_steps_verdict(choices: Sequence[Option]) -> str:
    """Return a text that names the best option with outer steps (several training steps for each exchange).

    Args:
        choices: options with outer steps; empty if a single worker trains.
    """
    if not choices:
        return "nothing: one worker has no other worker to exchange with"
    recommendable_options = [choice for choice in choices if choice.recommendable]
    if not recommendable_options:
        return (
            "nothing: no outer steps have a measured efficiency whose lower bound is at least "
            f"{LEAST_RECOMMENDED_EFFICIENCY:g}"
        )
    best_option = safest_option(recommendable_options)
    return (
        f"{best_option}: {best_option.progress_text} times the progress per second of 16 bit in each step; a step "
        f"takes {describe_seconds(best_option.step_s)} and is expected to make {best_option.efficiency:.0%} of a dense "
        f"step's progress; {describe_number(best_option.safe_progress)} times if a step makes "
        f"{_minimum_progress_text(best_option)}"
    )


def expected_choice(
    each_step_options: Sequence[Option], outer_options: Sequence[Option], wrapping: Wrapping = IN_DDP
) -> tuple[Option, str]:
    """Return the option that gravac is expected to choose, and a text with the reason.

    Options that are not recommendable are ignored. The others are compared by the lower bound of their progress
    (``Option.safe_progress``). Compression in each step is expected only if its bound is more than ``EQUAL_RATIO``
    times the bound of native steps. Outer steps are expected only if their bound is more than ``EQUAL_RATIO`` times the
    bound of the best option that exchanges in each step.

    Args:
        each_step_options: options with an exchange of gradients in each step, including torch's own.
        outer_options: options with outer steps; empty if a single worker trains.
        wrapping: texts that differ between a model in DDP and a model in shards.
    """
    native_option = max(
        (choice for choice in each_step_options if choice.reference), key=lambda choice: choice.progress
    )
    best_option = max(
        (choice for choice in each_step_options if choice.recommendable), key=lambda choice: choice.safe_progress
    )
    best_option = (
        best_option if best_option.safe_progress > EQUAL_RATIO * native_option.safe_progress else native_option
    )
    recommendable_outer = [choice for choice in outer_options if choice.recommendable]
    safest_outer = safest_option(recommendable_outer) if recommendable_outer else None
    if safest_outer is not None and safest_outer.safe_progress > EQUAL_RATIO * best_option.safe_progress:
        return safest_outer, (
            f"expect outer steps: {safest_outer}, "
            f"{describe_number(safest_outer.safe_progress / best_option.safe_progress)} times the "
            "progress per second of the best choice that exchanges in each step, even if a step makes "
            f"{_minimum_progress_text(safest_outer)}"
        )
    if best_option is native_option:
        waiting_fraction = native_option.exposed_s / native_option.step_s
        reason = (
            f"{wrapping.expect_native} in {_dense_format_name(native_option)}, which wait for the exchange "
            f"{waiting_fraction:.0%} of their time"
        )
    else:
        progress_ratio = best_option.safe_progress / native_option.safe_progress
        reason = (
            f"expect compressed gradients in each step: {best_option}, {describe_number(progress_ratio)} times "
            f"the progress of {wrapping.native_steps}"
        )
    if safest_outer is None:
        return best_option, reason
    best_outer = _lowest_cf_near_maximum(recommendable_outer, lambda choice: choice.progress)
    if best_outer.progress <= EQUAL_RATIO * best_option.progress:
        return best_option, f"{reason}; outer steps are not expected to make more than 5 % more progress per second"
    return best_option, (
        f"{reason}; outer steps would bring {describe_number(best_outer.progress / best_option.progress)} times the "
        f"progress per second ({best_outer}), but "
        f"{describe_number(best_outer.safe_progress / best_option.safe_progress)} times if a step makes "
        f"{_minimum_progress_text(best_outer)}: too little to be chosen"
    )


def adaptive_code(choice: Option, wrapping: Wrapping = IN_DDP) -> str:
    """Return the line of code with which gravac chooses while training; allow outer steps if ``choice`` has them."""
    arguments = f"every=(1, {MAX_EVERY})" if choice.mode == "outer" else ""
    return f"AdaptiveCompressor({arguments}).attach({wrapping.model_variable}, optimizer)"


def safest_option(choices: Sequence[Option]) -> Option:
    """Return the option of lowest CF among the options whose ``safe_progress`` is within 5 % of the maximum."""
    return _lowest_cf_near_maximum(choices, lambda choice: choice.safe_progress)


def _lowest_cf_near_maximum(choices: Sequence[Option], progress_of: Callable[[Option], float]) -> Option:
    """Return the option of lowest CF among the options whose progress is within 5 % of the maximum.

    Args:
        choices: options to select from.
        progress_of: function that takes an option and returns its progress per second, relative to 16 bit in each step.
    """
    max_progress = max(map(progress_of, choices))
    options_near_maximum = (choice for choice in choices if progress_of(choice) >= 0.95 * max_progress)
    return min(options_near_maximum, key=lambda choice: (choice.cf, -progress_of(choice)))


def _minimum_progress_text(choice: Option) -> str:
    return f"only {choice.least_efficiency:.2f} of a dense step's progress (lower bound)"


def _dense_format_name(choice: Option) -> str:
    return "float32" if choice.cf == 1 else "16 bit"


def _describe_doubtful_speed(option: Option) -> str:
    """Return a text that says how fast an option's steps are, and that their progress is low or was never measured."""
    doubt = _minimum_progress_text(option) if option.measured else "progress that nobody measured"
    return f"{option} makes steps {describe_number(option.speed_up)} times as fast, but each makes {doubt}"
