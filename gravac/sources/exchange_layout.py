# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Exchange groups: ordered lists of parameter names that travel together.

DDP's first backward has one bucket with everything; it lays buckets anew after the first step (the second with
``static_graph``), and a resumed run starts over. Sums depend on what is summed together, so groups are fixed from the
first rebuilt layout and saved; whatever buckets come later are cut into them.
"""

from collections.abc import Sequence

Names = tuple[str, ...]
"""Names of parameters, in order."""

SETTLED = 3
"""Number of steps with one layout after which it is taken for final (``find_unused_parameters`` never rebuilds)."""


class ExchangeLayout:
    """Turns buckets, as they arrive, into groups that are complete.

    Args:
        fixed: the groups of an earlier run; empty to learn them.
    """

    def __init__(self, fixed: Sequence[Names] = ()) -> None:
        self._first: tuple[Names, ...] = ()
        self._arrived: list[Names] = []
        self._waiting: set[str] = set()
        self._steps = 0
        self._fix(tuple(tuple(names) for names in fixed))

    def arrive(self, names: Names) -> list[Names]:
        """Take in a bucket: return the groups it completes, in their fixed order, or itself while none are fixed."""
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
        """End a backward: return what is left of groups whose other members never came, and learn from the step."""
        left = [
            tuple(name for name in group if name in self._waiting)
            for group in self.fixed
            if not self._waiting.isdisjoint(group)
        ]
        if self._arrived and not self.fixed:
            self._learn(tuple(self._arrived))
        self._arrived.clear()
        self._waiting.clear()
        return left

    def _learn(self, layout: tuple[Names, ...]) -> None:
        self._steps += 1
        self._first = self._first or layout
        if layout != self._first or self._steps >= SETTLED:
            self._fix(layout)

    def _fix(self, layout: tuple[Names, ...]) -> None:
        self.fixed = layout
        self._group_of = {name: position for position, names in enumerate(layout) for name in names}
