# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What cannot be averaged over replicas is refused, with the remedy, and changes nothing."""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel

from gravac import AdaptiveCompressor
from tests.hsdp.training import WIDTH, mesh_of, model, sharded
from tests.ranks import processes


def message_of(module: torch.nn.Module, compressor: AdaptiveCompressor | None = None) -> str:
    """Return the text of the error with which ``attach`` refuses a module."""
    try:
        (compressor or AdaptiveCompressor()).attach(module, ())
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "attached"


def forward_message(module: torch.nn.Module) -> str:
    """Return the text of the error that a forward raises."""
    try:
        module(torch.ones(4, WIDTH))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def refusals(rank: int, world: int) -> dict[str, str]:
    """Try what is refused on two ranks."""
    import gravac.sources.fsdp2 as private

    mesh = mesh_of(2)
    steps_in_backward = sharded(mesh)
    for parameter in steps_in_backward.parameters():
        parameter.register_post_accumulate_grad_hook(lambda parameter: None)
    found = {
        "no replicas": message_of(sharded(mesh_of(1)["shard"])),
        "optimizer in backward": message_of(steps_in_backward),
        "FSDP1": message_of(FullyShardedDataParallel(model(), device_id=torch.device("cpu"))),
        "frozen": message_of(sharded(mesh).requires_grad_(False)),
    }
    for name, group in {"same ranks": dist.group.WORLD, "other ranks": mesh["shard"].get_group()}.items():
        found[name] = message_of(sharded(mesh), AdaptiveCompressor(native=False, process_group=group))
    hooked = sharded(mesh)
    hooked[0].set_all_reduce_hook(lambda gradient: None)
    found["all-reduce hook, at attach"] = message_of(hooked)
    hooked_later = sharded(mesh)
    AdaptiveCompressor().attach(hooked_later, ())
    hooked_later[0].set_all_reduce_hook(lambda gradient: None)
    found["all-reduce hook, at the next forward"] = forward_message(hooked_later)
    larger_model = sharded(mesh)
    compressor = AdaptiveCompressor()
    compressor.attach(larger_model[1], ())
    found["part, at its forward"] = forward_message(larger_model)
    compressor.detach()
    found["part, detached"] = forward_message(larger_model)
    found["part, after a forward"] = message_of(larger_model[1])
    found["whole, after a forward"] = message_of(larger_model)
    private.GROUP_NAMES = (*private.GROUP_NAMES, "_name_of_another_torch")
    found["private name"] = message_of(sharded(mesh))
    return found


def test_refused_by_name_with_the_remedy() -> None:
    for found in processes(refusals, 2):
        assert "process_group" in found["no replicas"]
        assert "post-accumulate-grad hook" in found["optimizer in backward"]
        assert "fully_shard (FSDP2)" in found["FSDP1"]
        assert "requires a gradient" in found["frozen"]
        assert found["same ranks"] == "attached"
        assert "replicas on ranks [0, 1], over which gravac averages; leave process_group out" in found["other ranks"]
        for moment in ("at its forward", "after a forward"):
            assert "attach to the larger model, whose forward" in found[f"part, {moment}"]
        for moment in ("at attach", "at the next forward"):
            assert "set_all_reduce_hook was called" in found[f"all-reduce hook, {moment}"]
        assert found["part, detached"] == "no error"
        assert found["whole, after a forward"] == "attached"
        assert f"torch {torch.__version__} lacks a private name of FSDP2" in found["private name"]
        assert "_name_of_another_torch" in found["private name"]


def replicated(rank: int, world: int) -> list[bool]:
    """Return whether torch averages over replicas, for a model with and one without."""
    from gravac.sources.fsdp2 import has_replicas

    return [has_replicas(sharded(mesh)) for mesh in (mesh_of(2), mesh_of(1)["shard"])]


def test_a_model_in_shards_has_replicas_if_its_mesh_replicates() -> None:
    assert processes(replicated, 2) == [[True, False]] * 2
