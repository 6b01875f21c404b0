# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Creates the executor, which runs collectives, for the gradients' device and backend, and first measures the link."""

from typing import NamedTuple

import torch
import torch.distributed as dist

from gravac.exchange.device import CudaDevice, Device
from gravac.exchange.executor import Executor
from gravac.exchange.fifo import Fifo
from gravac.exchange.group import GroupTransport, StagedTransport, backend_of, check_initialized, private_group
from gravac.exchange.link_probe import LinkProbe, probe_link
from gravac.exchange.streams import StreamExecutor


class OpenedExecutor(NamedTuple):
    """An executor (which runs this rank's collectives), the measured speed of the link, and the gradients' GPU.

    Attributes:
        executor: object that runs this rank's collectives and functions in order.
        link: measured speed of the link; ``None`` if the speed was not measured, or if there is only one rank.
        device: streams and events of the gradients' GPU; ``None`` if the gradients are on the CPU, or if their device
            is not known.
    """

    executor: Executor
    link: LinkProbe | None = None
    device: Device | None = None


def open_executor(
    device: torch.device,
    group: dist.ProcessGroup | None = None,
    agree_group: dist.ProcessGroup | None = None,
) -> OpenedExecutor:
    """Create an executor over a process group, and measure the link's speed. Called on every rank.

    An executor runs a step's collectives: on a thread for CPU tensors or gloo, with new process groups of the same
    ranks; on a GPU's streams for GPU tensors over NCCL, with the given groups, so that NCCL gets all collectives of a
    training loop in a single order.

    Args:
        device: device of the gradients.
        group: group of the ranks that average; ``None``: the default group.
        agree_group: group of the ranks that agree on measurements and decisions; ``None``: the same as ``group``.

    Raises:
        RuntimeError: the default process group is not initialized; or gravac cannot use the group's backend.
    """
    check_initialized()
    if runs_on_streams(backend_of(group, device), device):
        averaging_transport = GroupTransport(group or _default_group(), device=device)
        agree_transport = None if agree_group is None else GroupTransport(agree_group, device=device)
        # separate transports, so that the ledger of the steps does not count the probe's bytes
        probed_agree_transport = None if agree_group is None else GroupTransport(agree_group, device=device)
        measured_link = probe_link(
            GroupTransport(averaging_transport.group, device=device), device, probed_agree_transport
        )
        stream_device = CudaDevice(device)
        return OpenedExecutor(
            StreamExecutor(averaging_transport, stream_device, agree_transport), measured_link, stream_device
        )
    transport_class = GroupTransport if device.type == "cpu" else StagedTransport
    averaging_group = private_group(group)
    agree_transport = None if agree_group is None else GroupTransport(private_group(agree_group))
    probed_agree_transport = None if agree_transport is None else transport_class(agree_transport.group)
    measured_link = probe_link(transport_class(averaging_group), device, probed_agree_transport)
    gpu_device = None if device.type == "cpu" else CudaDevice(device)
    executor = Fifo(transport_class(averaging_group), agree_transport, device)
    return OpenedExecutor(executor, measured_link, gpu_device)


def runs_on_streams(backend: str, device: torch.device) -> bool:
    """Return whether collectives run on a GPU's streams: False for CPU tensors or gloo, True for GPU tensors over NCCL.

    Args:
        backend: name of the backend that exchanges tensors of ``device``; empty: there is none.
        device: device of the gradients.

    Raises:
        RuntimeError: gravac cannot use the backend.
    """
    if device.type == "cpu" or backend == "gloo":
        return False
    if device.type == "cuda" and backend == "nccl":
        return True
    backend_text = f"the backend {backend!r}" if backend else "no backend of the process group"
    raise RuntimeError(
        f"process_group: {backend_text} exchanges {device.type} tensors, but gravac needs nccl or gloo; call "
        'init_process_group("nccl"), or init_process_group("cpu:gloo,cuda:nccl")'
    )


def _default_group() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group
