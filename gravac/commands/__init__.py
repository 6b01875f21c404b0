# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The commands of ``gravac``, a file each: ``add`` gives its arguments; what it needs is imported when it runs."""
