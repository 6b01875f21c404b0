# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Creates the executor that fits the backend of the gradients' device, and probes the link before the first step."""

from typing import Literal, NamedTuple

import torch
import torch.distributed as dist

from gravac.exchange.device import CudaDevice, Device
from gravac.exchange.executor import Executor
from gravac.exchange.fifo import Fifo
from gravac.exchange.group import GroupTransport, StagedTransport, backend_of, check_initialized, private_group
from gravac.exchange.link_probe import LinkProbe, probe_link
from gravac.exchange.streams import StreamExecutor

Kind = Literal["auto", "thread", "stream"]
"""Kind of executor: a thread (``"thread"``), a GPU's streams (``"stream"``), or chosen by the backend (``"auto"``)."""


class OpenedExecutor(NamedTuple):
    """An executor, with the speed of the link and the device that it was created for.

    Attributes:
        executor: object that runs jobs and calls.
        link: measured speed of the link; ``None`` if it was not probed, or if there is one rank.
        device: GPU of the gradients; ``None`` if the gradients are on the CPU, or if that is not known.
    """

    executor: Executor
    link: LinkProbe | None = None
    device: Device | None = None


def open_executor(
    device: torch.device,
    group: dist.ProcessGroup | None = None,
    agree_group: dist.ProcessGroup | None = None,
    kind: Kind = "auto",
    pace: float | None = None,
) -> OpenedExecutor:
    """Create an executor over a process group, and measure the link's speed. Called on every rank.

    An executor of the kind ``"thread"`` gets new process groups, with the same ranks. An executor of the kind
    ``"stream"`` uses the given groups, so that NCCL gets all collectives of a training loop in a single order.

    Args:
        device: device of the gradients.
        group: group of the ranks that average; ``None``: the default group.
        agree_group: group of the ranks that agree on measurements and decisions; ``None``: those that average.
        kind: kind of executor; ``"auto"`` chooses by the backend that exchanges that device's tensors.
        pace: bits per second of a slower link to emulate by sleeping; ``None``: the link as it is.

    Raises:
        RuntimeError: there is no process group yet; or no executor, or not that of ``kind``, can use its backend.
    """
    check_initialized()
    if choose_kind(backend_of(group, device), device, kind) == "stream":
        if pace is not None:
            raise RuntimeError(
                "pace: a slower link is emulated by sleeping, which streams cannot; use gloo, or pace=None"
            )
        averaging = GroupTransport(group or _world(), device=device)
        agreement = None if agree_group is None else GroupTransport(agree_group, device=device)
        # separate transports, so that the ledger of the steps does not count the probe's bytes
        probed_agreement = None if agree_group is None else GroupTransport(agree_group, device=device)
        probe = probe_link(GroupTransport(averaging.group, device=device), device, probed_agreement)
        streams = CudaDevice(device)
        return OpenedExecutor(StreamExecutor(averaging, streams, agreement), probe, streams)
    transport = GroupTransport if device.type == "cpu" else StagedTransport
    private = private_group(group)
    agreement = None if agree_group is None else GroupTransport(private_group(agree_group), pace)
    probed_agreement = None if agreement is None else transport(agreement.group, pace)
    probe = probe_link(transport(private, pace), device, probed_agreement)
    gpu = None if device.type == "cpu" else CudaDevice(device)
    return OpenedExecutor(Fifo(transport(private, pace), agreement), probe, gpu)


def choose_kind(backend: str, device: torch.device, kind: Kind) -> Literal["thread", "stream"]:
    """Return the kind of executor for the backend that exchanges a device's tensors.

    Raises:
        RuntimeError: no executor, or not that of the requested kind, can use the backend.
    """
    if device.type == "cpu" or backend == "gloo":
        if kind == "stream":
            raise RuntimeError(
                f'executor: "stream" needs collectives that streams order, and {backend or "nothing"} carries '
                f'{device.type} tensors here; use "thread", or init_process_group("nccl") with the model on a GPU'
            )
        return "thread"
    if device.type == "cuda" and backend == "nccl":
        if kind == "thread":
            raise RuntimeError(
                'executor: "thread" cannot wait for NCCL, whose collectives are ordered by streams; use "stream"'
            )
        return "stream"
    backend_text = f"the backend {backend!r}" if backend else "no backend of the process group"
    raise RuntimeError(
        f"executor: {backend_text} carries {device.type} tensors; gravac runs over nccl or gloo: "
        'init_process_group("nccl"), or "cpu:gloo,cuda:nccl"'
    )


def _world() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group
