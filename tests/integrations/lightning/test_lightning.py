# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Lightning's real Trainer with two processes, against plain DDP by hand."""

import csv
from pathlib import Path

import pytest
import torch

from gravac.telemetry import read_jsonl
from gravac.telemetry.records import EndRecord
from tests.integrations.by_hand import assert_resumed, assert_same, ranks
from tests.integrations.lightning import program

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
