# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Outer steps of real processes: equal anchors and decisions whatever is late, checkpoints, a rank that stops."""

import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from gravac import Goodput, Static, checkpoint, topk
from gravac.exchange.group import ExchangeError
from gravac.modes.outer.sgd import OuterSGD
from tests.outer.by_hand import OuterByHand
from tests.outer.ranks import FOUR_BITS, SGD, Ranks, equal, flat, inner_step, network
from tests.ranks import processes


def train(rank: int, steps: int, delays: int = 0, pause_s: float = 0.0, **settings: Any) -> tuple[Any, torch.nn.Module]:
    """Train this rank, each step or now and then a little later than the others; the weights differ to begin with."""
    module = network()
    with torch.no_grad():
        next(module.parameters()).add_(rank)
    inner = SGD(module.parameters())
    outer = OuterByHand(module, inner, dense_below=0, **{"delay": 0, **settings})
    pauses = torch.Generator().manual_seed(rank)
    for step in range(steps):
        inner_step(module, inner, step, rank)
        time.sleep(pause_s)
        outer.step()
        if delays and int(torch.randint(3, (), generator=pauses)) == 0:
            time.sleep(0.001 * delays)
    return outer, module


def closed(rank: int, world: int) -> list[torch.Tensor]:
    """This rank's weights in the middle of the first round, and after the rounds were closed."""
    lossy: dict[str, Any] = {"base": topk, "controller": Static(cf=50), "cf_range": (50, 50), "every": 10}
    outer, module = train(rank, 3, **lossy)
    found = [flat(module)]
    outer.steps.close_rounds()
    found.append(flat(module))
    outer.close()
    return found


def test_what_a_rank_learned_is_sent_whole_when_rounds_are_closed() -> None:
    ranks = processes(closed, 2)
    mean = torch.stack([own for own, _ in ranks]).mean(0)
    assert not torch.equal(*[own for own, _ in ranks])
    for _, shared in ranks:
        torch.testing.assert_close(shared, mean, rtol=1e-5, atol=1e-6)


def anchored(rank: int, world: int, settings: dict[str, Any]) -> tuple[list[torch.Tensor], list[Any], int]:
    outer, module = train(rank, 23, delays=20, **settings)
    found = []
    with outer.shared_weights():
        found.append(flat(module))
    outer.synchronize()
    with outer.shared_weights():
        found.append(flat(module))
    history, rounds = outer.history, outer.rounds
    outer.close()
    return found, history, rounds


@pytest.mark.parametrize("how", ["waits", "late", "decides", "decides how late"])
def test_anchors_and_decisions_are_the_same_on_all_ranks(how: str) -> None:
    settings: dict[str, Any] = {
        "waits": {"every": 4, **FOUR_BITS},
        "late": {"every": 5, "delay": 2, "mixing": 0.5, **FOUR_BITS},
        "decides": {"every": (1, 10), "controller": Goodput(trial=5, window=5), "delay": 1},
        "decides how late": {"every": (1, 10), "controller": Goodput(trial=5, window=5), "delay": "auto"},
    }[how]
    world = 2 if how == "waits" else 3
    (first, history, rounds), *others = processes(anchored, world, settings)
    assert rounds > 1
    assert history or not how.startswith("decides")
    for found, told, made in others:
        assert all(map(torch.equal, first, found))
        assert (told, made) == (history, rounds)


def late_in_each_step(rank: int, world: int) -> tuple[torch.Tensor, list[Any], int]:
    """One rank, always the same, is later than the others."""
    late: dict[str, Any] = {"every": (1, 10), "controller": Goodput(trial=5, window=5), "delay": 2}
    outer, module = train(rank, 40, pause_s=0.01 * (rank == 1), **late)
    outer.steps.close_rounds()
    found = flat(module), outer.history, outer.rounds
    outer.close()
    return found


def test_a_rank_that_is_always_late_has_the_weights_and_decisions_of_the_others() -> None:
    (weights, history, rounds), *others = processes(late_in_each_step, 3)
    assert len(history) > 1
    assert rounds > 4
    for own, told, made in others:
        assert torch.equal(own, weights)
        assert (told, made) == (history, rounds)


def over_network(rank: int, world: int, settings: dict[str, Any]) -> torch.Tensor:
    outer, module = train(rank, 12, **settings)
    outer.close()
    return flat(module)


def test_over_a_network_it_is_as_in_memory() -> None:
    settings = {"every": 4, **FOUR_BITS}
    weights = processes(over_network, 2, settings)
    in_memory = Ranks(2, outer=OuterSGD, **settings).train(12).weights
    assert equal(weights)
    assert torch.equal(weights[0], in_memory[0])


def resumed(rank: int, world: int, folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    settings: dict[str, Any] = {"every": 4, **FOUR_BITS}
    outer, module = train(rank, 6, **settings)  # in the middle of a round: ranks differ
    checkpoint.save(folder, outer)
    later = [flat(module)]
    for step in range(6, 13):
        inner_step(module, outer.inner, step, rank)
        outer.step()
    later.append(flat(module))
    outer.close()
    module = network()
    again = OuterByHand(module, SGD(module.parameters()), dense_below=0, **{"delay": 0, **settings})
    checkpoint.load(folder, again)
    assert torch.equal(flat(module), later[0])
    for step in range(6, 13):
        inner_step(module, again.inner, step, rank)
        again.step()
    again.close()
    return later[1], flat(module)


def test_a_checkpoint_of_all_ranks_is_taken_up_bit_for_bit(tmp_path: Path) -> None:
    ranks = processes(resumed, 2, tmp_path)
    assert all(torch.equal(*one) for one in ranks)
    assert not torch.equal(ranks[0][0], ranks[1][0])


def killed(rank: int, world: int, folder: Path) -> None:
    """Save, and train on until the last rank is gone; as it would be in a data centre, nobody is told."""
    group = dist.new_group(timeout=timedelta(seconds=5))
    module = network()
    inner = SGD(module.parameters())
    outer = OuterByHand(module, inner, every=3, delay=0, dense_below=0, process_group=group, **FOUR_BITS)
    while outer.rounds < 4:
        inner_step(module, inner, outer.rounds, rank)
        outer.step()
    checkpoint.save(folder, outer)
    with outer.shared_weights():
        torch.save(flat(module), folder / f"anchor{rank}")
    try:
        while outer.rounds < 20:
            if rank == 2 and outer.rounds == 6:
                os.kill(os.getpid(), signal.SIGKILL)
            inner_step(module, inner, outer.rounds, rank)
            outer.step()
    except ExchangeError as failure:
        (folder / f"said{rank}").write_text(str(failure))
    os._exit(0)  # the default group waits for the rank that is gone


def fewer(rank: int, world: int, folder: Path) -> list[torch.Tensor]:
    module = network()
    inner = SGD(module.parameters())
    outer = OuterByHand(module, inner, every=3, delay=0, dense_below=0, **FOUR_BITS)
    checkpoint.load(folder, outer)
    found = [flat(module)]
    while outer.rounds < 7:
        inner_step(module, inner, outer.rounds, rank)
        outer.step()
    found.append(flat(module))
    outer.close()
    return found


def test_the_others_end_when_a_rank_is_killed_and_fewer_go_on_from_the_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"ranks \[0, 1, 2\] returned nothing; exit codes \[0, 0, -9\]"):
        processes(killed, 3, tmp_path)
    assert all("gravac:" in (tmp_path / f"said{rank}").read_text() for rank in range(2))
    (first, later), other = processes(fewer, 2, tmp_path)
    assert torch.equal(first, torch.load(tmp_path / "anchor0"))
    assert equal([first, other[0]])
    assert equal([later, other[1]])
    assert not torch.equal(first, later)


def left_alone(rank: int, world: int, folder: Path) -> str:
    group = dist.new_group(timeout=timedelta(seconds=3))
    module = network()
    inner = SGD(module.parameters())
    outer = OuterByHand(module, inner, every=3, delay=0, dense_below=0, process_group=group, **FOUR_BITS)
    said = ""
    if rank == 0:
        with pytest.raises(ExchangeError) as failure:
            for step in range(6):
                inner_step(module, inner, step, rank)
                outer.step()
        said = str(failure.value)
        (folder / "seen").touch()
    while not (folder / "seen").exists():  # the other is there, and makes no step
        time.sleep(0.05)
    return said


def test_a_rank_that_stops_is_named_and_ends_the_others(tmp_path: Path) -> None:
    said, _ = processes(left_alone, 2, tmp_path)
    assert "gravac: step 2 (since step 0), exchange of " in said
