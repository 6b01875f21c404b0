# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Chunked against plain top-k at equal bits per coordinate, on recorded gradients and on the same ones permuted.

The comparison of Han et al., HotNets 2024: vNMSE = ``‖mean - what was averaged‖² / ‖mean‖²`` of the aggregated
gradient over two workers, without error feedback. Bits are payload: top-k sends 16-bit values and 32-bit indices;
chunked top-k 16-bit values, and 16 bits of energy per chunk. Gradients are those of a small character transformer with
AdamW, of the whole model as one vector, at several steps of its training.

    python -m tests.measure.chunks [--json FILE]
"""

import argparse
import statistics

import torch

from gravac.compressors import Compressor, topk, topkc
from gravac.compressors.sparse import as_dense
from gravac.lab.tasks.charlm import CharLM
from gravac.testing.compressor_laws import exchange
from tests.measure.results import write

RECORDED = (20, 60, 120, 200)
BITS = (0.5, 2.0, 8.0)
CHUNKS = (8, 16, 32, 64, 128, 256, 512)
WORKERS = 2


def gradients() -> list[list[torch.Tensor]]:
    """At each recorded step, every worker's."""
    task = CharLM(sequences=8, width=128, layers=3)
    model = task.model()
    optimizer = task.optimizer(model)
    recorded = []
    for step in range(max(RECORDED) + 1):
        flats = []
        for worker in range(WORKERS):
            optimizer.zero_grad()
            task.loss(model, task.batch(step, worker)).backward()
            flats.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
        if step in RECORDED:
            recorded.append(flats)
        mean = torch.stack(flats).mean(0)
        parts = torch.split(mean, [p.numel() for p in model.parameters()])
        for p, part in zip(model.parameters(), parts, strict=True):
            p.grad = part.view_as(p)
        optimizer.step()
    return recorded


def vnmse(compressor: Compressor, cf: float, xs: list[torch.Tensor]) -> float:
    mean = torch.stack(xs).mean(0)
    off = as_dense(exchange(compressor, xs, cf)[0].mean, mean) - mean
    return float(off.square().sum() / mean.square().sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    recorded = gradients()
    arguments = parser.parse_args()
    permutation = torch.randperm(recorded[0][0].numel(), generator=torch.Generator().manual_seed(0))
    permuted = [[x[permutation] for x in xs] for xs in recorded]
    rows = []
    for bits in BITS:
        plain = statistics.median(vnmse(topk(values="bfloat16"), 48 / bits, xs) for xs in recorded)
        rows.append({"bits": bits, "compressor": "topk", "chunk": None, "kept": bits / 48, "vnmse": plain})
        for chunk in CHUNKS:
            values = bits - 16 / chunk
            if values <= 0:
                continue
            made = topkc(chunk=chunk)
            rows.append(
                {
                    "bits": bits,
                    "compressor": "topkc",
                    "chunk": chunk,
                    "kept": values / 16,
                    "vnmse": statistics.median(vnmse(made, 16 / values, xs) for xs in recorded),
                    "vnmse_permuted": statistics.median(vnmse(made, 16 / values, xs) for xs in permuted),
                }
            )
    write(rows, arguments.json)


if __name__ == "__main__":
    main()
