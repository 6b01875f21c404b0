# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Post-accumulate-grad hooks that users register after ``attach``: as without gravac, or refused by name."""

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from gravac import AdaptiveCompressor, SettingsError, Static, dense
from tests.distributed.training import batch, network, parallel
from tests.hsdp.training import WIDTH, mesh_of, sharded, shards_of
from tests.ranks import processes


def step_in_backward(module: torch.nn.Module, seen: list[torch.Tensor]) -> None:
    """Fuse the optimizer step into the backward pass, as PyTorch's tutorial does."""
    optimizers = {parameter: torch.optim.Adam([parameter], lr=1e-2) for parameter in module.parameters()}

    def hook(parameter: Any) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[attr-defined]


def clip_and_log(module: torch.nn.Module, seen: list[torch.Tensor]) -> None:
    """Clip gradients element by element, and log their norms."""

    def hook(parameter: Any) -> None:
        parameter.grad.clamp_(-0.01, 0.01)
        seen.append(getattr(parameter.grad, "_local_tensor", parameter.grad).norm())

    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[attr-defined]


Register = Callable[[torch.nn.Module, list[torch.Tensor]], None]

NATIVE: dict[str, Any] = {"every": 1, "base": dense, "cf_range": (1, 2), "controller": Static(cf=1)}

DENSE: dict[str, Any] = {"every": 1, "native": False, "controller": Static(cf=1)}

OUTER: dict[str, Any] = {"every": 4, "outer": {"delay": 0}}

SETTINGS: dict[str, dict[str, Any] | None] = {
    "without gravac": None,
    "native": NATIVE,
    "dense": DENSE,
    "outer": OUTER,
}


def trained_shards(
    rank: int, world: int, register: Register, settings: dict[str, Any] | None
) -> tuple[dict[str, torch.Tensor], list[torch.Tensor], str]:
    """Train a model in shards; return this rank's shards, what the hooks saw, and the error."""
    module, seen = sharded(mesh_of(2)), list[torch.Tensor]()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.0 if register is step_in_backward else 0.05)
    compressor = None if settings is None else AdaptiveCompressor(**settings)
    if compressor is not None:
        compressor.attach(module, optimizer)
    register(module, seen)
    generator, message = torch.Generator().manual_seed(rank), ""
    try:
        for _ in range(5):
            x = torch.randn(8, WIDTH, generator=generator)
            (module(x) - x.roll(1, 1)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    except SettingsError as error:
        message = str(error)
    if compressor is not None:
        if not message:
            compressor.detach()
        compressor.close()
    return shards_of(module), seen, message


def shards_in_all_cases(rank: int, world: int) -> dict[tuple[str, str], Any]:
    return {
        (register.__name__, name): trained_shards(rank, world, register, settings)
        for register in (step_in_backward, clip_and_log)
        for name, settings in SETTINGS.items()
    }


@pytest.fixture(scope="module")
def on_shards() -> list[dict[tuple[str, str], Any]]:
    """Each rank's shards, what its hooks saw, and its error, by the hook's and the settings' names."""
    return processes(shards_in_all_cases, 4)


@pytest.mark.parametrize("settings", ["native", "dense"])
@pytest.mark.parametrize("register", ["step_in_backward", "clip_and_log"])
def test_hooks_on_shards_get_the_mean_over_replicas_as_without_gravac(
    on_shards: list[dict[tuple[str, str], Any]], register: str, settings: str
) -> None:
    for found in on_shards:
        weights, seen, message = found[register, "without gravac"]
        weights_with, seen_with, message_with = found[register, settings]
        assert message == message_with == ""
        assert weights.keys() == weights_with.keys()
        for name, shard in weights.items():
            torch.testing.assert_close(weights_with[name], shard, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(sorted(map(float, seen_with)), sorted(map(float, seen)), rtol=1e-5, atol=1e-6)
    shards = [found[register, settings][0] for found in on_shards]
    for one, other in ((0, 2), (1, 3)):
        assert all(torch.equal(shard, shards[other][name]) for name, shard in shards[one].items())


def test_a_step_within_the_backward_of_shards_is_refused_if_outer_steps_are_allowed(
    on_shards: list[dict[tuple[str, str], Any]],
) -> None:
    for found in on_shards:
        _, _, message = found["step_in_backward", "outer"]
        assert "a post-accumulate-grad hook changes" in message
        assert "every=1" in message
        _, seen, message = found["clip_and_log", "outer"]
        assert not message
        assert seen


def trained(
    rank: int, world: int, register: Register, settings: dict[str, Any] | None
) -> tuple[list[torch.Tensor], list[torch.Tensor], str]:
    """Train in DDP; return weights, what the hooks saw, and the error."""
    ddp, seen = parallel(network(2)), list[torch.Tensor]()
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.0 if register is step_in_backward else 0.05)
    compressor = None if settings is None else AdaptiveCompressor(**settings)
    if compressor is not None:
        compressor.attach(ddp, optimizer)
    register(ddp, seen)
    message = ""
    try:
        for step in range(8):
            inputs, labels = batch(rank, step)
            torch.nn.functional.cross_entropy(ddp(inputs), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
    except (SettingsError, RuntimeError) as error:
        message = str(error)
    if compressor is not None:
        compressor.close()
    dist.barrier()
    return [parameter.detach().clone() for parameter in ddp.parameters()], seen, message


def apply_in_backward(module: torch.nn.Module, seen: list[torch.Tensor]) -> None:
    """Let torch step within backward."""
    fused: Any = importlib.import_module("torch.distributed.optim")
    fused._apply_optimizer_in_backward(torch.optim.SGD, module.parameters(), {"lr": 0.1})


def trained_in_all_cases(rank: int, world: int) -> dict[tuple[str, str], Any]:
    cases = [(register, name) for register in (step_in_backward, clip_and_log) for name in SETTINGS]
    return {
        (register.__name__, name): trained(rank, world, register, SETTINGS[name])
        for register, name in [*cases, (apply_in_backward, "outer")]
    }


@pytest.fixture(scope="module")
def in_ddp() -> list[dict[tuple[str, str], Any]]:
    """Each rank's weights, what its hooks saw, and its error, by the hook's and the settings' names."""
    return processes(trained_in_all_cases, 2)


@pytest.mark.parametrize("settings", ["native", "dense"])
@pytest.mark.parametrize("register", ["step_in_backward", "clip_and_log"])
def test_hooks_in_ddp_see_what_they_see_without_gravac(
    in_ddp: list[dict[tuple[str, str], Any]], register: str, settings: str
) -> None:
    for found in in_ddp:
        weights, seen, message = found[register, "without gravac"]
        weights_with, seen_with, message_with = found[register, settings]
        if register == "step_in_backward":  # with plain DDP, too, ranks then train apart, but nobody says so
            assert "differs from that on rank 0" in message_with
            assert "an optimizer steps in a gradient hook" in message_with
            assert all(map(torch.equal, seen, seen_with))
            continue
        assert message == message_with == ""
        assert all(map(torch.equal, weights, weights_with))
        assert all(map(torch.equal, seen, seen_with))


@pytest.mark.parametrize("register", ["step_in_backward", "apply_in_backward"])
def test_a_step_within_the_backward_of_ddp_is_refused_if_outer_steps_are_allowed(
    in_ddp: list[dict[tuple[str, str], Any]], register: str
) -> None:
    for found in in_ddp:
        _, _, message = found[register, "outer"]
        assert "every: outer steps are impossible here" in message
        assert "within backward" in message
        _, seen, message = found["clip_and_log", "outer"]
        assert not message
        assert seen
