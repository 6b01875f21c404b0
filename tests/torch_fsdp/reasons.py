# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Why an FSDP2 test is left out, natively or with gravac; what is not named here has to pass."""

NO_REPLICAS = "trains no model with replicas"

NOT_RUN: dict[str, str] = {}
"""Tests that are not run at all, and why."""

NATIVE = (
    (
        "expected scalar type",
        "normalizes a batch in float16 or bfloat16 with statistics in float32, which torch's CPU kernel refuses",
    ),
    ("PREMUL_SUM with Gloo", "asks for a sum of scaled gradients as one collective, which gloo lacks"),
    ("Cannot access accelerator device", "offloads to pinned memory, for which torch needs a GPU"),
)
"""Words of a failure without gravac, and why the test cannot pass on gloo and the CPU."""

NATIVE_TESTS = {
    "TestFullyShardStateDictMultiProcess::test_cached_state_dict": (
        "expects new memory for weights that move to the CPU and back, but they are on the CPU already"
    ),
}
"""Tests whose failure without gravac has no words of its own, and why they cannot pass on gloo and the CPU."""

ROUNDED = (
    "compares gradients with a mean that was rounded to float16 or bfloat16; gravac averages after torch has cast the "
    "gradients back, and does not round the mean"
)
COUNTED = "counts torch's all-reduces over the replicas, which gravac replaces"

WITH_GRAVAC = {
    "TestReplicateMixedPrecisionTraining::test_compute_dtype": ROUNDED,
    "TestReplicateMixedPrecisionTraining::test_reduce_dtype": ROUNDED,
    "TestFullyShardGradientAccumulation::test_gradient_accumulation": COUNTED,
}
"""Tests that pass natively and cannot with gravac, and why, by class and method."""


def natively(name: str, error: str) -> str:
    """Return why a test cannot pass without gravac, by its last error; empty if nothing says so."""
    return next((why for words, why in NATIVE if words in error), NATIVE_TESTS.get(name.split("::", 1)[1], ""))


def with_gravac(name: str, error: str) -> str:
    """Return why a test need not pass with gravac, by its name; empty if it has to."""
    return WITH_GRAVAC.get(name.split("::", 1)[1], "")
