# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Training runs: sessions of workers, and the methods of exchanging gradients."""
