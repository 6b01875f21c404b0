# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Whatever controller changes to a lossy candidate, the reason states how many more steps that is believed to take."""

import pytest

from gravac import Accordion, Goodput, GraVAC, Static
from gravac.candidate import Candidate, Forecast
from gravac.controllers.base import Decision
from gravac.engine.records import with_cost

DENSE = Forecast(Candidate("hook", "dense", 1.0), wire_ratio=1.0)
TOPK = Forecast(Candidate("hook", "topk", 10.0), wire_ratio=6.4, efficiency=0.8, deviation=0.1)


@pytest.mark.parametrize("controller", [GraVAC(), Accordion(), Static(cf=10)], ids=lambda c: c.name)
def test_the_reason_of_a_lossy_choice_states_its_cost(controller: object) -> None:
    decision = with_cost(Decision(TOPK.candidate, reason="why"), (DENSE, TOPK), controller)  # type: ignore[arg-type]
    cost = "about 25 % more steps than dense for the same loss (estimated from other programs)"
    assert decision.reason == f"why; topk 10x needs {cost}"


def test_dense_costs_nothing_and_goodput_states_the_cost_itself() -> None:
    assert with_cost(Decision(DENSE.candidate, reason="why"), (DENSE, TOPK), GraVAC()).reason == "why"
    assert with_cost(Decision(TOPK.candidate, reason="why"), (DENSE, TOPK), Goodput()).reason == "why"
