# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Lightning, as the package ``lightning``: ``Trainer(strategy="ddp", callbacks=[GravacCallback(...)])``."""

from lightning.pytorch import Callback
from lightning.pytorch.utilities.exceptions import SIGTERMException

from gravac.integrations.lightning_hooks import LightningHooks


class GravacCallback(LightningHooks, Callback):
    """Trains with gravac under ``lightning.pytorch.Trainer``; see ``LightningHooks`` for arguments and hooks."""

    simultaneous = (SIGTERMException,)
