# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Streams and events of a GPU, as far as an executor needs them; tests replace them by objects that record calls."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch

Stream = Any
"""A queue of GPU work that runs in order: a ``torch.cuda.Stream``, or an object that replaces it in tests."""


class Event(Protocol):
    """A recorded point in a stream's work, such as a ``torch.cuda.Event``."""

    def query(self) -> bool:
        """True if the stream has reached this event; the host does not wait."""
        ...

    def synchronize(self) -> None:
        """Make the host wait until the stream has reached this event."""
        ...

    def elapsed_time(self, later: Any) -> float:
        """Return the milliseconds from this event to a later event; the streams have reached both events."""
        ...


class Device(Protocol):
    """A device whose work is ordered by streams.

    Attributes:
        device: device of the tensors.
    """

    device: torch.device

    def stream(self) -> Stream:
        """Create a stream of higher priority than the current stream's."""
        ...

    def on(self, stream: Stream) -> contextlib.AbstractContextManager[None]:
        """Return a context in which a stream is the current stream, and autocast is off."""
        ...

    def record(self) -> Event:
        """Record an event in the current stream, after the work queued so far, and return the event."""
        ...

    def follow(self, event: Event) -> None:
        """Make the current stream wait until another stream has reached an event; the host does not wait."""
        ...

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a new, uninitialized tensor in pinned host memory, with a tensor's shape and dtype."""
        ...

    @property
    def capturing(self) -> bool:
        """True if the current stream's work is captured into a CUDA graph instead of being run."""
        ...


class CudaDevice:
    """Streams and events of one CUDA GPU; see ``Device``.

    Args:
        device: a CUDA device, with its number.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def stream(self) -> Stream:
        """Create a stream of high priority."""
        return torch.cuda.Stream(self.device, priority=-1)  # type: ignore[no-untyped-call]

    @contextlib.contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        """Return a context in which a stream and its device are the current ones, and autocast is off."""
        with torch.cuda.stream(stream), torch.autocast("cuda", enabled=False):
            yield

    def record(self) -> torch.cuda.Event:
        """Record an event with timing in the current stream, after the work queued so far, and return the event."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def follow(self, event: Any) -> None:
        """Make the current stream wait until another stream has reached an event; the host does not wait."""
        torch.cuda.current_stream(self.device).wait_event(event)

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a new, uninitialized tensor in pinned host memory, with a tensor's shape and dtype."""
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)

    @property
    def capturing(self) -> bool:
        """True if the current stream's work is captured into a CUDA graph."""
        return torch.cuda.is_current_stream_capturing()


def stream_order(device: torch.device) -> Callable[[], None]:
    """Return a function to be called on another thread, whose GPU work must wait for the current stream's work so far.

    The function gives the other thread a CUDA stream of its own. This stream waits for the work that was queued on the
    current stream when ``stream_order`` was called. If ``device`` is a CPU, the function does nothing.
    """
    if device.type == "cpu":
        return lambda: None
    work_so_far = torch.cuda.current_stream(device).record_event()

    def follow() -> None:
        torch.cuda.set_device(device)  # a new thread begins with device 0
        torch.cuda.set_stream(_thread_stream(device))
        torch.cuda.current_stream(device).wait_event(work_so_far)

    return follow


def follow_thread(device: torch.device) -> None:
    """Make the current stream wait for the stream of ``stream_order``'s other thread; does nothing on a CPU."""
    if device.type != "cpu":
        torch.cuda.current_stream(device).wait_stream(_thread_stream(device))


@functools.cache
def _thread_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
