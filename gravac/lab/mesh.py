# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A mesh of two dimensions, on which a model in shards trains (HSDP): replicas of the model, each cut into shards."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gravac.lab.shapes import Shape, elements_of

_MESH_PATTERN = re.compile(r"\s*(\d+)\s*[x×]\s*(\d+)\s*")


@dataclass(frozen=True, slots=True)
class Mesh:
    """A mesh of replicas x shards; ``str`` of a mesh returns a text such as ``2x4``.

    Rank r holds shard ``r % shards`` of replica ``r // shards``. gravac compresses the exchange between replicas, in
    which each rank sends the gradient of its shard. torch runs the exchange within a replica, without gravac.

    Attributes:
        replicas: number of replicas, 2 or more, which is also the number of ranks that hold the same shard.
        shards: number of shards that each replica is cut into, 1 or more; a replica has as many ranks.

    Raises:
        ValueError: ``replicas`` is below 2, or ``shards`` is below 1.

    Example:
        >>> mesh = Mesh(replicas=2, shards=4)
        >>> str(mesh), mesh.ranks, mesh.shard_shape((10, 3))
        ('2x4', 8, (3, 3))
    """

    replicas: int
    shards: int

    def __post_init__(self) -> None:
        if self.replicas < 2:
            raise ValueError(
                f"mesh: {self} has {self.replicas} replica{'s' if self.replicas != 1 else ''}, but gravac compresses "
                "what replicas exchange with each other; use two or more replicas, such as 2x4"
            )
        if self.shards < 1:
            raise ValueError(f"mesh: {self} has {self.shards} shards in a replica; use one or more, such as 2x4")

    def __str__(self) -> str:
        return f"{self.replicas}x{self.shards}"

    @property
    def ranks(self) -> int:
        """Number of ranks of the mesh, replicas x shards."""
        return self.replicas * self.shards

    def replica_of(self, rank: int) -> int:
        """Return the index, from 0, of the replica that a rank belongs to."""
        return rank // self.shards

    def shard_shape(self, shape: Sequence[int]) -> Shape:
        """Return the shape of the largest shard of a parameter; smaller shards are padded to that shape.

        FSDP2 cuts a parameter along its first dimension.

        Args:
            shape: shape of the parameter.
        """
        return tuple(-(-size // self.shards) if axis == 0 else size for axis, size in enumerate(shape))

    def shard_elements(self, shapes: Sequence[Sequence[int]]) -> int:
        """Return the number of elements of a rank's shards of all given parameters, padding included.

        Args:
            shapes: shapes of the parameters.
        """
        return elements_of([self.shard_shape(shape) for shape in shapes])

    def shard_share(self, shapes: Sequence[Sequence[int]] | None = None) -> float:
        """Return the share of the model that each rank holds in its shards, padding included; 1 is the whole model.

        Args:
            shapes: shapes of the model's parameters; ``None``: unknown, and the result is 1 / shards.
        """
        return 1 / self.shards if shapes is None else self.shard_elements(shapes) / elements_of(shapes)


def parse_mesh(text: str) -> Mesh:
    """Return the mesh that a text such as ``2x4`` (replicas x shards) describes.

    Raises:
        ValueError: the text describes no mesh, or a mesh of a single replica.
    """
    match = _MESH_PATTERN.fullmatch(text.lower())
    if match is None:
        raise ValueError(f"mesh: {text!r} is not a mesh; give replicas x shards, such as 2x4")
    return Mesh(int(match[1]), int(match[2]))
