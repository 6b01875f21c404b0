# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Where a user lets matrix products be rounded to TF32, what is sent and its mean are still alike."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gravac import testing as conformance
from gravac.compressors import powersgd, rotation
from gravac.compressors.draws import Draws
from gravac.compressors.dtypes import rounds_products
from gravac.compressors.powersgd import split_factors_for_tf32
from tests.device.counting import DEVICE, counting

MODULE = sys.modules[split_factors_for_tf32.__module__]


def tf32(x: torch.Tensor) -> torch.Tensor:
    """Numbers of float32, rounded to the nearest that has 11 bits; others as they are."""
    if x.dtype != torch.float32:
        return x
    return (x.view(torch.int32) + (1 << 12)).bitwise_and(-1 << 13).view(torch.float32)


@pytest.mark.parametrize(
    ("flags", "rounded"),
    [
        ({"fp32_precision": "tf32"}, True),
        ({"fp32_precision": "ieee"}, False),
        ({"fp32_precision": "none"}, False),
        ({"allow_tf32": True}, True),  # torch before 2.9
        ({"allow_tf32": False}, False),
    ],
)
def test_it_is_known_where_products_are_rounded(
    monkeypatch: pytest.MonkeyPatch, flags: dict[str, Any], rounded: bool
) -> None:
    monkeypatch.setattr(torch.backends.cuda, "matmul", SimpleNamespace(**flags))
    with counting():
        assert rounds_products(torch.empty(3, device=DEVICE)) == rounded
        assert not rounds_products(torch.empty(3, dtype=torch.float64, device=DEVICE))
    assert not rounds_products(torch.empty(3))


def test_nothing_is_widened_where_they_are_not() -> None:
    basis, factor = torch.randn(20, 4), torch.randn(30, 4)
    assert [
        one is other for one, other in zip(split_factors_for_tf32(basis, factor), (basis, factor), strict=True)
    ] == [True, True]


@pytest.mark.parametrize("count", [(), (3,)])
def test_factors_multiply_as_in_float32(monkeypatch: pytest.MonkeyPatch, count: tuple[int, ...]) -> None:
    monkeypatch.setattr(MODULE, "rounds_products", lambda like: True)
    generator = torch.Generator().manual_seed(1)
    basis = torch.linalg.qr(torch.randn(*count, 200, 8, generator=generator)).Q
    factor = torch.randn(*count, 100, 8, generator=generator) * 10.0 ** torch.linspace(-10, 10, 8)
    exact = basis.double() @ factor.double().mT
    terms = basis.double().abs() @ factor.double().abs().mT
    left, right = split_factors_for_tf32(basis, factor)
    off = ((tf32(left) @ tf32(right).mT).double() - exact).abs()
    assert bool((off <= 2.0**-19 * terms).all())
    assert bool((((tf32(basis) @ tf32(factor).mT).double() - exact).abs() > 2.0**-14 * terms).any())


def test_what_is_sent_and_its_mean_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every product rounded: P and Q are others then, but the mean is that of what was sent."""
    product = torch.Tensor.addmm_
    matmul = torch.Tensor.__matmul__
    monkeypatch.setattr(MODULE, "rounds_products", lambda like: like.dtype == torch.float32)
    monkeypatch.setattr(torch.Tensor, "addmm_", lambda x, a, b, **k: product(x, tf32(a), tf32(b.T).T, **k))
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: matmul(tf32(a), tf32(b)))
    compressor = powersgd()  # laws share the runs of one object
    conformance.the_mean_is_the_mean_of_what_was_sent(compressor)
    conformance.nothing_is_lost(compressor)


def test_rotations_do_without_products(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(3000)
    expected = rotation.rotate(x, Draws("signs"))

    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("a product")

    monkeypatch.setattr(rotation, "rounds_products", lambda like: True)
    monkeypatch.setattr(torch, "mm", refused)
    monkeypatch.setattr(torch, "bmm", refused)
    for block in (16, 512, 1024):
        turned = rotation.rotate(x, Draws("signs"), block)
        torch.testing.assert_close(rotation.rotate_back(turned, 3000, Draws("signs"), block), x, rtol=0, atol=1e-5)
    torch.testing.assert_close(turned, expected, rtol=0, atol=1e-5)
