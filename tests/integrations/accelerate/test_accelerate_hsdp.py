# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Accelerate's FSDP2 plugin with two replicas on four processes, against plain HSDP by hand."""

from pathlib import Path
from typing import Any

import pytest

from tests.integrations import in_shards
from tests.integrations.by_hand import assert_resumed, ranks

pytestmark = pytest.mark.framework

program = pytest.importorskip("tests.integrations.accelerate.hsdp_program")


@pytest.mark.parametrize("accumulate", [1, 2])
def test_losses_weights_and_residuals_are_those_of_plain_hsdp(accumulate: int, tmp_path: Path) -> None:
    runs = ranks(program.train_and_by_hand, tmp_path, accumulate, world=in_shards.WORLD)
    in_shards.assert_as_plain_hsdp(runs)


@pytest.mark.parametrize("settings", [in_shards.COMPRESSED, in_shards.OUTER], ids=["every step", "outer"])
def test_a_saved_run_goes_on_bit_for_bit(settings: dict[str, Any], tmp_path: Path) -> None:
    straight = ranks(program.train, tmp_path, settings, world=in_shards.WORLD)
    resumed = ranks(program.train, tmp_path, settings, 1, True, world=in_shards.WORLD)
    assert_resumed(straight, resumed)


def test_own_weights_are_in_gravacs_folder_and_shared_ones_in_accelerates(tmp_path: Path) -> None:
    assert ranks(program.saved, tmp_path, world=in_shards.WORLD) == [(True, True)] * in_shards.WORLD


def test_shards_without_replicas_and_fsdp1_are_refused_with_the_remedy() -> None:
    for messages in ranks(program.refusals, world=in_shards.WORLD):
        assert messages["one replica"].startswith("SettingsError: parallelism_config.dp_replicate_size: 1: ")
        assert messages["FSDP1"].startswith("TypeError: fsdp_version: 1: ")
        for message in messages.values():
            assert "ParallelismConfig(dp_replicate_size=2, dp_shard_size=N)" in message
