# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Published compressors to compare with: no measurement of this package found them ahead of those one folder up.

They obey the same laws, and users choose them by name as any other compressor. Nothing outside of this folder depends
on them, but for the list of names in ``gravac.compressors``.
"""
