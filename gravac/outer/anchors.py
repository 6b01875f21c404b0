# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""How anchors are kept between outer steps: on which device, and in which number format.

The outer optimizer is given the anchors as parameters, once. Where they are kept in bfloat16, they are in float32 while
it makes a step, and rounded at random after it, so that what is too small for the format counts in the mean. The
numbers drawn depend on seed, name and round alone: anchors stay bit for bit the same on all ranks.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from gravac.averaging.residuals import rounded
from gravac.compressors.draws import Draws
from gravac.settings import SettingsError
from gravac.stepping.door import flat

SIXTEEN_BIT = (torch.float16, torch.bfloat16)
"""Number formats whose pseudo-gradients are in float32: an outer step is small beside the weights."""


@dataclass(frozen=True, slots=True)
class Keeping:
    """How anchors are kept.

    Attributes:
        bfloat16: whether their number format is bfloat16; otherwise it is that of pseudo-gradients.
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
    def in_full(self, anchors: Mapping[str, torch.nn.Parameter], number: int) -> Iterator[None]:
        """Have anchors in the number format that pseudo-gradients have, and round them in the end.

        Args:
            anchors: those of some parameters, by name, of any shape.
            number: number of the round.
        """
        kept = {name: anchor.data for name, anchor in anchors.items()} if self.bfloat16 else {}
        for name in kept:
            anchors[name].data = kept[name].float()
        yield
        for name, old in kept.items():
            draws = Draws(f"{self.seed}\0anchor\0{name}\0{number}")
            flat(name, old).copy_(rounded(flat(name, anchors[name]), draws))
            anchors[name].data = old


def travels_in(parameter: torch.Tensor) -> torch.dtype:
    """Return the number format of the pseudo-gradient of a parameter, of any shape."""
    return torch.float32 if parameter.dtype in SIXTEEN_BIT else parameter.dtype
