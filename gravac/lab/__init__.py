# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The lab: emulated links, reference tasks, and training runs compared by the clock.

Read its folders in this order: ``links`` (links written as text, workers in network namespaces, links that change),
``tasks`` (models and data to train), ``training`` (methods of exchanging gradients, the worker process of a rank, the
parent process that runs all workers), ``tta`` (time to accuracy: matrices of runs, and the records of the runs) and
``report`` (a page about such records). Beside these folders stand ``demo``, ``bench`` (speed of compressors),
``advise`` and ``calibrate`` (the cost model), ``probe`` (progress per step on the user's own model), ``simulate``
(training in memory, without a clock) and ``shapes`` (parameter shapes of models).
"""
