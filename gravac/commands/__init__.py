# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The commands of ``gravac``, a file for each. ``add`` adds the arguments; heavy imports wait until a command runs."""
