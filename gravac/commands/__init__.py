# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The commands of ``gravac``, a file for each. A command imports torch and other large packages only when it runs."""
