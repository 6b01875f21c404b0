# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Programs that people train with, in each mode and across changes of mode: ranks stay together and count alike."""

import copy
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from gravac import AdaptiveCompressor
from tests.distributed.training import batch, network, parallel, weights
from tests.modes.scripted import APART, DENSE, HOOK, NATIVE, same, same_moments, script
from tests.modes.test_switch import OPTIMIZERS, compressor_of
from tests.ranks import processes

TOUR = script((0, NATIVE), (6, DENSE), (12, APART), (23, NATIVE), (30, HOOK))
"""All modes, the last one in gravac's hook."""

STEPS = 44
"""Number of steps of the tour."""

STEPS_OF_A_MODE = 23
"""Number of steps of a run in a single mode: four rounds of outer steps, and a part of one."""

PLANS: dict[str, Any] = {
    "native": script((0, NATIVE)),
    "hook": script((0, DENSE)),
    "outer": script((0, APART)),
    "tour": TOUR,
}


def cross_entropy(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(outputs, y)


def counts(compressor: AdaptiveCompressor) -> tuple[int, int]:
    """Return the numbers of rounds and of steps that this rank has counted in outer steps."""
    outer: Any = compressor.outer
    return (0, 0) if outer is None else (outer.ended, outer.steps)


# frozen and unfrozen


def frozen_after_attach(rank: int, world: int, plan: str | None, frozen_at_attach: bool) -> Any:
    """Train; freeze all layers but the last in steps 5 to 16; return whether ranks are the same, and the weights."""
    ddp = parallel(network(2), find_unused_parameters=True)
    trunk = [*ddp.module[:-1].parameters()]  # type: ignore[index]
    optimizer = OPTIMIZERS["sgd"](ddp.parameters())
    for parameter in trunk if frozen_at_attach else ():
        parameter.requires_grad_(False)
    compressor = None if plan is None else compressor_of(PLANS[plan])
    if compressor is not None:
        compressor.attach(ddp, optimizer)
    for step in range(STEPS if plan == "tour" else STEPS_OF_A_MODE):
        for parameter in trunk:
            parameter.requires_grad_(not (frozen_at_attach or step >= 5) or step >= 17)
        train_step(ddp, optimizer, rank, step)
    if compressor is not None:
        compressor.close()
    return same(ddp), weights(ddp)


def train_step(ddp: torch.nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int) -> None:
    x, y = batch(rank, step)
    optimizer.zero_grad()
    cross_entropy(ddp(x), y).backward()
    optimizer.step()


def freezing(rank: int, world: int) -> dict[str, Any]:
    return {
        f"{plan} {frozen_at_attach}": frozen_after_attach(rank, world, plan, frozen_at_attach)
        for plan in (None, *PLANS)
        for frozen_at_attach in (False, True)
    }


def test_freezing_and_unfreezing_behaves_as_in_plain_ddp_in_every_mode() -> None:
    ranks = processes(freezing, 2)
    for results in ranks:
        assert all(equal for equal, _ in results.values()), {name: equal for name, (equal, _) in results.items()}
        for plan in ("native", "hook"):  # bit for bit
            for frozen_at_attach in (False, True):
                plain, ours = results[f"None {frozen_at_attach}"][1], results[f"{plan} {frozen_at_attach}"][1]
                assert torch.equal(plain, ours), plan


def nothing_trains_while_the_mode_changes(rank: int, world: int) -> bool:
    """Freeze all of the model in two forwards after each step, so that the mode changes in one of them."""
    ddp = parallel(network(2), find_unused_parameters=True)
    optimizer = OPTIMIZERS["sgd"](ddp.parameters())
    compressor = compressor_of(script((0, HOOK), (4, NATIVE)))
    compressor.attach(ddp, optimizer)
    for step in range(12):
        train_step(ddp, optimizer, rank, step)
        ddp.requires_grad_(False)
        for _ in range(2):
            ddp(batch(rank, step)[0])
        ddp.requires_grad_(True)
    equal = compressor.mode == "native" and same(ddp)
    compressor.close()
    return equal


def test_the_mode_may_change_while_no_parameter_requires_a_gradient() -> None:
    assert processes(nothing_trains_while_the_mode_changes, 2) == [True, True]


def scripted(rank: int, world: int) -> list[tuple[Any, bool]]:
    """Train a module of torch.jit.script; return the mode and whether ranks are the same, in native and hook steps."""
    ddp = parallel(torch.jit.script(network(2)))
    optimizer = OPTIMIZERS["sgd"](ddp.parameters())
    compressor = compressor_of(script((0, NATIVE), (6, HOOK)), every=1)
    compressor.attach(ddp, optimizer)
    found = []
    for step in range(12):
        train_step(ddp, optimizer, rank, step)
        if step in (4, 11):
            found.append((compressor.mode, same(ddp)))
    compressor.close()
    return found


def test_a_module_that_takes_no_hooks_trains_in_native_and_hook_steps() -> None:
    assert processes(scripted, 2) == [[("native", True), ("hook", True)]] * 2


# forwards that are differentiated for their input


def adversarial(ddp: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, attacks: int) -> torch.Tensor:
    """Return the loss of a batch that was moved uphill, each time by a forward of its own."""
    for _ in range(attacks):
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(cross_entropy(ddp(x), y), x)
        x = x + 0.01 * gradient.sign()
    return cross_entropy(ddp(x.detach()), y)


def penalized(ddp: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, attacks: int) -> torch.Tensor:
    """Return a loss plus the norm of its gradient for the input."""
    x = x.detach().requires_grad_()
    loss = cross_entropy(ddp(x), y)
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    return loss + 0.1 * gradient.square().sum()


def attacked(rank: int, world: int) -> dict[str, Any]:
    """Train adversarially, rank 1 with more attacks, and with a gradient penalty; return counts and equality."""
    results = {}
    for name, loss_of in {"adversarial": adversarial, "penalized": penalized}.items():
        for plan in PLANS:
            ddp = parallel(network(2))
            optimizer = OPTIMIZERS["sgd"](ddp.parameters())
            compressor = compressor_of(PLANS[plan])
            compressor.attach(ddp, optimizer)
            for step in range(STEPS if plan == "tour" else STEPS_OF_A_MODE):
                optimizer.zero_grad()
                loss_of(ddp, *batch(rank, step), attacks=2 + rank).backward()
                optimizer.step()
            results[f"{name} {plan}"] = compressor.mode == "outer" or same(ddp), counts(compressor)
            compressor.close()
    return results


def test_only_backwards_that_accumulate_gradients_make_steps() -> None:
    first, second = processes(attacked, 2)
    assert first == second
    assert all(equal for equal, _ in first.values()), first
    assert first["adversarial outer"][1] == first["penalized outer"][1] == (4, STEPS_OF_A_MODE)


# a model whose outputs hide their tensors, and steps that a scaler skips on one rank


class Answer:
    """A class of the program's own, which no library knows."""

    def __init__(self, logits: torch.Tensor) -> None:
        self.logits = logits


class Answering(torch.nn.Module):
    """The model, which returns an ``Answer``."""

    def __init__(self) -> None:
        super().__init__()
        self.network = network(2)

    def forward(self, x: torch.Tensor) -> Answer:
        return Answer(self.network(x))


def skipped(rank: int, world: int, set_to_none: bool, clears_late: bool) -> dict[str, Any]:
    """Train with a GradScaler; the loss of rank 1 is infinite in two steps. Return counts and equality."""
    results = {}
    for plan in ("outer", "tour"):
        ddp = parallel(Answering())
        optimizer = OPTIMIZERS["adamw"](ddp.parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1000)
        compressor = compressor_of(PLANS[plan])
        compressor.attach(ddp, optimizer, scaler)
        for step in range(STEPS if plan == "tour" else STEPS_OF_A_MODE):
            x, y = batch(rank, step)
            if not clears_late:
                optimizer.zero_grad(set_to_none)
            loss = cross_entropy(ddp(x).logits, y)
            if clears_late:
                optimizer.zero_grad(set_to_none)
            spoilt = rank == 1 and step in (3, 7, 15, 16, 21)
            scaler.scale(loss * (float("inf") if spoilt else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
        results[plan] = compressor.mode == "outer" or (same(ddp) and same_moments(optimizer)), counts(compressor)
        compressor.close()
    return results


@pytest.mark.parametrize(("set_to_none", "clears_late"), [(True, False), (False, False), (True, True)])
def test_a_step_that_a_scaler_skips_on_one_rank_counts_whatever_the_model_returns(
    set_to_none: bool, clears_late: bool
) -> None:
    first, second = processes(skipped, 2, set_to_none, clears_late)
    assert first == second
    assert first["outer"] == (True, (4, STEPS_OF_A_MODE)) and first["tour"][0]


# weights that the program swaps around an evaluation


class Averaged:
    """A mean of a model's weights, which is put into the model to be evaluated (as pytorch_ema does)."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module, self.means = module, [p.detach().clone() for p in module.parameters()]
        self.stored: list[torch.Tensor] = []

    def update(self) -> None:
        for mean, parameter in zip(self.means, self.module.parameters(), strict=True):
            mean.lerp_(parameter.detach(), 0.1)

    @contextmanager
    def by_data(self) -> Iterator[None]:
        """Put the means into the module by ``.data``."""
        stored = [p.detach().clone() for p in self.module.parameters()]
        for parameter, mean in zip(self.module.parameters(), self.means, strict=True):
            parameter.data.copy_(mean)
        yield
        for parameter, weight in zip(self.module.parameters(), stored, strict=True):
            parameter.data.copy_(weight)

    @contextmanager
    def by_storage(self) -> Iterator[None]:
        """Put the means into the module by other tensors' memory."""
        stored = [p.data for p in self.module.parameters()]
        for parameter, mean in zip(self.module.parameters(), self.means, strict=True):
            parameter.data = mean
        yield
        for parameter, weight in zip(self.module.parameters(), stored, strict=True):
            parameter.data = weight

    @contextmanager
    def by_state_dict(self) -> Iterator[None]:
        """Put the means into the module by ``load_state_dict``."""
        stored = copy.deepcopy(self.module.state_dict())
        names = [name for name, _ in self.module.named_parameters()]
        self.module.load_state_dict(dict(zip(names, self.means, strict=True)), strict=False)
        yield
        self.module.load_state_dict(stored)


def evaluated_means(rank: int, world: int, swap: str, evaluated_before: bool, on_rank_0: bool) -> Any:
    """Train apart; evaluate the means of the weights at times; return evaluations, weights and counts."""
    ddp = parallel(network(2))
    optimizer = OPTIMIZERS["sgd"](ddp.parameters())
    compressor = compressor_of(script((0, APART)))
    compressor.attach(ddp, optimizer)
    averaged, right = Averaged(ddp.module), []
    x, _ = batch(7, 7)
    for step in range(24):
        train_step(ddp, optimizer, rank, step)
        averaged.update()
        if swap and step % 7 == 6 and (rank == 0 or not on_rank_0):
            ddp.eval()
            with torch.no_grad():
                if evaluated_before:
                    ddp(x)
                with getattr(averaged, swap)():
                    evaluated, held = ddp(x), weights(ddp)
                    saved = torch.cat([each.flatten() for each in ddp.module.state_dict().values()])
                expected = torch.func.functional_call(
                    network(2), dict(zip(dict(ddp.module.named_parameters()), averaged.means, strict=True)), x
                )
                means = torch.cat([mean.flatten() for mean in averaged.means])
                right.append(
                    torch.equal(evaluated, expected) and torch.equal(held, means) and torch.equal(saved, means)
                )
            ddp.train()
    own, counted = weights(ddp), counts(compressor)
    compressor.close()
    return right, own, counted


SWAPS = "by_data", "by_storage", "by_state_dict"


def swapping(rank: int, world: int) -> dict[str, Any]:
    results = {"": evaluated_means(rank, world, "", False, False)}
    for swap in SWAPS:
        for evaluated_before in (False, True):
            for on_rank_0 in (False, True):
                results[f"{swap} {evaluated_before} {on_rank_0}"] = evaluated_means(
                    rank, world, swap, evaluated_before, on_rank_0
                )
    return results


def test_weights_that_a_program_swaps_in_are_evaluated_and_training_goes_on_from_its_own() -> None:
    for rank, results in enumerate(processes(swapping, 2)):
        _, undisturbed, counted = results.pop("")
        for name, (right, own, counted_now) in results.items():
            assert all(right) and (rank or len(right) == 3), name
            assert torch.equal(own, undisturbed) and counted_now == counted, name


# a forward without gradients between a step's forward and its backward


def looking_in_between(rank: int, world: int) -> list[tuple[bool, torch.Tensor]]:
    """Train apart; evaluate within each third step, or not. Return whether ranks are the same, and the weights."""
    results = []
    for looks in (False, True):
        ddp = parallel(network(2))
        optimizer = OPTIMIZERS["sgd"](ddp.parameters())
        compressor = compressor_of(script((0, APART), (11, DENSE)))
        compressor.attach(ddp, optimizer)
        for step in range(25):
            x, y = batch(rank, step)
            optimizer.zero_grad()
            loss = cross_entropy(ddp(x), y)
            if looks and step % 3 == 0:
                with torch.no_grad():
                    ddp(x)
            loss.backward()
            optimizer.step()
        results.append((same(ddp), weights(ddp)))
        compressor.close()
    return results


def test_a_forward_without_gradients_within_a_step_leaves_the_weights_of_the_step() -> None:
    for (equal, plain), (equal_too, looked) in processes(looking_in_between, 2):
        assert equal and equal_too and torch.equal(plain, looked)


# optimizers that attach did not get


def renewed(rank: int, world: int) -> tuple[bool, bool, list[str]]:
    """Train with a new optimizer object from step 7 on; return whether ranks are the same, and warnings."""
    import warnings

    ddp = parallel(network(2))
    optimizer = OPTIMIZERS["adamw"](ddp.parameters())
    compressor = compressor_of(script((0, APART), (16, NATIVE)))
    compressor.attach(ddp, optimizer)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(30):
            if step == 7:
                optimizer = torch.optim.RMSprop(ddp.parameters(), lr=1e-3, momentum=0.9)
            train_step(ddp, optimizer, rank, step)
    equal, equal_moments = same(ddp), same_moments(optimizer)
    compressor.close()
    return equal, equal_moments, [str(each.message) for each in caught if "gravac" in str(each.message)]


def test_the_state_of_an_optimizer_that_attach_did_not_get_is_averaged_and_the_optimizer_is_named() -> None:
    for equal, equal_moments, said in processes(renewed, 2):
        assert equal and equal_moments
        assert len(said) == 1 and "RMSprop trains the model, but was not given to attach" in said[0]


# sharpness-aware minimization


class SAM(torch.optim.Optimizer):
    """Two backwards a step: the second where the first points uphill (Foret et al., 2021)."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"rho": 0.05})
        self.base = torch.optim.SGD(self.param_groups, lr=0.02, momentum=0.9)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def climb(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["before"] = parameter.clone()
                parameter.add_(parameter.grad, alpha=0.05)
        self.zero_grad()

    @torch.no_grad()
    def descend(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.copy_(self.state[parameter]["before"])
        self.base.step()
        self.zero_grad()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        assert closure is not None
        closure = torch.enable_grad()(closure)
        closure()
        self.climb()
        closure()
        self.descend()


def sharpness_aware(rank: int, world: int) -> list[Any]:
    """Train by SAM with an odd number of steps a round, the first backward with and without an exchange."""
    results = []
    for no_sync in (False, True):
        for given in ("sam", "base", "closure"):
            ddp = parallel(network(2))
            sam = SAM(ddp.parameters())
            compressor = compressor_of(script((0, APART)))
            compressor.attach(ddp, sam.base if given == "base" else sam)
            far = []

            def backward(step: int, ddp: Any = ddp) -> None:
                x, y = batch(rank, step)
                cross_entropy(ddp(x), y).backward()

            for step in range(21):
                if given == "closure":
                    sam.step(functools.partial(backward, step))
                else:
                    ddp.require_backward_grad_sync = not no_sync
                    backward(step)
                    sam.climb()
                    ddp.require_backward_grad_sync = True
                    backward(step)
                    sam.descend()
                outer: Any = compressor.outer
                if outer.in_round == 0:
                    far.append(
                        float((weights(ddp) - torch.cat([a.flatten() for a in anchors(compressor)])).abs().max())
                    )
            results.append((counts(compressor), far))
            compressor.close()
    return results


def anchors(compressor: AdaptiveCompressor) -> list[torch.Tensor]:
    """Return the weights of the last exchange."""
    switch: Any = compressor._attachment.switch
    return list(switch.outer.shared_tensors.values())


def test_a_step_of_sam_counts_once_and_keeps_what_ranks_exchanged() -> None:
    for results in processes(sharpness_aware, 2):
        for (rounds, steps), far in results:
            assert steps in (21, 22) and rounds == 4  # the first climb is taken for a step: no optimizer was seen yet
            assert far and max(far) == 0.0
