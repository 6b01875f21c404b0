# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Why a test is left out, natively or with gravac; what is not named here has to pass."""

STREAMS = "overlaps by a GPU's streams and events, which the CPU has not; and DDP registers a hook of its own for it"

NOT_RUN = {
    "test_ddp_uneven_inputs": "convolves 1000 by 1000 pixels: 25 s a step on a CPU, 135 steps; and registers hooks",
}
"""Tests that are not run at all, and why."""

NATIVE = {
    "test_ddp_apply_optim_in_backward": STREAMS,
    "test_ddp_apply_optim_in_backward_grad_as_bucket_view_false": STREAMS,
    "test_ddp_apply_optim_in_backward_ignored_params": STREAMS,
    "test_ddp_native_mixed_precision_no_grad_as_bucket_view_no_set_grad_none": STREAMS,
    "test_ddp_native_mixed_precision_grad_as_bucket_view_no_set_grad_none": STREAMS,
    "test_ddp_native_mixed_precision_grad_as_bucket_view_set_grad_to_none": STREAMS,
    "test_ddp_native_mixed_precision_no_grad_as_bucket_view_set_grad_to_none": STREAMS,
    "test_ddp_logging_data_gpu": "asks for the GPU's number in DDP's log",
    "test_ddp_device": "asks that inputs come to lie on the rank's GPU",
    "test_ddp_hook_pickling_powerSGD": "registers a hook, and reloads it with `torch.load`, whose defaults refuse it",
}
"""Tests that do not pass on gloo and the CPU without gravac either, and why."""

WITH_GRAVAC = {
    "test_ddp_dist_autograd_sparse_grads": "a sparse gradient, which gravac refuses, and says what to do",
    "test_ddp_static_graph_nested_types": "wraps a DDP in a DDP, which gravac refuses by name",
    "test_ddp_profiling_torch_profiler": "counts all-reduces in a profile of the training thread, one for each step; "
    "gravac's are started on its exchange thread, and one more for each step is its agreement",
}
"""Tests that pass natively and cannot with gravac, and why. Those that register a hook are found by themselves."""

LOG = "reads DDP's own log, which starts again at every change of mode, since DDP gets a new reducer then"

SWITCHING = {
    "test_ddp_logging_data_cpu": LOG,
    "test_different_graph_across_ranks": LOG,
    "test_skip_all_reduce_unused_parameters": LOG,
}
"""Tests that pass with gravac's hook throughout, and cannot where DDP exchanges some steps itself, and why."""

LOCAL = "compares gradients or weights of a single step with the mean over the ranks, which these do not form"
UNREDUCED = "asks for an error that DDP raises while it averages (unused parameters, a new graph); it averages nothing"

APART = (
    ("is a SyncBatchNorm", "has a SyncBatchNorm, which exchanges in each forward: refused by name"),
    ("under join()", "trains under join(), where ranks run out of inputs: refused by name"),
    ("Tensor-likes are not", LOCAL),
    ("Scalars are not close", LOCAL),
    ("None mismatch", LOCAL),
    ("[True]]) is not false", LOCAL),
    ("'>=' not supported", LOG),
    ("0 is not true", LOG),
    ("not raised", UNREDUCED),
    ("True is not false", UNREDUCED),
)
"""Words of a failure of ranks that train apart, and why the test cannot pass there."""


def why_apart(error: str) -> str:
    """Return why a test cannot pass with ranks that train apart, by its last error; empty if nothing says so."""
    return next((why for words, why in APART if words in error), "")


def with_gravac(name: str, error: str, mode: str) -> str:
    """Return why a test need not pass with gravac; empty if it has to.

    Args:
        name: of the test.
        error: its last error with gravac; empty while it was not run, or passed.
        mode: how gravac exchanges.
    """
    reason = WITH_GRAVAC.get(name, "")
    if not reason and mode == "switching":
        reason = SWITCHING.get(name, "")
    if not reason and mode == "apart" and error:
        reason = why_apart(error)
    return reason
