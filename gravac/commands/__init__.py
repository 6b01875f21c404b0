# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The commands of ``gravac``, one file each. ``gravac.lab`` and optional packages are imported when a command runs."""
