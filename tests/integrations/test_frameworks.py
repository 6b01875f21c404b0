# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What integrations refuse and say before any framework's own code matters: none needs to be installed here."""

from multiprocessing.reduction import ForkingPickler
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gravac import AdaptiveCompressor, SettingsError, topk
from gravac.integrations.accelerate import attach
from gravac.integrations.frameworks import metrics, recipe
from gravac.integrations.lightning_hooks import LightningHooks, is_last_step
from gravac.policy import Policy


class FSDPStrategy:
    """Lightning's strategy by name: it trains something that is no DistributedDataParallel."""

    model = torch.nn.Linear(2, 2)


def trainer(**given: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"world_size": 2, "strategy": FSDPStrategy(), "optimizers": [None], **given})


def accelerator(kind: str, processes: int = 2) -> SimpleNamespace:
    return SimpleNamespace(
        distributed_type=SimpleNamespace(value=kind), num_processes=processes, scaler=None, state=SimpleNamespace()
    )


def test_wrong_settings_are_refused_when_they_are_given() -> None:
    with pytest.raises(SettingsError, match="cf_range"):
        LightningHooks(base=topk, cf_range=(0.5, 10))
    with pytest.raises(SettingsError, match="on_resize"):
        LightningHooks(on_resize="median")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unknown"):
        LightningHooks(unknown=1)


def test_a_recipe_takes_a_policy_and_can_be_pickled() -> None:
    sent = ForkingPickler.dumps(recipe({"policy": "gravac"}, "mean"))  # as to a process that is spawned
    made = ForkingPickler.loads(sent)()
    assert made.policy.controller.name == "gravac"
    assert recipe({"base": topk}, "mean")() is not recipe({"base": topk}, "mean")()


def test_how_often_is_an_argument_or_the_policys() -> None:
    assert recipe({"base": topk}, "mean")().policy.every == (1, 1)
    assert recipe({"base": topk}, "mean", 5)().policy.every == (5, 5)
    assert recipe({}, "mean", (1, 20))().policy.every == (1, 20)
    assert recipe({"policy": Policy(every=7)}, "mean")().policy.every == (7, 7)
    assert recipe({"policy": "goodput"}, "mean", 5)().policy.every == (5, 5)
    with pytest.raises(SettingsError, match="every"):
        LightningHooks(every=0)


@pytest.mark.parametrize(
    ("given", "last"),
    [
        ({"max_steps": 10, "max_epochs": None}, False),
        ({"max_steps": 7, "max_epochs": None}, True),
        ({"max_steps": -1, "max_epochs": 3}, True),
        ({"max_steps": -1, "max_epochs": 3, "is_last_batch": False}, False),
        ({"max_steps": -1, "max_epochs": 4}, False),
        ({"max_steps": -1, "max_epochs": -1}, False),
    ],
)
def test_the_last_step_is_known_before_lightning_validates(given: dict[str, Any], last: bool) -> None:
    defaults = {"global_step": 7, "current_epoch": 2, "is_last_batch": True}
    assert is_last_step(SimpleNamespace(**{**defaults, **given})) == last


def test_lightnings_other_strategies_are_refused_by_name() -> None:
    with pytest.raises(TypeError, match="strategy: FSDPStrategy: gravac compresses what DistributedDataParallel"):
        LightningHooks().on_train_start(trainer(), None)


def test_accelerates_other_ways_are_refused_by_name() -> None:
    optimizer = torch.optim.SGD(FSDPStrategy.model.parameters(), lr=0.1)
    with pytest.raises(TypeError, match=r"distributed_type: DEEPSPEED: .* trains a Linear"):
        attach(accelerator("DEEPSPEED"), FSDPStrategy.model, optimizer)


def test_one_process_trains_on_without_gravac_and_says_so() -> None:
    hooks = LightningHooks()
    with pytest.warns(UserWarning, match="the Trainer trains in one process"):
        hooks.on_train_start(trainer(world_size=1), None)
    assert hooks.compressor is None
    optimizer = torch.optim.SGD(FSDPStrategy.model.parameters(), lr=0.1)
    with pytest.warns(UserWarning, match="Accelerate trains in one process"):
        compressor = attach(accelerator("NO", processes=1), FSDPStrategy.model, optimizer)
    assert metrics(compressor) == {"gravac_step/cf": 1.0}
    compressor.close()


def test_a_checkpoint_without_states_is_told_of_when_training_goes_on_from_it() -> None:
    hooks = LightningHooks()
    with pytest.warns(UserWarning, match="the checkpoint holds no state of gravac"):
        hooks.on_load_checkpoint(trainer(state=SimpleNamespace(fn="fit")), None, {})
    hooks.on_load_checkpoint(trainer(state=SimpleNamespace(fn="validate")), None, {})


def test_ranks_that_an_exception_left_at_different_steps_are_not_gathered() -> None:
    hooks = LightningHooks()
    hooks.compressor = AdaptiveCompressor(topk)
    hooks.on_exception(trainer(), None, RuntimeError("boom"))
    checkpoint: dict[str, Any] = {}
    with pytest.warns(UserWarning, match="ranks may have been at different steps"):
        hooks.on_save_checkpoint(trainer(), None, checkpoint)
    assert checkpoint == {}
