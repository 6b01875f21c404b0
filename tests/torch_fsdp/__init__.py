# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""torch's own tests of FSDP2, with gravac attached to every model that has replicas."""
