# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Divides DDP's buckets into exchange groups: fixed lists of the names of parameters that are exchanged together.

DDP's first backward has one bucket with all gradients; DDP then rebuilds its buckets, also in a resumed run. Rounding
depends on which gradients are summed together, so the first rebuilt buckets become the groups, which are saved. Later
buckets are cut into these groups.
"""

from collections.abc import Sequence

Names = tuple[str, ...]
"""Names of parameters, in the order of their gradients in a bucket or in an exchange group."""

STEPS_UNTIL_FIXED = 3
"""Number of steps after which DDP's buckets become the exchange groups even if DDP has not rebuilt its buckets. With
``find_unused_parameters``, DDP never rebuilds them."""


class ExchangeLayout:
    """Sorts parameters of DDP's buckets into exchange groups, and returns each group when its gradients have arrived.

    An exchange group is a list of the names of parameters that are exchanged together, the same in each step.

    Args:
        fixed_groups: groups of an earlier run, in the order of their exchange; empty if there is no earlier run.

    Attributes:
        fixed_groups: the groups, in the order of their exchange; empty until they are fixed.
    """

    def __init__(self, fixed_groups: Sequence[Names] = ()) -> None:
        self._first_layout: tuple[Names, ...] = ()
        self._arrived_buckets: list[Names] = []
        self._waiting_names: set[str] = set()
        self._step_count = 0
        self._fix_groups(tuple(tuple(names) for names in fixed_groups))

    def add_bucket(self, names: Names) -> list[Names]:
        """Add a bucket whose gradients have arrived; return the exchange groups that are complete now, in order.

        Until groups are fixed, the bucket itself is a group. Later, the bucket's names that are in no group form a
        group, too.

        Args:
            names: names of the bucket's parameters.
        """
        self._arrived_buckets.append(names)
        if not self.fixed_groups:
            return [names]
        self._waiting_names.update(names)
        complete_groups = []
        touched_positions = sorted({self._group_position_of[name] for name in names if name in self._group_position_of})
        for position in touched_positions:
            if self._waiting_names.issuperset(self.fixed_groups[position]):
                self._waiting_names.difference_update(self.fixed_groups[position])
                complete_groups.append(self.fixed_groups[position])
        ungrouped_names = tuple(name for name in names if name not in self._group_position_of)
        if ungrouped_names:
            self._waiting_names.difference_update(ungrouped_names)
            complete_groups.append(ungrouped_names)
        return complete_groups

    def end(self) -> list[Names]:
        """End a backward; return, for each incomplete group, the names of parameters whose gradients have arrived.

        If the groups are not fixed yet, the backward's buckets become the groups once DDP has rebuilt its buckets, or
        after ``STEPS_UNTIL_FIXED`` steps.
        """
        incomplete_groups = [
            tuple(name for name in group if name in self._waiting_names)
            for group in self.fixed_groups
            if not self._waiting_names.isdisjoint(group)
        ]
        layout = tuple(self._arrived_buckets)
        if layout and not self.fixed_groups:
            self._step_count += 1
            self._first_layout = self._first_layout or layout
            if layout != self._first_layout or self._step_count >= STEPS_UNTIL_FIXED:
                self._fix_groups(layout)
        self._arrived_buckets.clear()
        self._waiting_names.clear()
        return incomplete_groups

    def _fix_groups(self, groups: tuple[Names, ...]) -> None:
        """Set the exchange groups for the rest of the run; if there are none, each bucket is exchanged whole."""
        self.fixed_groups = groups
        self._group_position_of = {name: position for position, names in enumerate(groups) for name in names}
