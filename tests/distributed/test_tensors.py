# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""CFs of single tensors on real gloo: what ranks tell each other, and what they decide from it."""

import io
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.distributed as dist

from gravac import Accordion, AdaptiveCompressor, topk
from gravac.collectives import AllReduce
from gravac.controllers import Decision, Measurement
from gravac.measurement import OVER_RANKS
from gravac.modes.replicas import SUMS_PER_CHECKSUM
from tests.distributed.training import network, parallel, sgd, train, weights
from tests.ranks import processes

EPOCH = 6
LAYERS = 3
MATRICES = sorted(f"{2 * layer}.weight" for layer in range(LAYERS))


@dataclass
class Watched:
    """A controller that writes down what it is told and decides."""

    controller: Any
    told: list[Measurement] = field(default_factory=list)
    decided: list[Decision] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.controller, name)

    def observe(self, state: Any, measurement: Measurement) -> Any:
        self.told.append(measurement)
        state, decision = self.controller.observe(state, measurement)
        self.decided.append(decision)
        return state, decision


def accordion(**options: Any) -> AdaptiveCompressor:
    return AdaptiveCompressor(
        topk(values="float16"), (3, 30), controller=Accordion(eta=0.05, every=1, epoch=EPOCH), **options
    )


def summed(rank: int, world: int) -> tuple[Any, ...]:
    ddp = parallel(network(LAYERS))
    optimizer = sgd(ddp)
    epochs: dict[str, list[torch.Tensor]] = {}
    step = 0

    for name, parameter in ddp.module.named_parameters():

        def add(gradient: torch.Tensor, name: str = name) -> None:
            sums = epochs.setdefault(name, [])
            if step % EPOCH == 0:
                sums.append(torch.zeros_like(gradient))
            sums[-1] += gradient

        parameter.register_hook(add)
    with accordion() as compressor:
        compressor.attach(ddp, optimizer)
        watched = compressor._engine.deciding._controller = Watched(compressor.policy.controller)
        for step in range(5 * EPOCH):  # which the hooks read
            if step == 3 * EPOCH:
                optimizer.param_groups[0]["lr"] /= 10
            train(ddp, optimizer, rank, range(step, step + 1))
        compressor.state_dict()
        squares = torch.stack([torch.stack([s.double().square().sum() for s in epochs[name]]) for name in MATRICES])
        dist.all_reduce(squares)
        norms = (squares / world).sqrt().T.tolist()
        return (
            watched.told,
            watched.decided,
            norms,
            weights(ddp),
            compressor._engine.state.totals,
            compressor.ledger,
        )


def test_ranks_tell_each_other_norms_of_their_tensors_and_decide_the_same() -> None:
    first, *others = processes(summed, 3)
    told, decided, norms, trained, totals, ledger = first
    reports = [(measured.step, measured.norms) for measured in told if measured.norms]
    assert [step for step, _ in reports] == [EPOCH * epoch + EPOCH - 1 for epoch in range(4)]
    for (_, agreed), expected in zip(reports, norms, strict=False):
        assert [name for name, _ in agreed] == MATRICES
        assert [norm for _, norm in agreed] == pytest.approx(expected, rel=1e-5)
    assert any(decision.tensors for decision in decided), "no step had tensors at both CFs"
    fell = next(measured for measured in told if measured.step == 3 * EPOCH)
    assert (told[0].learning_rate, fell.learning_rate) == pytest.approx((0.05, 0.005))
    assert not decided[3 * EPOCH].tensors
    assert decided[3 * EPOCH].candidate.cf == 3
    assert totals.norm_bytes == 4 * 8 * len(MATRICES)
    agreements = (5 * EPOCH - 1) * AllReduce.wire_bytes(8 * len(OVER_RANKS), 3)
    of_norms = 4 * AllReduce.wire_bytes(8 * len(MATRICES), 3)
    of_checksums = 3 * AllReduce.wire_bytes(8 * SUMS_PER_CHECKSUM, 3)  # after 4, 12 and 28 of 30 steps
    assert ledger.wire_bytes - totals.wire_bytes == agreements + of_norms + of_checksums
    assert ledger.calls["AllReduce"] >= 5 * EPOCH - 1 + 4
    for other in others:
        assert other[1] == decided
        assert torch.equal(other[3], trained)


Ran = tuple[torch.Tensor, list[Any]]
"""Weights in the end, and the changes that were decided."""


def resume(rank: int, world: int) -> list[Ran]:
    """A run, then those that were resumed within an epoch, and at its end, where norms are under way."""
    end, saves_at = 4 * EPOCH, (EPOCH + 2, 2 * EPOCH)
    saved: dict[int, bytes] = {}

    def trained(first: int) -> Ran:
        ddp = parallel(network(LAYERS))
        optimizer = sgd(ddp)
        compressor = accordion()
        if first:
            model, moments, state = torch.load(io.BytesIO(saved[first]), weights_only=True)
            ddp.module.load_state_dict(model)
            optimizer.load_state_dict(moments)
            compressor.load_state_dict(state)
        compressor.attach(ddp, optimizer)
        for step in range(first, end):
            if not first and step in saves_at:
                file = io.BytesIO()
                torch.save([ddp.module.state_dict(), optimizer.state_dict(), compressor.state_dict()], file)
                saved[step] = file.getvalue()
            train(ddp, optimizer, rank, range(step, step + 1))
        compressor.state_dict()  # waits for the last decision
        changes = [(record.step, record.cf, record.reason) for record in compressor.history if record.changed]
        compressor.close()
        return weights(ddp), changes

    return [trained(first) for first in (0, *saves_at)]


def test_resume_in_an_epoch_and_with_norms_under_way_is_bit_for_bit() -> None:
    for (straight, changes), *others in processes(resume, 2):
        for resumed, again in others:
            assert torch.equal(straight, resumed)
            assert changes == again
