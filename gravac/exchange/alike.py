# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What must be the same on all ranks is compared before any exchange relies on it: settings, versions, parameters.

Ranks whose settings differ would train apart in silence, or ask for different collectives, which hang or abort.
"""

import hashlib
import json
from collections.abc import Callable, Generator, Mapping, Sequence

import torch
import torch.distributed as dist

from gravac.exchange.group import CPU, ExchangeError, backend_of, check_initialized
from gravac.settings import SettingsError

MISSING = "none"
"""Text of what a rank does not have."""

SHOWN = 3
"""Number of different values, and of further fields, that an error names."""

Comparison = Generator[torch.Tensor, list[torch.Tensor], None]
"""Yields a rank's part of a gather, ``[elements]``, and is resumed with the parts of all ranks, in their order."""


def check_alike(texts: Mapping[str, str], device: torch.device, group: dist.ProcessGroup | None) -> None:
    """Check that all ranks have the same texts. Called on every rank, before anything is exchanged.

    Args:
        texts: settings and whatever else must be the same, as text, by the name that a user knows.
        device: where the gradients lie; what is compared goes over NCCL from there, and otherwise from the CPU.
        group: ranks that are compared; ``None``: the default group.

    Raises:
        SettingsError: a text differs; the message names the field, its values and whose they are, alike on all ranks.
        ExchangeError: a rank did not answer.
        RuntimeError: there is no process group yet.
    """
    check_initialized()
    world = dist.get_world_size(group)
    if world == 1:
        return
    where = device if backend_of(group, device) == "nccl" else CPU

    def gather(part: torch.Tensor) -> list[torch.Tensor]:
        rows = [torch.empty_like(part, device=where) for _ in range(world)]
        try:
            dist.all_gather(rows, part.to(where), group=group)
            return [row.cpu() for row in rows]
        except RuntimeError as failure:
            raise ExchangeError(
                f"rank {dist.get_rank(group)} of {world} got no answer when settings were compared: a rank failed "
                f"before, or has not come here: {failure}"
            ) from failure

    run(compare(texts), gather)


def run(comparison: Comparison, gather: Callable[[torch.Tensor], list[torch.Tensor]]) -> None:
    """Run a comparison to its end by a function that gathers flat tensors, one of each rank."""
    try:
        part = next(comparison)
        while True:
            part = comparison.send(gather(part))
    except StopIteration:
        return


def compare(texts: Mapping[str, str]) -> Comparison:
    """Compare named texts with those of the other ranks.

    1. Gather digests, of 32 bytes. If they are the same, that is all.
    2. Gather how long the texts are.
    3. Gather the texts, padded to the longest, and find what differs.

    Raises:
        SettingsError: a text differs.
    """
    digest = hashlib.sha256(json.dumps(dict(texts), sort_keys=True).encode()).digest()
    digests = yield _tensor(digest)
    if all(torch.equal(one, digests[0]) for one in digests):
        return
    mine = json.dumps(dict(texts)).encode()
    lengths = [int(length) for length in (yield torch.tensor([len(mine)]))]
    rows = yield _tensor(mine.ljust(max(lengths)))
    raise SettingsError(difference([json.loads(row.numpy().tobytes()) for row in rows]))


def difference(of_ranks: Sequence[Mapping[str, str]]) -> str:
    """Name the first field whose text is not the same on all ranks, with the texts, and further ones.

    Args:
        of_ranks: texts of each rank, by field; not all the same.

    Example:
        >>> difference([{"base": "topk", "seed": "0"}, {"base": "topk", "seed": "1"}, {"base": "topk", "seed": "0"}])
        'seed: ranks 0, 2 have 0, rank 1 has 1; give every rank the same'
    """
    fields = dict.fromkeys(field for texts in of_ranks for field in texts)
    first, *others = [field for field in fields if len({texts.get(field) for texts in of_ranks}) > 1]
    ranks_with: dict[str | None, list[int]] = {}
    for rank, texts in enumerate(of_ranks):
        ranks_with.setdefault(texts.get(first), []).append(rank)
    values = [
        f"{_ranks(ranks)} {MISSING if text is None else text}" for text, ranks in list(ranks_with.items())[:SHOWN]
    ]
    values += [f"and {len(ranks_with) - SHOWN} other values"] * (len(ranks_with) > SHOWN)
    more = ", ".join(others[:SHOWN]) + f" and {len(others) - SHOWN} more" * (len(others) > SHOWN)
    return f"{first}: {', '.join(values)}; give every rank the same" + (f" (also of {more})" if others else "")


def described(tensors: Mapping[str, torch.Tensor], kind: str = "parameter") -> dict[str, str]:
    """Describe tensors in order, one field for each: name, shape, dtype, and how they lie in memory.

    Args:
        tensors: tensors of any shape, by name.
        kind: what each is, the beginning of the fields' names.

    Example:
        >>> described({"weight": torch.zeros(3, 2)})
        {'parameter 0': 'weight [3, 2] float32'}
    """
    return {f"{kind} {n}": f"{name} {_form(tensor)}" for n, (name, tensor) in enumerate(tensors.items())}


def _form(tensor: torch.Tensor) -> str:
    form = f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
    if tensor.layout != torch.strided or tensor.is_contiguous():
        return form
    strides = tensor.stride()
    return f"{form}, dimensions in memory {sorted(range(tensor.dim()), key=lambda d: (-strides[d], d))}"


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]} has"
    if len(ranks) > SHOWN:
        return f"{len(ranks)} ranks, {ranks[0]} to {ranks[-1]}, have"
    return f"ranks {', '.join(map(str, ranks))} have"


def _tensor(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)
