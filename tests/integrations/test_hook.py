# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The hook and its state, registered by somebody else: pickled first, numbered or named, and never raising."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import gravac
from gravac import HookState, SettingsError, Static, topk
from gravac.policy import Policy
from tests.distributed.training import network, parallel, sgd, telling, train, weights
from tests.ranks import processes


def register(ddp: DistributedDataParallel, state: object, hook: Callable[..., Any]) -> str:
    """As Lightning's DDPStrategy does, which tells the hook's name."""
    ddp.register_comm_hook(state=state, hook=hook)
    return hook.__qualname__


def test_wrong_settings_fail_in_the_constructor() -> None:
    with pytest.raises(SettingsError, match="cf_range"):
        HookState(cf_range=(0.5, 10))
    with pytest.raises(TypeError, match="cf_rang"):
        HookState(cf_rang=(2, 10))


def test_a_state_takes_a_policy() -> None:
    state = HookState(policy=Policy(base=topk, dense_below=0), total_steps=10)
    assert state.compressor.policy == Policy(base=topk, dense_below=0, total_steps=10)
    with pytest.raises(SettingsError, match="dense_under: unknown setting"):
        HookState(policy="gravac", dense_under=0)


def test_a_state_is_sent_to_other_processes_before_its_compressor_is_made() -> None:
    state = HookState(base=topk(values="float16"), controller=Static(cf=10))
    assert copy.deepcopy(state).compressor.policy == state.compressor.policy
    assert state.compressor is state.compressor
    for refused in (lambda: pickle.dumps(state), lambda: copy.deepcopy(state)):
        with pytest.raises(TypeError, match=r"HookState: cannot be copied or pickled, .*gravac.checkpoint.save"):
            refused()


def trained(rank: int, world: int, state: HookState, hook: Callable[..., Any], folder: Path) -> list[Any]:
    """The pair was pickled on its way here."""
    ddp = parallel()
    told = register(ddp, state, hook)
    optimizer = sgd(ddp)
    train(ddp, optimizer, rank, range(4))
    gravac.checkpoint.save(folder, state.compressor)
    before = weights(ddp)
    train(ddp, optimizer, rank, range(4, 6))
    names = set(state.compressor.state_dict()["residual"])
    state.compressor.close()

    attached = parallel()
    with gravac.AdaptiveCompressor(topk, controller=Static(cf=10)) as compressor:
        compressor.attach(attached)
        train(attached, sgd(attached), rank, range(4))

    named = HookState(base=topk, controller=Static(cf=10))
    again = parallel()
    named.bind(again)
    register(again, named, gravac.hook)
    train(again, sgd(again), rank, range(4))
    names_bound = set(named.compressor.state_dict()["residual"])
    named.compressor.close()
    return [told, names, names_bound, before, weights(attached), weights(again)]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[Any]]]:
    """A folder with a checkpoint, and what the ranks saw that saved it."""
    folder = tmp_path_factory.mktemp("checkpoint")
    return folder, processes(trained, 2, HookState(base=topk, controller=Static(cf=10)), gravac.hook, folder)


def test_a_framework_registers_the_pair_and_training_is_the_same_as_attached(
    saved: tuple[Path, list[list[Any]]],
) -> None:
    _, ran = saved
    for told, names, names_bound, *of_each in ran:
        assert told == "hook"
        assert names == {f"parameter{2 * layer}" for layer in range(6)}, "numbered in the order of the first backward"
        assert names_bound == {f"{2 * layer}.weight" for layer in range(6)}
        assert all(torch.equal(ran[0][3], one) for one in of_each)


def resumed(rank: int, world: int, folder: Path) -> list[Any]:
    state = HookState(base=topk, controller=Static(cf=10))
    gravac.checkpoint.load(folder, state.compressor)
    ddp = parallel()
    register(ddp, state, gravac.hook)
    train(ddp, sgd(ddp), rank, range(4, 5))
    kept = state.compressor.state_dict()
    return [kept["step"], set(kept["residual"])]


def test_a_checkpoint_of_numbered_parameters_is_taken_up_by_the_same_model(
    saved: tuple[Path, list[list[Any]]],
) -> None:
    folder, _ = saved
    names = {f"parameter{2 * layer}" for layer in range(6)}
    assert processes(resumed, 2, folder) == [[5, names]] * 2


def mistakes(rank: int, world: int) -> list[str]:
    said: list[str] = []
    says = telling(said)
    for state in (None, gravac.AdaptiveCompressor(topk)):
        ddp = parallel(network(1))
        register(ddp, state, gravac.hook)
        says(lambda ddp=ddp: train(ddp, sgd(ddp), rank, range(1)))  # type: ignore[misc]
    state = HookState()
    state._settings["seed"] = "x"  # as if checked by another version of gravac
    ddp = parallel(network(1))
    register(ddp, state, gravac.hook)
    says(lambda: train(ddp, sgd(ddp), rank, range(1)))
    says(lambda: train(ddp, sgd(ddp), rank, range(1)))
    state._settings.clear()
    says(lambda: train(ddp, sgd(ddp), rank, range(1)))
    state.compressor.close()
    says(lambda: train(ddp, sgd(ddp), rank, range(1)))
    return said


def test_mistakes_surface_from_backward_and_leave_the_reducer_whole() -> None:
    for none, wrong, first, second, mended, closed in processes(mistakes, 2):
        assert "state: gravac.hook needs a gravac.HookState, got NoneType: register_comm_hook(" in none
        assert "got AdaptiveCompressor" in wrong
        assert "seed" in first
        assert "seed" in second
        assert mended == "nothing"
        assert "the compressor is closed" in closed
