# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer itself with two processes, against plain DDP by hand on the batches that it took."""

import math
from pathlib import Path

import pytest
import torch

from tests.integrations import apart
from tests.integrations.by_hand import assert_resumed, assert_same, losses_in, mean_of_ranks, ranks

pytestmark = pytest.mark.framework

program = pytest.importorskip("tests.integrations.transformers.program")
apart_program = pytest.importorskip("tests.integrations.transformers.apart_program")


@pytest.mark.parametrize("accumulate", [1, 2])
def test_losses_weights_and_residuals_are_those_of_plain_ddp(accumulate: int, tmp_path: Path) -> None:
    for trainer, by_hand in ranks(program.train_and_by_hand, tmp_path, accumulate):
        assert trainer.exchanged == program.STEPS
        assert len(trainer.losses) == program.STEPS * accumulate
        assert_same(trainer, by_hand)


def test_the_training_loss_stands_beside_what_ran(tmp_path: Path) -> None:
    """The Trainer tells it when it logs, as the mean since it logged last: it counts for the next step."""
    means = mean_of_ranks(ranks(program.told, tmp_path))
    told = {step: loss for step, loss in losses_in(tmp_path).items() if math.isfinite(loss)}
    assert [*told] == [2, 4, 6, 8, 10]
    for step, loss in told.items():
        assert loss == pytest.approx(sum(means[step - 2 : step]) / 2, abs=1e-3)


def test_a_killed_run_goes_on_bit_for_bit_with_every_ranks_own_residuals(tmp_path: Path) -> None:
    killed, straight = tmp_path / "killed", tmp_path / "straight"
    with pytest.raises(AssertionError, match=r"-9|Connection"):
        ranks(program.train, killed, 1, None, 2 * program.SAVED_EVERY + 1)
    resumed = ranks(program.train, killed, 1, True)
    assert_resumed(ranks(program.train, straight), resumed)


def test_a_run_goes_on_from_a_checkpoint_that_is_named_and_was_moved(tmp_path: Path) -> None:
    straight = ranks(program.train, tmp_path / "first")
    moved = tmp_path / "elsewhere"
    (tmp_path / "first" / f"checkpoint-{program.STEPS - program.SAVED_EVERY}").rename(moved)
    assert_resumed(straight, ranks(program.train, tmp_path / "second", 1, str(moved)))


def test_states_go_with_their_checkpoint(tmp_path: Path) -> None:
    ranks(program.train, tmp_path)
    kept = [f"checkpoint-{program.STEPS - program.SAVED_EVERY}", f"checkpoint-{program.STEPS}"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)
    assert all((tmp_path / name / "gravac" / "gravac.json").exists() for name in kept)


def test_the_trainer_logs_cf_gain_and_wire_ratio_with_its_loss(tmp_path: Path) -> None:
    for history in ranks(program.logged, tmp_path):
        told = {entry["step"]: entry for entry in history if "gravac_step/cf" in entry}
        assert (
            list(told) == [entry["step"] for entry in history if "loss" in entry] == [*range(2, program.STEPS + 1, 2)]
        )
        last = told[program.STEPS]
        assert last["gravac_step/cf"] == 10
        assert 0 < last["gravac_step/gain"] < 1 < last["gravac_step/wire_ratio"]


def test_train_may_be_called_again(tmp_path: Path) -> None:
    assert ranks(program.twice, tmp_path) == [[program.STEPS] * 2] * 2


def test_the_trainer_may_find_a_smaller_batch_size(tmp_path: Path) -> None:
    for exchanged, batch in ranks(program.smaller_batches, tmp_path):
        assert exchanged == program.STEPS
        assert 0 < batch < 4


@pytest.mark.parametrize(("every", "accumulate"), apart.ONE_CELL)
def test_ranks_apart_step_as_by_hand_and_go_on_bit_for_bit(every: apart.Every, accumulate: int, tmp_path: Path) -> None:
    runs = ranks(apart_program.went_on, tmp_path, every, accumulate)
    apart.assert_trained_apart(runs)
    for each in runs:
        apart.assert_went_on(each, accumulate)


@pytest.mark.parametrize(("every", "accumulate"), apart.OTHER_CELLS)
def test_other_cells_step_as_by_hand_and_go_on_bit_for_bit(every: apart.Every, accumulate: int, tmp_path: Path) -> None:
    for each in ranks(apart_program.went_on, tmp_path, every, accumulate):
        apart.assert_went_on(each, accumulate)


@pytest.mark.parametrize("best", [False, True], ids=["last", "best"])
def test_every_checkpoint_has_the_loss_that_was_evaluated_and_the_best_stays(best: bool, tmp_path: Path) -> None:
    first, second = ranks(apart_program.saved, tmp_path, best)
    assert first["seen"] == second["seen"] == first["of files"] == second["of files"]
    assert set(first["seen"]) == set(range(4, apart.STEPS + 1, 4))
    assert first["logged"] == second["logged"]
    for rank in (first, second):
        assert all(rank["shared"])
        assert rank["apart"][8] and rank["apart"][16] and not rank["apart"][apart.STEPS]
        assert torch.equal(rank["weights"], rank["best"]) == best
    assert torch.equal(first["weights"], second["weights"])


def test_ranks_apart_are_one_again_when_train_ends_and_may_train_again(tmp_path: Path) -> None:
    (rounds, modes, weights), other = ranks(apart_program.twice, tmp_path)
    assert rounds[0] == rounds[1] and (rounds, modes) == other[:2]
    assert torch.equal(weights, other[2]), "the second run began natively, with moments that were each rank's own"


def test_the_trainer_begins_anew_after_an_exception_within_a_round(tmp_path: Path) -> None:
    (rounds, weights), (_, other_weights) = ranks(apart_program.failed_once, tmp_path)
    assert rounds == -(-apart_program.apart.STEPS // 5)
    assert torch.equal(weights, other_weights)
