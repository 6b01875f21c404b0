# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Methods in words: what they stand for, and what is said of wrong ones."""

from pathlib import Path

import pytest
import torch

from gravac import GraVAC
from gravac.compressors import quantize, topk, topkc
from gravac.lab.training.attach import attach
from gravac.lab.training.expression import compressor
from gravac.lab.training.methods import Method, ModeSettings


@pytest.mark.parametrize(
    ("text", "base", "cf"),
    [
        ("topk@10", topk, 10),
        ("quantize(4)", quantize(4), 8),
        ("quantize@16", quantize, 16),
        ("topkc(values=quantize(1))@100", topkc(values=quantize(1)), 100),
    ],
)
def test_a_static_method_is_a_compressor_at_a_cf(text: str, base: object, cf: float) -> None:
    method = Method.parse(text)
    assert (method.base, method.cf, method.adaptive) == (base, cf, False)


def test_a_controller_may_have_settings() -> None:
    method = Method.parse("gravac(epsilon=0.9, epsilon_mode='absolute'):topk@10-1000")
    assert method.controller == GraVAC(epsilon=0.9, epsilon_mode="absolute")
    assert method.adaptive
    assert Method.parse("gravac:topk").controller == "gravac"


def test_an_adaptive_method_is_a_controller_over_a_compressor_and_a_range() -> None:
    method = Method.parse("gravac:ladder@2-500")
    assert method.adaptive and method.cf_range == (2, 500)
    assert Method.parse("gravac:topk").cf_range == (10, 1000)
    assert Method.parse("gravac:ladder").cf_range == (2, 1000)


def test_outer_steps_have_one_every_or_a_choice() -> None:
    chosen = Method.parse("outer(delay=1):ladder")
    assert (chosen.modes.every, chosen.modes.outer.delay, chosen.cf_range) == ((1, 100), 1, (2, 1000))
    assert chosen.adaptive and chosen.has_local_steps
    fixed = Method.parse("outer(every=10):quantize(2)")
    assert (fixed.cf, fixed.adaptive, fixed.has_local_steps) == (16, False, True)
    assert Method.parse("outer(every=10):dense").cf == 1
    assert Method.parse("outer(every=10):quantize@2-16").adaptive, "the CF is a choice"
    assert Method.parse("outer(every=(5, 50)):ladder@2-64").cf_range == (2, 64)
    matched = Method.parse("matched:outer:ladder@2-64")
    assert (matched.matched_to, matched.adaptive, matched.cf_range) == ("outer:ladder@2-64", True, (2, 64))


def test_the_one_object_has_words_of_its_own() -> None:
    plain, often = Method.parse("adaptive"), Method.parse("adaptive(every=(1, 100), rate=0.7)")
    assert (
        plain.arguments
        == Method.parse("goodput:ladder@2-1000").arguments
        == Method.parse("adaptive:ladder@2-1000").arguments
    )
    assert (plain.modes, plain.has_local_steps, plain.adaptive) == (ModeSettings(), False, True)
    assert (often.modes.every, often.modes.native, often.has_local_steps) == ((1, 100), True, True)
    assert often.modes.outer.optimizer([torch.zeros(2, requires_grad=True)]).param_groups[0]["lr"] == 0.7
    assert Method.parse("outer:ladder").arguments == Method.parse("adaptive(every=(1, 100))").arguments
    assert not Method.parse("adaptive(native=False)").arguments["native"]
    assert Method.parse("adaptive(controller='gravac'):topk@10-100").arguments["controller"] == "gravac"
    assert Method.parse("matched:adaptive(every=(1, 50))").matched_to == "adaptive(every=(1, 50))"


@pytest.mark.parametrize(
    "text", ["fp32", "fp16", "bf16", "topk@10", "outer(every=10):topk@10", "outer(every=5):ladder@2-9"]
)
def test_a_method_of_one_mode_never_leaves_steps_to_ddp(text: str) -> None:
    assert not Method.parse(text).arguments["native"]


def test_what_paces_itself_never_leaves_steps_to_ddp() -> None:
    compressor = Method.parse("adaptive").make(paced=True)
    assert not compressor.policy.native and Method.parse("adaptive").make().policy.native


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("adaptive(native=3)", "native: give True or False"),
        (
            "adaptive(every=(1, 9), controller='gravac')",
            r"every: \(1, 9\) needs a controller that chooses",
        ),
        ("adaptive(controller='pid')", "there is no controller 'pid'"),
        ("adaptive(often=3)", "often: unknown setting"),
        ("adaptive@10", "there is no compressor 'adaptive'"),
        ("fp8", "there is no compressor 'fp8'"),
        ("topk", "add the one to use, such as topk@10"),
        ("quantize", "several.*@4, @8"),
        ("topk@0.5", "greater than or equal to 1"),
        ("topk(zz=1)@10", "zz: unknown setting"),
        ("topk(", "is not a compressor"),
        ("__import__('os')@2", "there is no compressor '__import__'"),
        ("(1 + 1)@2", "is not a compressor"),
        ("pid:topk", "there is no controller 'pid'"),
        ("static(cf=10):topk", "there is no controller 'static'"),
        ("gravac(epsilon=2):topk", "epsilon"),
        ("gravac(0.9):topk", "settings need names; write name=value"),
        ("gravac(epsilon=):topk", "settings need names; write name=value"),
        ("gravac:topk@1000-10", "lower bound 1000 is above"),
        ("torch-powersgd(0)", "rank must be at least 1"),
        ("outer(every=0):ladder", "every: give a number of steps"),
        ("outer(often=3):ladder", "often: unknown setting"),
        ("outer(10):ladder", "write name=value, such as"),
        ("outer:topk@10", "a range of steps needs a range of CFs"),
        ("outer(every=10):topk", "add the one to use, such as topk@10"),
        ("outer(every=10, momentum=1):topk@10", "momentum"),
        ("matched:topk@10", "no controller chooses candidates in a run of 'topk@10'"),
        ("matched:matched:outer:ladder", "has nothing to repeat"),
        ("topk@@", "cannot be read; use fp32"),
        ("topk@10-100", "cannot be read; use fp32"),
        ("gravac:topk@10", "cannot be read; use fp32"),
        ("gravac:topk@1-2-3", "cannot be read; use fp32"),
        ("torch-powersgd(four)", "rank must be at least 1"),
    ],
)
def test_a_wrong_method_is_refused_with_the_remedy(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"method: .*{said}"):
        Method.parse(text)


def test_settings_of_a_compressor_are_read_not_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no compressor 'open'"):
        compressor(f"topk(values=open({str(tmp_path / 'made')!r}, 'w'))")
    assert not (tmp_path / "made").exists()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    "text", ["fp32", "fp16", "bf16", "torch-powersgd(2)", "topk@10", "adaptive(native=False):topkc", "dgc@10"]
)
def test_every_kind_of_method_trains(text: str) -> None:
    method = Method.parse(text)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    count = sum(parameter.numel() for parameter in model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    exchange = attach(method, model, optimizer, samples_per_step=4, log_dir=None)
    for _ in range(4):
        optimizer.zero_grad()
        exchange.module(torch.randn(16, 64)).square().mean().backward()
        optimizer.step()
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())
    assert exchange.wire_bytes(4, 1) == 0
    if text == "torch-powersgd(2)":
        assert 8 * count < exchange.wire_bytes(4, 2) < 10 * count  # two steps plain, two of 2 (64 + 64) in 64 * 64
    else:
        assert exchange.decisions()[0].step == 0
    if text in ("fp32", "fp16"):
        assert exchange.wire_bytes(4, 2) == {"fp32": 16, "fp16": 8}[text] * count
    else:
        assert method.powersgd_rank is not None or exchange.phase_seconds() is not None
    exchange.close()
