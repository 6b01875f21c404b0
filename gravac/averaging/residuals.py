# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a residual is made of, how it is rounded, and how the dicts that hold all of them are filled."""

from typing import TypeVar

import torch

from gravac.compressors.draws import Draws, words_each
from gravac.compressors.sparse import Addend

StoredT = TypeVar("StoredT")


def rounded(x: torch.Tensor, *draws: Draws) -> torch.Tensor:
    """Round to bfloat16, up or down at random, so that x is the expectation.

    Args:
        x: float32, finite, contiguous: flat, or with a row for each of the draws.
        draws: the same draws, the same rounding.

    Returns:
        bfloat16, of that shape: within one unit in the last place of x, 2⁻⁷ of its magnitude at most.
    """
    # a bfloat16 is a float32's upper half: what is added to the lower half carries as often as that is large
    words = draws[0].words(x.numel(), x.device) if x.dim() == 1 else words_each(draws, x.shape[1], x.device)
    bits = words.bitwise_and_(0xFFFF).add_(x.view(torch.int32))
    return bits.bitwise_and_(-0x10000).view(torch.float32).to(torch.bfloat16)


def unsent(
    x: torch.Tensor, sent: torch.Tensor | Addend, strength: float, aside: torch.Tensor | None
) -> torch.Tensor | None:
    """Return ``strength * (x - sent - aside)``, which flat x is overwritten with; ``None``: nothing is to be kept."""
    if strength <= 0 or sent is x:
        return None
    rest = x.sub_(sent) if isinstance(sent, torch.Tensor) else sent.add_to(x, alpha=-1.0)
    if aside is not None:
        rest.sub_(aside)
    return rest.mul_(strength) if strength < 1.0 else rest


def replace(stored: dict[str, StoredT], by: dict[str, StoredT]) -> None:
    """Replace a dict's entries, in place: a run's state refers to the dict."""
    stored.clear()
    stored.update(by)
