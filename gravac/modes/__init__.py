# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The modes of a step, and the switch between them. ``outer``: ranks train on their own, and exchange now and then."""
