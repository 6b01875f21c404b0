# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Small groups wait for each other, in compressed steps only; nobody waits in vain."""

import torch

from gravac.averaging.plan import Piece
from gravac.stepping.coalescing import LEAST, MOST, PARTS, WORTH, ReadyGroup, elements, enough


def group(*sizes: int) -> ReadyGroup:
    pieces = tuple(Piece(str(size), torch.zeros(size), (size,)) for size in sizes)
    return ReadyGroup(pieces, None, lambda: None, lambda _: None)


def test_a_small_model_goes_in_parts_and_a_large_one_does_not_wait() -> None:
    assert enough(1050) == 1050 // PARTS
    assert enough(1 << 26) == LEAST


def test_on_a_slow_link_parts_are_smaller_down_to_a_bound() -> None:
    sizes = [enough(10_000, seconds) for seconds in (0.0, WORTH, 5 * WORTH, 100 * WORTH)]
    assert sizes == [-(-10_000 // parts) for parts in (PARTS, PARTS, 5, MOST)]


def test_elements_are_those_of_all_pieces() -> None:
    assert elements([group(3, 4), group(5)]) == 12
    assert elements([]) == 0
