# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""``gravac bench tta``: measures how long each method trains on each link until a target metric is reached."""
