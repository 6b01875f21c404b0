# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The lab: emulated links, reference tasks, and training runs compared by the clock.

Read its folders in this order: ``links`` (links written as text, workers in network namespaces, links that change),
``tasks`` (models and data to train), ``training`` (the exchange of gradients, the settings of workers, a single rank,
all ranks as the parent sees them), ``tta`` (records of runs, and matrices of runs) and ``report`` (a page about them).
Beside them stand ``demo``, ``bench`` (speed of compressors), ``advise`` and ``calibrate`` (the cost model), ``probe``
(progress per step on the user's own model), ``simulate`` (training in memory, without a clock) and ``shapes``
(parameter shapes of models).
"""
