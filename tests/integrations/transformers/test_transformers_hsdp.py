# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Hugging Face's Trainer with two replicas in shards on four processes, against plain HSDP by hand."""

from pathlib import Path
from typing import Any

import pytest

from tests.integrations import in_shards
from tests.integrations.by_hand import assert_resumed, ranks

pytestmark = pytest.mark.framework

program = pytest.importorskip("tests.integrations.transformers.hsdp_program")


@pytest.mark.parametrize("accumulate", [1, 2])
def test_losses_weights_and_residuals_are_those_of_plain_hsdp(accumulate: int, tmp_path: Path) -> None:
    runs = ranks(program.train_and_by_hand, tmp_path, accumulate, world=in_shards.WORLD)
    in_shards.assert_as_plain_hsdp(runs)


@pytest.mark.parametrize("settings", [in_shards.COMPRESSED, in_shards.OUTER], ids=["every step", "outer"])
def test_a_saved_run_goes_on_bit_for_bit(settings: dict[str, Any], tmp_path: Path) -> None:
    runs = ranks(program.straight_and_resumed, tmp_path, settings, world=in_shards.WORLD)
    assert_resumed([straight for straight, _ in runs], [resumed for _, resumed in runs])


def test_shards_without_replicas_are_refused_with_the_remedy(tmp_path: Path) -> None:
    for message in ranks(program.refusal, tmp_path, world=in_shards.WORLD):
        assert message.startswith("SettingsError: parallelism_config.dp_replicate_size: 1: ")
        assert "ParallelismConfig(dp_replicate_size=2, dp_shard_size=N)" in message
