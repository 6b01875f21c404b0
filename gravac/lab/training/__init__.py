# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Training runs: sessions of worker processes that train one or more models, and methods of exchanging gradients."""
