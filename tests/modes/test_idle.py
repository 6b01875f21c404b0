# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The same lines where there is nothing to decide: one process, no process group, or GRAVAC=off."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from gravac import AdaptiveCompressor, SettingsError
from tests.distributed.training import batch, network, parallel
from tests.ranks import processes


def users_lines(model: torch.nn.Module, rank: int, **settings: Any) -> AdaptiveCompressor:
    """All that a user's loop may call."""
    trains = torch.optim.AdamW(model.parameters(), lr=1e-3)
    compressor = AdaptiveCompressor(every=(1, 100), **settings)
    compressor.attach(model, trains)
    for step in range(3):
        trains.zero_grad()
        with compressor.no_sync():
            x, y = batch(rank, 2 * step)
            torch.nn.functional.cross_entropy(model(x), y).backward()
        x, y = batch(rank, 2 * step + 1)
        torch.nn.functional.cross_entropy(model(x), y).backward()
        trains.step()
    with compressor.shared_weights():
        model.state_dict()
    compressor.synchronize()
    assert (compressor.mode, compressor.cf, compressor.gain, compressor.changes) == ("native", 1.0, None, [])
    assert compressor.history == [] and compressor.outer is None and compressor.state_dict()["step"] == 0
    return compressor


@pytest.mark.filterwarnings("error")
def test_without_a_process_group_training_stays_as_it_is_and_a_warning_says_so(tmp_path: Path) -> None:
    model, same = network(), network()
    with pytest.warns(UserWarning, match="there is one process, which exchanges nothing: training continues"):
        users_lines(model, 0, log_dir=tmp_path).close()
    trains = torch.optim.AdamW(same.parameters(), lr=1e-3)
    for step in range(3):
        trains.zero_grad()
        for part in range(2):
            x, y = batch(0, 2 * step + part)
            torch.nn.functional.cross_entropy(same(x), y).backward()
        trains.step()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), same.parameters(), strict=True))
    assert not list(tmp_path.iterdir())


def switched_off(rank: int, world: int, off_on: tuple[int, ...]) -> str:
    import os

    if rank in off_on:
        os.environ["GRAVAC"] = "off"
    ddp = parallel()
    if len(off_on) not in (0, world):
        with pytest.raises(SettingsError) as told:
            users_lines(ddp, rank)
        return str(told.value)
    with pytest.warns(UserWarning, match="GRAVAC=off in the environment: training continues without gravac"):
        compressor = users_lines(ddp, rank)
    assert not ddp._comm_hooks
    with compressor.no_sync():
        assert not ddp.require_backward_grad_sync  # as in DDP's no_sync(): nothing is exchanged
    compressor.detach()
    compressor.close()
    weights = torch.cat([p.detach().flatten() for p in ddp.parameters()])
    others = [torch.empty_like(weights) for _ in range(world)]
    dist.all_gather(others, weights)
    assert torch.equal(others[0], others[1])
    return ""


def test_off_in_the_environment_leaves_everything_native() -> None:
    assert processes(switched_off, 2, (0, 1)) == ["", ""]


def test_off_on_some_ranks_is_refused_on_all() -> None:
    first, second = processes(switched_off, 2, (1,))
    assert first == second and "GRAVAC" in first and "rank 1" in first


def switched_off_without_ddp(rank: int, world: int) -> str:
    import os

    os.environ["GRAVAC"] = "off"
    model = network()
    with pytest.raises(TypeError) as told:
        AdaptiveCompressor().attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    return str(told.value)


def test_off_is_refused_where_each_rank_would_train_a_model_of_its_own() -> None:
    first, second = processes(switched_off_without_ddp, 2)
    assert first == second
    assert "wrap the module in DistributedDataParallel" in first


def test_another_word_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAVAC", "no")
    with pytest.raises(
        SettingsError, match="GRAVAC: the environment variable is 'no'; set the variable to on, off or check"
    ):
        AdaptiveCompressor().attach(network(), None)
