# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What is in a module and no parameter, such as BatchNorm's running statistics: its mean over the ranks, each round.

Buffers travel beside the pseudo-gradient, dense, as their distance from what all ranks had after the round before. They
are found by name each time, since a forward may bind another tensor to a name, and ``module.to()`` does.
"""

from collections.abc import Collection, Mapping
from typing import Any

import torch

from gravac.averaging.plan import Piece
from gravac.exchange.executor import Verdict, choose
from gravac.sources.weights import refuse_overlap

PREFIX = "buffer:"
"""Beginning of the names that buffers travel by, so that none is taken for a parameter."""

AVERAGED = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)
"""Number formats of buffers that are averaged; of other floating-point and complex ones there is no mean to be had."""

APART = "leave it to each rank: local_buffers=[{name!r}]"


class Buffers:
    """The floating-point and complex buffers of a module; others, such as counters, are each rank's own.

    Args:
        module: has them.
        left_alone: names of buffers, or of modules whose buffers, are each rank's own.

    Attributes:
        anchors: what all ranks have had since the last round, by name.

    Raises:
        ValueError: a name is of no buffer and of no module that has one, or a buffer cannot be averaged.
    """

    def __init__(self, module: torch.nn.Module, left_alone: Collection[str] = ()) -> None:
        named = dict(module.named_buffers())
        for name in left_alone:
            if not any(_within(one, name) for one in named):
                raise ValueError(
                    f"local_buffers: {name!r} is no buffer of the module; it has {', '.join(named) or 'none'}"
                )
        self._module, self._left_alone = module, tuple(left_alone)
        self.anchors: dict[str, torch.Tensor] = {}
        for name, buffer in named.items():
            if self._is_averaged(name, buffer):
                self._refuse(name, buffer)
                self.anchors[name] = buffer.detach().resolve_conj().clone()
        self._pieces: tuple[Piece, ...] = ()
        self._own = 0.0

    @property
    def own(self) -> dict[str, torch.Tensor]:
        """What the rank has now, by name and of any shapes: buffers that are averaged, and those that are not."""
        return {name: buffer.detach() for name, buffer in self._module.named_buffers()}

    @property
    def live(self) -> list[torch.Tensor]:
        """The buffers that are averaged, as the module has them now, of any shapes."""
        return list(self._live.values())

    @property
    def _live(self) -> dict[str, torch.Tensor]:
        return self._fitting()

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        """What travels, by the name it travels by: flat, so that it is sent dense."""
        return {PREFIX + name: _real(anchor).reshape(-1) for name, anchor in self.anchors.items()}

    def check(self) -> None:
        """Refuse buffers of the module that do not fit the anchors any more.

        Raises:
            ValueError: one is gone, new, of another shape, or cannot be averaged as it is.
        """
        self._fitting()

    @torch.no_grad()
    def leave(self, weight: float = 1.0, own: float = 0.0) -> tuple[Piece, ...]:
        """Return how far each is from its anchor, times a weight, as flat pieces.

        Args:
            weight: factor.
            own: share of each that the rank keeps where it takes up the anchors.

        Raises:
            ValueError: see ``check``.
        """
        self._own = own
        pieces = []
        for name, live in self._live.items():
            anchor = self.anchors[name]
            flat = _real(_apart(anchor, live.to(anchor)).mul_(weight)).reshape(-1)
            pieces.append(Piece(PREFIX + name, flat, (flat.numel(),)))
        self._pieces = tuple(pieces)
        return self._pieces

    def arrive(self) -> None:
        """Move the anchors to the mean that came, once."""
        for piece, anchor in zip(self._pieces, self.anchors.values(), strict=False):
            real = _real(anchor)
            real.sub_(piece.flat.view_as(real))
        self._pieces = ()

    @torch.no_grad()
    def take_up(self) -> None:
        """Have the anchors take the place of each, but for the share that the rank keeps."""
        fresh = {}
        for name, live in self._live.items():
            anchor = self.anchors[name]
            fresh[name] = _nearer(live, anchor.to(live), 1 - self._own) if self._own else anchor
        self.put_back(fresh)

    @torch.no_grad()
    def hold(self) -> dict[str, torch.Tensor]:
        """Put the anchors into the module, and return what it held, by name, of any shapes; ``put_back`` takes that."""
        held = {name: live.clone() for name, live in self._live.items()}
        self.put_back(self.anchors)
        return held

    @torch.no_grad()
    def start_here(self) -> None:
        """Have the module's buffers take the place of the anchors."""
        for name, live in self._live.items():
            self.anchors[name].copy_(live)

    @torch.no_grad()
    def put_back(self, values: Mapping[str, torch.Tensor]) -> None:
        """Put values, by name, of the buffers' shapes, into the module; two names may be one memory."""
        for name, live in self._live.items():
            live.copy_(values[name])

    def state_dict(self) -> dict[str, Any]:
        """Return anchors and what the rank has."""
        return {"anchors": dict(self.anchors), "own": self.own, "keeps": self._own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        for name, anchor in self.anchors.items():
            anchor.copy_(state["anchors"][name])
        for name, buffer in self.own.items():
            buffer.copy_(state["own"][name])
        self._own = state["keeps"]

    # where a mean is not finite

    def refuse(self, applied: Verdict) -> None:
        """Have the means that came change nothing unless they are ``applied``; called before ``arrive``."""
        for piece in self._pieces:
            if applied is False:
                piece.flat.zero_()
            elif applied is not True:
                piece.flat.masked_fill_(~applied, 0.0)

    def take_up_if(self, applied: Verdict) -> None:
        """Do ``take_up`` where what came was ``applied``; otherwise each rank keeps its own."""
        if applied is False:
            return
        before = {} if applied is True else {name: live.clone() for name, live in self._live.items()}
        self.take_up()
        for name, own in before.items():
            self._live[name].copy_(choose(applied, self._live[name], own))

    def mend(self) -> list[str]:
        """Have the anchor take the place of each buffer that is not finite; return their names. The host looks."""
        spoilt = self.spoilt
        for name in spoilt:
            self._live[name].copy_(self.anchors[name])
        return spoilt

    @property
    def spoilt(self) -> list[str]:
        """Names of buffers with numbers that are not finite, and finite in the anchor. The host looks."""
        live = self._live.items()
        return [
            name for name, own in live if bool((~own.isfinite() & self.anchors[name].isfinite().to(own.device)).any())
        ]

    def _fitting(self) -> dict[str, torch.Tensor]:
        """Return the buffers that are averaged, in the order of their anchors, as the module has them now."""
        named = dict(self._module.named_buffers())
        for name, buffer in named.items():
            if name not in self.anchors and self._is_averaged(name, buffer):
                raise ValueError(
                    f"module: buffer {name} was not there, or no floating-point one, when this compressor was "
                    "attached, and is not averaged; register it before, then average it or " + APART.format(name=name)
                )
        for name, anchor in self.anchors.items():
            if name not in named:
                raise ValueError(
                    f"module: buffer {name} is gone, which ranks average in each round; keep it, or when this "
                    "compressor is attached, " + APART.format(name=name)
                )
            buffer = named[name]
            if buffer.shape != anchor.shape:
                raise ValueError(
                    f"module: buffer {name} has shape {tuple(buffer.shape)}, and had {tuple(anchor.shape)} when this "
                    "compressor was attached; keep its shape, or " + APART.format(name=name)
                )
            self._refuse(name, buffer)
        return {name: named[name].detach() for name in self.anchors}

    def _refuse(self, name: str, buffer: torch.Tensor) -> None:
        """Refuse a buffer that cannot be averaged."""
        refuse_overlap(f"buffer {name}", buffer)
        anchor = self.anchors.get(name, buffer)
        if buffer.dtype not in AVERAGED or buffer.is_complex() != anchor.is_complex():
            raise ValueError(
                f"module: buffer {name} is in {buffer.dtype}, of which ranks cannot take a mean; use torch.float32, or "
                + APART.format(name=name)
            )

    def _is_averaged(self, name: str, buffer: torch.Tensor) -> bool:
        """Whether a buffer is to be averaged."""
        numbers = buffer.is_floating_point() or buffer.is_complex()
        return numbers and not any(_within(name, one) for one in self._left_alone)


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor itself, or real and imaginary parts of a complex one, ``[..., 2]``, as a view."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _apart(anchor: torch.Tensor, live: torch.Tensor) -> torch.Tensor:
    """Return anchor less live; 0 where they are equal, also where both are infinite, as a mask of attention is."""
    return torch.where(live == anchor, 0, anchor - live)


def _nearer(live: torch.Tensor, anchor: torch.Tensor, share: float) -> torch.Tensor:
    """Return what lies a share of the way from live to anchor; live where they are equal."""
    return torch.where(live == anchor, live, live.lerp(anchor, share))


def _within(name: str, whole: str) -> bool:
    return name == whole or name.startswith(f"{whole}.")
