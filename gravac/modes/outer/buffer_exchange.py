# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Exchange of buffers in a round of outer steps: the mean of each element over the ranks on which it is finite.

Buffers are exchanged apart from the weights, so that no buffer can spoil the weights' mean. Elements that are not
finite are no error: observers of quantization begin at infinity, masks hold minus infinity, and NaN marks what is not
computed yet. For each element:

- If the element is finite on some ranks, the new anchor is the mean over these ranks.
- If no rank has a finite element, and all ranks have the same infinity, the new anchor is that infinity.
- Otherwise the anchor stays.

The exchange is a job (generator of collectives):

1. Ranks sum the differences of finite elements from the anchors, and two flags (``Flags``).
2. If a rank has a buffer of another shape than its anchor, ranks gather the shapes. If all new shapes of a buffer are
   the same, the anchor takes that shape, and 1 begins anew; on ranks that have the old shape, no element is finite.
3. If an element is finite on some ranks or in the anchor, but not everywhere, ranks count on which ranks each element
   is finite, and which infinities there are.

If the host must not wait for the device, the host cannot read the flags between these steps. Steps 2 and 3 then depend
on the flags of an earlier round, which the host has read since. Until then, an element that is not finite on a rank
counts as if it were at the anchor.
"""

import json
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple

import torch

from gravac.collectives import AllReduce
from gravac.engine.engine import Engine
from gravac.exchange.executor import Job
from gravac.exchange.reading import HostCopy
from gravac.modes.equalizing import gather_texts

LARGEST_BASE = 1e30
"""Largest anchor from which differences are sent. A larger anchor, such as the first value of a running minimum, would
absorb what ranks have; then ranks send the elements themselves."""

SAME_TOLERANCE = 1e-6
"""Relative rounding error of a mean of equal elements, if ranks send the elements themselves."""


class Flags(NamedTuple):
    """What is unusual on at least one rank, the same on all ranks.

    Attributes:
        differ: whether elements are not finite although their anchors are, or the other way round.
        reshaped: whether a buffer has another shape than its anchor.
    """

    differ: bool
    reshaped: bool


@dataclass(slots=True, eq=False)
class _Group:
    """Elements of the buffers that ranks sum in the same number format, one buffer after the other, in flat tensors.

    Attributes:
        sizes: number of elements of each buffer, by name; two for a complex element.
        anchors: elements of the anchors.
        buffers: this rank's elements when they were sent; NaN for a buffer that has another shape than its anchor.
        sums: this rank's differences of finite elements, divided by the number of ranks, and, in the first group, this
            rank's ``Flags``; then the sums over the ranks.
        counts: 1 if the element is finite on this rank, otherwise 0; and sign of an infinity, otherwise 0:
            ``[2, elements]``; then their sums over the ranks. ``None`` if ranks do not count.
    """

    sizes: dict[str, int]
    anchors: torch.Tensor
    buffers: torch.Tensor
    sums: torch.Tensor
    counts: torch.Tensor | None = None

    def split(self, elements: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the elements of each buffer, flat, as views of elements of the group, by name."""
        return dict(zip(self.sizes, torch.split(elements, [*self.sizes.values()]), strict=True))


class BufferExchange:
    """Buffers in flight: this rank's buffers when they were sent, and what the ranks have computed from them.

    Args:
        anchors: buffers as all ranks had them after the last round, by name; at least one.
        buffers: this rank's buffers, by the same names; copied.
        engine: runs the exchange.

    Attributes:
        anchors: the anchors; if ranks agreed on a new shape of a buffer, an anchor of NaN in that shape.
        shapes: shapes of this rank's buffers when they were sent, by name.
        has_counts: whether ranks have counted on which ranks each element is finite.
        flags_on_host: the two ``Flags``, then for each of ``names`` whether elements of this rank, which are not
            finite, are replaced by finite ones, on their way to the host; ``None`` before the exchange has ended.
        reshaped_names: names of the buffers whose anchors have a new shape, on which ranks agreed.
        misfit_name: name of a buffer that has different new shapes on different ranks; empty if none has.
    """

    def __init__(
        self,
        anchors: Mapping[str, torch.Tensor],
        buffers: Mapping[str, torch.Tensor],
        engine: Engine,
    ) -> None:
        self.anchors = dict(anchors)
        self.shapes = {name: buffer.shape for name, buffer in buffers.items()}
        self.has_counts = False
        self.flags_on_host: HostCopy | None = None
        self.reshaped_names: list[str] = []
        self.misfit_name = ""
        self._engine, self._world = engine, engine.executor.world
        is_reshaped = {name: buffer.shape != anchors[name].shape for name, buffer in buffers.items()}
        self._reshaped_buffers = {name: buffer.clone() for name, buffer in buffers.items() if is_reshaped[name]}
        self._groups = self._make_groups(
            {name: _flat(buffer) for name, buffer in buffers.items() if not is_reshaped[name]}
        )
        self._arrival_future: Future[None] | None = None

    @property
    def names(self) -> list[str]:
        """Names of the buffers, in the order of ``flags_on_host``."""
        return [name for group in self._groups for name in group.sizes]

    @property
    def has_arrived(self) -> bool:
        """True if the exchange has ended, or failed."""
        return self._arrival_future is not None and self._arrival_future.done()

    def wait(self) -> None:
        """Wait until the exchange has ended.

        Raises:
            ExchangeError: a rank did not answer.
        """
        assert self._arrival_future is not None
        self._arrival_future.result()

    def send(self, expected: Flags) -> None:
        """Start the exchange, within a step of the engine. Called on every rank.

        Args:
            expected: flags of an earlier round, used if the host must not wait for the device.
        """
        if expected.differ and self._engine.executor.lag:
            self._count()
        self._arrival_future = self._engine.submit_job(f"{len(self.anchors)} buffers", self._job(expected))

    def _job(self, expected: Flags) -> Job[None]:
        executor, device = self._engine.executor, self._engine.device
        yield from self._sum([group.sums for group in self._groups])
        flags = self._groups[0].sums[-2:] > 0
        differ, reshaped = (
            expected_flag if (known_flag := executor.known(flag)) is None else known_flag
            for flag, expected_flag in zip(flags, expected, strict=True)
        )
        has_new_shapes = reshaped and (yield from self._agree_on_shapes())
        if has_new_shapes:
            yield from self._sum([group.sums for group in self._groups])
        if differ or has_new_shapes:
            if self._groups[0].counts is None:
                self._count()
            yield from self._sum([group.counts for group in self._groups if group.counts is not None])
            self.has_counts = True
        self.flags_on_host = executor.to_host(torch.cat([flags, *map(self._replaced, self._groups)]))
        if device.type == "cuda" and has_new_shapes:
            torch.cuda.current_stream(device).synchronize()  # tensors were made on this stream, for another stream

    def _sum(self, tensors: list[torch.Tensor]) -> Job[None]:
        """Replace tensors by their sums over the ranks, in place."""
        totals = yield [AllReduce(tensor) for tensor in tensors]
        for tensor, total in zip(tensors, totals, strict=True):
            if total is not tensor:
                tensor.copy_(total)

    def _agree_on_shapes(self) -> Job[bool]:
        """Gather the shapes of buffers that no longer have their anchor's shape; return whether anchors changed."""
        new_shapes = {name: [*buffer.shape] for name, buffer in self._reshaped_buffers.items()}
        texts = yield from gather_texts(json.dumps(new_shapes), self._engine.device)
        shapes_of_ranks = [json.loads(text) for text in texts]
        for name, anchor in self.anchors.items():
            shapes = {tuple(shapes_of_rank[name]) for shapes_of_rank in shapes_of_ranks if name in shapes_of_rank}
            if len(shapes) > 1:
                self.misfit_name = name
            elif shapes:
                self.anchors[name] = anchor.new_full(shapes.pop(), float("nan"))
                self.reshaped_names.append(name)
        if self.reshaped_names:
            flat_buffers = {name: flat for group in self._groups for name, flat in group.split(group.buffers).items()}
            for name in self.reshaped_names:
                del flat_buffers[name]
                if name in self._reshaped_buffers:
                    flat_buffers[name] = _flat(self._reshaped_buffers[name])
            self._groups = self._make_groups(flat_buffers)
        return bool(self.reshaped_names)

    # elements

    def _make_groups(self, flat_buffers: Mapping[str, torch.Tensor]) -> list[_Group]:
        """Return the elements of all buffers in groups.

        Args:
            flat_buffers: this rank's elements, flat, by name; a buffer without an entry counts as NaN.
        """
        names_by_dtype: dict[torch.dtype, list[str]] = {}
        for name, anchor in self.anchors.items():
            is_double = anchor.dtype in (torch.float64, torch.complex128)
            names_by_dtype.setdefault(torch.float64 if is_double else torch.float32, []).append(name)
        groups = []
        for dtype, names in names_by_dtype.items():
            flat_anchors = {name: _flat(self.anchors[name]).to(self._engine.device, dtype) for name in names}
            anchors = torch.cat([*flat_anchors.values()])
            buffers = torch.cat(
                [
                    flat_buffers[name].to(anchor) if name in flat_buffers else torch.full_like(anchor, float("nan"))
                    for name, anchor in flat_anchors.items()
                ]
            )
            differences = _bases(anchors) - buffers
            sums = torch.where(buffers.isfinite(), differences, 0.0) / self._world
            groups.append(_Group({name: flat.numel() for name, flat in flat_anchors.items()}, anchors, buffers, sums))
        differ = torch.stack([_differ(group.buffers, group.anchors).any() for group in groups]).any()
        flags = torch.stack([differ, torch.full_like(differ, bool(self._reshaped_buffers))])
        groups[0].sums = torch.cat([groups[0].sums, flags.to(groups[0].sums)])
        return groups

    def _count(self) -> None:
        """Set ``counts`` of all groups to this rank's."""
        for group in self._groups:
            is_finite = group.buffers.isfinite().to(group.buffers)
            signs = torch.where(group.buffers.isinf(), group.buffers.sign(), 0.0)
            group.counts = torch.stack([is_finite, signs])

    def new_anchors(self) -> dict[str, torch.Tensor]:
        """Return the elements of all new anchors, flat, in row-major order, by name; also of anchors that stay."""
        new_anchors: dict[str, torch.Tensor] = {}
        for group in self._groups:
            new_anchors |= group.split(self._new_anchors_of(group))
        return {name: new_anchors[name] for name in self.anchors}

    def _new_anchors_of(self, group: _Group) -> torch.Tensor:
        anchors, differences = group.anchors, group.sums[: group.anchors.numel()]
        no_mean = anchors
        if group.counts is not None and self.has_counts:
            finite_ranks, signs = group.counts
            differences = differences * (self._world / finite_ranks)
            no_mean = torch.where(signs.abs() == self._world, signs * torch.inf, anchors)
            has_mean = finite_ranks > 0
        else:
            has_mean = anchors.isfinite()
        largest = torch.finfo(anchors.dtype).max  # a mean of finite numbers is finite, although their sum may overflow
        bases = _bases(anchors)
        means = (bases - differences).clamp(-largest, largest)
        is_same = anchors.isfinite() & (bases != anchors) & ((means - anchors).abs() <= SAME_TOLERANCE * anchors.abs())
        return torch.where(has_mean & ~means.isnan() & ~is_same, means, no_mean)

    def _replaced(self, group: _Group) -> torch.Tensor:
        """Return, for each buffer, whether finite elements replace this rank's, bool, ``[buffers]``."""
        if not self.has_counts:
            return torch.zeros(len(group.sizes), dtype=torch.bool, device=self._engine.device)
        was_finite = group.anchors.isfinite() & ~group.buffers.isfinite()
        replaced = was_finite & self._new_anchors_of(group).isfinite()
        return torch.stack([elements.any() for elements in group.split(replaced).values()])


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's elements as real numbers, flat, in row-major order; two numbers for a complex element."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).reshape(-1)


def _differ(buffers: torch.Tensor, anchors: torch.Tensor) -> torch.Tensor:
    """Return, for each element, whether buffer or anchor is not finite, and they are not the same infinity or NaN."""
    equal = (buffers == anchors) | (buffers.isnan() & anchors.isnan())
    return ~equal & ~(buffers.isfinite() & anchors.isfinite())


def _bases(anchors: torch.Tensor) -> torch.Tensor:
    """Return the elements from which ranks send differences: those of the anchors, or zeros if these do not fit."""
    return torch.where(anchors.abs() <= LARGEST_BASE, anchors, 0.0)  # zeros also for infinities and NaN
