# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Notices that the program has replaced a model's weights, as programs do that evaluate averaged weights (EMA)."""

from collections.abc import Sequence

import torch

SAMPLED_PARAMETERS = 8
"""Largest number of parameters that are looked at."""

SAMPLED_ELEMENTS = 4
"""Largest number of elements that are looked at in each of these parameters."""


class WeightSample:
    """A few elements of some parameters: microseconds a step, and no copy of the model.

    ``Tensor._version`` does not serve: writing to ``parameter.data``, as such programs do, does not change it.

    Args:
        parameters: parameters trained on this rank, of any shapes.
    """

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        like = [each for each in parameters if each.numel() and each.is_floating_point()]
        like = [each for each in like if (each.dtype, each.device) == (like[0].dtype, like[0].device)]
        stride = max(1, len(like) // SAMPLED_PARAMETERS)
        self._parameters = like[::stride][:SAMPLED_PARAMETERS]
        self._pointers: list[int] = []
        self._views: list[torch.Tensor] = []
        self._remembered: torch.Tensor | None = None

    def take(self) -> None:
        """Remember the present weights."""
        self._remembered = self._present()

    def differs(self) -> bool:
        """True if most of the sampled parameters, without frozen ones, differ from those remembered.

        The host waits for a device.
        """
        if self._remembered is None:
            return False
        present = self._present()
        assert present is not None
        if torch.equal(self._remembered, present):
            return False
        sizes = [view.numel() for view in self._views]
        pairs = zip(torch.split(self._remembered, sizes), torch.split(present, sizes), strict=True)
        changed = [
            not torch.equal(remembered_elements.nan_to_num(), present_elements.nan_to_num())
            for parameter, (remembered_elements, present_elements) in zip(self._parameters, pairs, strict=True)
            if parameter.requires_grad
        ]
        return 2 * sum(changed) > len(changed)

    @torch.no_grad()
    def _present(self) -> torch.Tensor | None:
        """Return the sampled elements as they are now, flat; ``None`` if there are no parameters to sample."""
        pointers = [parameter.data_ptr() for parameter in self._parameters]
        if pointers != self._pointers:
            self._pointers, self._views = pointers, [_spread(parameter.detach()) for parameter in self._parameters]
        return torch.cat(self._views) if self._views else None


def _spread(parameter: torch.Tensor) -> torch.Tensor:
    """Return a view of some elements that are spread over a parameter's memory, flat."""
    count = min(SAMPLED_ELEMENTS, parameter.numel())
    spacing = max(1, (parameter.numel() - 1) // max(1, count - 1))
    return parameter.as_strided((count,), (spacing,))
