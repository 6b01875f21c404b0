# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""``gravac bench tta``: time to accuracy of methods on tasks and links, in a matrix of runs, and the runs' records."""
