# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The lab's reference tasks: real data that is on every machine, one file each."""
