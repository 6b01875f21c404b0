# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Four training scripts, before gravac and after, as someone comes to write them who follows the documentation."""
