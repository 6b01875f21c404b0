# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A controller that follows a script, and a model that real ranks train by it."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from gravac.candidate import Candidate, Forecast, Mode, Span
from gravac.controllers.base import Decision, Measurement
from gravac.settings import Settings

Entry = tuple[int, Mode, str, float, int]
"""Number of training steps from which on it holds; mode, compressor, CF, and number of steps between two exchanges."""


class Scripted(Settings):
    """Runs what a script says.

    Attributes:
        script: entries, ascending.
        watch: number of steps of a native stretch.
    """

    name: ClassVar[str] = "scripted"
    keeps_all: ClassVar[bool] = True
    chooses_sixteen_bit: ClassVar[bool] = False
    chooses_every: ClassVar[bool] = True
    chooses_native: ClassVar[bool] = True

    script: tuple[Entry, ...]
    watch: int = 5

    def propose(self, cf_range: tuple[float, float], reach: Span | Sequence[float]) -> tuple[float, ...]:
        return (cf_range[0],)

    def start(self, forecasts: Sequence[Forecast]) -> tuple[int, Decision]:
        return 0, self._decision(0)

    def observe(self, state: int, measurement: Measurement) -> tuple[int, Decision]:
        made = measurement.first + measurement.steps
        return made, self._decision(made)

    def dump(self, state: int) -> dict[str, Any]:
        return {"made": state}

    def restore(self, plain: dict[str, Any], forecasts: Sequence[Forecast]) -> tuple[int, Decision]:
        return plain["made"], self._decision(plain["made"])

    def _decision(self, made: int) -> Decision:
        _, mode, compressor, cf, every = [entry for entry in self.script if entry[0] <= made][-1]
        return Decision(Candidate(mode, compressor, cf, every), reason="the script", watch=self.watch)


HOOK: Entry = (0, "hook", "topk", 10.0, 1)
DENSE: Entry = (0, "hook", "dense", 1.0, 1)
NATIVE: Entry = (0, "native", "dense", 1.0, 1)
HALF: Entry = (0, "native", "dense", 2.0, 1)
APART: Entry = (0, "outer", "topk", 10.0, 5)


def script(*entries: tuple[int, Entry]) -> tuple[Entry, ...]:
    """Return a script of entries, each from a training step on."""
    return tuple((first, *entry[1:]) for first, entry in entries)


def same(module: torch.nn.Module) -> bool:
    """Tell whether all ranks' parameters and float buffers are the same, bit for bit. Called on every rank."""
    tensors = [*module.parameters(), *(buffer for buffer in module.buffers() if buffer.is_floating_point())]
    mine = torch.cat([tensor.detach().flatten().float() for tensor in tensors])
    all_ranks = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(all_ranks, mine)
    return all(torch.equal(all_ranks[0], other) for other in all_ranks)


def same_moments(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether all ranks' optimizer states are the same, bit for bit. Called on every rank."""
    states = [
        value for state in optimizer.state.values() for _, value in sorted(state.items()) if torch.is_tensor(value)
    ]
    mine = torch.cat([value.detach().flatten().double() for value in states])
    all_ranks = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(all_ranks, mine)
    return all(torch.equal(all_ranks[0], other) for other in all_ranks)
