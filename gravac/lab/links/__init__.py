# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Emulated links between workers: descriptions of links, and the network namespaces that emulate them."""
