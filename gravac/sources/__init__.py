# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Sources of gradients: they hand a module's gradients, by name, to the engine, which averages them.

``ddp`` is for DistributedDataParallel, ``fsdp2_source`` for models in shards.
"""
