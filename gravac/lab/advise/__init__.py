# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""``gravac advise``: predicts by a cost model whether compression saves time, and which compressor saves most."""

from gravac.lab.advise.choices import COPY, LATENCY, Advice, advise, shapes_of
from gravac.lab.advise.option import Option

__all__ = ["COPY", "LATENCY", "Advice", "Option", "advise", "shapes_of"]
