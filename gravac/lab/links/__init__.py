# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Emulates slow links between workers on one machine: descriptions of links, and network namespaces."""
