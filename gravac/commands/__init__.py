# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The commands of ``gravac``, a file for each. A command imports the lab and packages of extras only when it runs."""
