# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Accelerate itself with two processes, against plain DDP by hand."""

from pathlib import Path

import pytest

from tests.integrations import apart
from tests.integrations.by_hand import assert_resumed, assert_same, losses_in, mean_of_ranks, ranks

pytestmark = pytest.mark.framework

program = pytest.importorskip("tests.integrations.accelerate.program")


@pytest.mark.parametrize("accumulate", [1, 2])
def test_losses_weights_and_residuals_are_those_of_plain_ddp(accumulate: int, tmp_path: Path) -> None:
    for accelerate, by_hand in ranks(program.train_and_by_hand, tmp_path, accumulate):
        assert accelerate.exchanged == program.BATCHES / accumulate
        assert_same(accelerate, by_hand)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_training_loss_stands_beside_what_ran(accumulate: int, tmp_path: Path) -> None:
    means = mean_of_ranks(ranks(program.told, tmp_path, accumulate))
    for step, loss in losses_in(tmp_path).items():
        of = means[step * accumulate : (step + 1) * accumulate]
        assert loss == pytest.approx(sum(of) / accumulate)


def test_a_killed_run_goes_on_bit_for_bit_with_every_ranks_own_residuals(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"-9|Connection"):
        ranks(program.train, tmp_path, 1, False, program.SAVED_AT + 2)
    resumed = ranks(program.train, tmp_path, 1, True)
    straight = ranks(program.train, tmp_path)
    assert_resumed(straight, resumed)


@pytest.mark.parametrize(("every", "accumulate"), apart.ONE_CELL)
def test_ranks_apart_step_as_by_hand_and_go_on_bit_for_bit(every: apart.Every, accumulate: int, tmp_path: Path) -> None:
    runs = ranks(program.went_on, tmp_path, every, accumulate)
    apart.assert_trained_apart(runs)
    for each in runs:
        apart.assert_went_on(each, accumulate)


@pytest.mark.parametrize(("every", "accumulate"), apart.OTHER_CELLS)
def test_other_cells_step_as_by_hand_and_go_on_bit_for_bit(every: apart.Every, accumulate: int, tmp_path: Path) -> None:
    for each in ranks(program.went_on, tmp_path, every, accumulate):
        apart.assert_went_on(each, accumulate)


def test_a_file_has_the_loss_that_was_evaluated(tmp_path: Path) -> None:
    first, second = ranks(program.saved, tmp_path)
    assert first == second and len(first) == 5
    assert all(file == evaluated for evaluated, file in first)


def test_own_weights_are_in_gravacs_folder_and_shared_ones_in_accelerates_file(tmp_path: Path) -> None:
    assert ranks(program.own_in_the_folder, tmp_path) == [(True, True)] * 2


def test_a_checkpoint_of_a_run_without_gravac_is_gone_on_from(tmp_path: Path) -> None:
    for (told,) in ranks(program.without_gravac_before, tmp_path):
        assert "holds no state of gravac" in told


def test_each_models_states_have_a_folder_as_long_as_the_accelerator_holds_it(tmp_path: Path) -> None:
    for folders in ranks(program.two_models, tmp_path):
        assert [name for name in folders if name.count("/") == 1] == ["both/gravac", "both/gravac_1"]
