# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Rounds on a GPU's streams: judging them makes the host wait for nothing more, and no streams race for memory."""

from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch

from gravac import Compressor, Static, dense, quantize, topk
from gravac.exchange.streams import StreamExecutor
from gravac.modes.outer.rounds import Rounds
from tests.device.counting import DEVICE, counting
from tests.device.steps import Counted
from tests.outer.by_hand import OuterByHand
from tests.streams.sanitized import HOST, Alike, FakeDevice, _places

EVERY = 4
BASES: list[tuple[Compressor, float]] = [(dense, 1.0), (quantize(bits=4), 8.0), (topk, 10.0)]


def outer_of(module: torch.nn.Module, base: Compressor, cf: float, **settings: Any) -> OuterByHand:
    plain: dict[str, Any] = {"every": EVERY, "delay": 0, "dense_below": 0, "cf_range": (1, 100)}
    plain["outer"] = partial(torch.optim.SGD, lr=0.7, momentum=0.9, nesterov=True)
    inner = torch.optim.SGD(module.parameters())
    return OuterByHand(module, inner, base=base, controller=Static(cf=cf), **{**plain, **settings})


DENSE, FOUR_BITS, TENTH = BASES
SETTINGS: list[dict[str, Any]] = [{}, {"delay": 2}]


@pytest.mark.parametrize(
    ("base", "settings"),
    [
        (DENSE, {}),
        (FOUR_BITS, {}),
        (TENTH, {"delay": 2}),
        *(pytest.param(base, settings, marks=pytest.mark.long) for base in BASES for settings in SETTINGS),
    ],
    ids=str,
)
def test_the_host_waits_for_no_verdict(base: tuple[Compressor, float], settings: dict[str, Any]) -> None:
    compressor, cf = base
    with counting() as seen:
        module = torch.nn.ParameterList([torch.empty(64, 64, device=DEVICE) for _ in range(4)])
        executor = Counted(seen, 2)
        outer = outer_of(module, compressor, cf, executor=executor, **settings)
        for step in range(5 * EVERY):
            if step == 4 * EVERY:
                executor.host_waits = 0
                seen.waits.clear()
                seen.copies.clear()
            outer.step()
    assert not seen.waits
    assert executor.host_waits == 1, "where the round begins, for what the device was given a round ago"
    assert seen.copies == ["copy_: npy -> cpu"], "the verdict"


@pytest.mark.filterwarnings("ignore:gravac. round")
@pytest.mark.parametrize("spoilt", [False, True])
def test_streams_race_for_nothing_and_the_host_reads_verdicts_that_are_there(spoilt: bool) -> None:
    device = FakeDevice()
    read, read_verdicts = [0], Rounds._read_flags

    def looked_at(rounds: Rounds, newest: int) -> None:
        there: Any = [pending.finite_flags_on_host for pending in rounds._unread if pending.round_number <= newest]
        device.access(HOST, _places([copy._tensor for copy in there]), set(), "the host reads verdicts")
        read[0] += len(there)
        read_verdicts(rounds, newest)

    with device, mock.patch.object(Rounds, "_read_flags", looked_at):
        module = torch.nn.ParameterList([torch.zeros(8, 16) for _ in range(4)])
        outer = outer_of(module, topk, 10.0, executor=StreamExecutor(Alike(device), device))
        for step in range(6 * EVERY):
            with torch.no_grad():
                for parameter in module:
                    parameter.add_(float("nan") if spoilt and step == EVERY else 0.01)
            outer._rounds.send_due(0.1)
            outer._rounds._finish_due()
    assert device.errors == []
    assert read[0] == 4
    assert outer.skipped == (2 if spoilt else 0)
