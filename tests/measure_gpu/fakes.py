# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Fake parts of the measurement: one that does as it is told by ``FAKE_PART``."""

import os
import sys
import time
from collections.abc import Iterator

from tests.measure.gpu.parts import Row


def rows() -> Iterator[Row]:
    yield {"case": "first", "met": True, "blocked": "triton" in sys.modules}
    told = os.environ["FAKE_PART"]
    if told == "raises":
        raise RuntimeError("out of luck")
    if told == "hangs":
        time.sleep(600)
    if told == "dies":
        os._exit(7)
    yield {"case": "second", "value": 2.0, "at_most": 1.0, "met": False}
