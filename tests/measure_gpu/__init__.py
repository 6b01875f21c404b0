# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The measurement on a GPU: what of it can be tried without one, and all of it where there is one."""
