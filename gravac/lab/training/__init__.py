# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Trains models in worker processes, by methods of exchanging gradients that the lab compares."""
