# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The numbers of one step: a rank's own, and those on which all ranks agreed.

1. At the end of a step, each rank has a ``Measurement`` of its own (``gravac.averaging.recording``).
2. The ranks sum their ``vectors``.
3. ``agreed`` converts the sums to the ``Measurement`` that all ranks share.

To add a number, add a field to ``AgreedNumbers``, and give each rank's own number in ``StepRecording.read``. The ranks
then average the number, and controllers, logs and checkpoints have the mean.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from gravac.candidate import Candidate
from gravac.ranges import Count, Factor, PositiveCount, SumOfSquares

SUM = {"over_ranks": "sum"}
"""Metadata of a field that is summed over the ranks."""

MEAN = {"over_ranks": "mean"}
"""Metadata of a field that is averaged over the ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreedNumbers:
    """Numbers of a step that ``Measurement`` and ``StepRecord`` share; on every rank the same, once ranks have agreed.

    Attributes:
        learning_rate: learning rate of the optimizer, the highest of its parameter groups, mean over ranks; nan if not
            known (no optimizer was given to ``attach``).
        drift: norm of the mean of the ranks' pseudo-gradients (anchor minus the rank's weights) / mean of the
            pseudo-gradients' norms. 1 if all ranks moved the same way; can exceed 1 if residuals were added; nan
            without outer steps.
        loss: training loss that the training script passed to ``AdaptiveCompressor.loss``: mean over ranks and training
            steps; nan if a rank passed none.
        forward_seconds: time of a step's forward, in seconds, mean over ranks. Nothing is sent during forward, so this
            time changes if the machine becomes faster or slower, and not if the link does. If a step has several
            forwards, the last counts. If several steps are measured as one (native steps, a round of outer steps), the
            median counts; forwards during which an exchange of outer steps is in flight are left out. nan if no forward
            was timed: on GPUs (where the host does not wait for the forward), and if ranks exchange in forward (FSDP2,
            tensor parallelism).
    """

    learning_rate: float = field(default=math.nan, metadata=MEAN)
    drift: float = field(default=math.nan, metadata=MEAN)
    loss: float = field(default=math.nan, metadata=MEAN)
    forward_seconds: float = field(default=math.nan, metadata=MEAN)

    def agreed_numbers(self) -> dict[str, Any]:
        """Return the fields of ``AgreedNumbers`` by name, without those of a subclass."""
        return {name: getattr(self, name) for name in AGREED_NAMES}


AGREED_NAMES = tuple(field.name for field in fields(AgreedNumbers))
"""Names of the fields of ``AgreedNumbers``, in the order of their definition."""


@dataclass(frozen=True, slots=True)
class Measurement(AgreedNumbers):
    """Numbers of one measured step, the same on every rank, once the ranks have agreed.

    A measurement may cover several training steps. In outer steps, these are the steps from one exchange to the next (a
    round). In native steps (DDP exchanges by itself), these are successive steps that gravac times together (a
    stretch); gravac then knows only the time. Seconds and samples are always per training step. Learning rate, drift
    and loss are fields of ``AgreedNumbers``.

    A rank's own measurement has this rank's numbers, as floats or scalars (0-d tensors) on a device. It differs in
    three fields: ``samples`` is nan, ``norms`` has squared norms, and ``drift`` is inverted, so that its mean can be
    computed: norm of what this rank sent / norm of the mean over ranks.

    Attributes:
        step: index of the measured step, from 0; a round or a stretch counts as one step.
        candidate: candidate that ran in the step.
        seconds: end-to-end time of a training step, in seconds; mean over ranks.
        samples: samples processed in a training step, over all ranks.
        error: squared norm of what was not sent, ``Σ‖g_ef - sent‖²``, over the model and the ranks. Not finite if a
            gradient was not finite.
        energy: squared norm of what was to be sent, gradient plus residual, ``Σ‖g_ef‖²``, over the model and the ranks.
        shadow: ``(cf, error)`` of each shadow CF: a compression factor that was evaluated without sending. ``error`` is
            the squared norm of what would not have been sent at that CF.
        waited: seconds of a step in which training stood still until the exchange ended: an upper bound of the time
            that sending fewer bytes can save. Mean over ranks; nan if not known.
        coded: seconds of encode, decode and error feedback in a step, hidden behind backward or not. Mean over ranks;
            nan if not known.
        exchanged: seconds of a step in which collectives were in flight, hidden behind backward or not: an upper bound
            of the time that grows with the number of bytes. Mean over ranks; nan if not known.
        norms: ``(name, norm)`` of each tensor that may be compressed, by ascending name; empty unless the decision for
            the step had ``sums="report"``. Each rank sums the tensor's gradients over the steps since the last report;
            ``norm`` is the root of the mean over ranks of the squared norms of these sums.
        first: number of training steps made before the step.
        steps: number of training steps that the measurement covers.
    """

    step: Count
    candidate: Candidate
    seconds: float = field(metadata=MEAN)
    samples: float
    error: float = field(metadata=SUM)
    energy: float = field(metadata=SUM)
    shadow: tuple[tuple[Factor, float], ...] = ()
    waited: float = field(default=math.nan, metadata=MEAN)
    coded: float = field(default=math.nan, metadata=MEAN)
    exchanged: float = field(default=math.nan, metadata=MEAN)
    norms: tuple[tuple[str, SumOfSquares], ...] = ()
    first: Count = 0
    steps: PositiveCount = 1


OVER_RANKS = {field.name: field.metadata["over_ranks"] for field in fields(Measurement) if field.metadata}
"""Whether a field's numbers are summed (``"sum"``) or averaged (``"mean"``) over the ranks, by name."""


def vectors(own: Measurement) -> list[list[Any]]:
    """Return the vectors of floats and scalars that ranks sum: the numbers of a rank's own measurement, and its norms.

    The numbers are the fields of ``OVER_RANKS``, and the errors in ``shadow``. Without norms, there is one vector.
    """
    numbers = [*(getattr(own, name) for name in OVER_RANKS), *(error for _, error in own.shadow)]
    return [numbers, *([[squared_norm for _, squared_norm in own.norms]] if own.norms else [])]


def agreed(own: Measurement, sums: Sequence[Sequence[float]], world: int, samples: float) -> Measurement:
    """Return the measurement that is the same on all ranks, computed from sums over the ranks.

    Args:
        own: this rank's measurement; only fields that are the same on all ranks are used.
        sums: sums of ``vectors(own)`` over the ranks.
        world: number of ranks that agree.
        samples: number of samples processed in a training step, over all ranks.

    Raises:
        ValueError: a vector of sums does not have one number for each number of ``own``.
    """
    numbers, squared_norms = sums[0], sums[1] if len(sums) > 1 else ()
    if len(numbers) != len(OVER_RANKS) + len(own.shadow) or len(squared_norms) != len(own.norms):
        raise ValueError(
            f"sums: have {len(numbers)} numbers and {len(squared_norms)} norms; give one for each of "
            f"{', '.join(OVER_RANKS)}, for each of {len(own.shadow)} shadow CFs, and for each of {len(own.norms)} norms"
        )
    number_by_name: dict[str, Any] = {
        name: total if how == "sum" else total / world
        for (name, how), total in zip(OVER_RANKS.items(), numbers, strict=False)
    }
    number_by_name["drift"] = 1 / number_by_name["drift"] if number_by_name["drift"] else math.nan
    errors = numbers[len(OVER_RANKS) :]
    return replace(
        own,
        samples=samples,
        shadow=tuple((cf, total) for (cf, _), total in zip(own.shadow, errors, strict=True)),
        norms=tuple(
            (name, math.sqrt(total / world)) for (name, _), total in zip(own.norms, squared_norms, strict=True)
        ),
        **number_by_name,
    )
