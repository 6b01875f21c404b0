# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Why a test is left out, natively or with gravac; what is not named here has to pass."""

NATIVE: dict[str, str] = {}
"""Tests that do not pass on gloo and the CPU without gravac either, and why."""

WITH_GRAVAC: dict[str, str] = {}
"""Tests that pass natively and cannot with gravac, and why. Those that register a hook are found by themselves."""
