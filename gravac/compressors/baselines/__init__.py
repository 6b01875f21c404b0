# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Published compressors to compare with: in gravac's measurements none was better than those in ``compressors``.

Users choose these compressors by name like any other, and ``gravac.testing.check_compressor`` checks them too. Outside
of this folder, only the list of names in ``gravac.compressors`` refers to them.
"""
