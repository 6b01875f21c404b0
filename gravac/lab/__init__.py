# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The lab: emulated links, reference tasks, and training runs compared by wall-clock time.

Read its folders in this order:

1. ``links``: links written as text, workers in network namespaces, links that change,
2. ``tasks``: models and data to train,
3. ``training``: methods of exchanging gradients, the worker process of a rank, the parent process of all workers,
4. ``tta``: time to accuracy, measured by matrices of runs, and the records of the runs,
5. ``report``: a page about such records.

The other folders are ``demo``, ``doctor`` (checks of an installation), ``bench`` (speed of compressors) and ``advise``
(predictions by the cost model). ``calibrate.py`` measures a network for the cost model, and ``probe.py`` progress per
step on the user's own model. ``simulate.py`` trains in memory without a clock; ``shapes.py`` has shapes of models.
"""
