# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Thin adapters that feed a framework's gradients to ``gravac.engine.engine``."""
