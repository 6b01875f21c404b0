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
    "test_ddp_profiling_torch_profiler": "counts all-reduces in a profile of the training thread, one for each step; "
    "gravac's are started on its exchange thread, and one more for each step is its agreement",
}
"""Tests that pass natively and cannot with gravac, and why. Those that register a hook are found by themselves."""
