# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Compression factors of a decision: a factor for the model, and other factors for single tensors."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gravac.candidate import Candidate
from gravac.controllers.base import Decision
from gravac.ranges import Factor


@dataclass(frozen=True, slots=True)
class Factors:
    """Compression factors (CFs) of the base compressor; ``None`` means dense.

    Attributes:
        cf: factor of all tensors that ``cfs`` does not list.
        cfs: factors of tensors that have a factor of their own, by tensor name.
    """

    cf: Factor | None = None
    cfs: Mapping[str, Factor | None] = field(default_factory=dict)

    @classmethod
    def of(cls, decision: Decision) -> "Factors":
        """Return the compression factors that a decision sets."""
        return cls(
            _cf(decision.candidate),
            {name: _cf(candidate) for name, candidate in decision.tensors},
        )


def _cf(candidate: Candidate) -> float | None:
    """Return a candidate's factor; ``None`` if it is dense, in any number format."""
    return None if candidate.dense else candidate.cf
