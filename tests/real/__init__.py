# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Programs of others, run as they are with the lines that a user adds (``make real``)."""
