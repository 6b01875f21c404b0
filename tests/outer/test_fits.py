# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Whatever lies in a module: buffers as they lie in memory, parameters that are frozen, unfrozen, moved or new."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from gravac import Static, dense
from tests.outer.by_hand import OuterByHand
from tests.outer.ranks import SGD, Ranks, equal, inner_step, network, saved
from tests.ranks import processes

GUARD = 7.0
"""Value of memory around a tensor, which nobody may change."""

PLAIN: dict[str, Any] = {"base": dense, "cf_range": (1, 2), "controller": Static(cf=1), "delay": 0}
MEAN = partial(torch.optim.SGD, lr=1.0)


class Odd(torch.nn.Module):
    """A model, and a buffer that each forward changes in some way."""

    def __init__(self, buffer: Callable[[], torch.Tensor], change: Callable[[Any, torch.Tensor], None]) -> None:
        super().__init__()
        self.layers = network()
        self.register_buffer("odd", buffer())
        self.change = change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        self.change(self, out.detach().mean().float())
        return out


def add(module: Any, mean: torch.Tensor) -> None:
    module.odd.add_(mean)


def bind_anew(module: Any, mean: torch.Tensor) -> None:
    module.odd = module.odd + mean


def bind_what_requires_gradients(module: Any, mean: torch.Tensor) -> None:
    module.odd = module.odd + mean * next(module.parameters()).mean()


def bind_with_strides(module: Any, mean: torch.Tensor) -> None:
    module.odd = (module.odd + mean).t().contiguous().t()


def slice_of_guarded(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full((9, 9), GUARD).to(dtype)[2:5, 3:7].zero_()


def around(slice_of: torch.Tensor) -> torch.Tensor:
    """All that is in the same memory as a slice, but for the slice."""
    whole = slice_of.detach().as_strided((9, 9), (9, 1), 0).clone().double()
    whole[2:5, 3:7] = GUARD
    return whole


BUFFERS: dict[str, Callable[[], torch.Tensor]] = {
    "0-d": lambda: torch.zeros(()),
    "empty": lambda: torch.zeros(0, 3),
    "slice": slice_of_guarded,
    "transposed": lambda: torch.zeros(3, 4).t(),
    "channels last": lambda: torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last),
    "every other": lambda: torch.zeros(3, 8)[:, ::2],
    "float16": lambda: torch.zeros(3, 4, dtype=torch.float16),
    "float64": lambda: torch.zeros(3, 4, dtype=torch.float64),
    "complex": lambda: torch.zeros(3, 4, dtype=torch.complex64),
    "conjugate": lambda: torch.zeros(3, 4, dtype=torch.complex64).conj(),
}


@pytest.mark.parametrize("lies", BUFFERS)
def test_a_buffer_is_averaged_however_it_lies(lies: str) -> None:
    def change(module: Any, mean: torch.Tensor) -> None:
        module.odd.add_(mean * (1 + 2j) if module.odd.is_complex() else mean)

    make = partial(Odd, BUFFERS[lies], change)
    apart, together = (Ranks(2, every=every, make=make).train(4) for every in (100, 4))
    mean = torch.stack([module.odd.resolve_conj() for module in apart.modules]).mean(0)
    assert not mean.numel() or mean.abs().min() > 0
    for module in together.modules:
        torch.testing.assert_close(module.odd.resolve_conj(), mean.resolve_conj())
        if lies == "slice":
            assert (around(module.odd) == GUARD).all()


@pytest.mark.parametrize("change", [bind_anew, bind_what_requires_gradients, bind_with_strides])
def test_a_buffer_that_forward_binds_anew_is_averaged_and_saved(change: Any) -> None:
    make = partial(Odd, lambda: torch.zeros(3, 4), change)
    apart, together = (Ranks(2, every=every, make=make).train(4) for every in (100, 4))
    mean = torch.stack([module.odd.detach() for module in apart.modules]).mean(0)
    assert mean.abs().min() > 0
    for module in together.modules:
        torch.testing.assert_close(module.odd.detach(), mean)
    states = [saved(outer.state_dict()) for outer in together.train(1).outer]  # in the middle of a round
    own = [module.odd.detach() for module in together.modules]
    assert not equal(own)
    again = Ranks(2, every=4, make=make)
    for outer, state in zip(again.outer, states, strict=True):
        outer.load_state_dict(state)
    assert all(map(torch.equal, own, [module.odd for module in again.modules]))


def test_a_buffer_of_another_precision_is_averaged_where_the_module_was_moved() -> None:
    def change(module: Any, mean: torch.Tensor) -> None:
        module.odd = (module.odd.double() + mean).to(torch.float64)

    make = partial(Odd, lambda: torch.zeros(3, 4), change)
    apart, together = (Ranks(2, every=every, make=make).train(4) for every in (100, 4))
    mean = torch.stack([module.odd for module in apart.modules]).mean(0)
    for module in together.modules:
        assert module.odd.dtype == torch.float64
        torch.testing.assert_close(module.odd, mean, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("view", [lambda odd: odd, lambda odd: odd.view(-1)[2:]])
@pytest.mark.parametrize("delay", [0, 2])
def test_two_names_of_one_memory_are_taken_up_once_and_come_back_after_a_look(delay: int, view: Any) -> None:
    def make(twice: bool) -> torch.nn.Module:
        module = Odd(lambda: torch.zeros(3, 4), add)
        if twice:
            module.register_buffer("again", view(module.odd))
        return module

    once, twice = (
        Ranks(2, every=4, delay=delay, mixing=0.5, make=partial(make, more)).train(10) for more in (False, True)
    )
    own = [module.odd.clone() for module in twice.modules]
    assert equal([*(module.odd for module in once.modules[:1]), own[0]])
    for outer, module, before in zip(twice.outer, twice.modules, own, strict=True):
        with outer.shared_weights():
            looked = module.odd.clone()
        assert torch.equal(module.odd, before)
        assert not torch.equal(looked, before)


def test_what_an_evaluation_does_to_buffers_is_in_no_anchor() -> None:
    trained = Ranks(2, every=4, make=partial(Odd, lambda: torch.zeros(3, 4), add)).train(5)
    before, own = trained.anchors[0], trained.modules[0].odd.clone()
    with trained.outer[0].shared_weights():
        trained.modules[0].odd.add_(1)
    assert torch.equal(trained.anchors[0], before)
    assert torch.equal(trained.modules[0].odd, own)


def expand(module: Any, mean: torch.Tensor) -> None:
    module.odd = mean.expand(3, 4)


def test_a_buffer_that_cannot_be_averaged_is_refused_by_name() -> None:
    def refused(buffer: Callable[[], torch.Tensor], said: str, **settings: Any) -> None:
        with pytest.raises(ValueError, match=said):
            Ranks(1, make=partial(Odd, buffer, add), **settings)

    refused(
        lambda: torch.zeros(4).expand(2000, 4), r"module: buffer odd has shape \(2000, 4\).*its \.contiguous\(\) copy"
    )
    refused(lambda: torch.zeros(10).as_strided((4, 4), (2, 1)), "several of its elements share memory")
    refused(lambda: torch.eye(3).to_sparse(), "buffer odd is of layout torch.sparse_coo")
    refused(lambda: torch.zeros(3, 4).to(torch.float8_e4m3fn), r"in torch.float8_e4m3fn.*local_buffers=\['odd'\]")
    Ranks(1, make=partial(Odd, lambda: torch.zeros(3).to(torch.float8_e4m3fn), lambda *_: None), local_buffers=["odd"])


def becomes(new: Any) -> Callable[[Any, torch.Tensor], None]:
    def change(module: Any, mean: torch.Tensor) -> None:
        module.odd = new(module.odd)

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (becomes(lambda odd: odd[:1].expand(3, 4)), r"buffer odd has shape \(3, 4\) and strides \(0, 1\)"),
        (becomes(lambda odd: None), "buffer odd, which ranks average in each round, is gone"),
        (becomes(lambda odd: odd.to(torch.int32)), "buffer odd is in torch.int32"),
        (lambda module, mean: module.register_buffer("late", mean), "buffer late did not exist"),
    ],
)
def test_a_buffer_that_no_longer_fits_is_named_before_anything_leaves(change: Any, said: str) -> None:
    trained = Ranks(1, every=3, make=partial(Odd, lambda: torch.zeros(3, 4), change)).train(2)
    with pytest.raises(ValueError, match=said):
        trained.train(1)
    assert (trained.outer[0].rounds, trained.outer[0].under_way) == (0, False)


def test_parameters_beside_each_other_in_one_memory_are_exchanged() -> None:
    def flattened() -> torch.nn.Module:
        module, flat = network(), torch.zeros(sum(p.numel() for p in network().parameters()))
        start = 0
        for parameter in module.parameters():
            end = start + parameter.numel()
            parameter.data = flat[start:end].view_as(parameter).copy_(parameter.data)
            start = end
        return module

    trained, plain = (Ranks(2, every=3, make=make).train(6) for make in (flattened, network))
    assert equal([*trained.weights, *plain.weights])


# over gloo


def trained_with_guard(rank: int, world: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    module = Odd(slice_of_guarded, add)
    module.odd.add_(rank)
    inner = SGD(module.parameters())
    outer = OuterByHand(module, inner, every=3, outer=MEAN, **PLAIN)
    first = module.odd.clone()
    for step in range(7):
        inner_step(module, inner, step, rank)
        outer.step()
    with outer.shared_weights():
        anchor = module.odd.clone()
    outer.close()
    return first, anchor, around(module.odd)


def test_over_a_network_nothing_beside_a_buffer_is_written() -> None:
    (start, anchor, beside), again = processes(trained_with_guard, 2)
    assert all((outside == GUARD).all() for outside in (beside, again[2]))
    assert equal([start, again[0]])
    assert equal([anchor, again[1]])
    assert not torch.equal(start, anchor)


# parameters


def half_frozen() -> torch.nn.Module:
    module = network()
    for parameter in module[0].parameters():
        parameter.requires_grad_(False)
    return module


def unfreeze(trained: Ranks) -> None:
    for module in trained.modules:
        module[0].weight.requires_grad_(True)


def rebind(trained: Ranks) -> None:
    for module in trained.modules:
        module[2].weight = torch.nn.Parameter(module[2].weight.detach().clone())


def widen(trained: Ranks) -> None:
    for module, inner in zip(trained.modules, trained.inner, strict=True):
        module.late = torch.nn.Linear(4, 4)
        inner.add_param_group({"params": [*module.late.parameters()]})


def train_something_else(trained: Ranks) -> None:
    for inner in trained.inner:
        inner.add_param_group({"params": [torch.nn.Parameter(torch.zeros(3))]})


def move(trained: Ranks) -> None:
    for module in trained.modules:
        module.to(torch.float64)


def transpose(trained: Ranks) -> None:
    for module in trained.modules:
        module[2].weight.data = module[2].weight.data.t().contiguous().t()


@pytest.mark.parametrize(
    ("does", "said"),
    [
        (unfreeze, "module: parameter 0.weight requires a gradient, but did not"),
        (rebind, "module: parameter 2.weight requires a gradient, .* was another tensor"),
        (widen, "module: parameter late.weight requires a gradient"),
        (train_something_else, r"optimizer: it trains a tensor of shape \(3,\) that is not a parameter of the module"),
        (move, r"module: parameter 2.weight is torch.float64 .*, but was torch.float32 .*or move the module before"),
        (transpose, r"module: parameter 2.weight .* strides \(1, 40\), .* was .* strides \(32, 1\)"),
    ],
)
def test_what_would_be_trained_apart_is_named_on_every_rank_before_anything_leaves(does: Any, said: str) -> None:
    trained = Ranks(2, every=3, make=half_frozen).train(4)
    does(trained)
    for outer in trained.outer:
        outer.leave()
        with pytest.raises(ValueError, match=said):
            outer.leave()
        assert (outer.rounds, outer.under_way) == (1, False)


def test_what_the_module_does_not_have_is_refused_at_the_start() -> None:
    other = torch.nn.Parameter(torch.zeros(3))
    with pytest.raises(ValueError, match=r"optimizer: it trains a tensor of shape \(3,\)"):
        Ranks(1, inner=lambda parameters: SGD([*parameters, other]))


@pytest.mark.parametrize("delay", [0, 2])
def test_a_parameter_that_is_frozen_later_stays_as_it_is_and_others_train(delay: int) -> None:
    trained = Ranks(2, every=3, delay=delay, mixing=None).train(3)
    trained.synchronize()
    for module in trained.modules:
        module[0].weight.requires_grad_(False)
        module[0].weight.grad = None
    frozen, others = trained.modules[0][0].weight.clone(), trained.modules[0][2].weight.clone()
    trained.train(9)
    trained.synchronize()
    for module in trained.modules:
        torch.testing.assert_close(module[0].weight, frozen, atol=1e-6, rtol=1e-6)
        assert not torch.allclose(module[2].weight, others)
    assert equal(trained.anchors)
    for module in trained.modules:
        module[0].weight.requires_grad_(True)  # again, which is exchanged again
    trained.train(6)
    assert equal(trained.anchors)
    assert not torch.allclose(trained.modules[0][0].weight, frozen)
