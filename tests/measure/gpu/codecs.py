# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What coding takes: one rank's step on tensors of several sizes, without the exchange, and what memory it holds.

Times are multiples of the floor, in which each input is read once (gradient, residual, what came) and each output
written once (mean, residual, what goes), at the rate at which the GPU copies 256 MiB, measured in the same turns.
``device`` is what the GPU takes where it need not wait for the host; ``launched`` is from idle, the host's part too.
"""

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from gravac import Compressor, dense, powersgd, quantize, randomk, thc, topk, topkc
from gravac.averaging.average import Averager
from gravac.averaging.feedback import Feedback
from gravac.averaging.plan import Piece
from gravac.candidate import Candidate
from gravac.collectives import Ledger
from gravac.exchange import memory
from gravac.lab.bench.measure import _copy, _record_results
from gravac.lab.shapes import bert_large
from gravac.measurement import LocalMeasurement
from tests.measure.gpu.parts import Row, at_most, attempts
from tests.measure.gpu.timing import FLUSHED, GPU, Work, copying, floor, medians

SIDES = {1: 512, 25: 2560, 100: 5120, 256: 8192}
"""Rows and columns of a square matrix, by its MiB in float32."""

CASES: tuple[tuple[Compressor, float, float | None], ...] = (
    (topkc, 100.0, 1.7),
    *((quantize(bits), 32 / bits, 1.7) for bits in (8, 4, 2, 1)),
    (topk, 100.0, 4.0),
    *((one, cf, None) for one, cf in ((powersgd, 100.0), (randomk, 100.0), (thc, 8.0))),
)
"""Compressors, CFs, and the aim at the largest size."""

BERT_MS = 3.0

MASKED = SimpleNamespace(judge=lambda finite: finite, everywhere=lambda finite: finite, host_looks=False)
"""Of an executor, what says that the host must not look."""


class Codec:
    """Rank 0 of two that average tensors again and again, and are answered as they were once.

    Args:
        compressor: the compressor.
        cf: its compression factor.
        shapes: shapes of the tensors, averaged together.
        device: where they lie.
    """

    def __init__(
        self, compressor: Compressor, cf: float, shapes: Sequence[tuple[int, ...]], device: torch.device
    ) -> None:
        sizes = [torch.Size(shape).numel() for shape in shapes]
        generator = torch.Generator(device).manual_seed(0)
        self.sources = [torch.randn(sum(sizes), device=device, generator=generator) for _ in range(2)]
        self.turn = 0
        ranks = []
        for number in range(2):
            rank = Averager(compressor, dense, None, 1024, Feedback())
            rank.rank, rank.world = number, 2
            flats = self.sources[number].clone().split(sizes)
            pieces = [Piece(f"{i}", flat, shape) for i, (flat, shape) in enumerate(zip(flats, shapes, strict=True))]
            ranks.append((rank, pieces))
        (self.rank, self.pieces), _ = ranks
        self.whole = self.pieces[0].flat._base
        assert self.whole is not None
        self.plan, self.candidate = self.rank.plan(1, cf), Candidate(compressor.name, cf, cf)
        for step in range(2):  # what is kept from the first may change what the second one asks for
            self.heard: list[list[Any]] = []
            ledgers = [Ledger(2), Ledger(2)]
            running = []
            for rank, pieces in ranks:
                rank.measure(LocalMeasurement(step, self.candidate), MASKED)  # type: ignore[arg-type]
                running.append(rank.average(pieces, rank.plan(step, cf)))
            memory.run([_record_results(running[0], self.heard), running[1]], ledgers)
            for rank, _ in ranks:
                rank.commit()
        came = sum(tensor.nbytes for answers in self.heard for tensor in _tensors(answers))
        keeps = sum(residual.numel() for residual in self.rank.feedback.residual.values())
        self.elements = sum(sizes)
        self.floor_bytes = floor_bytes(self.elements, keeps, ledgers[0].payload_bytes + came)
        self.answers: list[list[Any]] = []

    def prepare(self) -> None:
        """Put another gradient there, and fresh answers."""
        self.turn += 1
        self.whole.copy_(self.sources[self.turn % 2])
        self.answers = [[_copy(answer) for answer in answers] for answers in self.heard]

    def step(self) -> None:
        """Encode and decode, with error feedback, and end the step."""
        self.rank.measure(LocalMeasurement(1, self.candidate), MASKED)  # type: ignore[arg-type]
        steps = self.rank.average(self.pieces, self.plan)
        next(steps)
        for answers in self.answers:
            try:
                steps.send(answers)
            except StopIteration:
                break
        self.rank.commit()

    def held(self) -> Row:
        """Bytes per element that are kept from step to step, and the most that a step holds beside."""
        for _ in range(2):
            self.prepare()
            self.step()
        self.prepare()
        kept = sum(one.nbytes for one in self.rank.feedback.residual.values())
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        self.step()
        most = torch.cuda.max_memory_allocated() - before
        return {"kept_bytes": kept / self.elements, "extra_bytes": most / self.elements}


def floor_bytes(elements: int, keeps: int, travels: int) -> int:
    """Bytes that coding reads and writes at least: gradient and mean, both residuals, and what travels."""
    return 8 * elements + 8 * keeps + travels


def rows(device: torch.device = GPU) -> Iterator[Row]:
    for size, side in sorted(SIDES.items(), reverse=True):
        cases = {}
        for one, cf, aim in CASES:
            aimed = aim if size == max(SIDES) else None
            cases[f"{one} @ {cf:g}, {size} MiB"] = partial(coded, one, cf, [(side, side)], device, aimed)
        yield from attempts(cases)
        if size == max(SIDES):
            both = ((topkc, 100.0), (quantize(2), 16.0))
            yield from attempts({f"{one} @ {cf:g}, BERT-large": partial(of_bert, one, cf, device) for one, cf in both})
    yield {"case": "kernels", "imported": any(name.startswith("gravac.compressors.kernels.") for name in sys.modules)}


def coded(
    compressor: Compressor, cf: float, shapes: list[tuple[int, ...]], device: torch.device, aim: float | None
) -> Row:
    row = times(compressor, cf, shapes, device)
    multiple = row["device_ms"] / row["floor_ms"]
    return {**row, **({"value": multiple} if aim is None else at_most(multiple, aim))}


def of_bert(compressor: Compressor, cf: float, device: torch.device) -> Row:
    row = times(compressor, cf, bert_large(), device, repeats=5)
    return {**row, **at_most(row["device_ms"], BERT_MS)}


def times(
    compressor: Compressor, cf: float, shapes: list[tuple[int, ...]], device: torch.device, repeats: int = 11
) -> Row:
    codec = Codec(compressor, cf, shapes, device)
    held = codec.held() if device.type == "cuda" else {}
    copied = FLUSHED if device.type == "cuda" else 4096
    works = {"copy": copying(device, copied), "code": Work(codec.step, codec.prepare)}
    taken = medians(works, device, repeats)
    least = floor(codec.floor_bytes, copied, taken["copy"].device)
    code = taken["code"]
    return {"floor_ms": least, "device_ms": code.device, "launched_ms": code.launched, **held}


def _tensors(answers: list[Any]) -> Iterator[torch.Tensor]:
    for answer in answers:
        yield from answer if isinstance(answer, tuple) else (answer,)
