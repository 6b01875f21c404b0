# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A device made up of CPU tensors: what its streams would race for is found by torch's own CUDA sanitizer.

Everything is computed at once, in program order, so results are those of a schedule without races. Which streams
would have been free to run at the same time is told by their events, as on a GPU. Memory counts as given to another
tensor, as by a caching allocator, as soon as the stream that it was allocated on works again after the program let go.
"""

import contextlib
import sys
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch.cuda import _sanitizer
from torch.cuda._sanitizer import EventHandler, zip_arguments
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from gravac.collectives import AllGather, AllReduce, AllToAll, Collective, Ledger

# the sanitizer takes a stack trace for every access, which is nearly all of its time
_sanitizer.traceback = SimpleNamespace(  # type: ignore[attr-defined]
    StackSummary=traceback.StackSummary, walk_stack=lambda frame: iter(())
)

HOST = 1
"""The host, as a stream: what it reads must have been waited for."""

COMPUTE = 2
"""The stream that a training loop computes on."""

GRAIN = 16
"""Bytes that are told apart; no two allocations share as many, and what shares them must be ordered."""


class FakeEvent:
    """A moment of a stream, see ``gravac.exchange.device.Event``."""

    def __init__(self, device: "FakeDevice") -> None:
        self.device, self.number = device, device.count()
        device.handler._handle_event_creation(self.number)
        device.handler._handle_event_record(self.number, device.present)
        self.stream = device.present
        self.at = device.handler.syncs.current_sync_states[self.stream][self.stream]
        self.asked = False

    def query(self) -> bool:
        """True once the host knows that it happened, or asks again: it happens while the host waits."""
        asked_before, self.asked = self.asked, True
        return self.past or asked_before

    def synchronize(self) -> None:
        self.device.handler.syncs.stream_wait_for_event(HOST, self.number)

    @property
    def past(self) -> bool:
        """Whether the host knows that it happened."""
        return bool(self.device.handler.syncs.is_ordered_after(HOST, self.at, self.stream))

    def elapsed_time(self, later: "FakeEvent") -> float:
        if not (self.past and later.past):
            self.device.errors.append("a moment was read that may not be past")
        return float(later.number - self.number)


class FakeDevice(TorchDispatchMode):
    """A device whose streams only say what may run at the same time; a dispatch mode, to be entered.

    Args:
        without: call site, as ``sites`` tells them, whose waits are left out.

    Attributes:
        errors: races found.
        sites: where waits were asked for.
        waits: number of times that the host waited.
    """

    def __init__(self, without: str | None = None) -> None:
        super().__init__()
        self.device = torch.device("cpu")
        self.handler = EventHandler()
        self.errors: list[str] = []
        self.sites: set[str] = set()
        self.without = without
        self.present = COMPUTE
        self.capturing = False
        self._numbers = 10
        self._gone: list[torch.UntypedStorage] = []  # never given back: an address is one tensor's
        self._owned: dict[int, dict[int, torch.UntypedStorage]] = defaultdict(dict)  # by stream
        self._known: set[int] = set()
        for stream in (HOST, COMPUTE):
            self.handler._handle_stream_creation(stream)

    def count(self) -> int:
        self._numbers += 1
        return self._numbers

    # gravac.exchange.device.Device

    def stream(self) -> int:
        stream = self.count()
        self.handler._handle_stream_creation(stream)
        return stream

    @contextlib.contextmanager
    def on(self, stream: int) -> Iterator[None]:
        before, self.present = self.present, stream
        try:
            yield
        finally:
            self.present = before

    def record(self) -> FakeEvent:
        return FakeEvent(self)

    def follow(self, event: FakeEvent) -> None:
        site = _site()
        self.sites.add(site)
        if site != self.without:
            self.handler._handle_event_wait(event.number, self.present)

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype)

    # what is computed

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for one in pytree.tree_leaves((args, kwargs)):
            if isinstance(one, torch.Tensor) and one.untyped_storage().data_ptr() not in self._known:
                self._gone.append(one.untyped_storage())  # made unseen, such as a host's list of numbers
        out = func(*args, **kwargs)
        reads, writes = set(), set()
        for argument, value in zip_arguments(func._schema, args, kwargs):
            alias = argument.alias_info
            if alias is None or alias.is_write:
                (reads if alias is None else writes).update(_places(value))
        fresh = []
        for result, value in zip(func._schema.returns, out if isinstance(out, tuple) else (out,), strict=False):
            if result.alias_info is None:
                fresh += [one for one in pytree.tree_leaves(value) if isinstance(one, torch.Tensor)]
                writes |= _places(value)
        if "empty" in func._schema.name:
            writes = set()
        self.access(self.present, reads, writes, func._schema.name, fresh)
        return out

    def access(
        self, stream: int, reads: set[int], writes: set[int], what: str, fresh: Sequence[torch.Tensor] = ()
    ) -> None:
        """A stream reads and writes memory."""
        if stream != HOST:  # what is launched now comes after what the host has read
            known = self.handler.syncs.current_sync_states
            known[stream][HOST] = known[HOST][HOST]
            self._reuse(stream)
        for tensor in fresh:
            storage = tensor.untyped_storage()
            if storage.data_ptr() and storage.data_ptr() not in self._known:
                self._known.add(storage.data_ptr())
                self._owned[stream][storage.data_ptr()] = storage
        self._launch(stream, reads - writes, writes, what)

    def _launch(self, stream: int, reads: set[int], writes: set[int], what: str) -> None:
        names = defaultdict(lambda: [what])
        found = self.handler._handle_kernel_launch(stream, reads, writes, set(), what, names)
        for error in found:
            now, before = error.current_access, error.previous_access
            self.errors.append(f"{what} on stream {now.stream}, after {before.operator} on {before.stream}")

    def _reuse(self, stream: int) -> None:
        """Memory that the program let go of, and that was allocated on this stream, is written by something else."""
        owned = self._owned[stream]
        for place, storage in [*owned.items()]:
            if torch._C._storage_Use_Count(storage._cdata) <= 1:  # this table holds it, and nobody else
                self._launch(stream, set(), _range(place, storage.nbytes()), "memory given to another tensor")
                self._gone.append(owned.pop(place))
                self._known.remove(place)


def _site() -> str:
    """Lines of the executor's file through which a wait was asked for."""
    frame, lines = sys._getframe(2), []
    while frame is not None:
        if frame.f_code.co_filename.endswith("exchange/streams.py"):
            lines.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
        frame = frame.f_back  # type: ignore[assignment]
    return " < ".join(lines)


def _range(start: int, size: int) -> set[int]:
    return set(range(start // GRAIN * GRAIN, start + size, GRAIN))


def _places(value: Any) -> set[int]:
    """Addresses that tensors take, in steps of ``GRAIN``; all are contiguous, or taken for as long as they reach."""
    places: set[int] = set()
    for one in pytree.tree_leaves(value):
        if isinstance(one, torch.Tensor) and one.numel():
            reach = 1 + sum((size - 1) * stride for size, stride in zip(one.shape, one.stride(), strict=True))
            places |= _range(one.data_ptr(), reach * one.element_size())
    return places


@dataclass
class Work:
    """A collective of ``Alike``: waiting for it makes the present stream wait."""

    device: FakeDevice
    done: FakeEvent

    def wait(self) -> None:
        self.device.handler._handle_event_wait(self.done.number, self.device.present)


@dataclass
class Alike:
    """A transport between ranks that all have the same tensors, ordered by a stream of its own as NCCL is.

    Attributes:
        device: where tensors lie.
        world: number of ranks.
    """

    device: FakeDevice
    world: int = 2
    rank: int = 0
    ledger: Ledger = field(init=False)

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.world)
        self._stream = self.device.stream()

    def launch(self, requests: list[Collective]) -> list[tuple[Work, Any]]:
        return [self._start(request) for request in requests]

    def finish(self, pending: list[tuple[Work, Any]]) -> list[Any]:
        for work, _ in pending:
            work.wait()
        return [answer for _, answer in pending]

    def _start(self, request: Collective) -> tuple[Work, Any]:
        self.ledger.book(request)
        answer, place = self._answer(request)
        ready = self.device.record()
        with self.device.on(self._stream):
            self.device.handler._handle_event_wait(ready.number, self._stream)
            place()
            return Work(self.device, self.device.record()), answer

    def _answer(self, request: Collective) -> tuple[Any, Callable[[], object]]:
        """The answer's memory, allocated on the present stream, and what fills it on the transport's."""
        if isinstance(request, AllReduce):
            return request.tensor, lambda: request.tensor.mul_(self.world)
        if isinstance(request, AllGather):
            (row,) = request.tensors
            rows = row.new_empty(self.world, row.numel())
            return (rows,), lambda: rows.copy_(row.expand_as(rows))
        if isinstance(request, AllToAll):
            arrived = torch.empty_like(request.tensor)
            return arrived, lambda: arrived.copy_(request.tensor[self.rank].expand_as(arrived))
        return request.tensor, lambda: request.tensor.mul_(1)
