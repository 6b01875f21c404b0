# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""State of the controller ``GraVAC``, which searches for the best compression factor (CF), as plain data."""

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
    """Measurement of a candidate over the window (steps between two decisions) in which the candidate ran.

    Attributes:
        position: index of the candidate in ``GravacState.candidates``.
        gain: share of the energy that was sent in the window, at most 1.
        t_compression: compression throughput: samples per second over all ranks, times gain.
        window: number of windows that had ended when the candidate was measured; shows how old the measurement is.
    """

    position: Count
    gain: Finite
    t_compression: Finite
    window: Count


@dataclass(frozen=True, slots=True)
class GravacState:
    """State of a search for the compression factor (CF) of highest compression throughput: samples/s times gain.

    A window is a number of steps, at whose end the controller decides.

    Attributes:
        candidates: candidates to choose from: dense first, then dense in 16 bit if it is a candidate; then ascending by
            wire ratio.
        phase: ``"warm-up"``, ``"explore"`` (a search) or ``"exploit"`` (the chosen candidate runs).
        position: index, in ``candidates``, of the candidate that runs.
        window: statistics of the steps since the last window ended.
        floor: index of the candidate at θ_min, the lowest CF in use.
        threshold: ε, the gain below which a CF is refused; absolute.
        queue: indices of the candidates still to be tried in this search, in this order.
        entries: measurements of the candidates whose gain is high enough.
        reference: gain of the chosen candidate when it was chosen; ``None`` if θ_min or dense runs because a gain fell
            below ε.
        windows: number of windows that have ended.
        rest_until: number of windows that must have ended before a changed gain may start a new search. If dense runs
            for lack of gain, dense also stays until then.
        dwell: smallest number of windows from one search to the next. Dense also runs for at least this many windows
            the next time that no gain is high enough.
        speed: samples per second in the first window of the chosen candidate; ``None`` before that window.
        off: number of consecutive windows in which samples per second differed too much from ``speed``.
        rate: learning rate in the first window of the chosen candidate; ``None`` if not known.
        learning_rate: last measured learning rate; ``None`` if none was measured.
        steps: number of training steps observed.
        dense_steps: number of training steps that ran dense because no gain was high enough.
        floor_steps: number of training steps that ran the candidate at θ_min (``floor``).
        native: CFs (1 or 2) of the dense candidates for which DDP may exchange by itself.
        by_itself: whether DDP exchanges by itself, in native steps; possible only if the running candidate is dense.
        energy: largest ``Measurement.energy`` of a hook step so far; 0: no step was measured.
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
        """The candidate that runs; in mode ``native`` if DDP exchanges by itself, otherwise in mode ``hook``."""
        return replace(self.running, mode="native") if self.by_itself else self.running

    @property
    def running(self) -> Candidate:
        """The candidate that runs, as listed in ``candidates``: in mode ``hook`` even if DDP exchanges by itself."""
        return self.candidates[self.position]

    @property
    def fallback_position(self) -> int:
        """Index of the dense candidate that sends fewest bytes; that candidate runs if no gain is high enough."""
        return sum(candidate.dense for candidate in self.candidates) - 1

    @property
    def lowest_position(self) -> int:
        """Index of the compressed candidate of lowest CF; the number of candidates if all candidates are dense."""
        return self.fallback_position + 1

    @property
    def compresses(self) -> bool:
        """True if there is a candidate that compresses."""
        return self.lowest_position < len(self.candidates)

    @property
    def positions_after_lowest(self) -> tuple[int, ...]:
        """Indices to try after ``lowest_position``: dense in 16 bit if it is a candidate, then higher CFs."""
        return tuple(position for position in range(1, len(self.candidates)) if position != self.lowest_position)

    @property
    def rests_at_dense(self) -> bool:
        """True if dense runs because no gain was high enough, and not because dense was fastest."""
        return self.phase == EXPLOIT and self.running.dense and self.reference is None

    def count_steps(self, measured: Measurement) -> "GravacState":
        """Return the state with counts of steps, largest energy and learning rate updated by one more measurement."""
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
        """Return the state in which dense runs for some windows, since no gain is high enough.

        The next time, dense will run for twice as many windows.

        Args:
            dwell: number of windows for which dense runs at least; the state's own ``dwell`` is used if larger.
        """
        rest_windows = max(self.dwell, dwell)
        return replace(
            self,
            phase=EXPLOIT,
            position=self.fallback_position,
            queue=(),
            reference=None,
            rest_until=self.windows + rest_windows,
            dwell=2 * rest_windows,
        )

    @property
    def step_fractions(self) -> dict[str, float]:
        """Fractions of all steps, in [0, 1], by the candidate that ran.

        ``"dense"``: steps that ran dense because no gain was high enough; ``"theta_min"``: steps at θ_min, the lowest
        CF in use; ``"candidate"``: all other steps.
        """
        total_steps = max(1, self.steps)
        dense_fraction, floor_fraction = self.dense_steps / total_steps, self.floor_steps / total_steps
        return {"dense": dense_fraction, "theta_min": floor_fraction, "candidate": 1 - dense_fraction - floor_fraction}
