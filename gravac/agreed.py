# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Numbers of a step that have the same value on all ranks: the base class of ``Measurement`` and ``StepRecord``.

To add a number, add a field to ``AgreedNumbers``, and return each rank's own number in ``LocalMeasurement.read``. The
ranks then average the number, and controllers, logs and checkpoints have the mean.
"""

import math
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreedNumbers:
    """Numbers of a step that have the same value on every rank.

    Attributes:
        learning_rate: learning rate of the optimizer, the highest of its parameter groups, mean over ranks; nan if not
            known (no optimizer was given to ``attach``).
        drift: norm of the mean of the ranks' pseudo-gradients (anchor minus the rank's weights) / mean of the
            pseudo-gradients' norms. 1 if all ranks moved the same way; can exceed 1 if residuals were added; nan
            without outer steps.
        loss: training loss that the training script passed to ``AdaptiveCompressor.loss``: mean over ranks and training
            steps; nan if a rank passed none.
        probe: loss on the run's fixed batches, mean over ranks, computed with the weights before the step. If several
            native steps are measured as one, computed before the second of these steps. nan if the run has no probe, or
            if no decision requested the loss (``Decision.probe``).
        forward_seconds: time of a step's forward, in seconds, mean over ranks. Nothing is sent during forward, so this
            time changes if the machine becomes faster or slower, and not if the link does. If a step has several
            forwards, the last counts. If several steps are measured as one (native steps, a round of outer steps), the
            median counts; forwards during which an exchange of outer steps is in flight are left out. nan if no forward
            was timed: on GPUs (where the host does not wait for the forward), and if ranks exchange in forward (FSDP2,
            tensor parallelism).
    """

    learning_rate: float = math.nan
    drift: float = math.nan
    loss: float = math.nan
    probe: float = math.nan
    forward_seconds: float = math.nan

    def agreed_numbers(self) -> dict[str, Any]:
        """Return the fields of ``AgreedNumbers`` by name, without those of a subclass."""
        return {name: getattr(self, name) for name in AGREED_NAMES}


AGREED_NAMES = tuple(field.name for field in fields(AgreedNumbers))
"""Names of the fields of ``AgreedNumbers``, in the order of their definition."""
