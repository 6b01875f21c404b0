# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Which candidates a controller may choose from, once the model and the number of ranks are known."""

from collections.abc import Callable

from gravac.candidate import Candidate
from gravac.collectives import AllReduce
from gravac.compressors import Compressor, Dense
from gravac.policy import Policy

WireBytes = Callable[[float | None], int]
"""Predicted wire bytes of a step at a CF of the base compressor; ``None`` is dense."""


def admit(
    policy: Policy, wire_bytes: WireBytes, elements: int, world: int
) -> tuple[tuple[Candidate, ...], tuple[str, ...]]:
    """The candidates, and in words those dropped because they would send no less than dense.

    Top-k by all-gather sends (N-1) times its payload: at 10x and 32 ranks, 3.2 times more than dense.

    Args:
        policy: gives controller, base and range.
        wire_bytes: see ``WireBytes``.
        elements: of the model.
        world: ranks.

    Returns:
        Candidates ascending by predicted wire ratio, dense first; and the dropped ones.
    """
    full = AllReduce.wire_bytes(4 * elements, world)

    def candidate(compressor: Compressor, cf: float, sent: int) -> Candidate:
        ratio = full / sent if sent else 1.0
        return Candidate(compressor.name, cf, ratio, compressor.worth(cf), compressor.family(cf))

    dense = candidate(policy.dense_format, policy.dense_format.cf, wire_bytes(None))
    if isinstance(policy.base, Dense):
        return (dense,), ()
    reach = policy.base.candidates(policy.cf_range, ())
    wanted = [candidate(policy.base, cf, wire_bytes(cf)) for cf in policy.controller.propose(policy.cf_range, reach)]
    if policy.controller.insists:
        return (dense, *wanted), ()
    worth = sorted((c for c in wanted if c.wire_ratio > dense.wire_ratio), key=lambda c: c.wire_ratio)
    dropped = tuple(
        f"{c}: would send {dense.wire_ratio / c.wire_ratio:.2f} times the bytes of {dense} over {world} ranks"
        for c in wanted
        if c.wire_ratio <= dense.wire_ratio
    )
    return (dense, *worth), dropped
