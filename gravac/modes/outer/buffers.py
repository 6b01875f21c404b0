# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Averages a module's buffers, such as BatchNorm's running statistics, over the ranks in each round of outer steps.

Ranks exchange, dense, the difference of each buffer from its anchor: the buffer that all ranks had after the last
round. The module's buffers are looked up by name each time, since a forward, or ``module.to()``, may replace the tensor
of a name.
"""

from collections.abc import Collection, Mapping
from typing import Any

import torch

from gravac.averaging.plan import Piece
from gravac.exchange.executor import Verdict, choose
from gravac.sources.weights import refuse_overlap

BUFFER_PREFIX = "buffer:"
"""Prefix of the names by which buffers are exchanged, so that no buffer has the name of a parameter."""

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
        self._sent_pieces: tuple[Piece, ...] = ()
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

    @property
    def piece_templates(self) -> dict[str, torch.Tensor]:
        """Flat tensors of the sizes and dtypes that ranks exchange, with any content, by ``BUFFER_PREFIX`` + name."""
        return {BUFFER_PREFIX + name: _real(anchor).reshape(-1) for name, anchor in self.anchors.items()}

    def check(self) -> None:
        """Raise if the module's buffers no longer fit the anchors.

        Raises:
            ValueError: a buffer is gone, new, of another shape, or of a number format that cannot be averaged.
        """
        self._checked_buffers()

    @torch.no_grad()
    def compute_differences(self, weight: float = 1.0, local_fraction: float = 0.0) -> tuple[Piece, ...]:
        """Return the differences to exchange, anchors minus buffers, multiplied by ``weight``, as flat tensors.

        Args:
            weight: factor on the differences.
            local_fraction: fraction of each buffer that the rank keeps when it applies the anchors, in [0, 1).

        Raises:
            ValueError: a buffer no longer fits its anchor; see ``check``.
        """
        self._local_fraction = local_fraction
        pieces = []
        for name, buffer in self._averaged_buffers.items():
            anchor = self.anchors[name]
            flat_difference = _real(_difference(anchor, buffer.to(anchor)).mul_(weight)).reshape(-1)
            pieces.append(Piece(BUFFER_PREFIX + name, flat_difference, (flat_difference.numel(),)))
        self._sent_pieces = tuple(pieces)
        return self._sent_pieces

    def apply_mean(self) -> None:
        """Move the anchors to the buffers' mean over the ranks, which has arrived; a second call changes nothing."""
        for piece, anchor in zip(self._sent_pieces, self.anchors.values(), strict=False):
            real_anchor = _real(anchor)
            real_anchor.sub_(piece.flat.view_as(real_anchor))
        self._sent_pieces = ()

    @torch.no_grad()
    def apply_anchors(self) -> None:
        """Move the module's buffers to the anchors, except for the fraction of a buffer that the rank keeps."""
        moved_buffers = {}
        for name, buffer in self._averaged_buffers.items():
            anchor = self.anchors[name]
            moved_fraction = 1 - self._local_fraction
            moved_buffers[name] = (
                _interpolate(buffer, anchor.to(buffer), moved_fraction) if self._local_fraction else anchor
            )
        self.overwrite(moved_buffers)

    @torch.no_grad()
    def put_anchors(self) -> dict[str, torch.Tensor]:
        """Put the anchors into the module; return copies of the replaced buffers, by name, of their shapes."""
        replaced_buffers = {name: buffer.clone() for name, buffer in self._averaged_buffers.items()}
        self.overwrite(self.anchors)
        return replaced_buffers

    @torch.no_grad()
    def set_anchors(self) -> None:
        """Overwrite the anchors with the module's buffers, which are the same on all ranks."""
        for name, buffer in self._averaged_buffers.items():
            self.anchors[name].copy_(buffer)

    @torch.no_grad()
    def overwrite(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Overwrite the module's averaged buffers with tensors, given by name, of any shapes."""
        for name, buffer in self._averaged_buffers.items():
            buffer.copy_(tensors[name])

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

    # if a mean is not finite

    def zero_means_unless(self, mean_applied: Verdict) -> None:
        """If the fragment's mean was not applied, zero the buffers' means, so that the buffers' anchors do not change.

        The buffers are sent together with the last fragment of the model. Called when the means have arrived, before
        ``apply_mean``.

        Args:
            mean_applied: whether the mean of the fragment that is sent with the buffers was applied to its anchors; a
                0-d bool tensor if the host must not wait for the device.
        """
        for piece in self._sent_pieces:
            if mean_applied is False:
                piece.flat.zero_()
            elif mean_applied is not True:
                piece.flat.masked_fill_(~mean_applied, 0.0)

    def apply_anchors_if(self, mean_applied: Verdict) -> None:
        """Call ``apply_anchors`` if the fragment's mean was applied; otherwise keep the module's buffers.

        Args:
            mean_applied: whether the mean of the fragment that was sent with the buffers was applied to its anchors; a
                0-d bool tensor if the host must not wait for the device.
        """
        if mean_applied is False:
            return
        buffers_before = (
            {} if mean_applied is True else {name: buffer.clone() for name, buffer in self._averaged_buffers.items()}
        )
        self.apply_anchors()
        for name, buffer in buffers_before.items():
            self._averaged_buffers[name].copy_(choose(mean_applied, self._averaged_buffers[name], buffer))

    def reset_not_finite(self) -> list[str]:
        """Overwrite the buffers that are not finite with their anchors; return their names. The host waits."""
        names = self.names_not_finite
        for name in names:
            self._averaged_buffers[name].copy_(self.anchors[name])
        return names

    @property
    def names_not_finite(self) -> list[str]:
        """Names of averaged buffers with an element that is not finite, although the anchor's element is finite.

        The host waits for the buffers.
        """
        return [
            name
            for name, buffer in self._averaged_buffers.items()
            if bool((~buffer.isfinite() & self.anchors[name].isfinite().to(buffer.device)).any())
        ]

    def _checked_buffers(self) -> dict[str, torch.Tensor]:
        """Check the module's averaged buffers as ``check`` does; return them by name, in the order of their anchors."""
        buffer_by_name = dict(self._module.named_buffers())
        for name, buffer in buffer_by_name.items():
            if name not in self.anchors and self._is_averaged(name, buffer):
                raise ValueError(
                    f"module: buffer {name} did not exist, or had no floating-point numbers, when this compressor was "
                    "attached; register the buffer before attach, or " + LOCAL_REMEDY.format(name=name)
                )
        for name, anchor in self.anchors.items():
            if name not in buffer_by_name:
                raise ValueError(
                    f"module: buffer {name}, which ranks average in each round, is gone; keep the buffer in the "
                    "module, or, before attach, " + LOCAL_REMEDY.format(name=name)
                )
            buffer = buffer_by_name[name]
            if buffer.shape != anchor.shape:
                raise ValueError(
                    f"module: buffer {name} has shape {tuple(buffer.shape)}, but had {tuple(anchor.shape)} when this "
                    "compressor was attached; keep its shape, or " + LOCAL_REMEDY.format(name=name)
                )
            self._refuse_unfit(name, buffer)
        return {name: buffer_by_name[name].detach() for name in self.anchors}

    def _refuse_unfit(self, name: str, buffer: torch.Tensor) -> None:
        """Raise a ``ValueError`` if a buffer cannot be averaged."""
        refuse_overlap(f"buffer {name}", buffer)
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


def _difference(anchor: torch.Tensor, buffer: torch.Tensor) -> torch.Tensor:
    """Return anchor minus buffer; 0 for equal elements, even if both are infinite, as in an attention mask."""
    return torch.where(buffer == anchor, 0, anchor - buffer)


def _interpolate(buffer: torch.Tensor, anchor: torch.Tensor, moved_fraction: float) -> torch.Tensor:
    """Return the point at a fraction of the way from buffer to anchor; the buffer itself for equal elements."""
    return torch.where(buffer == anchor, buffer, buffer.lerp(anchor, moved_fraction))


def _is_within(name: str, prefix: str) -> bool:
    """True if a dotted name is ``prefix``, or lies within the module of that name."""
    return name == prefix or name.startswith(f"{prefix}.")
