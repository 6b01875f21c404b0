# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Whether the GPU sends what the CPU sends: the same inputs on both, ranks in memory.

Sums come in another order there, so a number on a threshold may round the other way: a share of elements may differ.
"""

from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any

import torch

from gravac import Compressor, dense, ladder, powersgd, quantize, randomk, thc, topk, topkc
from gravac.collectives import Collective, tensors_of
from gravac.compressors import Context
from gravac.compressors.draws import Draws
from gravac.compressors.sparse import as_dense
from gravac.exchange import memory
from tests.measure.gpu.parts import Row, at_most, attempts
from tests.measure.gpu.timing import GPU

SHAPE = (1024, 1000)
"""Shape of the tensors: neither whole blocks of every size nor few."""

CLOSE = 1e-4
"""Share of the largest mean within which two means count as the same."""

DIFFER = 1e-3
"""Share of means that may differ by more."""

CASES: tuple[tuple[Compressor, float], ...] = (
    *((quantize(bits), 32 / bits) for bits in (8, 4, 3, 2, 1)),
    *((one, 100.0) for one in (topk, topkc, topkc(values=quantize(1)), randomk, powersgd)),
    *((powersgd(rank), 64.0) for rank in (16, 4, 1)),
    *((dense(dtype="bfloat16"), 2.0), (thc, 8.0)),
)
"""The default ladder's members and others, with their CFs."""


def rows(device: torch.device = GPU) -> Iterator[Row]:
    yield from attempts({f"draws: {name}": partial(same_draws, draw, device) for name, draw in DRAWS.items()})
    for world in (2, 3):
        yield from attempts(
            {f"{one} @ {cf:g}, {world} ranks": partial(compared, one, cf, world, device) for one, cf in CASES}
        )


DRAWS: dict[str, Callable[[Draws, torch.device], torch.Tensor]] = {
    "words": lambda draws, device: draws.random_bits(1_000_003, device, start=5),
    "uniform": lambda draws, device: draws.uniform(1_000_003, device),
    "signs": lambda draws, device: draws.signs(1_000_003, device),
    "chosen, few": lambda draws, device: draws.sample(1_000_003, 1000, device),
    "chosen, many": lambda draws, device: draws.sample(100_003, 50_000, device),
}


def same_draws(draw: Callable[[Draws, torch.device], torch.Tensor], device: torch.device) -> Row:
    there, here = (draw(Draws("seed 0, w, step 7"), one) for one in (device, torch.device("cpu")))
    return {"met": torch.equal(there.cpu(), here)}


def compared(compressor: Compressor, cf: float, world: int, device: torch.device) -> Row:
    there, here = (averaged(compressor, cf, world, one) for one in (device, torch.device("cpu")))
    sent = [(a != b).double().mean().item() for a, b in zip(there[1], here[1], strict=True)]
    apart = (there[0] - here[0]).abs()
    most = here[0].abs().max()
    return {
        "sent_differs": [round(share, 7) for share in sent],
        "mean_differs": (apart > 0).double().mean().item(),
        "mean_most": (apart.max() / most).item(),
        **at_most((apart > CLOSE * most).double().mean().item(), DIFFER),
    }


def averaged(
    compressor: Compressor, cf: float, world: int, device: torch.device
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The mean, and what rank 0 handed to each collective, on the CPU."""
    sent: list[torch.Tensor] = []
    generator = torch.Generator().manual_seed(0)
    common = torch.randn(SHAPE, generator=generator)

    def rank(number: int, x: torch.Tensor) -> Generator[list[Collective], list[Any], torch.Tensor]:
        context = Context("w", 3, number, world, shape=SHAPE, error_feedback=1.0)
        rounds, answer = compressor.rounds(x, cf, context), None
        while True:
            try:
                asked = rounds.send(answer)
            except StopIteration as ended:
                return as_dense(ended.value.mean, x).cpu()
            if number == 0:
                sent.extend(tensor.clone().flatten().cpu() for tensor in tensors_of(asked))
            (answer,) = yield [asked]

    inputs = [(common + torch.randn(SHAPE, generator=generator)).flatten().to(device) for _ in range(world)]
    return memory.run([rank(number, x) for number, x in enumerate(inputs)])[0], sent


assert {member.name for member in ladder.members} <= {one.name for one, _ in CASES}
