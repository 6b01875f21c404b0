# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""How a rank that fails tells the others why: a key in the store that the process groups were made with.

1. A rank that fails writes its number and its error under the key of each group that it exchanges over; the first one
   to fail does, and others leave the key as it is.
2. A rank that waits looks at the keys, but only once it has waited for ``LOOK_SECONDS``, or when a collective failed.
   So a run in which nothing fails or stalls never asks the store, and a collective costs what it did.
3. A rank that has seen the error says so, and the one that failed stays for a moment until the others have: it may be
   the one that holds the store.
"""

import contextlib
import json
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

LOOK_SECONDS = 1.0
"""Time that a rank waits for the others before it looks whether one of them failed, and from one look to the next."""

LINGER_SECONDS = 5.0
"""Longest time that a rank that failed stays for the others to see why."""

_opened: Counter[tuple[str, int]] = Counter()
"""Number of executors made over each group, by the group's name and this rank: the same number on all of its ranks."""


class ExchangeError(RuntimeError):
    """A collective failed, another rank did, or a rank did not answer within the process group's timeout.

    The message names the step and what was exchanged, or the rank that failed and its error; torch's own error, if
    there is one, is its cause. No later step is exchanged.
    """


class Failures:
    """Failures of the ranks of some groups, by a key in the store for each group. Nothing here raises.

    Args:
        groups: groups that this rank exchanges over, each once; the same on all their ranks.
    """

    def __init__(self, groups: Sequence[dist.ProcessGroup]) -> None:
        self._keys: list[tuple[str, int, int]] = []
        for group in groups:
            name, rank = group.group_name, dist.get_rank(group)
            _opened[name, rank] += 1
            self._keys.append((f"gravac/failed/{name}/{_opened[name, rank]}", rank, dist.get_world_size(group)))
        self._made_with = dist.distributed_c10d._get_default_store() if self._keys else None
        self._connection: Any = None
        self._told: list[tuple[str, int]] = []
        self._seen: set[str] = set()

    def tell(self, failure: BaseException) -> None:
        """Tell the other ranks that this one failed, and why, unless one of them was first."""
        no_answer = isinstance(failure, ExchangeError)
        error = {"error": f"{type(failure).__name__}: {failure}", "no_answer": no_answer}
        for key, rank, world in self._keys:
            with contextlib.suppress(Exception):
                if self._store.add(key + "/count", 1) == 1:
                    self._store.set(key, json.dumps({"rank": rank, "world": world, **error}))
                    self._told += [] if no_answer else [(key, world)]

    def look(self, causes_only: bool = False) -> str | None:
        """Return which rank failed, and its error, in words; ``None``: nobody said so.

        Args:
            causes_only: leave out a rank that failed because it got no answer itself.
        """
        for key, mine, _ in self._keys:
            with contextlib.suppress(Exception):
                if not self._store.check([key]):
                    continue
                said = json.loads(self._store.get(key).decode())
                if said["rank"] == mine or (causes_only and said["no_answer"]):
                    continue
                if key not in self._seen:
                    self._seen.add(key)
                    self._store.add(key + "/seen", 1)
                return f"rank {said['rank']} of {said['world']} failed: {said['error']}"
        return None

    def linger(self) -> None:
        """Wait, for at most ``LINGER_SECONDS``, until the other ranks have seen why this one failed, if it did.

        Not if it failed because a rank did not answer.
        """
        until = time.monotonic() + LINGER_SECONDS
        told, self._told = self._told, []
        for key, world in told:
            with contextlib.suppress(Exception):
                while self._store.add(key + "/seen", 0) < world - 1 and time.monotonic() < until:
                    time.sleep(0.05)

    @property
    def _store(self) -> Any:
        """A connection of its own, where the store has several: another thread may wait inside the one shared."""
        if self._connection is None:
            try:
                self._connection = self._made_with.clone()  # type: ignore[union-attr]
            except Exception:  # an older torch's store, or one of a kind that has no connections
                self._connection = self._made_with
        return self._connection
