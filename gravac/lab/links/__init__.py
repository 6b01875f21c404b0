# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Emulated links between workers: what a link can be, and the namespaces that make it."""
