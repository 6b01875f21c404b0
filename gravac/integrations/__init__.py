# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Integrations of gravac with training frameworks: Accelerate, Lightning, Ray Train and Transformers.

The integrations use gravac's public API, as a user does.
"""
