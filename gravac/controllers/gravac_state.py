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
LOOK: Final = "look"

Phase = Literal["warm-up", "explore", "exploit", "look"]
"""What the steps are for: residuals settle at the lowest CF; a candidate is evaluated; the chosen candidate runs; the
gains of CFs are computed in a dense step, without sending."""


@dataclass(frozen=True, slots=True)
class GravacEntry:
    """Measurement of a candidate.

    Attributes:
        position: index of the candidate in ``GravacState.candidates``.
        step: number of training steps observed when the candidate was measured; shows how old the measurement is.
        t_system: samples per second over all ranks.
        fastest: upper bound of ``t_system``: at a step time two standard errors below the median.
        limit: samples per second if training never waited for the exchange; no higher CF can be faster. ``None``: not
            known.
        gain: share of the energy that was sent.
        complete: whether the gain is that of a whole window, so that ``t_compression`` counts; always so for dense,
            whose gain is 1.
    """

    position: Count
    step: Count
    t_system: Amount
    fastest: Amount
    gain: Finite
    limit: Amount | None = None
    complete: bool = True

    @property
    def t_compression(self) -> float:
        """Compression throughput: samples per second over all ranks, times gain."""
        return self.t_system * max(self.gain, 0.0)


@dataclass(frozen=True, slots=True)
class GravacState:
    """State of a search for the compression factor (CF) of highest compression throughput: samples/s times gain.

    A window is a number of steps, at whose end the controller decides.

    Attributes:
        candidates: candidates to choose from: dense first, then dense in 16 bit if it is a candidate; then ascending by
            wire ratio.
        phase: see ``Phase``.
        position: index, in ``candidates``, of the candidate that runs.
        window: statistics of the steps since the last window ended.
        floor: index of the candidate at θ_min, the lowest CF in use.
        dwell: smallest number of steps from one search to the next. Dense also runs for at least this many steps the
            next time that it is chosen, or that no gain is high enough.
        threshold: ε, the gain below which a CF is refused; absolute. ``None``: not known, since the lowest CF has not
            run for a whole window.
        refused: lowest index of the CFs that this search refused, for lack of gain; ``None``: none.
        entries: newest measurement of each candidate since the link or the machine last changed.
        searched: number of steps observed when the present search, or the last one, began.
        warm: number of steps after which the warm-up at the lowest CF ends.
        reference: gain of the chosen candidate when it was chosen; ``None`` if θ_min or dense runs because a gain fell
            below ε.
        rest_until: number of steps that must have been observed before CFs are evaluated again, unless the link, the
            machine or the learning rate changes.
        speed: samples per second in the first window of the chosen candidate; ``None`` before that window.
        off: number of consecutive windows in which samples per second differed too much from ``speed``.
        rate: learning rate in the first window of the chosen candidate; ``None`` if not known.
        learning_rate: last measured learning rate; ``None`` if none was measured.
        steps: number of training steps observed.
        dense_steps: number of training steps that ran dense because no gain was high enough.
        floor_steps: number of training steps that ran the candidate at θ_min (``floor``).
        exchange_s: predicted seconds of each candidate's exchange; ``None``: not known.
        native: CFs (1 or 2) of the dense candidates for which DDP may exchange by itself.
        by_itself: whether DDP exchanges by itself, in native steps; possible only if the running candidate is dense.
        energy: largest ``Measurement.energy`` of a hook step so far; 0: no step was measured.
    """

    candidates: tuple[Candidate, ...]
    phase: Phase
    position: Count
    window: Window
    floor: Count
    dwell: Count
    threshold: Finite | None = None
    refused: Count | None = None
    entries: tuple[GravacEntry, ...] = ()
    searched: Count = 0
    warm: Count = 0
    reference: Finite | None = None
    rest_until: Count = 0
    speed: Finite | None = None
    off: Count = 0
    rate: Finite | None = None
    learning_rate: Finite | None = None
    steps: Count = 0
    dense_steps: Count = 0
    floor_steps: Count = 0
    exchange_s: tuple[Amount | None, ...] = ()
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
    def compressed_positions(self) -> range:
        """Indices of the candidates that compress, by ascending CF."""
        return range(self.lowest_position, len(self.candidates))

    @property
    def rests_at_dense(self) -> bool:
        """True if dense runs because no gain was high enough, and not because dense was fastest."""
        return self.phase in (EXPLOIT, LOOK) and self.running.dense and self.reference is None

    def entry(self, position: int, expire: int) -> GravacEntry | None:
        """Return the measurement of a candidate; ``None`` if there is none, or if it is ``expire`` steps old."""
        return next(
            (entry for entry in self.entries if entry.position == position and self.steps - entry.step < expire), None
        )

    def with_entry(self, entry: GravacEntry) -> "GravacState":
        """Return the state in which ``entry`` is the measurement of its candidate."""
        others = (other for other in self.entries if other.position != entry.position)
        return replace(self, entries=(*others, entry))

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

    def rest_at_dense(self, dwell: int, position: int | None = None, reference: float | None = None) -> "GravacState":
        """Return the state in which dense runs for some steps. The next time, it runs for twice as many.

        Args:
            dwell: number of steps for which dense runs at least; the state's own ``dwell`` is used if larger.
            position: index of the dense candidate to run; ``None``: the one that sends fewest bytes.
            reference: 1.0 if dense was fastest; ``None`` if no gain was high enough.
        """
        rest_steps = max(self.dwell, dwell)
        return replace(
            self,
            phase=EXPLOIT,
            position=self.fallback_position if position is None else position,
            reference=reference,
            searched=self.searched if reference is not None else self.steps,  # gains of the last search no longer hold
            rest_until=self.steps + rest_steps,
            dwell=2 * rest_steps,
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
