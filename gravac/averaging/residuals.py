# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Functions that compute and round residuals, and replace all entries of the dicts that hold them."""

from typing import TypeVar

import torch

from gravac.compressors.draws import Draws, random_bits_by_key
from gravac.compressors.sparse import Addend

StoredT = TypeVar("StoredT")


def round_to_bfloat16(x: torch.Tensor, *draws: Draws) -> torch.Tensor:
    """Round x to bfloat16, up or down at random, so that the expected result is x.

    Args:
        x: float32, finite, contiguous: flat, or a matrix with a row for each of ``draws``.
        draws: sources of the random numbers that decide up or down; equal sources round equally.

    Returns:
        Rounded x, bfloat16, of the same shape: within one unit in the last place of x, 2⁻⁷ of its magnitude at most.
    """
    # a bfloat16 is a float32's upper half: 16 random bits, added to the lower half, carry with the right probability
    if x.dim() == 1:
        random_bits = draws[0].random_bits(x.numel(), x.device)
    else:
        random_bits = random_bits_by_key(draws, x.shape[1], x.device)
    bits = random_bits.bitwise_and_(0xFFFF).add_(x.view(torch.int32))
    return bits.bitwise_and_(-0x10000).view(torch.float32).to(torch.bfloat16)


def subtract_sent(
    x: torch.Tensor, sent: torch.Tensor | Addend, strength: float, aside: torch.Tensor | None
) -> torch.Tensor | None:
    """Return the new residual, ``strength * (x - sent - aside)``, in the memory of flat x; ``None`` if there is none.

    Args:
        x: gradient plus residual, flat; overwritten.
        sent: numbers that were sent, flat, of x's length: a tensor, or an ``Addend``, an object that adds the numbers
            to a tensor without storing all of them.
        strength: fraction of the unsent rest that becomes the residual, 0 to 1; 0: there is no residual.
        aside: part of the unsent rest that the compressor itself keeps, flat; ``None``: nothing.
    """
    if strength <= 0 or sent is x:
        return None
    unsent_rest = x.sub_(sent) if isinstance(sent, torch.Tensor) else sent.add_to(x, alpha=-1.0)
    if aside is not None:
        unsent_rest.sub_(aside)
    return unsent_rest.mul_(strength) if strength < 1.0 else unsent_rest


def replace_entries(stored: dict[str, StoredT], entries: dict[str, StoredT]) -> None:
    """Replace all entries of the dict ``stored`` by ``entries``, in place, since other objects refer to the dict."""
    stored.clear()
    stored.update(entries)
