# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Streams and devices without a GPU: made up of CPU tensors, and of nothing at all."""
