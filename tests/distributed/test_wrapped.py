# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""``attach`` takes the one DistributedDataParallel that a module is, holds or wraps, or says which module to give."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from gravac import AdaptiveCompressor, SettingsError
from tests.distributed.training import batch, network, parallel, telling, weights
from tests.modes.scripted import APART, HOOK, NATIVE, script
from tests.modes.test_switch import OPTIMIZERS, compressor_of
from tests.ranks import processes


class Wrapper(torch.nn.Module):
    """A user's own: a part that exchanges, a frozen part, and a buffer."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.backbone = inner
        self.teacher = network(1).requires_grad_(False)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> Any:
        self.calls += 1
        return {"logits": self.backbone(x)}


class OfFramework(torch.nn.Module):
    """Holds the module twice, as Lightning Fabric's does: as it is called, and as it was given."""

    def __init__(self, inner: torch.nn.Module, ddp: DistributedDataParallel) -> None:
        super().__init__()
        self._forward_module, self._original_module = inner, ddp.module

    def forward(self, x: torch.Tensor) -> Any:
        return {"logits": self._forward_module(x)}


class Logits(torch.nn.Module):
    """As the others return it."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> Any:
        return {"logits": self.inner(x)}


def compiled(module: torch.nn.Module) -> torch.nn.Module:
    return torch.compile(module, backend="eager")  # type: ignore[return-value]


WRAPPERS: dict[str, Callable[[DistributedDataParallel], torch.nn.Module]] = {
    "none": Logits,
    "own": Wrapper,
    "own, in another": lambda ddp: Logits(Wrapper(ddp).backbone),
    "framework": lambda ddp: OfFramework(ddp, ddp),
    "framework, compiled": lambda ddp: OfFramework(compiled(ddp), ddp),
    "compiled wrapper": lambda ddp: compiled(Wrapper(ddp)),
}

PLAN = script((0, NATIVE), (2, APART), (8, HOOK), (14, APART))

STEPS = 26
"""Steps within which a run is in all modes of ``PLAN``, and apart in the end."""

Trained = tuple[torch.Tensor, list[str], bool]
"""This rank's weights in the end, the modes of all steps, and whether a hook is left."""


def trained(rank: int, wrapper: str) -> Trained:
    # dynamo wants a first bucket that is no larger than the others
    ddp = DistributedDataParallel(network(2))
    called = WRAPPERS[wrapper](ddp)
    optimizer = OPTIMIZERS["sgd"](ddp.parameters())
    compressor = compressor_of(PLAN)
    compressor.attach(ddp if wrapper == "none" else called, optimizer)
    modes = []
    for step in range(STEPS):
        x, y = batch(rank, step)
        optimizer.zero_grad()
        with compressor.no_sync():
            torch.nn.functional.cross_entropy(called(x)["logits"], y).backward()
        torch.nn.functional.cross_entropy(called(x)["logits"], y).backward()
        optimizer.step()
        modes.append(str(compressor.mode))
        if step % 7 == 6:
            called.state_dict()
            with torch.no_grad():
                called(x)
    compressor.detach()
    compressor.close()
    return weights(ddp), modes, bool(ddp._comm_hooks)


class WithHead(torch.nn.Module):
    """A trained part outside of what exchanges."""

    def __init__(self, backbone: torch.nn.Module) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList([backbone])
        self.head = torch.nn.Linear(10, 10)


def refused() -> list[str]:
    said: list[str] = []
    says = telling(said)

    def attach(module: Any) -> None:
        says(lambda: AdaptiveCompressor().attach(module, torch.optim.SGD(module.parameters(), lr=0.1)))

    attach(network(1))
    attach(compiled(network(1)))
    attach(WithHead(parallel(network(1))))
    attach(torch.nn.ModuleDict({"first": parallel(network(1)), "second": parallel(network(1))}))
    attach(DistributedDataParallel(Wrapper(parallel(network(1)))))
    attach(Wrapper(DistributedDataParallel(Wrapper(parallel(network(1))))))
    net = network(1)
    late = [("0.bias", net[0].bias)]
    attach(DistributedDataParallel(net, delay_all_reduce_named_params=late, param_to_hook_all_reduce=net[0].weight))
    return said


class Answers(NamedTuple):
    """What a rank saw: runs by wrapper, and what ``attach`` said to modules that it refuses."""

    runs: dict[str, Trained]
    said: list[str]


def asked(rank: int, world: int) -> Answers:
    return Answers({wrapper: trained(rank, wrapper) for wrapper in WRAPPERS}, refused())


@functools.cache
def answers() -> list[Answers]:
    """One start for all that is compiled: each process imports torch's compiler anew."""
    return processes(asked, 2)


def test_a_ddp_within_other_modules_trains_as_if_it_were_given_itself() -> None:
    first, second = (of_rank.runs for of_rank in answers())
    for runs in (first, second):
        expected, expected_modes, _ = runs["none"]
        for wrapper, (own, modes, hooked) in runs.items():
            assert modes == expected_modes and not hooked, wrapper
            assert torch.equal(own, expected), wrapper
    assert set(first["none"][1]) == {"native", "hook", "outer"}
    assert torch.equal(first["none"][0], second["none"][0])


def test_what_is_no_single_ddp_is_refused_on_all_ranks_with_the_module_to_give() -> None:
    first, second = (of_rank.said for of_rank in answers())
    assert first == second
    bare, compiled_bare, head, two, nested, wrapped, late = first
    for words in (bare, compiled_bare):
        assert words.startswith("TypeError: module: attach needs a DistributedDataParallel, or a model in shards, got")
        assert "wrap the module in DistributedDataParallel" in words
    assert "parameter head.weight is outside of module.parts[0], the DistributedDataParallel inside" in head
    assert "give attach module.parts[0]" in head
    assert "module.first and module.second are both" in two and "an AdaptiveCompressor for each" in two
    assert "module is a DistributedDataParallel, and so is module.module.backbone inside" in nested
    assert "module.backbone is a DistributedDataParallel, and so is module.backbone.module.backbone inside" in wrapped
    assert late.startswith("ValueError: delay_all_reduce_named_params: ") and "leave out" in late


# which object is the optimizer


class Lookahead(torch.optim.Optimizer):
    """Steps another optimizer, and every third time goes half the way back."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        super().__init__(optimizer.param_groups, {})
        self.param_groups = optimizer.param_groups
        self.made = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter].setdefault("slow", parameter.clone())
        loss = self.optimizer.step(closure)
        self.made += 1
        for group in self.param_groups if self.made % 3 == 0 else ():
            for parameter in group["params"]:
                parameter.copy_(self.state[parameter]["slow"].lerp_(parameter, 0.5))
        return loss


class Sharpness(torch.optim.Optimizer):
    """Holds a base optimizer, as SAM does, which makes the step."""

    def __init__(self, base_optimizer: torch.optim.Optimizer) -> None:
        super().__init__(base_optimizer.param_groups, {})
        self.base_optimizer, self.param_groups = base_optimizer, base_optimizer.param_groups

    def step(self, closure: Any = None) -> Any:
        return self.base_optimizer.step(closure)


class NeverConstructed(Lookahead):
    """A torch optimizer by its class alone."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.param_groups = optimizer, optimizer.param_groups


class Holder:
    """No torch optimizer, but holds one."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer


class AcceleratedOptimizer(torch.optim.Optimizer):
    """Of Accelerate, by its name: a torch optimizer by its class alone."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer


def sgd() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(3))], lr=0.1, momentum=0.9)


def test_an_optimizer_that_steps_another_is_taken_as_itself_and_a_frameworks_wrapper_is_not() -> None:
    from gravac.sources.optimizers import optimizers_of

    for outer in (Lookahead(sgd()), Sharpness(sgd())):
        for given in (outer, Holder(outer), AcceleratedOptimizer(outer), Holder(AcceleratedOptimizer(outer))):
            assert optimizers_of(given, (1, 1)) == (outer,)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="NeverConstructed has no step hooks"):
        optimizers_of(NeverConstructed(sgd()), (1, 1))
    with pytest.raises(SettingsError, match=r"is not a torch\.optim\.Optimizer"):
        optimizers_of(Holder(3), (1, 1))  # type: ignore[arg-type]


def stepped_through(rank: int, make: Any) -> list[torch.Tensor]:
    """Train apart, then together; return all tensors of the optimizers' states, and the weights."""
    ddp = parallel(network(2))
    outer = make(torch.optim.SGD(ddp.parameters(), lr=0.02, momentum=0.9))
    compressor = compressor_of(script((0, HOOK), (1, APART), (5, HOOK)))
    compressor.attach(ddp, outer)
    for step in range(20):
        x, y = batch(rank, step)
        outer.zero_grad()
        torch.nn.functional.cross_entropy(ddp(x), y).backward()
        outer.step()
    assert [change.after for change in compressor.changes] == ["outer", "hook"]
    compressor.close()
    inner = vars(outer).get("optimizer") or outer.base_optimizer
    states = [state for optimizer in (outer, inner) for state in optimizer.state.values()]
    return [weights(ddp), *(tensor for state in states for tensor in state.values() if torch.is_tensor(tensor))]


def stepped_through_both(rank: int, world: int) -> list[list[torch.Tensor]]:
    return [stepped_through(rank, make) for make in (Lookahead, Sharpness)]


def test_state_of_an_optimizer_inside_the_given_one_is_equal_when_ranks_come_together() -> None:
    for first, second in zip(*processes(stepped_through_both, 2), strict=True):
        assert len(first) > 5
        assert all(torch.equal(mine, other) for mine, other in zip(first, second, strict=True))
