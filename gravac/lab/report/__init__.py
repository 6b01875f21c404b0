# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""``gravac report``: from the runs of ``bench tta`` to numbers, figures and one page. Figures need matplotlib."""
