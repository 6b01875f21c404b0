# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Native steps of real ranks that become slow on one of them: how soon all ranks notice."""

import random
import time

import torch

from gravac import topk
from gravac.candidate import Candidate
from gravac.controllers.base import Decision, Measurement
from gravac.telemetry.records import Record, StepRecord
from tests.distributed.training import batch, network, parallel
from tests.modes.scripted import NATIVE, Scripted, script
from tests.modes.test_switch import OPTIMIZERS
from tests.policies import adaptive
from tests.ranks import processes


class LeavesWhenSlow(Scripted):
    """Native in long stretches, and dense in the hook once a stretch took over a tenth of a second a step."""

    def observe(self, state: int, measurement: Measurement) -> tuple[int, Decision]:
        state, decision = super().observe(state, measurement)
        if measurement.candidate.mode == "native" and measurement.seconds > 0.1:
            return 10**6, Decision(Candidate("hook", "dense", 1.0), reason="slow")
        return (state, decision) if state < 10**6 else (state, Decision(Candidate("hook", "dense", 1.0)))


def slowed(rank: int, world: int) -> tuple[list[int], list[int], int]:
    """Steps become slow on one rank in the middle of a stretch of 200; another stretch has a single slow step."""
    records: list[Record] = []
    ddp = parallel(network(2))
    trains = OPTIMIZERS["sgd"](ddp.parameters())
    controller = LeavesWhenSlow(script=script((0, NATIVE)), watch=200)
    compressor = adaptive(topk, (10, 10), controller=controller, every=(1, 5), dense_below=0, sinks=[records.append])
    compressor.attach(ddp, trains)
    pauses = random.Random(rank)
    left = 0
    for number in range(360):
        x, y = batch(rank, number)
        trains.zero_grad()
        time.sleep(0.005 + 0.001 * pauses.random())
        if rank == 1 and (number == 230 or number >= 280):
            time.sleep(0.25)
        torch.nn.functional.cross_entropy(ddp(x), y).backward()
        trains.step()
        if compressor.mode == "hook":
            left = number
            break
    changes = [change.step for change in compressor.changes]
    compressor.close()
    steps = [record.steps for record in records if isinstance(record, StepRecord)]
    return changes, steps, left


def test_a_stretch_ends_soon_after_steps_became_far_slower_on_any_rank() -> None:
    (changes, steps, left), (_, _, other_left) = processes(slowed, 2)
    # a slow-step check after at most 60 steps, its sum, what is under way
    assert left == other_left and 280 < left < 280 + 60 + 8
    assert changes == [left]  # all steps are counted, those of the last answer too
    assert sum(steps) <= left
