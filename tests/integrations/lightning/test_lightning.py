# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Lightning's real Trainer with two processes, against plain DDP by hand."""

import csv
import math
import signal
from pathlib import Path

import pytest
import torch

from gravac.telemetry import read_jsonl
from gravac.telemetry.records import EndRecord
from tests.integrations import apart
from tests.integrations.by_hand import (
    assert_resumed,
    assert_same,
    flat,
    losses_in,
    mean_of_ranks,
    ranks,
)
from tests.integrations.lightning import apart_program, program

pytestmark = pytest.mark.framework


@pytest.fixture(params=program.CALLBACKS)
def package(request: pytest.FixtureRequest) -> str:
    """Skips where it is not installed."""
    pytest.importorskip(request.param)
    return str(request.param)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_losses_weights_and_residuals_are_those_of_plain_ddp(package: str, accumulate: int, tmp_path: Path) -> None:
    for lightning, by_hand in ranks(program.fit_and_by_hand, package, tmp_path, 2, accumulate):
        assert lightning.exchanged == 2 * program.EPOCH / accumulate
        assert_same(lightning, by_hand)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_training_loss_stands_beside_what_ran(package: str, accumulate: int, tmp_path: Path) -> None:
    """Lightning tells it after a batch, so that of a step's last batch counts for the next step."""
    means = mean_of_ranks(ranks(program.told, package, tmp_path, accumulate))
    for step, loss in losses_in(tmp_path).items():
        of = means[max(0, step * accumulate - 1) : (step + 1) * accumulate - 1]
        assert loss == pytest.approx(sum(of) / len(of) if of else math.nan, nan_ok=True)


def test_a_killed_run_goes_on_bit_for_bit_with_every_ranks_own_residuals(package: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"-9|Connection"):
        ranks(program.killed, package, tmp_path, 2)
    resumed = ranks(program.fit, package, tmp_path, 2, 1, "epoch=0.ckpt")
    straight = ranks(program.fit, package, tmp_path, 2)
    assert_resumed(straight, resumed)


def test_one_file_holds_all_ranks_states_also_after_the_end(package: str, tmp_path: Path) -> None:
    runs = ranks(program.fit, package, tmp_path, 1)
    for name in ("epoch=0.ckpt", "after.ckpt"):
        states = torch.load(tmp_path / name, weights_only=True)["gravac"]["states"]
        for state, run in zip(states, runs, strict=True):
            assert state["step"] == program.EPOCH
            assert torch.equal(torch.cat([one.flatten() for one in state["residual"].values()]), run.residual)


def test_the_trainers_logger_gets_cf_gain_and_wire_ratio_when_it_logs(package: str, tmp_path: Path) -> None:
    ranks(program.fit, package, tmp_path, 1)
    rows = [*csv.DictReader((tmp_path / "csv" / "metrics.csv").open())]
    assert [int(row["step"]) for row in rows if row["gravac_step/cf"]] == [1, 3, 5]
    assert [float(row["gravac_step/cf"]) for row in rows][-1] == 10
    assert 0 < float(rows[-1]["gravac_step/gain"]) < 1 < float(rows[-1]["gravac_step/wire_ratio"])


def test_a_checkpoint_of_two_ranks_is_taken_up_by_three(package: str, tmp_path: Path) -> None:
    ranks(program.fit, package, tmp_path, 1)
    for run in ranks(program.fit, package, tmp_path, 2, 1, "epoch=0.ckpt", world=3):
        assert (len(run.losses), run.exchanged) == (program.EPOCH, 2 * program.EPOCH)


def test_residuals_follow_the_precision_plugins_scaler(package: str, tmp_path: Path) -> None:
    for lightning, by_hand, scale in ranks(program.scaled_and_by_hand, package, tmp_path):
        assert 2.0**16 < scale < 2.0**26, "a test of nothing: no step overflowed, or nearly all did"
        assert_same(lightning, by_hand)


@pytest.mark.parametrize("end", [RuntimeError("boom"), KeyboardInterrupt()], ids=repr)
def test_an_exception_closes_the_log(package: str, end: BaseException, tmp_path: Path) -> None:
    for raised in ranks(program.interrupted, package, tmp_path, end):
        assert raised == ("SystemExit(1)" if isinstance(end, KeyboardInterrupt) else repr(end))
    (ended,) = [record for record in read_jsonl(tmp_path / "gravac.jsonl") if isinstance(record, EndRecord)]
    assert ended.steps == 1


@pytest.mark.parametrize(("every", "accumulate"), apart.ONE_CELL)
def test_ranks_apart_step_as_by_hand_and_go_on_bit_for_bit(
    package: str, every: apart.Every, accumulate: int, tmp_path: Path
) -> None:
    runs = ranks(apart_program.went_on, package, tmp_path, every, accumulate)
    apart.assert_trained_apart(runs)
    for each in runs:
        apart.assert_went_on(each, accumulate)


@pytest.mark.parametrize(("every", "accumulate"), apart.OTHER_CELLS)
def test_other_cells_step_as_by_hand_and_go_on_bit_for_bit(every: apart.Every, accumulate: int, tmp_path: Path) -> None:
    pytest.importorskip("lightning.pytorch")
    for each in ranks(apart_program.went_on, "lightning.pytorch", tmp_path, every, accumulate):
        apart.assert_went_on(each, accumulate)


def test_steps_that_a_module_makes_itself_are_counted(package: str, tmp_path: Path) -> None:
    for lightning, by_hand in ranks(apart_program.stepped_by_hand, package, tmp_path):
        assert_same(lightning, by_hand)


def test_every_file_holds_what_ranks_share_with_the_loss_that_was_validated(package: str, tmp_path: Path) -> None:
    (validated, weights), (other_validated, other_weights) = ranks(apart_program.saved, package, tmp_path)
    assert validated == other_validated and len(validated) == 6
    files = {path.stem: torch.load(path, weights_only=True) for path in tmp_path.glob("*.ckpt")}
    assert {name.partition("-")[0] for name in files} == {"validated", "stepped", "epoch", "last"}
    for name, file in files.items():
        for state in file["gravac"]["states"]:
            assert apart.holds_shared(file["state_dict"], state), name
        step = file["global_step"]
        if name.startswith(("validated", "epoch", "last")):
            assert apart.loss_of(file["state_dict"]) == validated[step], name
        if step % 5 and step < 18:
            assert all(map(apart.is_apart, file["gravac"]["states"])), name
    assert torch.equal(weights, other_weights)
    assert torch.equal(flat(files["last"]["state_dict"].values()), weights)


@pytest.mark.parametrize("end", [KeyboardInterrupt(), signal.SIGTERM], ids=repr)
def test_a_file_saved_because_of_an_exception_holds_what_ranks_share(
    package: str, end: BaseException | int, tmp_path: Path
) -> None:
    (_, weights), (_, other_weights) = ranks(apart_program.saved, package, tmp_path, end)
    (path,) = tmp_path.glob("exception*.ckpt")
    file = torch.load(path, weights_only=True)
    assert torch.equal(weights, other_weights)
    assert torch.equal(flat(file["state_dict"].values()), weights)
    assert ("gravac" in file) == (end is signal.SIGTERM)
    if end is signal.SIGTERM:
        assert all(apart.holds_shared(file["state_dict"], state) for state in file["gravac"]["states"])
        assert all(map(apart.is_apart, file["gravac"]["states"]))
