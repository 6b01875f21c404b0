# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Storage of anchors between outer steps: on which device, and in which number format.

The outer optimizer gets the anchors as parameters, once. If anchors are stored in bfloat16, so are the optimizer's
tensors for them, such as momentum. While the optimizer makes a step, all of them are in float32. Afterwards they are
rounded at random, so that on average no small change is lost. The random numbers depend on seed, name and round alone,
so anchors stay bit for bit the same on all ranks.
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
"""Number formats of weights whose pseudo-gradients are in float32, since an outer step is small relative to weights."""

State = Mapping[torch.Tensor, dict[str, Any]]
"""State of an optimizer, by parameter and by name."""

NO_STATE: State = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class AnchorStorage:
    """Number format and device of anchors.

    Attributes:
        bfloat16: whether anchors and the outer optimizer's state are in bfloat16; otherwise they are in the number
            format of pseudo-gradients.
        offload: whether anchors and the outer optimizer's state are in CPU memory, pinned for parameters on a GPU.
        seed: the run's seed, for rounding.
    """

    bfloat16: bool = False
    offload: bool = False
    seed: int = 0

    def anchor(self, name: str, parameter: torch.Tensor) -> torch.nn.Parameter:
        """Return a copy of a parameter for the outer optimizer, with its shape and strides.

        Raises:
            SettingsError: the anchor is to be in bfloat16, and the parameter is in float16 or float64.
        """
        dtype = exchange_dtype(parameter)
        if self.bfloat16:
            if parameter.dtype not in (torch.float32, torch.bfloat16):
                raise SettingsError(
                    f"anchor_dtype: bfloat16, but {name} is in {parameter.dtype}; use float32, or train in bfloat16"
                )
            dtype = torch.bfloat16
        anchor = parameter.detach().to("cpu" if self.offload else parameter.device, dtype, copy=True)
        return torch.nn.Parameter(anchor.pin_memory() if self.offload and parameter.is_cuda else anchor)

    @contextmanager
    def in_exchange_dtype(
        self, anchors: Mapping[str, torch.nn.Parameter], number: int, state: State = NO_STATE
    ) -> Iterator[None]:
        """Return a context in which anchors and optimizer state have the pseudo-gradients' number format.

        Args:
            anchors: anchors by parameter name, of any shapes; on exit they are rounded again.
            number: number of the round.
            state: the outer optimizer's state, by anchor and by name; tensors of the anchor's shape and strides are
                stored like the anchor.
        """
        stored = {name: anchor.data for name, anchor in anchors.items()} if self.bfloat16 else {}
        for name in stored:
            anchors[name].data = stored[name].float()
            for key, tensor in _like_anchor(anchors[name], state):
                state[anchors[name]][key] = tensor.float()
        yield
        for name, previous in stored.items():
            for key, tensor in _like_anchor(anchors[name], state):
                state[anchors[name]][key] = self._rounded(name, tensor, torch.empty_like(previous), key, number)
            anchors[name].data = self._rounded(name, anchors[name].data, previous, "anchor", number)

    def _rounded(self, name: str, tensor: torch.Tensor, into: torch.Tensor, kind: str, number: int) -> torch.Tensor:
        draws = Draws(f"{self.seed}\0{kind}\0{name}\0{number}")
        flat(name, into).copy_(rounded(flat(name, tensor), draws))
        return into


def _like_anchor(anchor: torch.Tensor, state: State) -> list[tuple[str, torch.Tensor]]:
    """Return the outer optimizer's tensors of an anchor's shape, with their keys.

    ``step`` is torch's name of a count, and is left out.
    """
    tensors = {key: entry for key, entry in state.get(anchor, {}).items() if torch.is_tensor(entry) and key != "step"}
    floats = [(key, tensor) for key, tensor in tensors.items() if tensor.is_floating_point()]
    return [(key, x) for key, x in floats if (x.shape, x.stride()) == (anchor.shape, anchor.stride())]


def exchange_dtype(parameter: torch.Tensor) -> torch.dtype:
    """Return the number format of the pseudo-gradient of a parameter, of any shape."""
    return torch.float32 if parameter.dtype in SIXTEEN_BIT else parameter.dtype
