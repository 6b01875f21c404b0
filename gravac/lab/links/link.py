# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A link in words: its rates, how they change over time, its delay and loss; ``network`` makes it.

The words::

    100mbit                        both directions
    50mbit/10mbit                  download/upload of each worker
    unthrottled                    no limit
    1gbit,30s:50mbit,60s:1gbit     a schedule: seconds since training began, and what holds from then on
    100mbit,rank1:100mbit/20mbit   a rank with rates of its own, all the time
    100mbit+20ms+0.1%              one-way delay and loss, on each direction of each worker's link
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import pairwise

from gravac.lab.links.rates import HIGHEST, LOWEST, UNITS, format_rate, parse_rate

UNTHROTTLED = "unthrottled"

PACED = "paced, not a real link"
"""Note on every result that was measured without an emulated link."""

EXAMPLES = "such as 100mbit, 50mbit/10mbit, 1gbit,30s:50mbit, 100mbit,rank1:20mbit, 100mbit+20ms+0.1% or unthrottled"

SHORTEST_PHASE = 0.5
"""Seconds that a phase must last at least: rates are changed by commands that take up to 0.2 s on a busy machine."""

LONGEST = 86_400.0
"""Seconds that a schedule may last at most."""

SMALLEST, LONGEST_DELAY, MOST_LOSS = 0.001, 10_000.0, 50.0
"""Smallest delay (ms) and loss (%) other than 0, largest delay in milliseconds, and largest loss in percent."""

_RANK = re.compile(r"\s*rank(\d+)\s*:(.*)")
_NUMBER = re.compile(r"[0-9]*\.?[0-9]+")


@dataclass(frozen=True)
class Phase:
    """The rates of a link from some time on.

    Attributes:
        at_seconds: wall time since training began, in seconds.
        down: bits per second towards the worker; ``None`` is unthrottled.
        up: bits per second from the worker; ``None`` is unthrottled.
    """

    at_seconds: float
    down: float | None
    up: float | None

    def __str__(self) -> str:
        rates = _rate(self.down) if self.down == self.up else f"{_rate(self.down)}/{_rate(self.up)}"
        return f"{_number(self.at_seconds)}s:{rates}" if self.at_seconds else rates


@dataclass(frozen=True)
class Link:
    """The link of every worker.

    Attributes:
        phases: phases in the order of time, the first at 0.
        delay_ms: milliseconds added to each packet, in each direction; between two workers lie two links.
        loss_percent: share of packets lost in each direction, in percent.
        of_ranks: ``(rank, rates)`` of ranks that have rates of their own, by ascending rank; their ``at_seconds`` is 0.

    Raises:
        ValueError: a rate, time, delay or loss is out of range; names it and the remedy.
    """

    phases: tuple[Phase, ...]
    delay_ms: float = 0.0
    loss_percent: float = 0.0
    of_ranks: tuple[tuple[int, Phase], ...] = ()

    def __post_init__(self) -> None:
        if not self.phases or self.phases[0].at_seconds != 0:
            raise ValueError(f"link: the first phase must begin at 0 s, {EXAMPLES}")
        ranks = [rank for rank, _ in self.of_ranks]
        if any(after <= before for before, after in pairwise([-1, *ranks])):
            raise ValueError(
                f"link: {str(self)!r} names its ranks twice or not in ascending order; use each once, such as "
                "100mbit,rank0:20mbit,rank1:50mbit"
            )
        times = [phase.at_seconds for phase in self.phases]
        for before, time in pairwise(times):
            if not before + SHORTEST_PHASE <= time <= LONGEST:
                raise ValueError(
                    f"link: {str(self)!r} changes at {_number(time)} s after {_number(before)} s; use ascending "
                    f"times at least {SHORTEST_PHASE:g} s apart and up to {LONGEST:g} s, such as 1gbit,30s:50mbit"
                )
        for rate in self._rates():
            if not LOWEST <= rate <= HIGHEST:
                raise ValueError(
                    f"link: {str(self)!r} has a rate of {rate:g} bit/s, outside {format_rate(LOWEST)} to "
                    f"{format_rate(HIGHEST)}; use one in that range, {EXAMPLES}"
                )
        for value, most, what in (
            (self.delay_ms, LONGEST_DELAY, "a delay in milliseconds"),
            (self.loss_percent, MOST_LOSS, "a loss in percent"),
        ):
            if value != 0 and not SMALLEST <= value <= most:
                raise ValueError(
                    f"link: {str(self)!r} has {what} outside {SMALLEST:g} to {most:g}; use one in that range, such as "
                    "100mbit+20ms+0.1%"
                )

    def __str__(self) -> str:
        words = ",".join([*map(str, self.phases), *(f"rank{rank}:{phase}" for rank, phase in self.of_ranks)])
        if self.delay_ms:
            words += f"+{_number(self.delay_ms)}ms"
        if self.loss_percent:
            words += f"+{_number(self.loss_percent)}%"
        return words

    @property
    def slowest(self) -> float | None:
        """The lowest rate of any phase and direction, bits per second; ``None`` when none is throttled."""
        return min(self._rates(), default=None)

    def at(self, seconds: float) -> Phase:
        """Return the phase that holds at a time in seconds; before 0 the first.

        Example:
            >>> parse_link("1gbit,30s:50mbit").at(45.0).down
            50000000.0
        """
        return next((phase for phase in reversed(self.phases) if phase.at_seconds <= seconds), self.phases[0])

    def of_rank(self, rank: int, phase: Phase) -> Phase:
        """Return the rates of a rank while a phase holds.

        Example:
            >>> link = parse_link("100mbit,rank1:20mbit")
            >>> [link.of_rank(rank, link.phases[0]).up for rank in range(2)]
            [100000000.0, 20000000.0]
        """
        return dict(self.of_ranks).get(rank, phase)

    def _rates(self) -> list[float]:
        phases = (*self.phases, *(phase for _, phase in self.of_ranks))
        return [rate for phase in phases for rate in (phase.down, phase.up) if rate is not None]


def parse_link(text: str) -> Link:
    """Return a link from words; ``str`` of it gives the words back.

    Example:
        >>> parse_link("50mbit/10mbit+20ms").phases
        (Phase(at_seconds=0.0, down=50000000.0, up=10000000.0),)
        >>> str(parse_link("1000mbit, 30s: 50mbit"))
        '1gbit,30s:50mbit'

    Raises:
        ValueError: not a link; names the text, what is wrong with it and an example.
    """
    rates, *tails = text.strip().lower().split("+")
    tail: dict[str, float] = {}
    for word in tails:
        unit = "ms" if word.strip().endswith("ms") else "%"
        number = word.strip().removesuffix(unit).strip()
        if not word.strip().endswith(unit) or not _NUMBER.fullmatch(number) or unit in tail:
            raise ValueError(
                f"link: in {text!r}, {'+' + word!r} is no delay or loss, or the second of its kind; use milliseconds "
                "and percent, each once, such as 100mbit+20ms+0.1%"
            )
        tail[unit] = float(number)
    of_all = [words for words in rates.split(",") if not _RANK.fullmatch(words)]
    phases = tuple(_phase(words, position == 0, text) for position, words in enumerate(of_all))
    own = [found for words in rates.split(",") if (found := _RANK.fullmatch(words))]
    of_ranks = tuple(sorted(((int(found[1]), _rates_of(found[2], text)) for found in own), key=lambda one: one[0]))
    return Link(phases, tail.get("ms", 0.0), tail.get("%", 0.0), of_ranks)


def _phase(words: str, first: bool, text: str) -> Phase:
    at, colon, rates = words.rpartition(":")
    at = at.strip()
    if first and colon:
        raise ValueError(f"link: {text!r} must begin with what holds from the start, such as 1gbit,30s:50mbit")
    if not first and not (at.endswith("s") and _NUMBER.fullmatch(at[:-1].strip())):
        raise ValueError(
            f"link: in {text!r}, {words!r} does not say when; use seconds and a colon, such as 1gbit,30s:50mbit"
        )
    return replace(_rates_of(rates, text), at_seconds=float(at[:-1]) if at else 0.0)


def _rates_of(rates: str, text: str) -> Phase:
    down, slash, up = rates.partition("/")
    try:
        rate = _parse(down)
        return Phase(0.0, rate, _parse(up) if slash else rate)
    except ValueError as error:
        raise ValueError(f"link: {text!r}: {error}; a link is {EXAMPLES}") from None


def _parse(words: str) -> float | None:
    return None if words.strip() == UNTHROTTLED else parse_rate(words)


def _rate(rate: float | None) -> str:
    if rate is None:
        return UNTHROTTLED
    for unit in ("gbit", "mbit", "kbit"):
        number = _number(rate / UNITS[unit])
        if rate >= UNITS[unit] and float(number) * UNITS[unit] == rate:
            return f"{number}{unit}"
    return f"{_number(rate)}bit"


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(value)
