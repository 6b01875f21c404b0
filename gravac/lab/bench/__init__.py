# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""``gravac bench compressors``: measures time, memory and error of every compressor on this machine."""
