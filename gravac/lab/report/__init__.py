# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""``gravac report``: tables, figures and an HTML page of runs of ``gravac bench tta``. Figures need matplotlib."""
