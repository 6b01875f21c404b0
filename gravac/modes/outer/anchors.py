# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""How anchors are kept between outer steps: on which device, and in which number format.

The outer optimizer is given the anchors as parameters, once. Where they are kept in bfloat16, so is what it keeps of
them, such as momentum: all that is in float32 while it makes a step, and rounded at random after it, so that what is
too small for the format counts in the mean. The numbers drawn depend on seed, name and round alone: anchors stay bit
for bit the same on all ranks.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from gravac.averaging.residuals import rounded
from gravac.averaging.tensors import flat
from gravac.compressors.draws import Draws
from gravac.settings import SettingsError

SIXTEEN_BIT = (torch.float16, torch.bfloat16)
"""Number formats whose pseudo-gradients are in float32: an outer step is small beside the weights."""

State = Mapping[torch.Tensor, dict[str, Any]]
"""What an optimizer keeps, by parameter and by name."""

NOTHING: State = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Keeping:
    """How anchors are kept.

    Attributes:
        bfloat16: whether their number format is bfloat16, and that of what the outer optimizer keeps; otherwise it is
            that of pseudo-gradients.
        offload: whether they lie in CPU memory, pinned for parameters on a GPU, with what the outer optimizer keeps.
        seed: the run's seed, for rounding.
    """

    bfloat16: bool = False
    offload: bool = False
    seed: int = 0

    def anchor(self, name: str, parameter: torch.Tensor) -> torch.nn.Parameter:
        """Return a copy of a parameter for the outer optimizer: the same shape and strides.

        Raises:
            SettingsError: it is to be in bfloat16, and the parameter is in float16 or float64.
        """
        dtype = travels_in(parameter)
        if self.bfloat16:
            if parameter.dtype not in (torch.float32, torch.bfloat16):
                raise SettingsError(
                    f"anchor_dtype: bfloat16, and {name} is in {parameter.dtype}; use float32, or train in bfloat16"
                )
            dtype = torch.bfloat16
        anchor = parameter.detach().to("cpu" if self.offload else parameter.device, dtype, copy=True)
        return torch.nn.Parameter(anchor.pin_memory() if self.offload and parameter.is_cuda else anchor)

    @contextmanager
    def in_full(self, anchors: Mapping[str, torch.nn.Parameter], number: int, state: State = NOTHING) -> Iterator[None]:
        """Have anchors in the number format that pseudo-gradients have, and round them in the end.

        Args:
            anchors: those of some parameters, by name, of any shape.
            number: number of the round.
            state: what the outer optimizer keeps, by anchor and by name; tensors like the anchor are kept as that is.
        """
        kept = {name: anchor.data for name, anchor in anchors.items()} if self.bfloat16 else {}
        for name in kept:
            anchors[name].data = kept[name].float()
            for key, value in _alike(anchors[name], state):
                state[anchors[name]][key] = value.float()
        yield
        for name, old in kept.items():
            for key, value in _alike(anchors[name], state):
                state[anchors[name]][key] = self._rounded(name, value, torch.empty_like(old), key, number)
            anchors[name].data = self._rounded(name, anchors[name].data, old, "anchor", number)

    def _rounded(self, name: str, value: torch.Tensor, into: torch.Tensor, what: str, number: int) -> torch.Tensor:
        draws = Draws(f"{self.seed}\0{what}\0{name}\0{number}")
        flat(name, into).copy_(rounded(flat(name, value), draws))
        return into


def _alike(anchor: torch.Tensor, state: State) -> list[tuple[str, torch.Tensor]]:
    """Return what the outer optimizer keeps for each value of an anchor; ``step`` is torch's name of a count."""
    own = {key: value for key, value in state.get(anchor, {}).items() if torch.is_tensor(value) and key != "step"}
    tensors = [(key, value) for key, value in own.items() if value.is_floating_point()]
    return [(key, one) for key, one in tensors if (one.shape, one.stride()) == (anchor.shape, anchor.stride())]


def travels_in(parameter: torch.Tensor) -> torch.dtype:
    """Return the number format of the pseudo-gradient of a parameter, of any shape."""
    return torch.float32 if parameter.dtype in SIXTEEN_BIT else parameter.dtype
