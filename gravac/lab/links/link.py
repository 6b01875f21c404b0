# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Descriptions of links and their text form: rates, changes of rates over time, delay and loss.

``gravac.lab.links.network`` emulates a link. A link as text::

    100mbit                        both directions
    50mbit/10mbit                  download/upload of each worker
    unthrottled                    no limit
    1gbit,30s:50mbit,60s:1gbit     a schedule: seconds since training began, and the rates from then on
    100mbit,rank1:100mbit/20mbit   rank 1 has rates of its own, which do not change over time
    100mbit+20ms+0.1%              one-way delay and loss, on each direction of each worker's link
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import pairwise

from gravac.lab.links.rates import BPS_BY_UNIT, HIGHEST_RATE_BPS, LOWEST_RATE_BPS, format_rate, parse_rate

UNTHROTTLED = "unthrottled"
"""Text of a link, or of one direction of a link, whose rate is not limited."""

PACED = "paced, no emulated link"
"""Text that marks results of runs without an emulated link, in which exchanges slept to imitate a slow link."""

LINK_EXAMPLES = (
    "such as 100mbit, 50mbit/10mbit, 1gbit,30s:50mbit, 100mbit,rank1:20mbit, 100mbit+20ms+0.1% or unthrottled"
)
"""Examples of links as text, for error messages."""

SHORTEST_PHASE_SECONDS = 0.5
"""Minimum seconds between two changes of rates: the commands that change rates take up to 0.2 s on a busy machine."""

MAX_SCHEDULE_SECONDS = 86_400.0
"""Latest time of a change of rates, in seconds since training began."""

MIN_IMPAIRMENT, MAX_DELAY_MS, MAX_LOSS_PERCENT = 0.001, 10_000.0, 50.0
"""Minimum of a delay (ms) or loss (percent) that is not 0; maximum delay (ms); maximum loss (percent)."""

_RANK_ENTRY = re.compile(r"\s*rank(\d+)\s*:(.*)")
_NUMBER = re.compile(r"[0-9]*\.?[0-9]+")


@dataclass(frozen=True)
class Phase:
    """Rates of a link from ``at_seconds`` until the next phase begins.

    Attributes:
        at_seconds: time at which the phase begins, in seconds of wall time since training began.
        down: bits per second towards the worker; ``None`` if unthrottled.
        up: bits per second from the worker; ``None`` if unthrottled.
    """

    at_seconds: float
    down: float | None
    up: float | None

    def __str__(self) -> str:
        rates = _rate_text(self.down)
        if self.down != self.up:
            rates += f"/{_rate_text(self.up)}"
        return f"{_number_text(self.at_seconds)}s:{rates}" if self.at_seconds else rates


@dataclass(frozen=True)
class Link:
    """Link between each worker and the network: rates over time, delay and loss.

    Attributes:
        phases: rates over time, by ascending time; the first phase begins at 0.
        delay_ms: milliseconds by which each packet is delayed, in each direction; a packet between two workers passes
            two links.
        loss_percent: percentage of packets lost in each direction.
        of_ranks: ``(rank, rates)`` of each rank with rates of its own, which do not change over time; by ascending
            rank. ``at_seconds`` of these rates is 0.

    Raises:
        ValueError: a rate, time, delay or loss is out of range; the message has the number and the remedy.
    """

    phases: tuple[Phase, ...]
    delay_ms: float = 0.0
    loss_percent: float = 0.0
    of_ranks: tuple[tuple[int, Phase], ...] = ()

    def __post_init__(self) -> None:
        if not self.phases or self.phases[0].at_seconds != 0:
            raise ValueError(
                f"link: {str(self)!r} has no rates for its first seconds; give a first phase that begins at 0 s, "
                "such as 1gbit,30s:50mbit"
            )
        ranks = [rank for rank, _ in self.of_ranks]
        if any(following_rank <= previous_rank for previous_rank, following_rank in pairwise([-1, *ranks])):
            raise ValueError(
                f"link: {str(self)!r} names a rank twice, or ranks in descending order; name each rank once, in "
                "ascending order, such as 100mbit,rank0:20mbit,rank1:50mbit"
            )
        phase_times = [phase.at_seconds for phase in self.phases]
        for previous_time, phase_time in pairwise(phase_times):
            if not previous_time + SHORTEST_PHASE_SECONDS <= phase_time <= MAX_SCHEDULE_SECONDS:
                raise ValueError(
                    f"link: {str(self)!r} has a phase at {_number_text(phase_time)} s after a phase at "
                    f"{_number_text(previous_time)} s; use "
                    f"ascending times at least {SHORTEST_PHASE_SECONDS:g} s apart and up to "
                    f"{MAX_SCHEDULE_SECONDS:g} s, such as 1gbit,30s:50mbit"
                )
        for rate in self._limited_rates():
            if not LOWEST_RATE_BPS <= rate <= HIGHEST_RATE_BPS:
                raise ValueError(
                    f"link: {str(self)!r} has a rate of {rate:g} bit/s, outside {format_rate(LOWEST_RATE_BPS)} to "
                    f"{format_rate(HIGHEST_RATE_BPS)}; use a rate in that range, {LINK_EXAMPLES}"
                )
        for impairment, maximum, description in (
            (self.delay_ms, MAX_DELAY_MS, "a delay in milliseconds"),
            (self.loss_percent, MAX_LOSS_PERCENT, "a loss in percent"),
        ):
            if impairment != 0 and not MIN_IMPAIRMENT <= impairment <= maximum:
                raise ValueError(
                    f"link: {str(self)!r} has {description} outside {MIN_IMPAIRMENT:g} to {maximum:g}; use a number in "
                    "that range, such as 100mbit+20ms+0.1%"
                )

    def __str__(self) -> str:
        text = ",".join([*map(str, self.phases), *(f"rank{rank}:{phase}" for rank, phase in self.of_ranks)])
        if self.delay_ms:
            text += f"+{_number_text(self.delay_ms)}ms"
        if self.loss_percent:
            text += f"+{_number_text(self.loss_percent)}%"
        return text

    @property
    def lowest_rate_bps(self) -> float | None:
        """Lowest rate of any rank, phase and direction, bits per second; ``None`` if no rate is limited."""
        return min(self._limited_rates(), default=None)

    def phase_at(self, seconds: float) -> Phase:
        """Return the phase whose rates hold at a time; for a negative time, the first phase.

        Args:
            seconds: time since training began, in seconds.

        Example:
            >>> parse_link("1gbit,30s:50mbit").phase_at(45.0).down
            50000000.0
        """
        return next((phase for phase in reversed(self.phases) if phase.at_seconds <= seconds), self.phases[0])

    def rates_of_rank(self, rank: int, phase: Phase) -> Phase:
        """Return the rank's own rates from ``of_ranks``, or ``phase`` if the rank has no rates of its own.

        Example:
            >>> link = parse_link("100mbit,rank1:20mbit")
            >>> [link.rates_of_rank(rank, link.phases[0]).up for rank in range(2)]
            [100000000.0, 20000000.0]
        """
        return dict(self.of_ranks).get(rank, phase)

    def _limited_rates(self) -> list[float]:
        """Return all rates of the link that are limited, in bits per second."""
        phases = (*self.phases, *(phase for _, phase in self.of_ranks))
        return [rate for phase in phases for rate in (phase.down, phase.up) if rate is not None]


def parse_link(text: str) -> Link:
    """Return the link that a text describes, such as ``"100mbit+20ms"``; ``str`` of a link returns such a text.

    Example:
        >>> parse_link("50mbit/10mbit+20ms").phases
        (Phase(at_seconds=0.0, down=50000000.0, up=10000000.0),)
        >>> str(parse_link("1000mbit, 30s: 50mbit"))
        '1gbit,30s:50mbit'

    Raises:
        ValueError: the text describes no link; the message has the text, the error and an example.
    """
    rates_text, *impairment_texts = text.strip().lower().split("+")
    impairments: dict[str, float] = {}
    for impairment_text in impairment_texts:
        unit = "ms" if impairment_text.strip().endswith("ms") else "%"
        amount_text = impairment_text.strip().removesuffix(unit).strip()
        is_valid = impairment_text.strip().endswith(unit) and _NUMBER.fullmatch(amount_text)
        if not is_valid or unit in impairments:
            delay_or_loss = "delay" if unit == "ms" else "loss"
            fault = f"is a second {delay_or_loss}" if is_valid else "is not a delay or a loss"
            raise ValueError(
                f"link: in {text!r}, {'+' + impairment_text!r} {fault}; use milliseconds and percent, each once, such "
                "as 100mbit+20ms+0.1%"
            )
        impairments[unit] = float(amount_text)
    phase_texts = [entry_text for entry_text in rates_text.split(",") if not _RANK_ENTRY.fullmatch(entry_text)]
    phases = tuple(_parse_phase(entry_text, position == 0, text) for position, entry_text in enumerate(phase_texts))
    rank_rate_matches = [match for entry_text in rates_text.split(",") if (match := _RANK_ENTRY.fullmatch(entry_text))]
    rank_rates = [(int(match[1]), _parse_rates(match[2], text)) for match in rank_rate_matches]
    of_ranks = tuple(sorted(rank_rates, key=lambda rank_and_rates: rank_and_rates[0]))
    return Link(phases, impairments.get("ms", 0.0), impairments.get("%", 0.0), of_ranks)


def _parse_phase(phase_text: str, is_first: bool, link_text: str) -> Phase:
    """Return the phase that an entry such as ``30s:50mbit`` describes; errors quote ``link_text``, the whole link."""
    time_text, colon, rates_text = phase_text.rpartition(":")
    time_text = time_text.strip()
    if is_first and colon:
        raise ValueError(
            f"link: {link_text!r} must begin with the rates that hold from the start, such as 1gbit,30s:50mbit"
        )
    if not is_first and not (time_text.endswith("s") and _NUMBER.fullmatch(time_text[:-1].strip())):
        raise ValueError(
            f"link: in {link_text!r}, {phase_text!r} does not say when its rates begin; write seconds and a colon "
            "before the rates, such as 1gbit,30s:50mbit"
        )
    return replace(_parse_rates(rates_text, link_text), at_seconds=float(time_text[:-1]) if time_text else 0.0)


def _parse_rates(rates_text: str, link_text: str) -> Phase:
    """Return a phase at 0 s with rates such as ``50mbit/10mbit``; errors quote ``link_text``, the whole link."""
    down_text, slash, up_text = rates_text.partition("/")
    try:
        down_rate = _parse_rate(down_text)
        return Phase(0.0, down_rate, _parse_rate(up_text) if slash else down_rate)
    except ValueError as error:
        raise ValueError(f"link: {link_text!r}: {error}; give a link {LINK_EXAMPLES}") from None


def _parse_rate(text: str) -> float | None:
    """Return the rate that a text describes, in bits per second; ``None`` if unthrottled."""
    return None if text.strip() == UNTHROTTLED else parse_rate(text)


def _rate_text(rate: float | None) -> str:
    """Return the text of a rate in bits per second, which ``_parse_rate`` reads back."""
    if rate is None:
        return UNTHROTTLED
    for unit in ("gbit", "mbit", "kbit"):
        number = _number_text(rate / BPS_BY_UNIT[unit])
        if rate >= BPS_BY_UNIT[unit] and float(number) * BPS_BY_UNIT[unit] == rate:
            return f"{number}{unit}"
    return f"{_number_text(rate)}bit"


def _number_text(number: float) -> str:
    return str(int(number)) if float(number).is_integer() else repr(number)
