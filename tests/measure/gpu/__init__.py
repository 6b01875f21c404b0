# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What is to be known on one NVIDIA GPU, in ten minutes.

    python -m tests.measure.gpu [--json FILE] [--only NAME ...]

It needs PyTorch for CUDA, numpy and pydantic. Where these were not installed but unpacked, their folder must be on
PYTHONPATH: pydantic with pydantic_core, annotated_types, typing_inspection and typing_extensions. The part ``kernels``
also takes triton, and pytest (with iniconfig, pluggy, packaging, pygments) and hypothesis (with sortedcontainers); it
is left out without them. Nothing needs tensorboard.

Every part is a module with a function ``rows``, which runs in a process and a time limit of its own, see ``parts``. Two
ranks of NCCL cannot share a GPU: it has one here, and controllers that would drop every candidate then are left out.

Rows are printed and kept as parts end. One that says ``"met"`` has an aim; one that says ``"failed"``, why.
"""
