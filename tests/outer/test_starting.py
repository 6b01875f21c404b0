# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The check before outer steps costs as little for each parameter of a large model as for each of a small one."""

from collections.abc import Iterator
from typing import Any

import torch

from gravac.modes.outer.starting import ParameterCheck

PARAMETERS = 300


def counting(container: type, visits: list[int]) -> type:
    """Return a dict or set that appends its size to ``visits`` each time that all of it is visited."""

    class Counting(container):  # type: ignore[misc]
        def __iter__(self) -> Iterator[Any]:
            visits.append(len(self))
            return super().__iter__()

    return Counting


def test_a_check_visits_each_parameter_a_fixed_number_of_times() -> None:
    module = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(1)) for _ in range(PARAMETERS))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    check, visits = ParameterCheck(module, [optimizer], dict(module.named_parameters())), list[int]()
    for name, attribute in vars(check).items():
        if type(attribute) in (dict, set, frozenset):
            setattr(check, name, counting(type(attribute), visits)(attribute))
    check.check()
    assert sum(visits) <= 5 * PARAMETERS
