# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Steers a model in shards: gravac averages over its replicas, or nobody; changeable at each step."""

import torch

from gravac.sources.fsdp2 import FSDP2Source
from gravac.sources.module_steering import SteeredModule


class SteeredFSDP2(SteeredModule):
    """A model in shards as a source of gradients; see ``gravac.modes.switch.Source``.

    Args:
        source: hands gradients to the engine.
        module: model that is trained.
    """

    def __init__(self, source: FSDP2Source, module: torch.nn.Module) -> None:
        super().__init__(source, module)
        self.shares_buffers = False
        self._source = source

    def use_hook(self) -> None:
        """Average over the replicas by gravac, from the next backward on."""
        self._source.use_hook()
