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

    def of_tensor(self, name: str) -> float | None:
        """Return the CF of a tensor; ``None`` if the tensor is sent dense."""
        return self.cfs.get(name, self.cf)

    def fell(self, previous: "Factors", name: str) -> bool:
        """True if a tensor's CF is lower than in ``previous``; dense counts as lower than any CF.

        Args:
            previous: the factors before these.
            name: the tensor's name.
        """
        return (self.of_tensor(name) or 0.0) < (previous.of_tensor(name) or 0.0)


def _cf(candidate: Candidate) -> float | None:
    """Return a candidate's factor; ``None`` if it is dense, in any number format."""
    return None if candidate.dense else candidate.cf
