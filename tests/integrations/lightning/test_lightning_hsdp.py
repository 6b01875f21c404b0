# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Lightning's ModelParallelStrategy with two replicas on four processes, against plain HSDP by hand."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integrations import apart, in_shards
from tests.integrations.by_hand import assert_resumed, ranks
from tests.integrations.lightning import hsdp_program
from tests.integrations.lightning.program import CALLBACKS

pytestmark = pytest.mark.framework


@pytest.fixture(params=CALLBACKS)
def package(request: pytest.FixtureRequest) -> str:
    """Skips where it is not installed."""
    pytest.importorskip(request.param)
    return str(request.param)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_losses_weights_and_residuals_are_those_of_plain_hsdp(package: str, accumulate: int, tmp_path: Path) -> None:
    runs = ranks(hsdp_program.fit_and_by_hand, package, tmp_path, accumulate, world=in_shards.WORLD)
    in_shards.assert_as_plain_hsdp(runs)


@pytest.mark.parametrize(
    ("settings", "distributed"),
    [(in_shards.COMPRESSED, True), (in_shards.OUTER, True), (in_shards.OUTER, False)],
    ids=["every step", "outer", "outer, one file"],
)
def test_a_saved_run_goes_on_bit_for_bit(
    package: str, settings: dict[str, Any], distributed: bool, tmp_path: Path
) -> None:
    runs = ranks(hsdp_program.straight_and_resumed, package, tmp_path, settings, distributed, world=in_shards.WORLD)
    assert_resumed([straight for straight, _ in runs], [resumed for _, resumed in runs])
    path = tmp_path / f"step={in_shards.SAVED_AT}.ckpt"
    assert path.is_dir() == distributed
    if not distributed:
        file = torch.load(path, weights_only=True)
        shards = [state["outer"]["anchor"]["weights"] for state in file["gravac"]["states"][:2]]  # of one replica
        assert all(map(apart.is_apart, file["gravac"]["states"]))
        for name in shards[0]:
            shared = torch.cat([shard[name] for shard in shards])
            assert shared.equal(file["state_dict"][f"model.{name}"])


def test_shards_without_replicas_and_several_modules_are_refused_with_the_remedy(package: str, tmp_path: Path) -> None:
    for messages in ranks(hsdp_program.refusals, package, tmp_path, world=in_shards.WORLD):
        assert messages["one replica"].startswith("SettingsError: strategy: ModelParallelStrategy: ")
        assert 'mesh_dim_names=("replicate", "shard")' in messages["one replica"]
        assert messages["two modules"].startswith("SettingsError: configure_model: model.0 and model.1 are in shards")
        assert "call fully_shard(module, mesh=mesh) last" in messages["two modules"]
