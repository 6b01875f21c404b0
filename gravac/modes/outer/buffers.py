# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Averages a module's buffers, such as BatchNorm's running statistics, over the ranks in each round.

Buffers are exchanged with the pseudo-gradient, dense, as their difference from an anchor: the buffer that all ranks had
after the last round. They are looked up by name each time, since a forward, or ``module.to()``, may replace the tensor
of a name.
"""

from collections.abc import Collection, Mapping
from typing import Any

import torch

from gravac.averaging.plan import Piece
from gravac.exchange.executor import Verdict, choose
from gravac.sources.weights import refuse_overlap

PREFIX = "buffer:"
"""Prefix of the names by which buffers are exchanged, so that no buffer has the name of a parameter."""

AVERAGED = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)
"""Number formats of buffers that are averaged; torch computes no mean in other floating-point and complex formats."""

LOCAL_REMEDY = "leave it to each rank: local_buffers=[{name!r}]"


class Buffers:
    """The floating-point and complex buffers of a module; others, such as counters, stay local to each rank.

    Args:
        module: module that has the buffers.
        local: names of buffers that stay local to each rank, or of modules whose buffers do.

    Attributes:
        anchors: buffers that all ranks have shared since the last round, by name.

    Raises:
        ValueError: a name in ``local`` names neither a buffer nor a module with buffers, or a buffer cannot be
            averaged.
    """

    def __init__(self, module: torch.nn.Module, local: Collection[str] = ()) -> None:
        named = dict(module.named_buffers())
        for name in local:
            if not any(_is_within(buffer_name, name) for buffer_name in named):
                raise ValueError(
                    f"local_buffers: {name!r} is no buffer of the module; it has {', '.join(named) or 'none'}"
                )
        self._module, self._local_names = module, tuple(local)
        self.anchors: dict[str, torch.Tensor] = {}
        for name, buffer in named.items():
            if self._is_averaged(name, buffer):
                self._refuse(name, buffer)
                self.anchors[name] = buffer.detach().resolve_conj().clone()
        self._pieces: tuple[Piece, ...] = ()
        self._local_fraction = 0.0

    @property
    def local(self) -> dict[str, torch.Tensor]:
        """All buffers as this rank's module has them now, averaged or not, by name, of any shapes."""
        return {name: buffer.detach() for name, buffer in self._module.named_buffers()}

    @property
    def live(self) -> list[torch.Tensor]:
        """The averaged buffers, as the module has them now, of any shapes."""
        return list(self._live.values())

    @property
    def _live(self) -> dict[str, torch.Tensor]:
        return self._fitting()

    @property
    def like_pieces(self) -> dict[str, torch.Tensor]:
        """Flat tensors like those that ranks exchange, by the names under which they are exchanged."""
        return {PREFIX + name: _real(anchor).reshape(-1) for name, anchor in self.anchors.items()}

    def check(self) -> None:
        """Refuse buffers of the module that no longer fit the anchors.

        Raises:
            ValueError: a buffer is gone, new, of another shape, or cannot be averaged as it is.
        """
        self._fitting()

    @torch.no_grad()
    def send(self, weight: float = 1.0, local_fraction: float = 0.0) -> tuple[Piece, ...]:
        """Return the differences to exchange, anchors minus buffers, multiplied by a weight, as flat pieces.

        Args:
            weight: factor on the differences.
            local_fraction: fraction of each buffer that the rank keeps when it applies the anchors, in [0, 1).

        Raises:
            ValueError: see ``check``.
        """
        self._local_fraction = local_fraction
        pieces = []
        for name, live in self._live.items():
            anchor = self.anchors[name]
            flat = _real(_difference(anchor, live.to(anchor)).mul_(weight)).reshape(-1)
            pieces.append(Piece(PREFIX + name, flat, (flat.numel(),)))
        self._pieces = tuple(pieces)
        return self._pieces

    def apply_mean(self) -> None:
        """Move the anchors to the mean that has arrived; a second call changes nothing."""
        for piece, anchor in zip(self._pieces, self.anchors.values(), strict=False):
            real = _real(anchor)
            real.sub_(piece.flat.view_as(real))
        self._pieces = ()

    @torch.no_grad()
    def apply_anchors(self) -> None:
        """Move the module's buffers to the anchors, but for the fraction that the rank keeps."""
        moved = {}
        for name, live in self._live.items():
            anchor = self.anchors[name]
            fraction = 1 - self._local_fraction
            moved[name] = _interpolated(live, anchor.to(live), fraction) if self._local_fraction else anchor
        self.put(moved)

    @torch.no_grad()
    def put_anchors(self) -> dict[str, torch.Tensor]:
        """Put the anchors into the module; return the replaced buffers, by name, of any shapes, for ``put``."""
        replaced = {name: live.clone() for name, live in self._live.items()}
        self.put(self.anchors)
        return replaced

    @torch.no_grad()
    def set_anchors(self) -> None:
        """Overwrite the anchors with the module's buffers, which are the same on all ranks."""
        for name, live in self._live.items():
            self.anchors[name].copy_(live)

    @torch.no_grad()
    def put(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Overwrite the module's averaged buffers with tensors, given by name, of any shapes."""
        for name, live in self._live.items():
            live.copy_(tensors[name])

    def state_dict(self) -> dict[str, Any]:
        """Return the anchors, this rank's buffers, and the fraction of them that the rank keeps."""
        return {"anchors": dict(self.anchors), "own": self.local, "keeps": self._local_fraction}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state."""
        for name, anchor in self.anchors.items():
            anchor.copy_(state["anchors"][name])
        for name, buffer in self.local.items():
            buffer.copy_(state["own"][name])
        self._local_fraction = state["keeps"]

    # if a mean is not finite

    def zero_means_unless(self, applied: Verdict) -> None:
        """Overwrite the means that have arrived with zeros unless ``applied``; called before ``apply_mean``."""
        for piece in self._pieces:
            if applied is False:
                piece.flat.zero_()
            elif applied is not True:
                piece.flat.masked_fill_(~applied, 0.0)

    def apply_anchors_if(self, applied: Verdict) -> None:
        """Apply the anchors if the means were ``applied``; otherwise each rank keeps its buffers."""
        if applied is False:
            return
        saved = {} if applied is True else {name: live.clone() for name, live in self._live.items()}
        self.apply_anchors()
        for name, buffer in saved.items():
            self._live[name].copy_(choose(applied, self._live[name], buffer))

    def mend(self) -> list[str]:
        """Overwrite each buffer that is not finite with its anchor; return their names. The host waits."""
        spoilt = self.spoilt
        for name in spoilt:
            self._live[name].copy_(self.anchors[name])
        return spoilt

    @property
    def spoilt(self) -> list[str]:
        """Names of buffers with a number that is not finite although it is finite in the anchor. The host waits."""
        return [
            name
            for name, live in self._live.items()
            if bool((~live.isfinite() & self.anchors[name].isfinite().to(live.device)).any())
        ]

    def _fitting(self) -> dict[str, torch.Tensor]:
        """Check the module's averaged buffers as ``check`` does; return them in the order of their anchors."""
        named = dict(self._module.named_buffers())
        for name, buffer in named.items():
            if name not in self.anchors and self._is_averaged(name, buffer):
                raise ValueError(
                    f"module: buffer {name} was not there, or had no floating-point numbers, when this compressor was "
                    "attached; register it before, or " + LOCAL_REMEDY.format(name=name)
                )
        for name, anchor in self.anchors.items():
            if name not in named:
                raise ValueError(
                    f"module: buffer {name}, which ranks average in each round, is gone; keep it, or "
                    "before attach, " + LOCAL_REMEDY.format(name=name)
                )
            buffer = named[name]
            if buffer.shape != anchor.shape:
                raise ValueError(
                    f"module: buffer {name} has shape {tuple(buffer.shape)}, but had {tuple(anchor.shape)} when this "
                    "compressor was attached; keep its shape, or " + LOCAL_REMEDY.format(name=name)
                )
            self._refuse(name, buffer)
        return {name: named[name].detach() for name in self.anchors}

    def _refuse(self, name: str, buffer: torch.Tensor) -> None:
        """Refuse a buffer that cannot be averaged."""
        refuse_overlap(f"buffer {name}", buffer)
        anchor = self.anchors.get(name, buffer)
        if buffer.dtype not in AVERAGED or buffer.is_complex() != anchor.is_complex():
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


def _difference(anchor: torch.Tensor, live: torch.Tensor) -> torch.Tensor:
    """Return anchor minus buffer; 0 for equal elements, even if both are infinite, as in an attention mask."""
    return torch.where(live == anchor, 0, anchor - live)


def _interpolated(live: torch.Tensor, anchor: torch.Tensor, fraction: float) -> torch.Tensor:
    """Return the point at a fraction of the way from buffer to anchor; the buffer itself for equal elements."""
    return torch.where(live == anchor, live, live.lerp(anchor, fraction))


def _is_within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")
