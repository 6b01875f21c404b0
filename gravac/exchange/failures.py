# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Tells all ranks why a rank failed, through keys in the store (``torch.distributed.Store``) of the process groups.

1. Each process group has a key. The first rank that fails writes its number and its error under the keys of its groups.
   Ranks that fail later do not overwrite the key.
2. A rank that waits for a collective reads the keys only after ``LOOK_SECONDS``, or when the collective has failed.
   Without failures and stalls, no rank reads the store, so collectives do not become slower.
3. A rank that has read the error adds 1 to a counter in the store. The failed rank waits, for at most
   ``LINGER_SECONDS``, until the other ranks have read the error: its process may run the store's server.
"""

import contextlib
import json
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

LOOK_SECONDS = 1.0
"""Interval, in seconds, at which a waiting rank checks whether another rank failed."""

LINGER_SECONDS = 5.0
"""Longest time, in seconds, for which a failed rank waits before it exits, so that other ranks can read its error."""

_failures_created: Counter[tuple[str, int]] = Counter()
"""Number of ``Failures`` objects created so far with a group, by the group's name and this process's rank in the group.

The number is a part of a group's key in the store. It must be the same on all ranks of the group."""


class ExchangeError(RuntimeError):
    """A collective failed, or another rank failed, or a rank did not answer within the process group's timeout.

    The message names the step and the exchanged tensors, or the rank that failed and that rank's error. If torch raised
    an error, that error is the ``__cause__``. Nothing is exchanged in later steps.
    """


class Failures:
    """Tells the other ranks of process groups that this rank failed, and reads whether one of them failed.

    No method raises an exception.

    Args:
        groups: process groups that this rank exchanges over, each listed once. All ranks of a group must create the
            same number of ``Failures`` objects with this group.
    """

    def __init__(self, groups: Sequence[dist.ProcessGroup]) -> None:
        self._group_keys: list[tuple[str, int, int]] = []
        for group in groups:
            name, rank = group.group_name, dist.get_rank(group)
            _failures_created[name, rank] += 1
            self._group_keys.append(
                (f"gravac/failed/{name}/{_failures_created[name, rank]}", rank, dist.get_world_size(group))
            )
        self._default_store = dist.distributed_c10d._get_default_store() if self._group_keys else None
        self._store_connection: Any = None
        # keys that this rank wrote, each with its group's number of ranks
        self._written_keys: list[tuple[str, int]] = []
        self._keys_read: set[str] = set()

    def report(self, failure: BaseException) -> None:
        """Tell the other ranks that this rank failed, and why, unless another rank failed first."""
        no_answer = isinstance(failure, ExchangeError)
        error_fields = {"error": f"{type(failure).__name__}: {failure}", "no_answer": no_answer}
        for key, rank, world in self._group_keys:
            with contextlib.suppress(Exception):
                if self._store.add(key + "/count", 1) == 1:
                    self._store.set(key, json.dumps({"rank": rank, "world": world, **error_fields}))
                    self._written_keys += [] if no_answer else [(key, world)]

    def look(self, causes_only: bool = False) -> str | None:
        """Read the store; return a text with the failed rank and its error, or ``None`` if no other rank has failed.

        Args:
            causes_only: whether to ignore ranks that failed only because another rank did not answer.
        """
        for key, local_rank, _ in self._group_keys:
            with contextlib.suppress(Exception):
                if not self._store.check([key]):
                    continue
                stored_report = json.loads(self._store.get(key).decode())
                if stored_report["rank"] == local_rank or (causes_only and stored_report["no_answer"]):
                    continue
                if key not in self._keys_read:
                    self._keys_read.add(key)
                    self._store.add(key + "/seen", 1)
                return f"rank {stored_report['rank']} of {stored_report['world']} failed: {stored_report['error']}"
        return None

    def linger(self) -> None:
        """If this rank failed, wait for at most ``LINGER_SECONDS`` until the other ranks have read its error.

        A rank that failed because another rank did not answer does not wait.
        """
        deadline_s = time.monotonic() + LINGER_SECONDS
        written_keys, self._written_keys = self._written_keys, []
        for key, world in written_keys:
            with contextlib.suppress(Exception):
                while self._store.add(key + "/seen", 0) < world - 1 and time.monotonic() < deadline_s:
                    time.sleep(0.05)

    @property
    def _store(self) -> Any:
        """The default store, over a new connection if possible: another thread may block the first connection."""
        if self._store_connection is None:
            try:
                self._store_connection = self._default_store.clone()  # type: ignore[union-attr]
            except Exception:  # an older torch, or a kind of store without connections, cannot clone
                self._store_connection = self._default_store
        return self._store_connection
