# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What an exchange that travels behind steps costs in steps, by how many and how often: ranks in memory, no clock.

Where a rank takes up the anchor it keeps half of its own weights, as it does unless told otherwise. An interrupted run
goes on where it was.

    python -m tests.measure.outer_delays [--json FILE] [--seeds N] [--ranks N ...] [--workers N]
"""

import itertools
from collections.abc import Iterable

from gravac.policy import DEFAULT_MIXING
from tests.measure import outer_costs
from tests.measure.outer_costs import Case
from tests.measure.outer_efficiency import SETUPS, TUNED_ON

DELAYS: dict[int, dict[int, tuple[int, ...]]] = {
    2: {10: (0, 2, 5, 9), 20: (0, 5, 10, 19), 50: (0, 10, 25), 5: (0, 2)},
    4: {5: (0, 2), 10: (0, 5), 20: (0, 10)},
}
"""Numbers of steps behind which an exchange travels, by number of ranks and of steps from one exchange to the next."""

ON = {2: (*SETUPS,), 4: TUNED_ON}
"""Tasks, by number of ranks."""


def cases(seeds: Iterable[int], ranks: Iterable[int]) -> Iterable[Case]:
    """What is run."""
    for seed, number in itertools.product(seeds, ranks):
        for every, delays in DELAYS[number].items():
            for delay, task in itertools.product(delays, ON[number]):
                mixing = DEFAULT_MIXING if delay else None
                yield Case(task, "quantize(2)", delay=delay, mixing=mixing, seed=seed, every=every, ranks=number)


if __name__ == "__main__":
    outer_costs.main(cases, "outer_delays")
