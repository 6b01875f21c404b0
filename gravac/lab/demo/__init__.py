# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""``gravac demo``: trains a model over a slow link by four methods of exchanging gradients, and compares the losses."""
