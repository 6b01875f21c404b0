# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""DDP's own exchange, steered from outside: silent while ranks train apart, as that of a new module afterwards."""

import copy
import functools
import gc
import importlib
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from gravac import AdaptiveCompressor
from gravac.attach import cfs_of_native_steps
from gravac.modes.outer.starting import check_outer_steps_possible
from gravac.settings import SettingsError
from gravac.sources.ddp import DDPSource
from gravac.sources.ddp_private import (
    NAMES_FOR_MODES,
    NAMES_FOR_NEW_REDUCER,
    NAMES_FOR_STATIC_GRAPH,
    TORCH_NAMES_FOR_MODES,
    Reducer,
)
from tests.ranks import processes

WIDTH = 12


class Plain(torch.nn.Module):
    """Layers, of which a branch is used only if told so."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.branch = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, branch: bool = True) -> torch.Tensor:
        x = torch.tanh(self.second(torch.relu(self.first(x))))
        return self.branch(x) if branch else x


class Normed(Plain):
    """Batch norm: DDP broadcasts its buffers in each synced forward."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(WIDTH)

    def forward(self, x: torch.Tensor, branch: bool = True) -> torch.Tensor:
        return super().forward(self.norm(x), branch)


class Checkpointed(Plain):
    """Layers whose activations are computed anew in backward."""

    reentrant = False

    def forward(self, x: torch.Tensor, branch: bool = True) -> torch.Tensor:
        x = checkpoint(self.first, x.requires_grad_(), use_reentrant=self.reentrant)
        return super().forward(x, branch)


class Reentrant(Checkpointed):
    """Activations that a backward within backward computes anew."""

    reentrant = True


class Case(NamedTuple):
    """A way to train.

    Attributes:
        model: class of the module.
        options: of DistributedDataParallel.
        accumulates: ``"no_sync"`` or ``"flag"``, as nanoGPT does it; two backwards a step.
        compiles: ``"inner"``, DDP of a compiled module, or ``"outer"``, a compiled DDP.
        skips: whether steps in turn leave the branch out.
        compiling_ranks: number of ranks that compile, if any; the others make the same steps without a compiler.
    """

    model: type[torch.nn.Module] = Plain
    options: dict[str, Any] = {}  # noqa: RUF012
    accumulates: str = ""
    compiles: str = ""
    skips: bool = False
    compiling_ranks: int = 2


CASES = {
    "plain": Case(),
    "no_sync": Case(accumulates="no_sync"),
    "flag": Case(accumulates="flag"),
    "find_unused": Case(options={"find_unused_parameters": True}, skips=True),
    "find_unused, accumulation": Case(options={"find_unused_parameters": True}, skips=True, accumulates="no_sync"),
    "static_graph": Case(options={"static_graph": True}),
    "bucket_view": Case(options={"gradient_as_bucket_view": True}),
    "bucket_view, accumulation": Case(options={"gradient_as_bucket_view": True}, accumulates="flag"),
    "bucket_view, static_graph": Case(options={"gradient_as_bucket_view": True, "static_graph": True}),
    "batch norm": Case(model=Normed),
    "batch norm, accumulation": Case(model=Normed, accumulates="flag"),
    "checkpoint": Case(model=Checkpointed),
    "reentrant checkpoint, static_graph": Case(model=Reentrant, options={"static_graph": True}),
    "DDP(compile) on a rank": Case(compiles="inner", compiling_ranks=1),
    "DDP(compile)": Case(compiles="inner"),
    "compile(DDP)": Case(compiles="outer"),
}


class Trained:
    """A module, its DDP, and what steers that.

    Args:
        case: how it trains.
        module: its start.
    """

    def __init__(self, case: Case, module: torch.nn.Module) -> None:
        self.case, self.module, self.apart = case, module, False
        compiles = case.compiles if dist.get_rank() < case.compiling_ranks else ""
        inner = torch.compile(module, backend="aot_eager") if compiles == "inner" else module
        # dynamo's splitting at buckets takes none that is smaller than torch's first
        small: Any = {} if case.compiles else {"bucket_cap_mb": 0.0003}
        self.ddp = DistributedDataParallel(inner, **small, **case.options)
        self.called: Any = torch.compile(self.ddp, backend="aot_eager") if compiles == "outer" else self.ddp
        self.reducer = Reducer(self.ddp)
        self.seen: list[bool] = []

    def steer(self) -> None:
        """Let hooks of forward silence the module while ranks train apart."""
        self.ddp.register_forward_pre_hook(lambda *_: self.reducer.silence_exchange() if self.apart else None)
        self.ddp.register_forward_hook(lambda *_: self.reducer.restore_flags(), always_call=True)

    def train(self, rank: int, steps: range) -> None:
        """Steps of SGD; after each ``seen`` has whether the reducer averaged."""
        optimizer = torch.optim.SGD(self.module.parameters(), lr=0.1)
        for step in steps:
            optimizer.zero_grad()
            for part in range(micro := 2 if self.case.accumulates else 1):
                last = part == micro - 1
                if self.case.accumulates == "flag":
                    self.ddp.require_backward_grad_sync = last
                quiet = self.case.accumulates == "no_sync" and not last
                with self.ddp.no_sync() if quiet else nullcontext():
                    x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(100 * step + 10 * part + rank))
                    loss = self.called(x, not (self.case.skips and step % 2)).square().mean()
                    assert self.reducer.will_average == (last or self.case.accumulates == "")
                    loss.backward()
            optimizer.step()
            self.seen.append(self.reducer.has_averaged())

    def bits(self) -> torch.Tensor:
        """All parameters and buffers, flat."""
        held = (*self.module.parameters(), *self.module.buffers())
        return torch.cat([tensor.detach().flatten().double() for tensor in held])


def model(case: Case) -> torch.nn.Module:
    torch.manual_seed(0)
    return case.model()


def local(case: Case, rank: int, module: torch.nn.Module, steps: range) -> torch.Tensor:
    """Weights and buffers after steps without any DDP."""
    alone = Trained.__new__(Trained)
    alone.case, alone.module = Case(case.model, {}, case.accumulates and "flag", "", case.skips), module
    alone.ddp = alone.called = module  # type: ignore[assignment]
    alone.reducer, alone.seen = Alone(module), []  # type: ignore[assignment]
    alone.train(rank, steps)
    return alone.bits()


class Alone:
    """Stands for the reducer of a module that has none."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module: Any = module

    @property
    def will_average(self) -> bool:
        return getattr(self._module, "require_backward_grad_sync", True)

    def has_averaged(self) -> bool:
        return False


def collectives() -> int:
    """Number of collectives that were started on the default group."""
    group: Any = dist.group.WORLD
    return int(group._get_backend(torch.device("cpu"))._get_sequence_number_for_group())


def in_turns(rank: int, world: int, function: Callable[[], None]) -> None:
    """Call a function on one rank after the other: none is there to answer another.

    They wait for each other by the store, where nothing is a collective.
    """
    store: Any = dist.distributed_c10d._get_default_store()
    count = store.add(f"turns {rank}", 1)
    if rank:
        store.wait([f"turn {count} of {rank - 1} is over"])
    function()
    store.set(f"turn {count} of {rank} is over", "")
    store.wait([f"turn {count} of {world - 1} is over"])


def from_first(module: torch.nn.Module) -> None:
    for tensor in (*module.parameters(), *module.buffers()):
        dist.broadcast(tensor.detach(), 0)


def apart_and_back(rank: int, world: int, name: str, starts_apart: bool) -> dict[str, Any]:
    case = CASES[name]
    trained = Trained(case, model(case))
    trained.steer()
    found: dict[str, Any] = {"native": [], "apart": [], "again": []}
    step = 0
    for _ in range(2):
        if not starts_apart:
            trained.train(rank, range(step, step + 3))
            step += 3
        found["native"] += trained.seen
        trained.seen.clear()
        dist.barrier()
        alone = copy.deepcopy(trained.module)
        trained.apart = True
        steps = range(step, step + 3)
        before = collectives()
        in_turns(rank, world, functools.partial(trained.train, rank, steps))
        found.setdefault("sent", []).append(collectives() - before)
        found.setdefault("local", []).append(torch.equal(trained.bits(), local(case, rank, alone, steps)))
        found["apart"] += trained.seen
        trained.seen.clear()
        from_first(trained.module)
        trained.reducer.renew()
        trained.apart = False
        fresh = Trained(case, copy.deepcopy(trained.module))
        native = range(step + 3, step + 7)
        trained.train(rank, native)
        fresh.train(rank, native)
        found["again"] += trained.seen
        trained.seen.clear()
        found.setdefault("as fresh", []).append(torch.equal(trained.bits(), fresh.bits()))
        found["parameters"] = torch.cat([p.detach().flatten() for p in trained.module.parameters()])
        step += 7
        starts_apart = False
    return found


@pytest.mark.parametrize(
    ("name", "starts_apart"),
    [
        pytest.param(
            name,
            starts_apart,
            id=f"{name}-{'from the first step' if starts_apart else 'after native steps'}",
            marks=pytest.mark.long
            if case.compiles and (name, starts_apart) != ("DDP(compile) on a rank", True)
            else (),
        )
        for name, case in CASES.items()
        for starts_apart in (True, False)
    ],
)
def test_apart_sends_nothing_and_a_new_reducer_averages_as_a_fresh_module_does(name: str, starts_apart: bool) -> None:
    ranks = processes(apart_and_back, 2, name, starts_apart)
    for found in ranks:
        assert found["sent"] == [0, 0]
        assert found["local"] == [True, True]
        assert found["as fresh"] == [True, True]
        assert not any(found["apart"])
        assert found["native"] == [True] * (3 if starts_apart else 6)
        assert found["again"] == [True] * 8
    assert torch.equal(ranks[0]["parameters"], ranks[1]["parameters"])


def test_collectives_are_counted() -> None:
    assert processes(counted, 2) == [1, 1]


def counted(rank: int, world: int) -> int:
    before = collectives()
    dist.all_reduce(torch.ones(3))
    return collectives() - before


def float16_and_back(rank: int, world: int) -> list[bool]:
    trained = Trained(CASES["plain"], model(CASES["plain"]))
    fresh = Trained(CASES["plain"], copy.deepcopy(trained.module))
    seen = []
    for number, to in enumerate(("float16", "float32", "float16", "hook", "float32")):
        trained.reducer.renew()
        if to == "float16":
            trained.reducer.use_float16()
        elif to == "hook":
            trained.reducer.register_hook(summed)
        fresh.module.load_state_dict(trained.module.state_dict())
        for each in (trained, fresh):
            each.train(rank, range(10 * number, 10 * number + 3))
        same = torch.equal(trained.bits(), fresh.bits())
        seen.append(same == (to != "float16") and torch.allclose(trained.bits(), fresh.bits(), atol=1e-3))
        seen.append(bool(trained.ddp._comm_hooks) == (to == "hook"))
    with pytest.raises(RuntimeError, match="can only be called once"):
        trained.reducer.register_hook(summed)
        trained.reducer.use_float16()
    return [*seen, *trained.seen]


def summed(
    state: Any,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[torch.Tensor]:
    bucket.buffer().div_(dist.get_world_size())
    work: Any = dist.all_reduce(bucket.buffer(), async_op=True)
    averaged: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda done: done.value()[0])
    return averaged


def test_float16_and_a_hook_are_put_on_and_taken_off() -> None:
    assert all(map(all, processes(float16_and_back, 2)))


def detached_and_dropped(rank: int, world: int, native: bool) -> bool:
    ddp = DistributedDataParallel(Plain())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    compressor = AdaptiveCompressor(native=native)
    compressor.attach(ddp, optimizer)
    for _ in range(8):
        ddp(X).sum().backward()
        optimizer.step()
    dropped = weakref.ref(compressor)
    compressor.detach()
    compressor.close()
    del compressor
    gc.collect()
    return dropped() is None


@pytest.mark.parametrize("native", [True, False])
def test_a_detached_compressor_is_held_by_nothing_while_the_module_lives(native: bool) -> None:
    assert processes(detached_and_dropped, 2, native) == [True, True]


@pytest.fixture
def one_rank() -> Iterator[None]:
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


OPTIONS: list[dict[str, bool]] = [
    {},
    {"static_graph": True},
    {"find_unused_parameters": True},
    {"gradient_as_bucket_view": True},
]

X = torch.ones(2, WIDTH)


@pytest.mark.usefixtures("one_rank")
class TestHasAveraged:
    """What ``has_averaged`` tells apart."""

    @pytest.mark.parametrize("options", OPTIONS, ids=str)
    def test_each_synced_backward_is_told_once_and_nothing_else_is(self, options: dict[str, bool]) -> None:
        ddp = DistributedDataParallel(Plain(), **options)  # type: ignore[arg-type]
        reducer = Reducer(ddp)
        assert not reducer.has_averaged()
        for _ in range(4):
            out = ddp(X)
            assert not reducer.has_averaged()
            out.sum().backward()
            assert reducer.has_averaged()
            assert not reducer.has_averaged()
            with torch.no_grad():
                ddp(X)
            assert not reducer.has_averaged()
        if "static_graph" not in options:
            with ddp.no_sync():
                ddp(X).sum().backward()
            assert not reducer.has_averaged()
            ddp(X).sum().backward()
            assert reducer.has_averaged()

    def test_of_a_parameter_without_gradient(self) -> None:
        ddp = DistributedDataParallel(Plain(), find_unused_parameters=True)
        reducer = Reducer(ddp)
        for branch in (False, True, False):
            ddp(X, branch).sum().backward()
            assert reducer.has_averaged()
            assert not reducer.has_averaged()

    @pytest.mark.parametrize("options", OPTIONS, ids=str)
    def test_an_exception_between_forward_and_backward_is_none(self, options: dict[str, bool]) -> None:
        ddp = DistributedDataParallel(Plain(), **options)  # type: ignore[arg-type]
        reducer = Reducer(ddp)
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                ddp(X).sum() / (1 // 0)
            assert not reducer.has_averaged()
            ddp(X).sum().backward()
            assert reducer.has_averaged()

    @pytest.mark.parametrize("options", OPTIONS, ids=str)
    def test_a_new_reducer_has_averaged_nothing_and_what_the_old_one_did_is_told(
        self, options: dict[str, bool]
    ) -> None:
        ddp = DistributedDataParallel(Plain(), **options)  # type: ignore[arg-type]
        reducer = Reducer(ddp)
        for _ in range(3):
            ddp(X).sum().backward()
            reducer.renew()
            assert reducer.has_averaged()
            assert not reducer.has_averaged()
            reducer.renew()
            assert not reducer.has_averaged()

    @pytest.mark.parametrize("options", OPTIONS, ids=str)
    def test_what_was_averaged_before_ranks_part_is_told(self, options: dict[str, bool]) -> None:
        ddp = DistributedDataParallel(Plain(), **options)  # type: ignore[arg-type]
        reducer = Reducer(ddp)
        ddp(X).sum().backward()
        reducer.silence_exchange()
        out = ddp(X)
        reducer.restore_flags()
        assert reducer.has_averaged()
        out.sum().backward()
        assert not reducer.has_averaged()

    @pytest.mark.parametrize("options", OPTIONS, ids=str)
    def test_the_last_native_backward_before_the_module_is_deleted_is_told(self, options: dict[str, bool]) -> None:
        """Frameworks drop their module before a last checkpoint, at another time on each rank."""
        ddp = DistributedDataParallel(Plain(), **options)  # type: ignore[arg-type]
        reducer = Reducer(ddp)
        for last in (False, True):
            reducer.renew()
            for _ in range(2):
                ddp(X).sum().backward()
            if not last:
                assert reducer.has_averaged()
        del ddp
        gc.collect()
        assert reducer.has_averaged()
        assert not reducer.has_averaged()

    def test_a_single_parameter_is_not_enough_to_be_sure(self) -> None:
        assert not Reducer(DistributedDataParallel(torch.nn.Linear(2, 2, bias=False))).detects_all_backwards
        assert Reducer(DistributedDataParallel(torch.nn.Linear(2, 2))).detects_all_backwards

    def test_buckets_in_another_order_are_none(self) -> None:
        ddp = DistributedDataParallel(Plain())
        reducer = Reducer(ddp)
        ddp(X).sum().backward()
        assert reducer.has_averaged()
        ddp(X)  # which has the buckets laid anew
        assert not reducer.has_averaged()


@pytest.mark.usefixtures("one_rank")
class TestFlags:
    """The user's flags, and what a forward leaves of them."""

    def test_they_come_back_from_a_forward_that_fails(self) -> None:
        ddp = DistributedDataParallel(Plain())
        reducer = Reducer(ddp)
        ddp.register_forward_pre_hook(lambda *_: reducer.silence_exchange())
        ddp.register_forward_hook(lambda *_: reducer.restore_flags(), always_call=True)
        for users in (True, False, True):
            ddp.require_backward_grad_sync = users
            with pytest.raises(RuntimeError, match="shapes"):
                ddp(torch.ones(2, WIDTH + 1))
            assert ddp.require_backward_grad_sync == users == reducer.will_average
            ddp(X)
            assert ddp.require_backward_grad_sync == users == reducer.will_average
            assert ddp.require_forward_param_sync == users

    def test_a_forward_whose_hook_was_never_called_keeps_the_users_flags(self) -> None:
        ddp = DistributedDataParallel(Plain())
        reducer = Reducer(ddp)
        reducer.silence_exchange()
        reducer.silence_exchange()
        assert not ddp.require_backward_grad_sync
        assert reducer.will_average
        reducer.restore_flags()
        reducer.restore_flags()
        assert ddp.require_backward_grad_sync
        assert ddp.require_forward_param_sync

    def test_a_forward_without_gradients_leaves_them_as_they_were(self) -> None:
        ddp = DistributedDataParallel(Normed())
        reducer = Reducer(ddp)
        for before in (True, False):
            ddp.require_forward_param_sync = before
            with torch.no_grad():
                reducer.silence_exchange()
                ddp(X)
                reducer.restore_flags()
            assert ddp.require_forward_param_sync == before

    def test_join_is_known(self) -> None:
        ddp = DistributedDataParallel(Plain())
        engine: Any = None
        source = DDPSource(engine)
        assert not source.in_join
        source.attach(Reducer(ddp), None, summed)
        assert not source.in_join
        with ddp.join():
            assert source.in_join
        with ddp.join(enable=False):
            assert not source.in_join

    def test_the_module_can_be_deleted(self) -> None:
        reducer = Reducer(DistributedDataParallel(Plain()))
        gc.collect()
        with pytest.raises(RuntimeError, match="deleted"):
            reducer.silence_exchange()


@pytest.mark.usefixtures("one_rank")
class TestRenewed:
    """A new reducer averages what DDP was created to average."""

    def test_a_parameter_that_is_frozen_meanwhile(self) -> None:
        ddp = DistributedDataParallel(Plain())
        reducer, weight = Reducer(ddp), ddp.module.first.weight
        weight.requires_grad_(False)
        reducer.renew()
        assert not weight.requires_grad
        weight.requires_grad_()
        hooked = []
        weight.register_post_accumulate_grad_hook(hooked.append)
        ddp(X).sum().backward()
        assert len(ddp.reducer.get_backward_stats()) == len([*ddp.parameters()])
        assert reducer.has_averaged() and hooked

    def test_the_old_buckets_are_freed_before_there_are_new_ones(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ddp = DistributedDataParallel(Plain())
        reducer = Reducer(ddp)
        buffers: list[StorageWeakRef] = []

        def hook(_: Any, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
            buffers.append(StorageWeakRef(bucket.buffer().untyped_storage()))
            future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
            future.set_result(bucket.buffer())
            return future

        make_reducer, freed = ddp._ddp_init_helper, []

        def observed(*arguments: Any) -> None:
            freed.extend(buffer.expired() for buffer in buffers)
            make_reducer(*arguments)

        monkeypatch.setattr(ddp, "_ddp_init_helper", observed)
        reducer.register_hook(hook)
        ddp(X).sum().backward()
        reducer.renew()
        assert freed and all(freed)

    def test_a_parameter_with_a_new_name(self) -> None:
        ddp = DistributedDataParallel(Plain())
        reducer = Reducer(ddp)
        torch.nn.utils.parametrize.register_parametrization(ddp.module.first, "weight", torch.nn.Identity())
        assert "first.weight" not in dict(ddp.module.named_parameters())
        reducer.renew()
        assert len(ddp.reducer.get_backward_stats()) == len([*ddp.parameters()])

    def test_a_sparse_gradient(self) -> None:
        ddp = DistributedDataParallel(torch.nn.EmbeddingBag(5, 3, sparse=True))
        reducer = Reducer(ddp)
        reducer.renew()
        for _ in range(2):
            ddp(torch.tensor([[1, 2]])).sum().backward()
        gradient = ddp.module.weight.grad
        assert gradient.is_sparse and gradient.to_dense()[1, 0] == 1.0


@pytest.mark.usefixtures("one_rank")
class TestNames:
    """A private name that this torch lacks is named."""

    @pytest.mark.parametrize("name", [*NAMES_FOR_MODES, *NAMES_FOR_STATIC_GRAPH])
    def test_each_that_ddp_lacks_is_named(self, name: str) -> None:
        ddp = DistributedDataParallel(Plain(), static_graph=True)
        reducer = Reducer(ddp)
        reducer.check_names()
        reducer.ddp_ref = lambda: Without(ddp, name)  # type: ignore[assignment, return-value]
        with pytest.raises(SettingsError) as refused:
            reducer.check_names()
        assert all(
            part in str(refused.value)
            for part in (f" no DistributedDataParallel.{name}", torch.__version__, "every=1 and native=False")
        )

    @pytest.mark.parametrize("name", TORCH_NAMES_FOR_MODES)
    def test_each_that_torch_lacks_is_named(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        ddp = DistributedDataParallel(Plain())
        if "BuiltinCommHookType" in name:
            monkeypatch.setattr(dist, "BuiltinCommHookType", object())
        else:
            monkeypatch.delattr(f"torch.{name}")
        with pytest.raises(SettingsError, match=f"no torch.{name},") as refused:
            Reducer(ddp).check_names()
        assert "every=1 and native=False" in str(refused.value)

    def test_a_module_without_a_static_graph_needs_fewer(self) -> None:
        ddp = DistributedDataParallel(Plain())
        Reducer(ddp).check_names()

    def test_attach_refuses_outer_steps_without_them_and_excludes_native_steps(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ddp = DistributedDataParallel(Plain())
        assert cfs_of_native_steps(Reducer(ddp), None) == (1.0, 2.0)
        monkeypatch.setattr(dist, "BuiltinCommHookType", object())
        assert cfs_of_native_steps(Reducer(ddp), None) == ()
        compressor = AdaptiveCompressor(every=4, native=False)
        with pytest.raises(SettingsError, match="BuiltinCommHookType"):
            compressor.attach(ddp, torch.optim.SGD(ddp.parameters()))
        assert not ddp._comm_hooks
        compressor.close()

    @pytest.mark.parametrize("name", NAMES_FOR_NEW_REDUCER)
    def test_each_that_detach_needs_is_named_and_nothing_is_changed(self, name: str) -> None:
        ddp = DistributedDataParallel(Plain())
        reducer, of_ddp = Reducer(ddp), ddp.reducer
        reducer.ddp_ref = lambda: Without(ddp, name)  # type: ignore[assignment, return-value]
        with pytest.raises(RuntimeError, match=f"has no {name}, .* wrap the model in a new DistributedDataParallel"):
            reducer.renew()
        assert ddp.reducer is of_ddp


@pytest.mark.usefixtures("one_rank")
def test_native_steps_in_float16_need_gradients_in_float32_and_an_unscaled_loss() -> None:
    scaler: Any = object()
    modules = [DistributedDataParallel(Plain().to(dtype)) for dtype in (torch.float32, torch.bfloat16)]
    native_cfs = [cfs_of_native_steps(Reducer(ddp), each) for ddp in modules for each in (None, scaler)]
    assert native_cfs == [(1.0, 2.0), (1.0,), (1.0,), (1.0,)]


class Without:
    """A module, or a part of one, that lacks a name."""

    def __init__(self, whole: Any, name: str) -> None:
        self._whole, (self._part, _, self._rest) = whole, name.partition(".")

    def __getattr__(self, name: str) -> Any:
        if name != self._part:
            return getattr(self._whole, name)
        if not self._rest:
            raise AttributeError(name)
        return Without(getattr(self._whole, name), self._rest)


@pytest.mark.usefixtures("one_rank")
class TestRefused:
    """What cannot train apart is refused by name."""

    def refused(self, module: torch.nn.Module, *optimizers: torch.optim.Optimizer) -> str:
        with pytest.raises(SettingsError, match="every=1") as refused:
            check_outer_steps_possible(module, optimizers)
        return str(refused.value)

    def test_what_can(self) -> None:
        ddp = DistributedDataParallel(Normed())
        check_outer_steps_possible(ddp, [torch.optim.AdamW(ddp.parameters()), torch.optim.SGD(ddp.parameters(), lr=1)])
        check_outer_steps_possible(Normed(), [])

    def test_lbfgs(self) -> None:
        ddp = DistributedDataParallel(Plain())
        assert "LBFGS" in self.refused(ddp, torch.optim.SGD(ddp.parameters()), torch.optim.LBFGS(ddp.parameters()))

    def test_sharded_state(self) -> None:
        from torch.distributed.optim import ZeroRedundancyOptimizer  # slow to import, on each rank too

        ddp = DistributedDataParallel(Plain())
        sharded = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.AdamW)
        assert "ZeroRedundancyOptimizer" in self.refused(ddp, sharded)

    def test_sync_batch_norm(self) -> None:
        module = Normed()
        module.norm = torch.nn.SyncBatchNorm(WIDTH)  # type: ignore[assignment]
        assert "norm is a SyncBatchNorm" in self.refused(module)

    def test_a_scripted_module(self) -> None:
        assert "torch.jit.script" in self.refused(torch.jit.script(Plain()))

    def test_an_optimizer_in_backward(self) -> None:
        module = Plain()
        fused: Any = importlib.import_module("torch.distributed.optim")
        fused._apply_optimizer_in_backward(torch.optim.SGD, module.parameters(), {"lr": 0.1})
        assert "first.weight" in self.refused(module)

    def test_mixed_precision(self) -> None:
        ddp = DistributedDataParallel(Plain())
        ddp.mixed_precision = object()  # type: ignore[assignment]  # torch makes it on a GPU only
        assert "mixed_precision" in self.refused(ddp)
