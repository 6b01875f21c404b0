# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""``gravac advise``: whether to compress at all, by the cost model."""

from gravac.lab.advise.choices import COPY, LATENCY, Advice, advise, shapes_of
from gravac.lab.advise.option import Option

__all__ = ["COPY", "LATENCY", "Advice", "Option", "advise", "shapes_of"]
