# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A new residual is pending until it is committed: stored if gradients were finite, and dropped otherwise."""

import pytest
import torch

from gravac.averaging.residuals import Residuals
from gravac.exchange.reading import ReadsAtOnce, ReadsLater

ONES, GRADIENT = torch.ones(8), torch.full((8,), 2.0)


def residuals(host_looks: bool = True, safe: bool = False) -> Residuals:
    """Residuals of one parameter, 1 everywhere."""
    made = Residuals(overflow_safety=safe)
    made.reads = ReadsAtOnce() if host_looks else ReadsLater()
    made.by_name["w"] = ONES.clone()
    return made


def test_a_gradient_is_added_in_the_residuals_memory_and_subtracted_again() -> None:
    made = residuals()
    stored = made.by_name["w"]
    assert made.added_to("w", GRADIENT, keeps_unsent=True) is stored
    made.undo("w", GRADIENT)
    assert torch.equal(made.by_name["w"], ONES)
    made.undo("w", GRADIENT)  # what was not added is not subtracted
    assert torch.equal(made.by_name["w"], ONES)


@pytest.mark.parametrize("keeps_unsent", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_without_a_residual_the_sum_is_the_gradient(dtype: torch.dtype, keeps_unsent: bool) -> None:
    gradient = GRADIENT.to(dtype)
    x = Residuals().added_to("w", gradient, keeps_unsent)
    assert torch.equal(x.double(), GRADIENT.double())
    assert x.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert (x is gradient) == (not keeps_unsent and dtype != torch.bfloat16)


@pytest.mark.parametrize("waits", ["for means", "for the step", "for the device"])
def test_what_waits_is_never_touched_before_it_is_committed(waits: str) -> None:
    made = residuals(host_looks=waits != "for the device", safe=waits == "for the step")
    made.checks_group_means = waits == "for means"
    x = made.added_to("w", GRADIENT, keeps_unsent=True)
    made.pend("w", x)
    assert torch.equal(made.by_name["w"], ONES)
    made.undo("w", GRADIENT)
    made.commit(torch.tensor(True))
    assert torch.equal(made.by_name["w"], ONES)


@pytest.mark.parametrize("host_looks", [True, False])
@pytest.mark.parametrize("finite", [True, False])
@pytest.mark.parametrize("safe", [True, False])
def test_a_commit_stores_only_what_was_finite(host_looks: bool, finite: bool, safe: bool) -> None:
    made = residuals(host_looks, safe)
    made.by_name["gone"] = ONES.clone()
    new = {"w": torch.full((8,), 3.0), "new": GRADIENT.clone(), "gone": None, "never": None}
    for name, unsent in new.items():
        made.pend(name, unsent)
    made.commit(torch.tensor(finite))
    zeros = torch.zeros(8)
    got = {name: made.by_name.get(name, zeros) for name in new}
    expected = {"w": 3.0, "new": 2.0, "gone": 0.0} if finite else {"w": 1.0, "new": 0.0, "gone": 1.0}
    assert all(torch.equal(got[name], torch.full((8,), number)) for name, number in expected.items())
    assert "never" not in made.by_name


def test_on_a_device_a_residual_keeps_its_memory() -> None:
    made = residuals(host_looks=False)
    stored = made.by_name["w"]
    for unsent in (GRADIENT.clone(), None):
        made.pend("w", unsent)
        made.commit(torch.tensor(True))
        assert made.by_name["w"] is stored
    assert not stored.any()


@pytest.mark.parametrize("host_looks", [True, False])
def test_only_what_the_device_may_have_emptied_is_named(host_looks: bool) -> None:
    made = residuals(host_looks)
    made.pend("w", None)
    made.commit(torch.tensor(False))
    assert made.emptied == (set() if host_looks else {"w"})


def test_a_commit_by_names_leaves_other_groups_pending() -> None:
    made = residuals()
    made.by_name["v"] = ONES.clone()
    for name in ("v", "w"):
        made.pend(name, made.added_to(name, GRADIENT, keeps_unsent=True))
    made.commit(None, ["v"])
    made.undo("w", GRADIENT)
    assert torch.equal(made.by_name["v"], ONES + GRADIENT) and torch.equal(made.by_name["w"], ONES)


def test_overflow_safety_is_turned_on_unless_set_or_groups_are_checked() -> None:
    unset, off, checked = Residuals(), Residuals(overflow_safety=False), Residuals(overflow_safety=True)
    checked.checks_group_means = True
    for each in (unset, off, checked):
        each.turn_on_overflow_safety()
    assert [each.wait_for_step for each in (unset, off, checked)] == [True, False, False]
