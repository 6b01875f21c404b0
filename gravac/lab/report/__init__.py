# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""``gravac report``: makes tables, figures and a page of the runs of ``bench tta``. Figures need matplotlib."""
