# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What Goodput remembers, as plain data, and how fast a candidate that has not run could be at best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, overload

from gravac.candidate import Candidate
from gravac.controllers.base import Measurement
from gravac.controllers.window import Window

SEARCH, HOLD = "search", "hold"

NOISE = 0.12
"""Two step times that differ by less, relatively, say nothing of the link: 1 bit and 2 bits do not code alike."""

LIGHTER = 0.5
"""A family that codes more cheaply takes at best this share of another's step time, when both send alike."""

SURE = 0.8
"""Of what was foreseen before the first step, coding and exchange take at least this share."""

AHEAD = 1 / 3
"""Share of compute that no exchange hides behind: forward."""

FLOOR = 0.4
"""Sending less shortens a step to this share at best, as long as nothing is known of the link."""

LEAST = 0.01
"""And to this one whatever is known."""

PART = 0.25
"""Share of a step from which on an exchange that gets shorter is the link's doing, and no matter of the ranks' pace."""

DOUBTS = 2
"""Standard errors by which a measured step time may be wrong."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What a candidate came to when it ran.

    Attributes:
        position: in the list of candidates.
        seconds: median of its steps.
        window: number of the window, to let it expire.
        efficiency: of its steps, corrected by the gain that was measured.
        saved: seconds of a step waited, coded and exchanged, see ``Measurement``; ``None``: not known.
        doubt: standard error of ``seconds``, by how much its steps differed.
        times: windows that ``seconds`` is a mean of.
    """

    position: int
    seconds: float
    window: int
    efficiency: float
    saved: tuple[float, float, float] | None = None
    doubt: float = 0.0
    times: int = 1

    def pooled(self, before: Entry, share: float) -> Entry:
        """With an earlier entry of the same candidate; this one makes up a share of what comes out."""
        seconds = before.seconds + share * (self.seconds - before.seconds)
        doubt = math.hypot((1 - share) * before.doubt, share * self.doubt)
        return replace(self, seconds=seconds, doubt=doubt, times=before.times + 1)

    def scaled(self, ratio: float) -> Entry:
        """As it would be on a machine that takes so many times as long."""
        saved = None if self.saved is None else (self.saved[0], ratio * self.saved[1], self.saved[2])
        waited = 0.0 if self.saved is None else self.saved[0]
        return replace(self, seconds=waited + ratio * (self.seconds - waited), saved=saved)

    def dump(self) -> dict[str, Any]:
        """As plain values."""
        return {**asdict(self), "saved": None if self.saved is None else list(self.saved)}

    @classmethod
    def restore(cls, plain: dict[str, Any]) -> Entry:
        """The inverse of ``dump``."""
        return cls(**{**plain, "saved": None if plain["saved"] is None else tuple(plain["saved"])})


@dataclass(frozen=True, slots=True)
class State:
    """Where the search stands.

    Attributes:
        candidates: dense first, then ascending by wire ratio.
        phase: search or hold.
        position: of the candidate that runs.
        best: of the best one measured.
        window: under way.
        entries: what candidates came to, the newest of each.
        windows: ended so far.
        steps: observed.
        elapsed: seconds of all steps.
        spent: seconds that probes took more than the best would have for the same progress.
        floors: ``(position, seconds)``: what candidates measured before the link changed take at least now.
        off: windows on end in which the chosen candidate's step time was not what it had been.
        moved: whether the link changed since it was probed.
    """

    candidates: tuple[Candidate, ...]
    phase: str
    position: int
    best: int
    window: Window
    entries: tuple[Entry, ...] = ()
    windows: int = 0
    steps: int = 0
    elapsed: float = 0.0
    spent: float = 0.0
    floors: tuple[tuple[int, float], ...] = ()
    off: int = 0
    moved: bool = False

    @property
    def running(self) -> Candidate:
        """What is to run."""
        return self.candidates[self.position]

    def count(self, measured: Measurement) -> State:
        """One more step."""
        seconds = measured.seconds if math.isfinite(measured.seconds) and measured.seconds > 0 else 0.0
        return replace(self, steps=self.steps + 1, elapsed=self.elapsed + seconds)

    def entry(self, position: int) -> Entry | None:
        """What a candidate came to, if it ran."""
        return next((entry for entry in self.entries if entry.position == position), None)

    def enter(self, seconds: float, share: float = 1.0) -> State:
        """Enter what the running candidate came to in the window that ends.

        Args:
            seconds: of its steps.
            share: that it makes up of the entry; the rest is what was measured before, where something was.
        """
        before = self.entry(self.position)
        others = tuple(entry for entry in self.entries if entry.position != self.position)
        worth, saved = self.running.efficiency_at(self.window.gain), self.window.savings
        entry = Entry(self.position, seconds, self.windows, worth, saved, self.window.doubt)
        return replace(self, entries=(*others, entry if before is None else entry.pooled(before, share)))

    def same_link(self, change: float) -> bool:
        """Whether the exchange of what is held takes about what it did, so that a change is the machine's."""
        share = self._exchange_now(0.0)
        return share is not None and abs(share - 1) <= change

    @property
    def freed(self) -> bool:
        """Whether the exchange of what is held was a good part of its steps, and takes less than half of that now.

        Where it is hidden behind backward, step times do not tell that the link became faster.
        """
        share = self._exchange_now(PART)
        return share is not None and share < 1 / 2

    def _exchange_now(self, part: float) -> float | None:
        """What the exchange of what is held takes, over what it took; ``None``: unknown, or just a part of a step."""
        held, now = self.entry(self.position), self.window.savings
        if held is None or held.saved is None or now is None or not held.saved[2] > part * held.seconds:
            return None
        return now[2] / held.saved[2]

    def drift(self, seconds: float, at_once: bool = False) -> State:
        """Enter another window of what is held; where the machine became slower or faster, so did all candidates.

        Half of it is believed, unless ``at_once``. What a step did not wait for bytes tells the machine from the link.
        Without that a candidate measured in a better minute would look better for ever after. What lies within both
        windows' doubt is no drift: what was held because of a lucky trial must not take the others along.
        """
        before = self.entry(self.position)
        assert before is not None
        believed = 1.0 if at_once else 0.5
        now = self.enter(seconds, believed)
        by_chance = abs(seconds - before.seconds) <= DOUBTS * math.hypot(before.doubt, self.window.doubt)
        if before.saved is None or self.window.savings is None or (by_chance and not at_once):
            return now
        busy, was = seconds - self.window.savings[0], before.seconds - before.saved[0]
        ratio = 1 + believed * (busy / was - 1) if min(busy, was) > 0 else 1.0
        others = (entry if entry.position == self.position else entry.scaled(ratio) for entry in now.entries)
        return replace(now, entries=tuple(others))

    def efficiency(self, position: int) -> float:
        """Of a candidate's steps: as measured, or as expected."""
        own = self.entry(position)
        return own.efficiency if own else self.candidates[position].efficiency

    def changed(self, seconds: float) -> State:
        """The held candidate's step takes ``seconds`` now: forget what was measured, but for what follows from it.

        With exchange hidden behind backward up to a point, the change of a step's time over the share of dense bytes
        that it sends does not fall with that share. So when steps became slower by d where a share x is sent, where y
        is sent they are slower by at least d y / x if y > x, and no faster otherwise; when they became faster by d,
        they are faster by at most d y / x if y < x, and nothing follows otherwise.
        """
        held = self.entry(self.position)
        assert held is not None
        here, slower = 1 / self.running.wire_ratio, seconds - held.seconds
        floors = {}
        for entry in self.entries:
            share = 1 / self.candidates[entry.position].wire_ratio
            if entry.position == self.position or (slower <= 0 and share > here):
                continue
            moved = slower * share / here if (share > here) == (slower > 0) else 0.0
            floors[entry.position] = (1 - NOISE) * max(0.0, entry.seconds + moved)
        cleared = replace(self, entries=(), floors=tuple(floors.items()), off=0, spent=0.0, elapsed=0.0, moved=True)
        return cleared.enter(seconds)

    def goodput(self, entry: Entry) -> float:
        """Steps per second, each counted as what it is worth of a dense one."""
        return entry.efficiency / entry.seconds

    def slowest(self, position: int) -> float:
        """The most a step of a candidate may take, by what is measured: if all its exchange grew with bytes, seconds.

        Where what exchange took is not known, all of the step is taken for it.
        """
        mine = self.candidates[position].wire_ratio
        own = self.entry(position)

        def most(entry: Entry) -> float:
            _, _, exchanged = entry.saved or (entry.seconds,) * 3
            return entry.seconds + exchanged * max(0.0, self.candidates[entry.position].wire_ratio / mine - 1)

        return min((most(entry) for entry in ((own,) if own else self.entries)), default=0.0)

    def fastest(self, position: int, expire: int) -> float:
        """The least time a step of a candidate may take, by what is measured: a lower bound, in seconds.

        What was measured itself is believed but for its doubt, half of it after ``expire`` windows, a quarter after
        twice as many. Of a step that was measured, sending less saves the time it waited at most; another family may
        save its coding too, and takes its own. Step time is convex in the bytes sent: flat while the exchange hides
        behind backward, then linear. So a slope measured between two amounts of bytes is a lower bound of that above
        them, and an upper bound of that below.
        """
        mine = self.candidates[position]
        own = self.entry(position)
        if own is not None:
            least = max(own.seconds / 2, own.seconds - DOUBTS * own.doubt)
            return least * 0.5 ** ((self.windows - own.window) // expire)
        bounds = [floor for at, floor in self.floors if at == position]
        bounds.append(self._foreseen(mine))
        for entry in self.entries:
            other = self.candidates[entry.position]
            waited, coded, _ = entry.saved or (entry.seconds,) * 3
            least = entry.seconds
            if mine.family != other.family:
                least += SURE * (mine.coding_s or 0.0) - min(coded, (1 - LIGHTER) * entry.seconds)
            more = 1 / mine.wire_ratio - 1 / other.wire_ratio
            if more < 0:
                bounds.append(least - waited)
            if more >= 0:
                bounds.append(least + more * self._slope(entry.position, above=False))
            elif (high := self._slope(entry.position, above=True)) is not None:
                bounds.append(least + more * high)
        return max(bounds)

    def _foreseen(self, candidate: Candidate) -> float:
        """The least time by what the link was probed at, and by how quick what ran turned out to be on it.

        No exchange hides behind forward, and no step is shorter than it would be if it neither waited nor coded what
        was measured, but coded what this one does.
        """
        shortest = min((entry.seconds for entry in self.entries), default=0.0)
        known = [(entry, entry.saved) for entry in self.entries if entry.saved is not None]
        if self.moved or candidate.exchange_s is None or not known:
            return FLOOR * shortest
        compute = max(0.0, min(entry.seconds - waited - coded for entry, (waited, coded, _) in known))
        quick = 1.0
        for entry, (_, _, exchanged) in known:
            expected = self.candidates[entry.position].exchange_s
            quick = min(quick, exchanged / expected) if expected else quick
        busy, exchange = compute + SURE * (candidate.coding_s or 0.0), SURE * quick * candidate.exchange_s
        return max(LEAST * shortest, busy, exchange + AHEAD * compute)

    @overload
    def _slope(self, position: int, *, above: Literal[False]) -> float: ...

    @overload
    def _slope(self, position: int, *, above: Literal[True]) -> float | None: ...

    def _slope(self, position: int, *, above: bool) -> float | None:
        """Seconds a step grows by with the share of dense bytes sent, measured above or below what a candidate sends.

        Above it: at most, ``None`` when not known. Below it: at least, less what coding alone took longer. Within a
        family alone, since families differ in what coding costs.
        """
        here = 1 / self.candidates[position].wire_ratio
        found = None if above else 0.0
        points: dict[str, list[tuple[float, float, float]]] = {}
        for entry in self.entries:
            candidate = self.candidates[entry.position]
            share = 1 / candidate.wire_ratio
            if share >= here if above else share <= here:
                coded = entry.saved[1] if entry.saved else 0.0
                points.setdefault(candidate.family, []).append((share, entry.seconds, coded))
        for own in points.values():
            (least, quick, light), (most, slow, heavy) = min(own), max(own)
            if most > least:
                doubt = NOISE * max(slow, quick) * (1 if above else -1)
                grown = slow - quick - (0.0 if above else max(0.0, heavy - light))  # coding more is not sending more
                found = max(found or 0.0, (grown + doubt) / (most - least))
        return found

    def dump(self) -> dict[str, Any]:
        """As plain values."""
        plain = {
            name: getattr(self, name) for name in self.__slots__ if name not in ("candidates", "window", "entries")
        }
        plain["floors"] = [list(floor) for floor in self.floors]
        return {**plain, "window": self.window.dump(), "entries": [entry.dump() for entry in self.entries]}

    @classmethod
    def restore(cls, plain: dict[str, Any], candidates: Sequence[Candidate]) -> State:
        """The inverse of ``dump``, for the same candidates."""
        fields = {
            **plain,
            "candidates": tuple(candidates),
            "entries": tuple(Entry.restore(entry) for entry in plain["entries"]),
            "floors": tuple((at, floor) for at, floor in plain["floors"]),
            "window": Window.restore(candidates[plain["position"]], plain["window"]),
        }
        return cls(**fields)
