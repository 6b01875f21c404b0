# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Checks saved states of the controller ``Goodput``, and adapts them to a run with other candidates."""

from collections.abc import Mapping, Sequence
from typing import Any

from gravac.candidate import Forecast
from gravac.controllers.goodput_state import HOLD, GoodputState
from gravac.controllers.state_dicts import candidates_of, check_names, check_positions, state_from_plain
from gravac.controllers.window import Window
from gravac.settings import STATE_REMEDY, SettingsError


def check_saved(dumped: dict[str, Any]) -> None:
    """Raise ``SettingsError`` if ``dumped`` is not a state that ``Goodput.dump`` returned."""
    check_names(GoodputState, dumped, ("candidates",), Window)
    candidates = candidates_of(dumped["candidates"])
    forecasts = tuple(Forecast(candidate, wire_ratio=1.0) for candidate in candidates)
    state = state_from_plain(GoodputState, dumped, candidates[0], forecasts=forecasts)
    entry_positions, floor_positions = (
        [entry.position for entry in state.entries],
        [position for position, _ in state.floors],
    )
    positions_by_field = {
        "position": [state.position],
        "best": [state.best],
        "entries": entry_positions,
        "floors": floor_positions,
    }
    positions_by_field["suspect"] = [] if state.suspect is None else [state.suspect]
    positions_by_field["steady_link"] = [] if state.steady_link is None else [state.steady_link.position]
    check_positions(positions_by_field, len(candidates))
    latest_window = max((entry.window for entry in state.entries), default=0)
    if latest_window > state.windows:
        raise SettingsError(
            f"controller_state/entries: an entry has window {latest_window}, but the state has only {state.windows} "
            f"windows; {STATE_REMEDY}"
        )


def with_current_positions(
    dumped: dict[str, Any], new_positions: Mapping[int, int], forecasts: Sequence[Forecast]
) -> dict[str, Any] | None:
    """Return a dumped state with all positions of candidates changed to indices of ``forecasts``.

    Measurements of candidates that are not in ``forecasts`` are left out. The period in which the link was steady is
    dropped. If the candidate that ran is not in ``forecasts``, the best candidate runs.

    Args:
        dumped: state of the controller in a checkpoint.
        new_positions: new position of each dumped candidate, by its position in the dump; candidates that are not in
            ``forecasts`` are missing.
        forecasts: forecasts of the current candidates.

    Returns:
        The state; ``None`` if ``forecasts`` has neither the best candidate of the dump nor a candidate that was
        measured before the dump.
    """
    entries = [
        {**entry, "position": new_positions[entry["position"]]}
        for entry in dumped["entries"]
        if entry["position"] in new_positions
    ]
    floors = [(new_positions[position], seconds) for position, seconds in dumped["floors"] if position in new_positions]
    new_suspect = new_positions.get(dumped["suspect"])
    remapped_dump = {**dumped, "entries": entries, "floors": floors, "suspect": new_suspect}
    remapped_dump["steady_link"] = None

    def goodput(entry: dict[str, Any]) -> float:
        return float(forecasts[entry["position"]].lower_bound(entry["efficiency"]) / entry["seconds"])

    best_measured_position = max(entries, key=goodput, default={"position": None})["position"]
    best_position = new_positions.get(dumped["best"], best_measured_position)
    if best_position is None:
        return None
    if dumped["position"] in new_positions:
        return {**remapped_dump, "best": best_position, "position": new_positions[dumped["position"]]}
    return {**remapped_dump, "best": best_position, "position": best_position, "phase": HOLD, "window": {}, "off": 0}
