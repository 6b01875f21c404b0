# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The lab: emulated links, reference tasks, and training runs compared by wall-clock time.

Read its folders in this order:

1. ``links``: emulates slow links between processes on this machine, also links whose rate changes over time,
2. ``tasks``: models and data to train,
3. ``training``: trains a task with a method of exchanging gradients, in one worker process per rank,
4. ``tta``: measures time to accuracy for all combinations of task, link, method and seed, and draws plots.

The other folders are ``demo``, ``doctor`` (checks an installation), ``bench`` (measures the speed of compressors) and
``advise`` (predicts whether compression saves time). ``calibrate.py`` measures a network for the cost model, and
``shapes.py`` has the parameter shapes of well-known models.
"""
