# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The compiled encoder against the eager one, and what happens without a compiler."""

import logging
import shutil
from typing import Any

import pytest
import torch

from gravac.compressors import fused
from gravac.compressors.codebook import PIECE, encode, mean

BLOCK = 64


@pytest.fixture(autouse=True)
def anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has failed yet."""
    monkeypatch.setattr(fused, "_failed", [])
    fused._encoder.cache_clear()


def blocks() -> torch.Tensor:
    """One piece and some blocks more; a block of zeros, one of a single number, one too small to divide by."""
    x = torch.randn(PIECE // BLOCK + 5, BLOCK, generator=torch.Generator().manual_seed(0)) ** 3
    x[0] = 0
    x[1, 1:] = 0
    x[2] = 1e-44
    return x


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_what_compiled_ranks_send_is_what_eager_ones_decode() -> None:
    x = blocks()
    ours, theirs = torch.empty_like(x), torch.empty_like(x)
    coded, error = encode(x, 3, "fitted", ours, compiled=True)
    assert not fused._failed
    assert torch.equal(mean([coded], 3, "fitted", torch.empty_like(x)), ours)
    assert torch.allclose(error, (x - ours).square().sum(), rtol=1e-4)
    assert bool(((x - ours).square().sum(1) <= x.square().sum(1) * (1 + 1e-5)).all())
    eagerly, _ = encode(x, 3, "fitted", theirs)
    assert (coded.packed != eagerly.packed).float().mean() < 1e-4, "only on thresholds"
    assert torch.allclose(ours, theirs, rtol=0.01) or (ours != theirs).float().mean() < 1e-3


def test_without_a_compiler_it_warns_once_and_encodes_as_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> fused.Encoder:
        def kernel(x: torch.Tensor, out: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            raise RuntimeError("no working C++ compiler")

        return kernel

    monkeypatch.setattr(torch, "compile", broken)
    x = blocks()
    ours, theirs = torch.empty_like(x), torch.empty_like(x)
    with caplog.at_level(logging.WARNING):
        for bits in (4, 2):
            coded, _ = encode(x, bits, "fitted", ours, compiled=True)
            eagerly, _ = encode(x, bits, "fitted", theirs)
            assert torch.equal(coded.packed, eagerly.packed)
            assert torch.equal(ours, theirs)
    assert len(caplog.records) == 1
    assert "no working C++ compiler" in caplog.text
