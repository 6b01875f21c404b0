# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The lab: emulated links, reference tasks, and training runs compared by the clock.

Read it in this order: ``link`` (a link in words), ``owner`` (whose a namespace is), ``links`` (workers in network
namespaces), ``schedule`` (a link that changes), ``tasks`` (what is trained), ``methods`` (how gradients are exchanged),
``session`` (what workers are told), ``worker`` (one rank), ``run`` (all ranks, seen from the parent), ``record`` (what
a run showed), ``tta`` and ``factored`` (a matrix of runs) and ``report`` (a page of it). Beside that stand ``demo``,
``sweep`` (learning rates), ``bench`` (speed of compressors), ``calibrate`` and ``advise`` (the cost model).
"""
