# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Restores an ``AdaptiveCompressor`` from a rank's saved state, before or after ``attach``."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from gravac.checkpoint.fitting import copy_state
from gravac.checkpoint.ranks import Ranks, restore_on_all
from gravac.checkpoint.state import check_loaded, check_rank, check_state
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

    @contextmanager
    def restoring(self, state: Mapping[str, Any], switch: Switch | None) -> Iterator[None]:
        """Return a context for ``AdaptiveCompressor.restoring``. If entry or the body raises, nothing was changed.

        All that the state can be refused for is tried on entry. No collective runs.

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
        fields = check_state(state, self._policy, self._engine)
        outer_steps = self._outer_of(state, switch)
        outer_state_to_restore = copy_state(state["outer"]) if outer_steps is None else None
        with nullcontext() if outer_steps is None else outer_steps.restoring(state["outer"], state["world"] is None):
            yield
            self._engine.restore(fields, state["controller_state"])
        self._rank_and_world = {key: state[key] for key in ("rank", "world")}
        self._outer_state_to_restore = outer_state_to_restore
        if outer_steps is not None and switch is not None:
            switch.continue_from(outer_steps)

    def _outer_of(self, state: Mapping[str, Any], switch: Switch | None) -> OuterSteps | None:
        """Create the object that runs the outer steps of a state, not yet restored.

        Returns:
            The object; ``None`` if the state has no outer steps, or before ``attach`` (``switch`` is ``None``).

        Raises:
            SettingsError: the state has outer steps, which ``every=1`` excludes, or which do not fit the model.
        """
        dumped_outer = state["outer"]
        if dumped_outer is None:
            return None
        if self._policy.every == (1, 1):
            raise SettingsError(
                "outer: the state was saved in outer steps, which every=1 excludes; set every as in the run that "
                "saved the state"
            )
        return None if switch is None else switch.outer_steps_from(dumped_outer)

    def check_model(self, ranks: Ranks | None = None) -> None:
        """Check that a loaded state fits the model; do nothing without one. Called when the parameters are known.

        Args:
            ranks: ranks that must have loaded fitting states, all or none; ``None``: only this rank's state is checked.

        Raises:
            SettingsError: a tensor of the state is of a parameter that the model lacks, or has another size or dtype.
                Raised on all ``ranks``.
        """
        if self._rank_and_world is None or self._engine.decision is not None:
            return
        if ranks is None:
            check_loaded(self._engine, self._policy)
        else:
            ranks.run_on_all(lambda: check_loaded(self._engine, self._policy))

    def check_rank(self, rank: int, world: int) -> None:
        """Check that a loaded state was saved by this rank; do nothing without one. Called when the group is known.

        Raises:
            SettingsError: the state is of another rank, or of another number of ranks.
        """
        if self._rank_and_world is not None:
            check_rank(self._rank_and_world, rank, world)

    def restore_outer(self, switch: Switch, ranks: Ranks) -> None:
        """Restore the outer steps of a state that was loaded before ``attach``; do nothing if the state has none.

        The states are restored on all ranks, or on none.

        Args:
            switch: object that runs each step in its mode.
            ranks: the ranks that make the same decisions.

        Raises:
            SettingsError: a state does not fit the model, or an optimizer refuses to load the optimizer state in it.
                Raised on all ranks.
        """
        dumped_outer, self._outer_state_to_restore = self._outer_state_to_restore, None
        if dumped_outer is None or self._rank_and_world is None:
            return
        world = self._rank_and_world["world"]
        outer_steps: list[OuterSteps] = []

        def restoring() -> AbstractContextManager[None]:
            outer_steps.append(switch.outer_steps_from(dumped_outer))
            return outer_steps[0].restoring(dumped_outer, merged=world is None)

        restore_on_all(ranks, restoring)
        switch.continue_from(outer_steps[0])
