# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Stores anchors (the weights that all ranks shared last) between outer steps, on a device and in a number format.

The outer optimizer gets the anchors as parameters, once. If anchors are stored in bfloat16, so are the optimizer's
tensors for them, such as momentum. While the optimizer makes a step, anchors and these tensors are in float32.
Afterwards they are rounded stochastically, so that on average no small change is lost. The random numbers depend only
on seed, parameter name and round, so anchors stay bit for bit the same on all ranks.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from gravac.averaging.tensors import flat
from gravac.compressors.draws import Draws
from gravac.settings import SettingsError

SIXTEEN_BIT_FORMATS = (torch.float16, torch.bfloat16)
"""Number formats of weights whose pseudo-gradients are in float32, since weights change little in a round."""

State = Mapping[torch.Tensor, dict[str, Any]]
"""State of an optimizer: for each parameter, a dictionary of entries by name, such as ``"momentum_buffer"``."""

NO_STATE: State = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class AnchorStorage:
    """Number format and device of anchors.

    Attributes:
        bfloat16: whether anchors and the outer optimizer's state are in bfloat16; otherwise they are in the number
            format of pseudo-gradients.
        offload: whether anchors and the outer optimizer's state are in CPU memory, pinned for parameters on a GPU.
        seed: the run's seed, from which the random numbers for rounding follow.
    """

    bfloat16: bool = False
    offload: bool = False
    seed: int = 0

    def anchor(self, name: str, parameter: torch.Tensor) -> torch.nn.Parameter:
        """Return a parameter's anchor, which the outer optimizer trains: a copy of the parameter's shape and strides.

        Raises:
            SettingsError: anchors are to be in bfloat16, but the parameter is in neither float32 nor bfloat16.
        """
        dtype = exchange_dtype(parameter)
        if self.bfloat16:
            if parameter.dtype not in (torch.float32, torch.bfloat16):
                raise SettingsError(
                    f"anchor_dtype: 'bfloat16', but parameter {name} is in {parameter.dtype}; use "
                    "anchor_dtype='float32', or train in float32 or bfloat16"
                )
            dtype = torch.bfloat16
        anchor = parameter.detach().to("cpu" if self.offload else parameter.device, dtype, copy=True)
        return torch.nn.Parameter(anchor.pin_memory() if self.offload and parameter.is_cuda else anchor)

    @contextmanager
    def in_exchange_dtype(
        self, anchors: Mapping[str, torch.nn.Parameter], round_number: int, state: State = NO_STATE
    ) -> Iterator[None]:
        """Return a context in which anchors and the outer optimizer's state have the pseudo-gradients' number format.

        Args:
            anchors: anchors by parameter name, of any shapes; rounded to their stored number format on exit.
            round_number: number of the round.
            state: the outer optimizer's state, by anchor and by name; tensors of the anchor's shape and strides are
                stored like the anchor.
        """
        stored_anchors = {name: anchor.data for name, anchor in anchors.items()} if self.bfloat16 else {}
        for name in stored_anchors:
            anchors[name].data = stored_anchors[name].float()
            for key, tensor in _tensors_like_anchor(anchors[name], state):
                state[anchors[name]][key] = tensor.float()
        yield
        for name, stored_anchor in stored_anchors.items():
            for key, tensor in _tensors_like_anchor(anchors[name], state):
                state[anchors[name]][key] = self._round_into(
                    name, tensor, torch.empty_like(stored_anchor), key, round_number
                )
            anchors[name].data = self._round_into(name, anchors[name].data, stored_anchor, "anchor", round_number)

    def _round_into(
        self, name: str, tensor: torch.Tensor, destination: torch.Tensor, tensor_key: str, round_number: int
    ) -> torch.Tensor:
        """Write a tensor into ``destination``, stochastically rounded to bfloat16; return ``destination``.

        The tensor is an anchor, or belongs to the outer optimizer's state of an anchor.

        Args:
            name: name of the anchor's parameter.
            tensor: tensor to round, float32.
            destination: tensor of the same shape that is overwritten with the rounded numbers, bfloat16.
            tensor_key: ``"anchor"``, or the key of the tensor in the optimizer's state.
            round_number: number of the round.
        """
        draws = Draws(f"{self.seed}\0{tensor_key}\0{name}\0{round_number}")
        flat(name, destination).copy_(round_to_bfloat16(flat(name, tensor), draws))
        return destination


def _tensors_like_anchor(anchor: torch.Tensor, state: State) -> list[tuple[str, torch.Tensor]]:
    """Return ``(key, tensor)`` for each tensor in an anchor's optimizer state that is to be stored like the anchor.

    These are floating-point tensors of the anchor's shape and strides, without ``step``, torch's count of steps.
    """
    tensors = {key: entry for key, entry in state.get(anchor, {}).items() if torch.is_tensor(entry) and key != "step"}
    float_tensors = [(key, tensor) for key, tensor in tensors.items() if tensor.is_floating_point()]
    layout = (anchor.shape, anchor.stride())
    return [(key, tensor) for key, tensor in float_tensors if (tensor.shape, tensor.stride()) == layout]


def exchange_dtype(parameter: torch.Tensor) -> torch.dtype:
    """Return the number format of a parameter's pseudo-gradient; the parameter may have any shape."""
    return torch.float32 if parameter.dtype in SIXTEEN_BIT_FORMATS else parameter.dtype


def round_to_bfloat16(x: torch.Tensor, draws: Draws) -> torch.Tensor:
    """Round x to bfloat16, up or down at random, so that the expected result is x.

    Args:
        x: numbers to round, float32, finite, flat, contiguous.
        draws: source of the random numbers that decide between up and down; equal sources round equally.

    Returns:
        Rounded numbers, bfloat16, of the same shape. Each error is less than one unit in the last place of bfloat16: at
        most 2⁻⁷ of the number's magnitude.
    """
    # a bfloat16 is the upper half of a float32: 16 random bits are added to the lower half, and carry into the upper
    # half with the probability lower half / 2^16
    bits = draws.random_bits(x.numel(), x.device).bitwise_and_(0xFFFF).add_(x.view(torch.int32))
    return bits.bitwise_and_(-0x10000).view(torch.float32).to(torch.bfloat16)
