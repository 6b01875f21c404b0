# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Lightning, as the package ``pytorch_lightning``: ``Trainer(strategy="ddp", callbacks=[GravacCallback(...)])``."""

from pytorch_lightning import Callback
from pytorch_lightning.utilities.exceptions import SIGTERMException

from gravac.integrations.lightning_hooks import LightningHooks


class GravacCallback(LightningHooks, Callback):
    """Trains with gravac under ``pytorch_lightning.Trainer``; see ``LightningHooks`` for arguments and hooks."""

    simultaneous = (SIGTERMException,)
