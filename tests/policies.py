# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Compressors with settings that only a policy has."""

from typing import Any

from gravac import AdaptiveCompressor
from gravac.policy import Policy


def adaptive(base: Any = None, cf_range: Any = None, **settings: Any) -> AdaptiveCompressor:
    """A compressor with any settings: fields of a policy, or a policy, ``sinks`` and ``process_group``."""
    if "policy" in settings:
        return AdaptiveCompressor.from_policy(**settings)
    own = {name: settings.pop(name) for name in ("sinks", "process_group") if name in settings}
    given = {"base": base, "cf_range": cf_range, **settings}
    policy = Policy(**{name: setting for name, setting in given.items() if setting is not None})
    return AdaptiveCompressor.from_policy(policy, **own)
