# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Predicts the bytes that a rank of a mesh sends in a step: to other replicas, and within its replica."""

from __future__ import annotations

from collections.abc import Sequence

from gravac.collectives import AllReduce
from gravac.lab.doctor.memory import format_bytes
from gravac.lab.mesh import Mesh
from gravac.lab.shapes import Shape, elements_of
from gravac.settings import Settings


class LinkTraffic(Settings):
    """Bytes that a rank of a mesh sends in a step over one kind of link, by torch's own exchange in float32.

    Attributes:
        link: text that names the link.
        carries: text that says what the bytes are, and who exchanges them.
        sizes: bytes in multiples of the model's size in float32, 4 bytes a parameter.
    """

    link: str
    carries: str
    sizes: float


def traffic_of_mesh(mesh: Mesh, shapes: Sequence[Shape] | None = None) -> tuple[LinkTraffic, LinkTraffic]:
    """Return the bytes that a rank sends in a step to other replicas, and those within its replica, in this order.

    Within a replica, FSDP2 gathers each weight before forward and again before backward, and reduces each gradient. In
    each of these three collectives, a rank sends the bytes of one shard to every other rank of the replica.

    Args:
        mesh: mesh of the model in shards.
        shapes: parameter shapes of the model; ``None``: unknown, all shards count as equally large.
    """
    shard_share = mesh.shard_share(shapes)
    sizes_between_replicas = AllReduce.wire_bytes(10**9, mesh.replicas) / 1e9 * shard_share
    return (
        LinkTraffic(
            link="between replicas",
            carries="the gradient of its shard, which gravac compresses",
            sizes=sizes_between_replicas,
        ),
        LinkTraffic(
            link="within a replica",
            carries="weights twice and gradients once, by torch, as without gravac",
            sizes=3 * (mesh.shards - 1) * shard_share,
        ),
    )


def describe_traffic(
    traffic: Sequence[LinkTraffic], mesh: Mesh, model: str | None, shapes: Sequence[Shape] | None
) -> str:
    """Return a text that states the bytes that a rank of a mesh sends in a step, a line for each kind of link.

    Args:
        traffic: bytes for each kind of link, as ``traffic_of_mesh`` returns them.
        mesh: mesh of the model in shards.
        model: name of the model; ``None``: no particular model.
        shapes: parameter shapes of the model; ``None``: bytes are given in multiples of the model's size.
    """
    unit_text = "in multiples of the model's size" if shapes is None else f"of {model}"
    lines = [f"What a rank of the mesh {mesh} sends in a step without compression, {unit_text}, float32:"]
    for link_traffic in traffic:
        amount_text = (
            f"{link_traffic.sizes:.3g} x the model"
            if shapes is None
            else format_bytes(4 * link_traffic.sizes * elements_of(shapes))
        )
        lines.append(f"  {link_traffic.link}  {amount_text}: {link_traffic.carries}")
    return "\n".join(lines)
