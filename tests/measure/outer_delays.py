# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What an exchange that travels behind steps costs in steps, by how many and how often: two ranks in memory, no clock.

Where a rank takes up the anchor it keeps half of its own weights, as it does unless told otherwise. An interrupted run
goes on where it was.

    python -m tests.measure.outer_delays [--json FILE] [--seeds N] [--workers N]
"""

from collections.abc import Iterable

from gravac.outer.settings import MIXING
from tests.measure import outer_costs
from tests.measure.outer_costs import Case
from tests.measure.outer_efficiency import SETUPS

DELAYS = {10: (0, 2, 5, 9), 20: (0, 5, 10, 19), 50: (0, 10, 25), 5: (0, 2)}
"""Numbers of steps behind which an exchange travels, by the number from one exchange to the next."""


def cases(seeds: Iterable[int]) -> Iterable[Case]:
    """What is run."""
    for seed in seeds:
        for every, delays in DELAYS.items():
            for delay in delays:
                for task in SETUPS:
                    yield Case(
                        task, "quantize(2)", delay=delay, mixing=MIXING if delay else None, seed=seed, every=every
                    )


if __name__ == "__main__":
    outer_costs.main(cases, "outer_delays")
