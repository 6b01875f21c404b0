# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a trial of a compressor held is freed when it has ended: residuals, the compressor's memory, DDP's buckets."""

import gc
from collections.abc import Iterable
from typing import Any

import torch
from torch._C._distributed_c10d import GradBucket
from torch.multiprocessing.reductions import StorageWeakRef

from gravac.compressors import ladder, powersgd, quantize
from gravac.compressors.ladder import wire_ratio
from tests.distributed.training import network, parallel, sgd, train
from tests.modes.scripted import NATIVE, Scripted, script
from tests.policies import adaptive
from tests.ranks import processes

LOW_RANK, FOUR_BITS = (
    (0, "hook", "ladder", wire_ratio(compressor, *compressor.candidates((1, 1e6))), 1)
    for compressor in (powersgd(8), quantize(4))
)

Refs = list[StorageWeakRef]
"""Weak references to the memory of tensors."""


def alive(refs: Refs) -> int:
    return sum(not ref.expired() for ref in refs)


def held_after_trials(rank: int, world: int) -> dict[str, Any]:
    """Train with low rank, 4 bits, and DDP's own exchange; count the tensors of earlier steps that still exist."""
    gc.disable()  # memory must not wait for the garbage collector
    ddp = parallel(network(2))
    optimizer = sgd(ddp)
    plan = script((0, LOW_RANK), (6, FOUR_BITS), (12, NATIVE))
    compressor = adaptive(ladder, controller=Scripted(script=plan), dense_below=0)
    compressor.attach(ddp, optimizer)
    averager, source = compressor._engine.averager, compressor._attachment.source
    buckets: Refs = []
    average_bucket = source.hook

    def hook(bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        buckets.append(StorageWeakRef(bucket.buffer().untyped_storage()))
        return average_bucket(bucket)

    source.hook = hook

    def refs_of(tensors: Iterable[torch.Tensor]) -> Refs:
        return [StorageWeakRef(tensor.untyped_storage()) for tensor in tensors]

    def stored_tensors() -> dict[str, int]:
        compressor._engine.drain()
        return {kind: sum(entry != {} for entry in tensors.values()) for kind, tensors in averager.tensors.items()}

    train(ddp, optimizer, rank, range(6))
    held: dict[str, Any] = {"low rank": stored_tensors()}
    residuals = refs_of(averager.residuals.by_name.values())
    factors = refs_of(factor for memory in averager.memory.stored.values() for factor in memory.values())
    train(ddp, optimizer, rank, range(6, 10))
    held["4 bits"] = stored_tensors() | {"residual tensors": alive(residuals)}
    train(ddp, optimizer, rank, range(10, 18))
    held["mode"] = compressor.mode
    held["native"] = stored_tensors() | {"factors": alive(factors), "buckets": alive(buckets)}
    held["buckets of the hook"] = len(buckets)
    compressor.close()
    return held


def test_a_trial_that_ends_gives_its_memory_back() -> None:
    for held in processes(held_after_trials, 2):
        assert held["low rank"] == {"residual": 3, "memory": 3, "sums": 0}
        assert (held["4 bits"]["residual"], held["4 bits"]["residual tensors"]) == (0, 0)
        assert held["mode"] == "native" and held["buckets of the hook"]
        assert held["native"] == {"residual": 0, "memory": 0, "sums": 0, "factors": 0, "buckets": 0}
