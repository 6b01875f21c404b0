# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""State of GraVAC's search for a compression factor (CF), as plain data."""

import math
from dataclasses import dataclass, replace
from typing import Final, Literal

from gravac.candidate import Candidate
from gravac.controllers.base import Measurement
from gravac.controllers.state_dicts import Amount, Count, Finite
from gravac.controllers.window import Window

WARM_UP: Final = "warm-up"
EXPLORE: Final = "explore"
EXPLOIT: Final = "exploit"


@dataclass(frozen=True, slots=True)
class GravacEntry:
    """The measurement of a candidate in the window in which it ran.

    Attributes:
        position: position of the candidate in the list of candidates.
        gain: share of the energy that was sent in the window, at most 1.
        t_compression: compression throughput: samples per second times gain.
        window: number of the window in which the candidate was measured; old measurements expire.
    """

    position: Count
    gain: Finite
    t_compression: Finite
    window: Count


@dataclass(frozen=True, slots=True)
class GravacState:
    """The state of a search for the CF of highest compression throughput.

    Attributes:
        candidates: candidates to choose from: dense first, then 16 bit if it is a candidate; then ascending by wire
            ratio.
        phase: ``"warm-up"``, ``"explore"`` or ``"exploit"``.
        position: position of the candidate that runs, in ``candidates``.
        window: current window of steps.
        floor: position of the candidate at θ_min, the lowest CF in use.
        threshold: ε in force, the gain below which a CF is refused; absolute.
        queue: positions still to be tried, ascending.
        entries: measurements of the candidates whose gain is high enough.
        reference: gain of the chosen candidate when it was chosen; ``None`` if θ_min or dense runs because a gain fell
            below ε.
        windows: number of windows ended so far.
        rest_until: number of the window before which no new search starts, and before which dense stays if it runs for
            lack of gain.
        dwell: smallest number of windows from one search to the next, and also of windows in which dense will run the
            next time that no gain is high enough.
        speed: samples per second in the first window of the chosen candidate; ``None`` before that window.
        off: number of consecutive windows in which samples per second differed from ``speed``.
        rate: learning rate in the first window of the chosen candidate; ``None`` if not known.
        learning_rate: last learning rate known; ``None`` before the first.
        steps: number of steps observed.
        dense_steps: number of steps that ran dense because no gain was high enough.
        floor_steps: number of steps that ran the candidate at θ_min (``floor``).
        native: CFs at which DDP may exchange by itself.
        by_itself: whether DDP exchanges by itself; the running candidate is dense then.
        energy: largest energy of a measured step, see ``Measurement``; 0: no step was measured.
    """

    candidates: tuple[Candidate, ...]
    phase: Literal["warm-up", "explore", "exploit"]
    position: Count
    window: Window
    floor: Count
    dwell: Count
    threshold: Finite = 0.0
    queue: tuple[Count, ...] = ()
    entries: tuple[GravacEntry, ...] = ()
    reference: Finite | None = None
    windows: Count = 0
    rest_until: Count = 0
    speed: Finite | None = None
    off: Count = 0
    rate: Finite | None = None
    learning_rate: Finite | None = None
    steps: Count = 0
    dense_steps: Count = 0
    floor_steps: Count = 0
    native: tuple[Finite, ...] = ()
    by_itself: bool = False
    energy: Amount = 0.0

    @property
    def runs(self) -> Candidate:
        """The candidate that runs, in the mode decided on: native if DDP exchanges by itself."""
        return replace(self.running, mode="native") if self.by_itself else self.running

    @property
    def running(self) -> Candidate:
        """The candidate that runs, as in ``candidates``: in mode ``hook`` even if DDP exchanges by itself."""
        return self.candidates[self.position]

    @property
    def fallback(self) -> int:
        """Position of the dense candidate that sends fewest bytes, which runs if no gain is high enough."""
        return sum(candidate.dense for candidate in self.candidates) - 1

    @property
    def lowest(self) -> int:
        """Position of the base compressor's lowest CF; the number of candidates if only dense may be chosen."""
        return self.fallback + 1

    @property
    def compresses(self) -> bool:
        """True if there is a candidate that compresses."""
        return self.lowest < len(self.candidates)

    @property
    def after_lowest(self) -> tuple[int, ...]:
        """Positions to try after the base compressor's lowest CF: 16 bit, if it is a candidate, then the higher CFs."""
        return tuple(position for position in range(1, len(self.candidates)) if position != self.lowest)

    @property
    def rests_at_dense(self) -> bool:
        """True if dense runs because no gain was high enough, and not because dense was fastest."""
        return self.phase == EXPLOIT and self.running.dense and self.reference is None

    def count_steps(self, measured: Measurement) -> "GravacState":
        """Return the state with a measurement's steps counted: all, those at dense, and those at the lowest CF."""
        learning_rate, candidate = measured.learning_rate, measured.candidate
        energy = measured.energy if math.isfinite(measured.energy) and candidate.mode == "hook" else 0.0
        return replace(
            self,
            steps=self.steps + measured.steps,
            energy=max(self.energy, energy),
            learning_rate=learning_rate if math.isfinite(learning_rate) else self.learning_rate,
            dense_steps=self.dense_steps + measured.steps * (self.rests_at_dense and candidate.dense),
            floor_steps=self.floor_steps
            + measured.steps * (candidate == self.candidates[self.floor] and self.compresses),
        )

    def rest_at_dense(self, dwell: int) -> "GravacState":
        """Return the state in which dense runs for some windows, since no gain is high enough; next time twice as long.

        Args:
            dwell: smallest number of windows; the state's own ``dwell`` counts if larger.
        """
        duration = max(self.dwell, dwell)
        return replace(
            self,
            phase=EXPLOIT,
            position=self.fallback,
            queue=(),
            reference=None,
            rest_until=self.windows + duration,
            dwell=2 * duration,
        )

    @property
    def step_fractions(self) -> dict[str, float]:
        """Fractions of all steps: ``"dense"`` for lack of gain, ``"theta_min"``, and ``"candidate"`` for all others."""
        total = max(1, self.steps)
        dense, floor = self.dense_steps / total, self.floor_steps / total
        return {"dense": dense, "theta_min": floor, "candidate": 1 - dense - floor}
