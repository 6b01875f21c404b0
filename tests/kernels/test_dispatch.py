# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Compressors that call the kernels, as on a GPU: they send and average what they do with PyTorch's operators."""

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from gravac import quantize, topkc
from gravac.collectives import AllGather, AllToAll, Collective
from gravac.compressors import Compressor, Context, Reduced, kernels, messages
from gravac.compressors.chunks import chunk_energies
from gravac.compressors.levels import LevelKind
from gravac.compressors.messages import Messages
from gravac.compressors.packing import packed_bytes
from gravac.compressors.quantize import Quantize
from gravac.compressors.sparse import as_dense
from gravac.exchange import memory
from gravac.exchange.fuse import fuse
from gravac.testing import compressor_laws as conformance
from tests.kernels import DEVICE
from tests.kernels import kernels as need_kernels
from tests.kernels.test_quantize import Launches, assert_same, split

need_kernels("quantize")

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's, of what is divided by zero

ELEMENTS = 5000
"""Of a tensor: no whole number of blocks, nor of shards."""

LAWS = (
    conformance.one_round_is_kept,
    conformance.a_non_finite_gradient_reaches_every_rank,
    conformance.gradients_of_any_dtype_work,
)
"""Laws that do not take the interpreter long; that the mean is the mean of what was sent is seen below."""

COMPRESSORS = (quantize(8), quantize(4), quantize(2), quantize(1), quantize(4, exchange="shards", back_bits=8))
COMPRESSORS += (quantize(2, rotate=True), quantize(3, levels="uniform", block=40))


@pytest.fixture
def by(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bool], None]]:
    """Says whether kernels are called, on any device."""

    def choose(use: bool) -> None:
        monkeypatch.setattr(kernels, "usable", lambda device_type: use)

    choose(True)
    return choose


def gradients(world: int, elements: int = ELEMENTS, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(elements, generator=generator).to(DEVICE) for _ in range(world)]


def exchange(compressor: Compressor, xs: Sequence[torch.Tensor], cf: float = 8.0) -> list[Reduced]:
    return conformance.exchange(compressor, xs, cf)


@pytest.fixture
def codec(monkeypatch: pytest.MonkeyPatch, by: Callable[[bool], None]) -> list[str]:
    """Has all that is encoded and decoded by kernels done by PyTorch's operators, too, and compared; names the calls.

    Given the same numbers, messages differ on thresholds and in a scale's last place alone; given the same messages,
    what is decoded has the same bits.
    """
    module, called = sys.modules["gravac.compressors.quantize"], list[str]()
    encode, encode_decoded = messages.encode, messages.encode_decoded
    add_to, overwrite, decode = Messages.add_to, Messages.overwrite, Messages.decoded

    def by_operators(function: Callable[[], Any]) -> Any:
        by(False)
        came = function()
        by(True)
        return came

    def both_encode(
        x: torch.Tensor, bits: int, kind: LevelKind, block: int, shards: int = 1
    ) -> tuple[torch.Tensor, torch.Tensor]:
        called.append("encode")
        message, error = encode(x, bits, kind, block, shards)
        want, lost = by_operators(lambda: encode(x, bits, kind, block, shards))
        assert_same(split(message.cpu(), bits, block), split(want.cpu(), bits, block), bits, block)
        assert torch.allclose(error, lost, rtol=1e-4)
        return message, error

    def both_encode_decoded(
        x: torch.Tensor, bits: int, kind: LevelKind, block: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        called.append("encode")
        message, decoded = encode_decoded(x, bits, kind, block)
        want, _ = by_operators(lambda: encode_decoded(x, bits, kind, block))
        assert_same(split(message.cpu(), bits, block), split(want.cpu(), bits, block), bits, block)
        assert torch.equal(decoded, by_operators(lambda: decode(Messages(message.unsqueeze(1), bits, kind, block))))
        return message, decoded

    def both_add_to(self: Messages, dense: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
        called.append("add")
        want = by_operators(lambda: add_to(self, dense.clone(), alpha))
        assert torch.equal(add_to(self, dense, alpha), want)
        return dense

    def both_overwrite(self: Messages, *denses: torch.Tensor) -> bool:
        if not overwrite(self, *denses):
            return False
        called.append("add")
        assert torch.equal(denses[0], by_operators(lambda: add_to(self, torch.zeros_like(denses[0]))))
        return True

    def both_decoded(self: Messages) -> torch.Tensor:
        called.append("decode")
        came = decode(self)
        assert torch.equal(came, by_operators(lambda: decode(self)))
        return came

    monkeypatch.setattr(module, "encode", both_encode)
    monkeypatch.setattr(module, "encode_decoded", both_encode_decoded)
    monkeypatch.setattr(Messages, "add_to", both_add_to)
    monkeypatch.setattr(Messages, "overwrite", both_overwrite)
    monkeypatch.setattr(Messages, "decoded", both_decoded)
    return called


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("compressor", COMPRESSORS, ids=repr)
def test_ranks_get_the_same_bits_and_every_message_is_that_of_pytorch_s_operators(
    compressor: Quantize, world: int, codec: list[str]
) -> None:
    xs = gradients(world)
    got = exchange(compressor, xs)
    means = [as_dense(one.mean, xs[0]) for one in got]
    assert all(torch.equal(mean, means[0]) for mean in means)
    sent = torch.stack([as_dense(one.sent, x) for one, x in zip(got, xs, strict=True)]).mean(0)
    assert torch.allclose(means[0], sent, atol=1e-5)
    assert codec.count("encode") == world * (1 if compressor.gathers(world) else 2)
    assert codec.count("add") == 2 * world


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("bits", [8, 4, 3, 2, 1])
def test_messages_differ_on_thresholds_alone_and_decode_to_the_same_bits(
    bits: int, shards: int, by: Callable[[bool], None]
) -> None:
    (x,) = gradients(1)
    encoded = messages.encode(x, bits, "fitted", 128, shards)[0]
    ours = Messages(encoded.unsqueeze(1), bits, "fitted", 128, extra_numbers=(100, torch.ones(50, device=DEVICE)))
    dense, exact = ours.add_to(torch.ones_like(x), -1.0), ours.decoded()
    by(False)
    theirs = messages.encode(x, bits, "fitted", 128, shards)[0]
    assert encoded.shape == theirs.shape == (shards, -(-40 // shards) * (packed_bytes(128, bits) + 2))
    assert_same(split(encoded.cpu(), bits, 128), split(theirs.cpu(), bits, 128), bits, 128)
    assert torch.equal(dense, ours.add_to(torch.ones_like(x), -1.0))
    assert torch.equal(exact, ours.decoded())


@pytest.mark.parametrize("compressor", [quantize(2, back_bits=4), quantize(2, rotate=True)], ids=repr)
def test_the_second_error_is_kept_and_added_as_without_kernels(compressor: Compressor, codec: list[str]) -> None:
    contexts = [Context("w", 0, rank, 3, shape=(ELEMENTS,), error_feedback=1.0) for rank in range(3)]
    for seed in (1, 2):
        xs = gradients(3, seed=seed)
        ranks = [fuse([compressor.rounds(x, 8.0, ctx)], finite=True) for x, ctx in zip(xs, contexts, strict=True)]
        came = [one.reduced[0] for one in memory.run(ranks) if one is not None]
    # all but the codec is the same code on both ways
    assert codec.count("encode") == 2 * 3 * 2
    assert codec.count("decode") == 2 * 3
    assert all(one.aside is not None and float(one.aside.norm()) > 0 for one in came)
    assert all(float(ctx.state["second"].norm()) > 0 for ctx in contexts)


@pytest.mark.parametrize("chunk", [64, 100])
def test_chunks_are_chosen_by_energies_of_the_kernel(chunk: int, by: Callable[[bool], None]) -> None:
    xs = gradients(2)
    with Launches() as launches:
        energies = chunk_energies(xs[0], chunk)
    assert launches.names == ["gravac.chunk_energies", "aten.clamp_", "aten._to_copy"]  # the latter of a number a chunk
    got = as_dense(exchange(topkc(chunk=chunk), xs, 10.0)[0].mean, xs[0])
    assert chunk_energies(xs[0].double(), chunk).dtype == torch.float64  # by PyTorch's operators
    by(False)
    assert torch.allclose(energies, chunk_energies(xs[0], chunk), rtol=1e-5)
    assert torch.equal(got, as_dense(exchange(topkc(chunk=chunk), xs, 10.0)[0].mean, xs[0]))


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_obeys(law: conformance.Law, by: Callable[[bool], None]) -> None:
    law(quantize(4))


@pytest.mark.parametrize(("compressor", "most"), [(quantize(4), 6), (quantize(4, exchange="shards"), 16)])
def test_few_kernels_encode_a_tensor_and_add_the_mean(
    compressor: Compressor, most: int, by: Callable[[bool], None]
) -> None:
    (x,) = gradients(1)
    with Launches() as launches:
        rounds, came = compressor.rounds(x, 8.0, Context(world=2)), None
        try:
            while True:
                came = answer(rounds.send(came))
        except StopIteration as ended:
            ended.value.mean.add_to(torch.empty_like(x))
    assert len([name for name in launches.names if "empty" not in name]) <= most, launches.names


def answer(collective: Collective) -> object:
    """As if another rank had sent the same."""
    if isinstance(collective, AllGather):
        return tuple(tensor.expand(2, *tensor.shape) for tensor in collective.tensors)
    assert isinstance(collective, AllToAll)
    return collective.tensor


def test_without_triton_pytorch_s_operators_do_it(monkeypatch: pytest.MonkeyPatch) -> None:
    xs = gradients(2)
    decide = kernels.usable.__wrapped__
    assert not decide("cpu")
    monkeypatch.setitem(sys.modules, "triton", None)  # importing it fails
    monkeypatch.setattr(kernels, "usable", lambda device_type: decide("cuda"))
    with Launches() as launches:
        exchange(quantize(4), xs)
        exchange(topkc, xs)
    assert launches.names and not [name for name in launches.names if name.startswith("gravac.")]


def test_numbers_that_kernels_cannot_take_are_coded_without_them(by: Callable[[bool], None]) -> None:
    x = torch.ones(1 << 15, device=DEVICE)
    with Launches() as launches:
        encoded, _ = messages.encode(x, 4, "fitted", 1 << 15)
        sum_of = Messages(encoded.unsqueeze(1), 4, "fitted", 1 << 15).add_to(torch.zeros_like(x).double())
    assert torch.allclose(sum_of, x.double(), rtol=0.01)
    assert not [name for name in launches.names if name.startswith("gravac.")]
