# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Which executor runs the exchange: by the device and the backend."""

import pytest
import torch

from gravac.exchange.opening import runs_on_streams


@pytest.mark.parametrize(
    ("backend", "device", "expected"),
    [("gloo", "cpu", False), ("nccl", "cpu", False), ("gloo", "cuda", False), ("nccl", "cuda", True)],
)
def test_streams_run_nccl_on_a_gpu_and_nothing_else(backend: str, device: str, expected: bool) -> None:
    assert runs_on_streams(backend, torch.device(device)) == expected


@pytest.mark.parametrize(("backend", "said"), [("mpi", "the backend 'mpi'"), ("", "no backend of the process group")])
def test_another_backend_is_refused_by_name(backend: str, said: str) -> None:
    with pytest.raises(
        RuntimeError, match=f"process_group: {said} exchanges cuda tensors, but gravac needs nccl or gloo"
    ):
        runs_on_streams(backend, torch.device("cuda"))
