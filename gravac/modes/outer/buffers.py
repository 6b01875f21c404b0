# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Averages a module's buffers, such as BatchNorm's running statistics, over the ranks in each round of outer steps.

Ranks exchange, dense, the difference of each buffer from its anchor: the buffer that all ranks had after the last
round. ``buffer_exchange.py`` computes the new anchors, also if buffers hold infinities or NaN, or change their shape.
The module's buffers are looked up by name each time, since a forward, or ``module.to()``, may replace the tensor of a
name.
"""

from collections.abc import Collection, Mapping
from typing import Any

import torch

from gravac.engine.engine import Engine
from gravac.exchange.reading import AT_ONCE, Finite, Reads
from gravac.modes.outer.buffer_exchange import BufferExchange, Flags

AVERAGEABLE_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)
"""Number formats of buffers that can be averaged; torch cannot add in other floating-point and complex formats."""

LOCAL_REMEDY = "let each rank keep its own buffer: local_buffers=[{name!r}]"
"""Remedy at the end of errors about a buffer that cannot be averaged."""


class Buffers:
    """Anchors of a module's floating-point and complex buffers, which ranks average in each round.

    All other buffers, such as counters, stay local to each rank.

    Args:
        module: module that has the buffers.
        local_names: names of further buffers that stay local to each rank; a module's name stands for all its buffers.

    Attributes:
        anchors: averaged buffers as all ranks had them after the last round, by name.

    Raises:
        ValueError: a name in ``local_names`` names neither a buffer nor a module with buffers; or a buffer cannot be
            averaged.
    """

    def __init__(self, module: torch.nn.Module, local_names: Collection[str] = ()) -> None:
        buffer_by_name = dict(module.named_buffers())
        for name in local_names:
            if not any(_is_within(buffer_name, name) for buffer_name in buffer_by_name):
                raise ValueError(
                    f"local_buffers: {name!r} is neither a buffer of the module nor a submodule with buffers; buffers "
                    f"of the module: {', '.join(buffer_by_name) or 'none'}; give names of buffers, or of submodules "
                    "that have buffers"
                )
        self._module, self._local_names = module, tuple(local_names)
        self.anchors: dict[str, torch.Tensor] = {}
        for name, buffer in buffer_by_name.items():
            if self._is_averaged(name, buffer):
                self._refuse_unfit(name, buffer)
                self.anchors[name] = buffer.detach().resolve_conj().clone()
        self._reads: Reads = AT_ONCE
        self._exchange: BufferExchange | None = None  # the newest
        self._expected_flags = Flags(differ=True, reshaped=False)
        self._new_anchors: dict[str, torch.Tensor] = {}  # of the newest exchange, whether applied or not
        self._warned_names: set[str] = set()
        self._local_fraction = 0.0

    @property
    def all_buffers(self) -> dict[str, torch.Tensor]:
        """The present tensors of all buffers, averaged or not, on this rank, by name, of any shapes."""
        return {name: buffer.detach() for name, buffer in self._module.named_buffers()}

    @property
    def averaged_tensors(self) -> list[torch.Tensor]:
        """The present tensors of the averaged buffers, on this rank, of any shapes."""
        return list(self._averaged_buffers.values())

    @property
    def _averaged_buffers(self) -> dict[str, torch.Tensor]:
        """The present tensors of the averaged buffers, by name, in the order of their anchors."""
        return self._checked_buffers()

    def check(self) -> None:
        """Raise if the module's buffers no longer fit the anchors.

        Raises:
            ValueError: a buffer is gone, new, or of a number format that cannot be averaged.
        """
        self._checked_buffers()

    # an exchange

    def send(self, engine: Engine, local_fraction: float = 0.0, looks: bool = False) -> BufferExchange | None:
        """Start to exchange the buffers; return the exchange, or ``None`` if the module has no buffers to average.

        Args:
            engine: runs the exchange.
            local_fraction: fraction of each buffer that the rank keeps when it applies the anchors, in [0, 1).
            looks: whether to look for unusual buffers in any case, see ``Flags``.

        Raises:
            ValueError: a buffer no longer fits its anchor; see ``check``.
        """
        self._local_fraction = local_fraction
        buffers = self._averaged_buffers
        if not buffers:
            return None
        self._reads = engine.executor
        self._exchange = BufferExchange(self.anchors, buffers, engine)
        self._exchange.send(Flags(True, True) if looks else self._expected_flags)
        return self._exchange

    @torch.no_grad()
    def apply_mean(self, mean_applied: Finite = None) -> None:
        """Move the anchors to the means over the ranks, which have arrived.

        Args:
            mean_applied: whether the mean of the weights that were sent with the buffers was applied; if not, the
                buffers' anchors stay, too.

        Raises:
            ValueError: a buffer has different new shapes on different ranks.
        """
        assert self._exchange is not None
        if name := self._exchange.misfit_name:
            raise ValueError(
                f"module: buffer {name}, of shape {tuple(self._exchange.shapes[name])} on this rank, got different new "
                "shapes on different ranks; give it the same shape on all ranks, or " + LOCAL_REMEDY.format(name=name)
            )
        self._new_anchors = self._exchange.new_anchors()
        for name, flat_anchor in self._new_anchors.items():
            anchor = self._exchange.anchors[name]
            new_anchor = torch.empty_like(anchor)
            real_anchor = _real(new_anchor)
            real_anchor.copy_(flat_anchor.view(real_anchor.shape))
            if anchor.shape != self.anchors[name].shape:
                self.anchors[name] = new_anchor
            else:
                self.anchors[name].copy_(self._reads.choose(mean_applied, new_anchor, self.anchors[name]))

    @torch.no_grad()
    def apply_anchors(self, mean_applied: Finite = None) -> None:
        """Move the module's buffers to the anchors, except for the fraction of a buffer that the rank keeps.

        An element that is finite on this rank stays if its anchor is not finite: the next round sends the element. An
        element that is not finite on this rank becomes the anchor's, unless ranks have not counted yet on which ranks
        the element is finite.

        Args:
            mean_applied: whether the mean of the weights that were sent with the buffers was applied; if not, only
                elements that are not finite change.
        """
        has_counts = self._exchange is None or self._exchange.has_counts
        moved_buffers: list[tuple[torch.Tensor, torch.Tensor]] = []  # written at the end: buffers may share memory
        for name, buffer in self._averaged_buffers.items():
            anchor = self.anchors[name]
            if buffer.shape != anchor.shape:
                exchange = self._exchange
                if exchange is None or name not in exchange.reshaped_names or buffer.shape != exchange.shapes[name]:
                    continue  # ranks have not agreed on this rank's shape yet
                _resize(self._module.get_buffer(name), anchor.new_full(anchor.shape, float("nan")))
                buffer = self._module.get_buffer(name).detach()
            local, shared = _real(buffer.resolve_conj()), _real(anchor.to(buffer))
            mixed = _interpolate(local, shared, 1 - self._local_fraction) if self._local_fraction else shared
            moved = self._reads.choose(mean_applied, torch.where(shared.isfinite(), mixed, local), local)
            healed = shared if has_counts else local
            if name in self._new_anchors and self._new_anchors[name].numel() == local.numel():
                new_anchor = self._new_anchors[name].view(local.shape).to(local)
                # otherwise all ranks have an infinity here, which was not applied: a later round applies it
                healed = torch.where(new_anchor.isfinite() | ~shared.isfinite(), healed, local)
            result = torch.where(local.isfinite(), moved, healed)
            moved_buffers.append((buffer, torch.view_as_complex(result) if buffer.is_complex() else result))
        for buffer, moved_buffer in moved_buffers:
            buffer.copy_(moved_buffer)

    def read_flags(self, exchange: BufferExchange) -> list[str]:
        """Read, on the host, the flags of an exchange, which later exchanges use; return texts to warn with.

        Args:
            exchange: an exchange that has ended; its flags are in host memory.
        """
        assert exchange.flags_on_host is not None
        differ, reshaped, *replaced = map(bool, exchange.flags_on_host.read())
        self._expected_flags = Flags(differ, reshaped)
        names = [name for name, is_replaced in zip(exchange.names, replaced, strict=True) if is_replaced]
        new_names = [name for name in names if name not in self._warned_names]
        self._warned_names.update(names)
        return [
            f"buffer {name} has elements that are not finite here; the mean over the ranks on which they are finite, "
            "or the last mean, replaces them; no weight changes. If ranks are to have different elements, "
            + LOCAL_REMEDY.format(name=name)
            for name in new_names
        ]

    # anchors in the module

    @torch.no_grad()
    def put_anchors(self) -> dict[str, torch.Tensor]:
        """Put the anchors into the module; return copies of the replaced buffers, by name, of their shapes.

        A buffer that has a new shape, on which ranks have not agreed yet, stays.
        """
        replaced_buffers = {name: buffer.clone() for name, buffer in self._averaged_buffers.items()}
        anchors = {
            name: anchor for name, anchor in self.anchors.items() if anchor.shape == replaced_buffers[name].shape
        }
        self.overwrite({**replaced_buffers, **anchors})
        return replaced_buffers

    @torch.no_grad()
    def set_anchors(self) -> None:
        """Overwrite the anchors with the module's buffers, which are the same on all ranks."""
        for name, buffer in self._averaged_buffers.items():
            _resize(self.anchors[name], buffer)
            self.anchors[name].copy_(buffer)

    @torch.no_grad()
    def overwrite(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Overwrite the module's averaged buffers with tensors, given by name, of any shapes."""
        for name in self._averaged_buffers:
            buffer = self._module.get_buffer(name)
            _resize(buffer, tensors[name])
            buffer.detach().copy_(tensors[name])

    def state_dict(self) -> dict[str, Any]:
        """Return the anchors, all of this rank's buffers, and the fraction of a buffer that the rank keeps."""
        return {"anchors": dict(self.anchors), "own": self.all_buffers, "keeps": self._local_fraction}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that ``state_dict`` returned."""
        for name, anchor in self.anchors.items():
            anchor.copy_(state["anchors"][name])
        for name, buffer in self.all_buffers.items():
            buffer.copy_(state["own"][name])
        self._local_fraction = state["keeps"]

    def _checked_buffers(self) -> dict[str, torch.Tensor]:
        """Check the module's averaged buffers as ``check`` does; return them by name, in the order of their anchors."""
        buffer_by_name = dict(self._module.named_buffers())
        for name, buffer in buffer_by_name.items():
            if name not in self.anchors and self._is_averaged(name, buffer):
                raise ValueError(
                    f"module: buffer {name} did not exist, or had no floating-point numbers, when this compressor was "
                    "attached; register the buffer before attach, or " + LOCAL_REMEDY.format(name=name)
                )
        for name in self.anchors:
            if name not in buffer_by_name:
                raise ValueError(
                    f"module: buffer {name}, which ranks average in each round, is gone; keep the buffer in the "
                    "module, or, before attach, " + LOCAL_REMEDY.format(name=name)
                )
            self._refuse_unfit(name, buffer_by_name[name])
        return {name: buffer_by_name[name].detach() for name in self.anchors}

    def _refuse_unfit(self, name: str, buffer: torch.Tensor) -> None:
        """Raise a ``ValueError`` if a buffer cannot be averaged."""
        _refuse_overlap(name, buffer)
        anchor = self.anchors.get(name, buffer)
        if buffer.dtype not in AVERAGEABLE_DTYPES or buffer.is_complex() != anchor.is_complex():
            raise ValueError(
                f"module: buffer {name} is in {buffer.dtype}, which ranks cannot average; use torch.float32, or "
                + LOCAL_REMEDY.format(name=name)
            )

    def _is_averaged(self, name: str, buffer: torch.Tensor) -> bool:
        """True if a buffer is to be averaged."""
        has_mean = buffer.is_floating_point() or buffer.is_complex()
        return has_mean and not any(_is_within(name, local_name) for local_name in self._local_names)


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor itself, or the real and imaginary parts of a complex tensor, ``[..., 2]``, as a view."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _interpolate(buffer: torch.Tensor, anchor: torch.Tensor, moved_fraction: float) -> torch.Tensor:
    """Return the point at a fraction of the way from buffer to anchor; the buffer itself for equal elements."""
    return torch.where(buffer == anchor, buffer, buffer.lerp(anchor, moved_fraction))


def _resize(tensor: torch.Tensor, like: torch.Tensor) -> None:
    """Give a tensor the shape of another, if it has not that shape; its elements are then those of the other."""
    if tensor.shape != like.shape:
        resized = like.detach().to(tensor, copy=True)
        tensor.set_(resized.untyped_storage(), 0, resized.shape, resized.stride())


def _is_within(name: str, prefix: str) -> bool:
    """True if a dotted name is ``prefix``, or lies within the module of that name."""
    return name == prefix or name.startswith(f"{prefix}.")


def _refuse_overlap(name: str, buffer: torch.Tensor) -> None:
    """Raise a ``ValueError`` if a buffer is sparse or quantized, or if several of its elements share memory."""
    if buffer.layout != torch.strided or buffer.is_quantized:
        storage_text = "quantized" if buffer.is_quantized else f"of layout {buffer.layout}"
        raise ValueError(f"module: buffer {name} is {storage_text}, which ranks cannot exchange; use a dense tensor")
    last_index = 0  # offset of the last element, in elements, over the dimensions so far
    for stride, size in sorted(zip(buffer.stride(), buffer.shape, strict=True)):
        if size > 1 and buffer.numel() and stride <= last_index:
            raise ValueError(
                f"module: buffer {name} has shape {tuple(buffer.shape)} and strides {buffer.stride()}, so that several "
                "of its elements share memory (expand() makes such tensors); replace it by its .contiguous() copy"
            )
        last_index += stride * (size - 1)
