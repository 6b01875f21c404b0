# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Imported last where ranks are forked from: a rank's garbage collections leave alone what was imported before."""

import gc

gc.collect()
gc.freeze()
