# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The lab: emulated links, reference tasks, and training runs compared by wall-clock time.

Read its folders in this order: ``links`` (links written as text, workers in network namespaces, links that change),
``tasks`` (models and data to train), ``training`` (methods of exchanging gradients, the worker process of a rank, the
parent process that runs all workers), ``tta`` (time to accuracy: matrices of runs, and the records of the runs) and
``report`` (a page about such records). The other folders are ``demo``, ``doctor`` (checks of an installation),
``bench`` (speed of compressors) and ``advise`` (predictions by the cost model). Of the files, ``calibrate`` measures a
network for the cost model, ``probe`` measures progress per step on the user's own model, ``simulate`` trains in memory
without a clock, and ``shapes`` has parameter shapes of models.
"""
