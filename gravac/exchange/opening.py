# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Chooses the executor by who carries the gradients' bytes, makes it, and knows the link before the first step."""

from typing import Literal, NamedTuple

import torch
import torch.distributed as dist

from gravac.exchange.device import CudaDevice, Device
from gravac.exchange.executor import Executor
from gravac.exchange.fifo import Fifo
from gravac.exchange.group import GroupTransport, StagedTransport, backend_of, check_initialized, own_group
from gravac.exchange.link_probe import LinkProbe, probe_link
from gravac.exchange.streams import StreamExecutor

Kind = Literal["auto", "thread", "stream"]
"""How steps are run: by a thread that waits for the exchange, or inline on a device's streams."""


class Opened(NamedTuple):
    """What runs the steps of a run, and what is known before the first.

    Attributes:
        executor: runs the steps.
        link: what the link was probed at; ``None``: it was not, or there is one rank.
        device: where the gradients lie; ``None``: on the CPU, or it is not known.
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
) -> Opened:
    """Make an executor over a process group, and probe the link. Called on every rank.

    A thread has process groups of its own, on the same ranks. Streams take the groups that they are given, so that all
    that a training loop hands to NCCL is in one order.

    Args:
        device: where the gradients lie.
        group: its ranks average; ``None``: the default group.
        agree_group: its ranks agree; ``None``: the same.
        kind: ``"auto"`` chooses by the backend that carries that device's tensors.
        pace: emulate a link of that many bits per second by sleeping; ``None``: the link as it is.

    Raises:
        RuntimeError: there is no process group yet, or what carries its tensors fits no executor, or not this one.
    """
    check_initialized()
    if chosen(backend_of(group, device), device, kind) == "stream":
        if pace is not None:
            raise RuntimeError("pace: a slower link is emulated by sleeping, which streams cannot; use gloo, or none")
        mine = GroupTransport(group or _world(), device=device)
        agreement = None if agree_group is None else GroupTransport(agree_group, device=device)
        # on ledgers of their own: it is no step's traffic
        everyone = None if agree_group is None else GroupTransport(agree_group, device=device)
        probe = probe_link(GroupTransport(mine.group, device=device), device, everyone)
        streams = CudaDevice(device)
        return Opened(StreamExecutor(mine, streams, agreement), probe, streams)
    transport = GroupTransport if device.type == "cpu" else StagedTransport
    own = own_group(group)
    agreeing = None if agree_group is None else GroupTransport(own_group(agree_group), pace)
    everyone = None if agreeing is None else transport(agreeing.group, pace)
    probe = probe_link(transport(own, pace), device, everyone)
    return Opened(Fifo(transport(own, pace), agreeing), probe, None if device.type == "cpu" else CudaDevice(device))


def chosen(backend: str, device: torch.device, kind: Kind) -> Literal["thread", "stream"]:
    """Choose the executor for what carries a device's tensors.

    Raises:
        RuntimeError: no executor fits, or not the one that was asked for.
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
                'executor: "thread" waits for the exchange on the host, and NCCL\'s is ordered by streams; use "stream"'
            )
        return "stream"
    carries = f"the backend {backend!r}" if backend else "no backend of the process group"
    raise RuntimeError(
        f"executor: {carries} carries {device.type} tensors; gravac runs over nccl or gloo: "
        'init_process_group("nccl"), or "cpu:gloo,cuda:nccl"'
    )


def _world() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group
