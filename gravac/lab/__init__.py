# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The lab: emulated links, reference tasks, and training runs compared by the clock.

Read its folders in this order: ``links`` (a link in words, workers in network namespaces, a link that changes),
``tasks`` (what is trained), ``training`` (how gradients are exchanged, what workers are told, one rank, all ranks seen
from the parent), ``tta`` (what a run showed, and a matrix of runs) and ``report`` (a page of it). Beside them stand
``demo``, ``bench`` (speed of compressors), ``advise`` and ``calibrate`` (the cost model), ``probe`` (what a step is
worth on a model of one's own), ``simulate`` (training in memory, without a clock), ``sweep`` (learning rates) and
``shapes`` (of models).
"""
