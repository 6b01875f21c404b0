# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Exchange groups: ordered lists of the names of parameters that are exchanged together.

DDP's first backward has one bucket with all gradients; DDP then rebuilds its buckets, also in a resumed run. Rounding
depends on which gradients are summed together, so the groups are fixed to the first rebuilt buckets, and saved. Later
buckets are cut into these groups.
"""

from collections.abc import Sequence

Names = tuple[str, ...]
"""Names of parameters, in order."""

SETTLED_STEPS = 3
"""Number of steps with the same buckets after which groups are fixed: with ``find_unused_parameters`` DDP never
rebuilds.
"""


class ExchangeLayout:
    """Collects the parameters of arriving buckets into complete exchange groups.

    Args:
        fixed: groups of an earlier run; empty if they are to be learned.

    Attributes:
        fixed: the groups; empty while they are not known.
    """

    def __init__(self, fixed: Sequence[Names] = ()) -> None:
        self._first: tuple[Names, ...] = ()
        self._arrived: list[Names] = []
        self._waiting: set[str] = set()
        self._steps = 0
        self._fix(tuple(tuple(names) for names in fixed))

    def arrive(self, names: Names) -> list[Names]:
        """Add a bucket; return the groups that are complete, in fixed order, or the bucket until groups are fixed."""
        self._arrived.append(names)
        if not self.fixed:
            return [names]
        self._waiting.update(names)
        ready = []
        touched = sorted({self._group_of[name] for name in names if name in self._group_of})
        for position in touched:
            if self._waiting.issuperset(self.fixed[position]):
                self._waiting.difference_update(self.fixed[position])
                ready.append(self.fixed[position])
        unknown = tuple(name for name in names if name not in self._group_of)
        if unknown:
            self._waiting.difference_update(unknown)
            ready.append(unknown)
        return ready

    def end(self) -> list[Names]:
        """End a backward: return the parameters that arrived of incomplete groups, and learn the groups."""
        incomplete = [
            tuple(name for name in group if name in self._waiting)
            for group in self.fixed
            if not self._waiting.isdisjoint(group)
        ]
        if self._arrived and not self.fixed:
            self._learn(tuple(self._arrived))
        self._arrived.clear()
        self._waiting.clear()
        return incomplete

    def _learn(self, layout: tuple[Names, ...]) -> None:
        self._steps += 1
        self._first = self._first or layout
        if layout != self._first or self._steps >= SETTLED_STEPS:
            self._fix(layout)

    def _fix(self, layout: tuple[Names, ...]) -> None:
        self.fixed = layout
        self._group_of = {name: position for position, names in enumerate(layout) for name in names}
