# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Functions that compute and round residuals, and that replace all entries of a dict in place."""

from typing import TypeVar

import torch

from gravac.compressors.draws import Draws
from gravac.compressors.sparse import Addend

StoredT = TypeVar("StoredT")


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


def subtract_sent(
    x: torch.Tensor, sent: torch.Tensor | Addend, strength: float, kept_aside: torch.Tensor | None
) -> torch.Tensor | None:
    """Return the new residual, ``strength * (x - sent - kept_aside)``, in the memory of flat x; ``None``: none.

    Args:
        x: gradient plus residual, flat; overwritten.
        sent: numbers that were sent, flat, of x's length: a tensor, or an ``Addend``. An ``Addend`` adds the numbers to
            a tensor without storing all of them.
        strength: fraction of the unsent rest, ``x - sent - kept_aside``, that becomes the residual, 0 to 1; 0: there is
            no residual.
        kept_aside: part of ``x - sent`` that the compressor keeps in its own memory, flat; ``None``: it keeps nothing.
    """
    if strength <= 0 or sent is x:
        return None
    unsent_rest = x.sub_(sent) if isinstance(sent, torch.Tensor) else sent.add_to(x, alpha=-1.0)
    if kept_aside is not None:
        unsent_rest.sub_(kept_aside)
    return unsent_rest.mul_(strength) if strength < 1.0 else unsent_rest


def replace_entries(replaced_dict: dict[str, StoredT], new_entries: dict[str, StoredT]) -> None:
    """Replace all entries of a dict by ``new_entries``, in place, since other objects refer to the dict."""
    replaced_dict.clear()
    replaced_dict.update(new_entries)
