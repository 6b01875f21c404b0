# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Methods that train ranks apart, in the lab: what is shared, what is told, and what travels where."""

from dataclasses import asdict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gravac import Goodput
from gravac.candidate import Candidate
from gravac.lab.links.network import CONTROL_INTERFACE, EmulatedNetwork, emulation_obstacle
from gravac.lab.training.attach import attach
from gravac.lab.training.methods import Method
from gravac.lab.training.run import TrainingRun, TrainingSettings
from gravac.lab.training.session import Leg, SessionSpec
from gravac.lab.training.shuffled import (
    MAX_BLOCK_ROUNDS,
    RunChoice,
    ShuffledController,
    shuffled_blocks,
)
from gravac.lab.tta.record import DecisionPoint
from gravac.lab.tta.runner import choices_of_run
from tests.controllers import laws as conformance
from tests.lab.made_up_runs import made_up

REASON = emulation_obstacle()
PLAYED = (RunChoice(Candidate("hook", "quantize", 8), 12), RunChoice(Candidate("hook", "dense", 1), 3))


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    "text",
    [
        "outer(every=2, delay=0):quantize(2)",
        "outer(every=2, delay=0):dense",
        "matched:outer(every=2, delay=0):quantize@2-16",
    ],
)
def test_what_is_shared_is_of_the_last_exchange_and_the_end_exchanges_the_rest(text: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = Method.parse(text)
    choices = [RunChoice(Candidate("outer", "quantize", 8, every=2), 9)]
    exchange = attach(method, model, optimizer, samples_per_step=16, log_dir=None, choices=choices)
    seen, shared = [], []
    for _ in range(7):
        optimizer.zero_grad()
        exchange.module(torch.randn(16, 64)).square().mean().backward()
        optimizer.step()
        exchange.wait_for_exchanges()
        seen.append(model.weight.detach().clone())
        with exchange.shared_weights():
            shared.append(model.weight.detach().clone())
        assert torch.equal(model.weight, seen[-1]), "the rank's own weights are back"
    assert torch.equal(shared[3], shared[4]) and not torch.equal(seen[3], seen[4])
    assert not torch.equal(shared[4], shared[5])
    assert (exchange.every, exchange.exchange_count()) == (2, 3)
    exchange.exchange_remainder()
    with exchange.shared_weights():
        assert not torch.equal(model.weight, shared[-1])
    assert exchange.exchange_count() == 4
    first = exchange.decisions()[0]
    assert (first.step, first.every) == (0, 2)
    assert exchange.exposed_seconds(0.0) >= 0 and exchange.wire_bytes(7, 1) == 0
    exchange.close()


@pytest.mark.usefixtures("alone")
def test_nothing_to_play_is_refused() -> None:
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="no run of outer:ladder is recorded; run it first"):
        attach(Method.parse("matched:outer:ladder"), model, optimizer, samples_per_step=16, log_dir=None)


@pytest.mark.parametrize("law", conformance.LAWS, ids=lambda law: law.__name__)
def test_shuffled_is_a_controller(law: object) -> None:
    law(ShuffledController(Goodput(), PLAYED, seed=3))  # type: ignore[operator]


@given(st.lists(st.integers(1, 20), min_size=1, max_size=5), st.integers(0, 5))
def test_each_choice_is_played_for_as_many_rounds(rounds: list[int], seed: int) -> None:
    played = [RunChoice(Candidate("hook", f"c{at}", 2.0), number) for at, number in enumerate(rounds)]
    blocks = shuffled_blocks(played, seed)
    assert all(1 <= one.rounds <= MAX_BLOCK_ROUNDS for one in blocks) and blocks == shuffled_blocks(played, seed)
    for one in played:
        assert sum(block.rounds for block in blocks if block.candidate == one.candidate) == one.rounds


def decided(step: int, candidate: Candidate) -> DecisionPoint:
    fields = {**asdict(candidate), "changed": True, "gain": None, "t_system": None, "reason": ""}
    return DecisionPoint(step=step, seconds=0.1 * step, **fields)


def test_the_decisions_of_a_run_become_plays_of_its_rounds() -> None:
    native, skipped, outer = (
        Candidate("native", "dense", 2),
        Candidate("hook", "topk", 9),
        Candidate("outer", "topk", 8, 2),
    )
    run = made_up(turns=tuple(map(decided, (0, 20, 20, 27), (native, skipped, outer, native))), steps=32)
    assert choices_of_run(run) == (RunChoice(native, 3), RunChoice(outer, 4), RunChoice(native, 1))
    leg = Leg("matched:outer:ladder", "a", choices=choices_of_run(run))
    spec = SessionSpec("lstm", 0.5, 3, "", 2, "folder", None, None, None, 1e8, "100mbit", (leg,))
    assert SessionSpec.from_json(spec.to_json()) == spec


@pytest.mark.usefixtures("forks")
@pytest.mark.skipif(REASON is not None, reason=f"no network namespaces here: {REASON}")
def test_commands_have_an_interface_of_their_own_and_no_byte_of_them_counts() -> None:
    words = ("outer(every=5):quantize(2)", "outer(every=4, delay=1):quantize(2)")
    legs = [Leg(text, text, steps=12, every_steps=10) for text in words]
    settings = TrainingSettings(workers=2, link="50mbit", lowest_rate_bps=50e6, task="lstm", scale=0.1)
    with EmulatedNetwork(2, "50mbit") as network, TrainingRun(legs, settings, network) as run:
        ends = [event for event in run.events() if event["event"] == "end"]
        control = network.interface_counters(0, CONTROL_INTERFACE).sent
    for end in ends:
        assert end["wire_bytes"] > 0
        assert 0.95 < end["interface_bytes"] / end["wire_bytes"] < 1.3
        assert end["step_s"] == pytest.approx(end["seconds"] / end["step"])
    assert [end["every"] for end in ends] == [12 / 3, 12 / 3], "what is left at the end is exchanged too"
    assert control > 2 * 12 * 8
