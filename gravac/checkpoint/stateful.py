# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Saves and loads with ``torch.distributed.checkpoint`` (DCP): each rank's state as bytes, under a key of its own.

If several ranks save entries under the same key, DCP assumes that the entries are copies: it saves one of them and
loads it on all ranks. Also, DCP loads only keys that the new object's state already has, and a new compressor has no
residuals yet.
"""

from typing import Any, NoReturn

from gravac.checkpoint.ranks import Checkpointed, Ranks, restore_on_all
from gravac.checkpoint.resize import OnResize, check_on_resize, state_to_load
from gravac.checkpoint.serial import from_bytes, state_on_host, to_bytes
from gravac.settings import SettingsError


class Stateful:
    """Wraps a compressor for ``torch.distributed.checkpoint`` (DCP): save or load ``{"gravac": Stateful(compressor)}``.

    Args:
        compressor: the ``AdaptiveCompressor``. Load its state before the first backward.
        saved_world: number of ranks that saved the checkpoint. Needed to load with another number of ranks: each rank
            then reads the states of all ranks. ``None``, the default: the present number; if another number saved, DCP
            finds no keys, and raises an error.
        on_resize: what becomes of residuals if another number of ranks loads; see ``gravac.checkpoint.load``.

    Raises:
        SettingsError: ``on_resize`` is not known, or ``saved_world`` is below 1.
    """

    def __init__(self, compressor: Checkpointed, saved_world: int | None = None, on_resize: OnResize = "mean") -> None:
        check_on_resize(on_resize)
        if saved_world is not None and saved_world < 1:
            raise SettingsError(
                f"saved_world: {saved_world} is not a number of ranks; give the number of ranks of the run that "
                "saved the checkpoint"
            )
        self._compressor = compressor
        self._saved_world = saved_world
        self._on_resize = on_resize

    def state_dict(self) -> dict[str, Any]:
        """Return a dict with this rank's state as bytes, under the rank's key; called by DCP.

        If ``saved_world`` is set and differs from the present number of ranks, return a placeholder for each saved
        state. DCP replaces the placeholders when it loads.
        """
        ranks = Ranks(self._compressor.process_group)
        keys = _rank_keys(self._saved_world or ranks.world)
        if len(keys) != ranks.world:
            return {key: _Placeholder() for key in keys}
        return {keys[ranks.rank]: to_bytes(state_on_host(self._compressor, ranks))}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the compressor from the states that DCP read, on all ranks or on none; called by DCP on every rank.

        Args:
            state_dict: the dict of ``state_dict``, into which DCP has read the saved states.

        Raises:
            SettingsError: the state is of another version, compressor, controller or model, or a field of the state is
                missing or wrong. Raised on all ranks.
            RuntimeError: the compressor has made steps already; raised on all ranks.
        """
        ranks = Ranks(self._compressor.process_group)
        keys = _rank_keys(self._saved_world or ranks.world)

        def state_of(rank: int) -> dict[str, Any]:
            if not isinstance(payload := state_dict.get(keys[rank]), bytes):
                raise SettingsError(
                    f"{keys[rank]}: the state of this rank is missing; set saved_world to the number of ranks of "
                    "the run that saved the checkpoint"
                )
            return from_bytes(payload)

        def read_state() -> dict[str, Any]:
            shards = self._compressor.shards
            return state_to_load(len(keys), ranks.world, ranks.rank, self._on_resize, state_of, shards)

        restore_on_all(ranks, lambda: self._compressor.restoring(read_state()))
        self._saved_world = None


class _Placeholder:
    """Stands for a state that DCP will load; raises an error if DCP tries to save the placeholder."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "saved_world: a Stateful with saved_world can only load; to save, use "
            "gravac.checkpoint.Stateful(compressor) without saved_world"
        )


def _rank_keys(world: int) -> list[str]:
    """Return the key of each rank's state in a checkpoint that ``world`` ranks save.

    Keys contain the number of ranks, so that DCP does not find the keys of a checkpoint that another number of ranks
    saved.
    """
    return [f"rank{rank}of{world}" for rank in range(world)]
