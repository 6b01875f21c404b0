# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Published compressors to compare with: in gravac's measurements none was better than those one folder up.

They obey the same laws, and users choose them by name like any other compressor. Outside of this folder, only the list
of names in ``gravac.compressors`` refers to them.
"""
