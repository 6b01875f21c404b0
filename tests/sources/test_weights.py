# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Parameters may lie beside each other in one memory, and not upon each other by a single element."""

import pytest
import torch

from gravac.sources.weights import check_memory


def in_one_memory(*ranges: tuple[int, int]) -> torch.nn.Module:
    """A module whose parameters are ranges of one tensor, by first and end element."""
    memory, module = torch.zeros(100), torch.nn.Module()
    for number, (start, end) in enumerate(ranges):
        module.register_parameter(f"part{number}", torch.nn.Parameter(memory[start:end]))
    return module


def test_parameters_beside_each_other_in_one_memory_are_accepted() -> None:
    check_memory(in_one_memory((6, 10), (0, 6), (10, 37), (37, 38)))


@pytest.mark.parametrize(
    ("ranges", "pair"),
    [
        ([(0, 6), (5, 10)], "part0 and parameter part1"),
        ([(0, 6), (6, 10), (9, 12)], "part1 and parameter part2"),
        ([(0, 40), (41, 43), (1, 2)], "part0 and parameter part2"),
        ([(0, 40), (1, 2), (39, 43)], "part0 and parameter part1"),
        ([(3, 40), (39, 43), (50, 60)], "part0 and parameter part1"),
    ],
)
def test_parameters_that_share_one_element_are_refused_by_name(ranges: list[tuple[int, int]], pair: str) -> None:
    with pytest.raises(ValueError, match=f"module: parameter {pair} share memory"):
        check_memory(in_one_memory(*ranges))
