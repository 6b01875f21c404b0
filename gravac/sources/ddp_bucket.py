# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A DDP bucket in flight, and how a failure of its exchange reaches the training loop.

DDP's reducer waits for the future that gravac's hook returns. An error in this future would lose its class there, so
the future of a failed exchange has the bucket as it was, and ``backward()`` raises the error at its very end.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch._C._distributed_c10d import GradBucket
from torch.autograd import Variable

from gravac.sources.hooks import NO_BACKWARD, UncompiledHook

BucketMean = torch.futures.Future[torch.Tensor | None]
"""Future whose result is a bucket's flat buffer with the mean over the ranks, or ``None`` if the exchange failed."""


class BucketInFlight:
    """A DDP bucket in flight; its future is completed when the mean over the ranks has replaced all of its gradients.

    Args:
        buffer: the bucket's flat buffer.
        names: names of the bucket's parameters.
        wait_on_stream: function without arguments that makes the current CUDA stream wait for all exchanges that have
            ended.

    Attributes:
        future: the future, for DDP: its result is the buffer, averaged in place, or as it was if the exchange failed.
    """

    def __init__(self, buffer: torch.Tensor, names: Iterable[str], wait_on_stream: Callable[[], None]) -> None:
        self._buffer, self._wait_on_stream = buffer, wait_on_stream
        self._unaveraged_names = set(names)
        self._averaged_group_count = 0
        self._failure: BaseException | None = None
        # whether the future fails with the failure, since no backward raises it
        self._fails_future = torch._C._current_graph_task_id() == NO_BACKWARD
        devices = [buffer.device] if buffer.device.type != "cpu" else None
        self._mean: BucketMean = torch.futures.Future(devices=devices)  # type: ignore[arg-type]
        self.future: torch.futures.Future[torch.Tensor] = self._mean.then(self._result)

    def mark_averaged(self, names: Iterable[str]) -> None:
        """Record that the mean has replaced some gradients; complete the future if it has replaced the whole bucket.

        Args:
            names: names of the gradients' parameters; some may be in other buckets.
        """
        self._unaveraged_names.difference_update(names)
        self._averaged_group_count += 1
        if not self._unaveraged_names and not self._mean.done():
            if self._averaged_group_count > 1:
                self._wait_on_stream()
            # the result must be the tensor itself: a future tracks CUDA streams only for the tensors in its result
            self._mean.set_result(self._buffer)

    def fail(self, failure: BaseException) -> None:
        """Complete the future, and store the exception of the exchange, which ``backward()`` will raise."""
        if not self._mean.done():
            self._failure = failure
            self._mean.set_result(None)

    def raise_failure(self) -> None:
        """Raise the exception of the exchange, if there is one. Called when DDP has waited for the future."""
        self._fails_future = True  # if DDP waits later after all, no error gets lost
        if self._failure is not None:
            raise self._failure

    def _result(self, _: BucketMean) -> torch.Tensor:
        if self._failure is not None and self._fails_future:
            raise self._failure
        return self._buffer


def raise_after_reducer(buckets: Sequence[BucketInFlight]) -> None:
    """Let the present backward, if one runs, raise the exception of a bucket's exchange at its very end.

    Called before DDP's reducer has queued the function that waits for the buckets' futures. What this function queues
    therefore runs before it, and what is queued then runs after it.

    Args:
        buckets: buckets of this backward; later buckets may be added.
    """

    def raise_failures() -> None:
        for bucket in buckets:
            bucket.raise_failure()

    if torch._C._current_graph_task_id() != NO_BACKWARD:
        call_after_backward(lambda: call_after_backward(raise_failures))


def call_after_backward(function: Callable[[], None]) -> None:
    """Let autograd call a function at the end of the present backward."""
    Variable._execution_engine.queue_callback(UncompiledHook(function))


def failed_future(failure: BaseException, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Return a future for DDP of a bucket (flat) that cannot be exchanged; ``backward()`` will raise the exception.

    A hook returns this future, since raising in a hook would break the reducer.
    """
    failed_bucket = BucketInFlight(bucket.buffer(), (), lambda: None)
    raise_after_reducer([failed_bucket])
    failed_bucket.fail(failure)
    return failed_bucket.future
