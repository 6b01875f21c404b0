# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Restores an ``AdaptiveCompressor`` from a rank's saved state, before or after ``attach``."""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from gravac.checkpoint.state import check_loaded, check_rank, unpack
from gravac.engine.engine import Engine
from gravac.modes.outer.outer_steps import OuterSteps
from gravac.modes.switch import Switch
from gravac.policy import Policy
from gravac.settings import SettingsError


class Restoring:
    """Restores a rank's saved state, and later checks that the state fits the model and the rank.

    A state may be loaded before ``attach``, when the model is not known yet. ``attach`` then makes the checks, and
    restores the outer steps, which need the model.

    Args:
        policy: compressor, controller and other settings of the run.
        engine: engine to restore.
    """

    def __init__(self, policy: Policy, engine: Engine) -> None:
        self._policy, self._engine = policy, engine
        self._rank_and_world: dict[str, Any] | None = None
        self._outer_state_to_restore: Mapping[str, Any] | None = None

    def load(self, state: Mapping[str, Any], switch: Switch | None) -> None:
        """Restore a rank's state for ``AdaptiveCompressor.load_state_dict``. If the method raises, nothing was changed.

        Args:
            state: the state, as ``state_dict`` returned it.
            switch: object that runs each step in its mode; ``None`` before ``attach``. ``attach`` then calls
                ``restore_outer``.

        Raises:
            SettingsError: the state is no state of a rank, is of another model, policy or rank, or a field is wrong.
            RuntimeError: this ``AdaptiveCompressor`` has made steps already.
        """
        current_outer = None if switch is None else switch.outer
        if self._engine.decision is not None or (current_outer is not None and current_outer.has_stepped):
            steps_made = self._engine.state.trained + (0 if current_outer is None else current_outer.state.in_round)
            raise RuntimeError(
                f"load_state_dict: this compressor has made {steps_made} steps already; load into a new "
                "AdaptiveCompressor, before its first backward"
            )
        outer_steps = self._outer_of(state, switch)
        with (
            nullcontext() if outer_steps is None else outer_steps.restoring(state["outer"], state.get("world") is None)
        ):
            unpack(state, self._policy, self._engine)
        self._rank_and_world = {key: state[key] for key in ("rank", "world")}
        if outer_steps is not None and switch is not None:
            switch.continue_from(outer_steps)
        else:
            self._outer_state_to_restore = state["outer"]

    def _outer_of(self, state: Mapping[str, Any], switch: Switch | None) -> OuterSteps | None:
        """Create the object that runs the outer steps of a state, not yet restored.

        Returns:
            The object; ``None`` if the state has no outer steps, or before ``attach`` (``switch`` is ``None``).

        Raises:
            SettingsError: the state has outer steps, which ``every=1`` excludes, or which do not fit the model.
        """
        dumped_outer = state.get("outer") if isinstance(state, Mapping) else None
        if dumped_outer is None:
            return None
        if self._policy.every == (1, 1):
            raise SettingsError(
                "outer: the state was saved in outer steps, which every=1 excludes; set every as in the run that "
                "saved the state"
            )
        return None if switch is None else switch.outer_steps_from(dumped_outer, state.get("world"))

    def check_model(self) -> None:
        """Check that a loaded state fits the model; do nothing without one. Called when the parameters are known.

        Raises:
            SettingsError: a tensor of the state is of a parameter that the model lacks, or has another size or dtype.
        """
        if self._rank_and_world is not None and self._engine.decision is None:
            check_loaded(self._engine, self._policy)

    def check_rank(self, rank: int, world: int) -> None:
        """Check that a loaded state was saved by this rank; do nothing without one. Called when the group is known.

        Raises:
            SettingsError: the state is of another rank, or of another number of ranks.
        """
        if self._rank_and_world is not None:
            check_rank(self._rank_and_world, rank, world)

    def restore_outer(self, switch: Switch) -> None:
        """Restore the outer steps of a state that was loaded before ``attach``; do nothing if the state has none.

        Raises:
            SettingsError: the state does not fit the model, or an optimizer refuses to load the optimizer state in it.
        """
        dumped_outer, self._outer_state_to_restore = self._outer_state_to_restore, None
        if dumped_outer is None or self._rank_and_world is None:
            return
        world = self._rank_and_world["world"]
        outer_steps = switch.outer_steps_from(dumped_outer, world)
        with outer_steps.restoring(dumped_outer, merged=world is None):
            switch.continue_from(outer_steps)
