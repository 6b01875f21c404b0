# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Every controller obeys every law, and a controller that breaks one is caught by it."""

from typing import Any

import pytest

from gravac.controllers import CONTROLLERS, Controller, GraVAC, Static, conformance
from gravac.controllers.conformance import Law

pytestmark = pytest.mark.timeout(60)

OURS = {
    "gravac": GraVAC(),
    "gravac, fast": GraVAC(window=5, warmup=3, shadow_every=2, dwell=1, expire=2),
    "gravac, absolute": GraVAC(epsilon_mode="absolute", epsilon=0.4, window=8, dwell=2),
    "gravac, no warm-up, many": GraVAC(warmup=0, step="geometric", window=6, epsilon=0.05, shadow_every=3),
    "literal": GraVAC(paper_literal=True),
    "literal, fast": GraVAC(paper_literal=True, window=5, epsilon=0.4, step="geometric"),
    "static": Static(cf=10),
    "static, dense": Static(cf=1),
}


@pytest.mark.parametrize("law", conformance.LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("name", OURS)
def test_obeys(name: str, law: Law) -> None:
    law(OURS[name])


def test_every_controller_by_name_is_here() -> None:
    assert {type(controller).name for controller in OURS.values()} == set(CONTROLLERS)
