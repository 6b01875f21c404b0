# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What the project hands out: its files, its distributions, and what someone meets who installs them."""
