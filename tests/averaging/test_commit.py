# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Three policies say when residuals change: group by group in place, by a mask, or at the end of a step."""

import pytest
import torch

from gravac.averaging.commit import AtStepEnd, InPlace, Masked
from gravac.averaging.feedback import Feedback

TRUE, FALSE = torch.tensor(True), torch.tensor(False)


def feedback(host_looks: bool, safe: bool = False) -> Feedback:
    """Residuals of one parameter, 1 everywhere."""
    made = Feedback(overflow_safety=safe)
    made.adapt_to_executor(bool if host_looks else lambda flag: flag, host_looks)
    made.residual["w"] = torch.ones(8)
    return made


def test_settings_and_executor_choose_the_policy() -> None:
    kinds = {
        (looks, safe): type(feedback(looks, safe).commit_policy) for looks in (True, False) for safe in (True, False)
    }
    assert kinds == {(True, False): InPlace, (False, False): Masked, (True, True): AtStepEnd, (False, True): AtStepEnd}


def test_guard_turns_overflow_safety_on_unless_set_or_groups_are_refused() -> None:
    unset, off, by_group = Feedback(), Feedback(overflow_safety=False), Feedback(overflow_safety=True)
    by_group.check_each_group()
    for each in (unset, off, by_group):
        each.turn_on_overflow_safety()
    assert [each.commit_policy.drops_whole_step for each in (unset, off, by_group)] == [True, False, False]
    assert by_group.commit_policy.checks_group_means


def test_in_place_a_gradient_is_added_to_the_residual_itself_and_taken_off_again() -> None:
    kept = feedback(host_looks=True)
    residual, gradient = kept.residual["w"], torch.full((8,), 2.0)
    assert kept.fold("w", gradient, keeps_unsent=True) is residual
    kept.commit_policy.undo("w", gradient)
    assert torch.equal(kept.residual["w"], torch.ones(8))
    kept.commit_policy.undo("w", gradient)  # of what was not folded, nothing is taken off
    assert torch.equal(kept.residual["w"], torch.ones(8))


def test_refused_by_group_the_residual_is_never_touched_before_it_is_settled() -> None:
    kept = feedback(host_looks=True)
    kept.check_each_group()
    assert kept.fold("w", torch.full((8,), 2.0), keeps_unsent=True) is not kept.residual["w"]
    kept.commit_policy.undo("w", torch.full((8,), 2.0))
    assert torch.equal(kept.residual["w"], torch.ones(8))


def test_a_mask_chooses_in_the_residuals_own_memory() -> None:
    kept = feedback(host_looks=False)
    residual = kept.residual["w"]
    for finite, expected in ((FALSE, 1.0), (TRUE, 5.0)):
        kept.store_unsent(["w"], torch.full((8,), 5.0), finite)
        assert kept.residual["w"] is residual and torch.equal(residual, torch.full((8,), expected))
    kept.store_unsent(["w"], None, TRUE)
    assert kept.residual["w"] is residual and not residual.any()


@pytest.mark.parametrize("host_looks", [True, False])
@pytest.mark.parametrize("finite", [True, False])
def test_apart_a_step_changes_nothing_before_its_end(host_looks: bool, finite: bool) -> None:
    kept = feedback(host_looks, safe=True)
    for name in ("w", "new"):
        x = kept.fold(name, torch.full((8,), 2.0), keeps_unsent=True)
        kept.store_unsent([name], x)
    assert torch.equal(kept.residual["w"], torch.ones(8)) and "new" not in kept.residual
    kept.commit_policy.commit(finite if host_looks else torch.tensor(finite))
    assert torch.equal(kept.residual["w"], torch.full((8,), 3.0 if finite else 1.0))
    new = kept.residual.get("new", torch.zeros(8))
    assert torch.equal(new, torch.full((8,), 2.0 if finite else 0.0))
