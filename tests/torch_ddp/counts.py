# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a run of torch's DDP tests came to, in a sentence."""

from collections.abc import Sequence

from tests.torch_ddp.rows import Row


def counts(rows: Sequence[Row]) -> str:
    """Return how many tests there are, pass natively, register a hook, and pass with gravac."""
    native = sum(row.native_passed for row in rows)
    hooks = sum(row.native_passed and not row.due for row in rows)
    passed = [row for row in rows if row.gravac and row.gravac.passed]
    attached, steps = (sum(getattr(row.gravac, name) for row in passed) for name in ("attached", "steps"))
    return (
        f"{len(rows)} tests mention a DDP; {native} make one and pass natively; {hooks} of those register a hook; "
        f"{len(passed)} of the other {native - hooks} pass with gravac, attached to {attached} DDPs, over {steps} steps"
    )
