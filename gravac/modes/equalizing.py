# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Makes optimizers and gradient scaler equal on all ranks after outer steps; weights are equal already.

Each function is a job: ``Engine.run_between_steps`` runs it on every rank at the same point. ``equalize_ranks`` runs
all of them in order:

1. ``average_states`` averages the optimizers' moments.
2. ``share_scaler`` sets the smallest scale on all ranks.
3. ``differing_ranks`` compares a checksum over the bits of all tensors and states that must be equal.
4. ``copy_from_first`` runs only if the checksums differ.

A job runs on the executor's thread or stream, while the training loop waits for its result.
"""

import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gravac.collectives import AllGather, AllReduce, Broadcast
from gravac.exchange.executor import Returning
from gravac.settings import SettingsError

CHUNK_BYTES = 1 << 24
"""Largest number of bytes that are exchanged at once; a larger tensor is exchanged alone. A job takes a few times as
much memory."""

BLOCK = 1 << 12
"""Number of 8-byte integers in a block, of which a checksum computes a weighted sum."""


def equalize_ranks(
    tensors: Sequence[torch.Tensor],
    optimizers: Sequence[torch.optim.Optimizer],
    scaler: torch.amp.GradScaler | None,
    device: torch.device,
) -> Returning[list[int]]:
    """Make optimizers and scaler equal on all ranks; if tensors still differ, copy rank 0's.

    Args:
        tensors: parameters, and buffers that all ranks share, of any shapes; expected to be equal on all ranks.
        optimizers: torch's optimizers, in the same order on all ranks.
        scaler: the gradient scaler; ``None`` without.
        device: device of the tensors that the executor exchanges.

    Returns:
        Ranks that differed from rank 0, and now have copies of rank 0's tensors; empty if all were equal.
    """
    yield from average_states(optimizers, device)
    if scaler is not None:
        yield from share_scaler(scaler, device)
    differing = yield from differing_ranks(tensors, optimizers, device)
    if differing:
        yield from copy_from_first(tensors, optimizers, device)
    return differing


# optimizer states


def average_states(optimizers: Sequence[torch.optim.Optimizer], device: torch.device) -> Returning[None]:
    """Average the optimizers' states over the ranks; all ranks have the same bits afterwards.

    - A floating-point tensor becomes the mean over the ranks that have a finite one; zeros if no rank has. The mean
      is computed in float32, or in float64 for float64 tensors, and rounded to the tensor's number format.
    - ``step``, integers, and scalars of a parameter that is no scalar are copied from rank 0, or from the first rank
      that has them; so are all other tensors.
    - Numbers that are no tensors are copied likewise.
    - A rank may lack a state, if a scaler skipped all its steps. Such a rank gets the state.
    - ``None`` counts as lacking. Anything else (text, lists, keys that are no text) stays as each rank has it.

    The all-reduces send 4 bytes for each element of a floating-point state (8 in float64). That is two model sizes for
    Adam, three with ``amsgrad``, one for SGD with momentum. Ranks also exchange some kilobytes that tell which rank has
    which state, and the bytes of all other tensors, each sent by a single rank.

    Args:
        optimizers: torch's optimizers, with the same parameters in the same order on all ranks.
        device: device of the tensors that the executor exchanges.

    Raises:
        SettingsError: a state is no plain dense tensor (quantized, sharded or sparse).
        ValueError: optimizers differ between ranks, or a state has different shapes, number formats or types.
    """
    entries = yield from _agreed_entries(optimizers, device)
    _put_numbers(optimizers, entries)
    moments = [entry for entry in entries if entry.is_moment]
    for working in (torch.float32, torch.float64):
        alike = [entry for entry in moments if entry.working is working]
        for chunk in _chunks(alike, working.itemsize):
            yield from _average(optimizers, chunk, working, device)
    yield from _broadcast_entries(optimizers, [entry for entry in entries if not entry.is_moment], device)


@dataclass(frozen=True)
class _Entry:
    """One entry of an optimizer's state of a parameter, as the ranks agreed on it.

    Attributes:
        parameter: position of the parameter among those of all optimizers.
        key: key of the state in the parameter's dictionary.
        kind: ``"moment"``, a tensor to average; ``"tensor"``, a tensor to copy from ``root``; ``"number"``.
        form: number format, shape and device of a tensor; the device is empty if the tensor lies beside its parameter.
            For a number, the number itself.
        root: first rank that has the state.
    """

    parameter: int
    key: str
    kind: str
    form: Any
    root: int

    @property
    def is_moment(self) -> bool:
        """True if the ranks average the tensor."""
        return self.kind == "moment"

    @property
    def dtype(self) -> torch.dtype:
        """Number format of the tensor."""
        dtype = getattr(torch, self.form[0])
        assert isinstance(dtype, torch.dtype)
        return dtype

    @property
    def working(self) -> torch.dtype:
        """Number format in which the tensor is averaged."""
        return torch.float64 if self.dtype is torch.float64 else torch.float32

    @property
    def elements(self) -> int:
        """Number of elements of the tensor."""
        return torch.Size(self.form[1]).numel()


class _States:
    """All optimizers' states of their parameters on this rank.

    Args:
        optimizers: torch's optimizers.
    """

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._parameters = [
            (optimizer, parameter)
            for optimizer in optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        ]

    def described(self) -> list[dict[str, list[Any]]]:
        """Return the kind and form (see ``_Entry``) of each state on this rank: by key, for each parameter.

        Raises:
            SettingsError: a state is no plain dense tensor.
        """
        return [self._described(optimizer, parameter) for optimizer, parameter in self._parameters]

    def _described(self, optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> dict[str, list[Any]]:
        described: dict[str, list[Any]] = {}
        for key, state in _state(optimizer, parameter).items():
            if not isinstance(key, str):
                continue
            if isinstance(state, torch.Tensor):
                _refuse_special(optimizer, key, state)
                scalar = key == "step" or (state.dim() == 0 and parameter.dim() > 0)
                device = "" if state.device == parameter.device else str(state.device)
                form = [str(state.dtype).removeprefix("torch."), list(state.shape), device]
                described[key] = ["moment" if state.is_floating_point() and not scalar else "tensor", form]
            elif isinstance(state, int | float):
                described[key] = ["number", state]
        return described

    def get(self, entry: _Entry) -> torch.Tensor | None:
        """Return this rank's tensor of an entry; ``None`` if the rank lacks it."""
        optimizer, parameter = self._parameters[entry.parameter]
        state = _state(optimizer, parameter).get(entry.key)
        return state.detach() if isinstance(state, torch.Tensor) else None

    def put(self, entry: _Entry, values: torch.Tensor) -> None:
        """Overwrite this rank's tensor of an entry; create it if it is missing.

        Args:
            entry: the entry.
            values: numbers of the tensor, flat, of any number format, in the order of the tensor's indices.
        """
        _, shape, device = entry.form
        state = self.get(entry)
        if state is None:
            optimizer, parameter = self._parameters[entry.parameter]
            like = parameter.detach()
            if tuple(shape) == tuple(like.shape):
                state = torch.empty_like(like, dtype=entry.dtype, device=device or None)
            else:
                state = torch.empty(shape, dtype=entry.dtype, device=device or like.device)
            optimizer.state[parameter][entry.key] = state
        state.copy_(values.view(shape))

    def put_number(self, entry: _Entry) -> None:
        """Set this rank's state of an entry to the entry's number."""
        optimizer, parameter = self._parameters[entry.parameter]
        optimizer.state[parameter][entry.key] = entry.form


def _state(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> dict[Any, Any]:
    """Return a parameter's state; if it has none, a new empty dictionary that the optimizer does not refer to."""
    state: dict[Any, Any] = optimizer.state.get(parameter, {})
    return state


def _refuse_special(optimizer: torch.optim.Optimizer, key: str, state: torch.Tensor) -> None:
    is_plain = type(state) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    if not is_plain or state.layout != torch.strided or state.is_quantized:
        kind = type(state).__name__ if not is_plain else "quantized" if state.is_quantized else str(state.layout)
        raise SettingsError(
            f"every: ranks cannot average the state {key!r} of {type(optimizer).__name__}, which is no plain dense "
            f"tensor ({kind}); use another optimizer, or every=1"
        )


def _agreed_entries(optimizers: Sequence[torch.optim.Optimizer], device: torch.device) -> Returning[list[_Entry]]:
    """Return an entry for each state that any rank has, in the same order on all ranks.

    Raises:
        SettingsError: a state is no plain dense tensor.
        ValueError: optimizers differ between ranks, or a state has different shapes, number formats or types.
    """
    texts = yield from _gather_texts(json.dumps(_States(optimizers).described()), device)
    ranks: list[list[dict[str, list[Any]]]] = [json.loads(text) for text in texts]
    numbers = {len(described) for described in ranks}
    if len(numbers) > 1:
        raise ValueError(f"optimizers: ranks have different numbers of parameters, {sorted(numbers)}; make them equal")
    entries: dict[tuple[int, str], _Entry] = {}
    for rank, described in enumerate(ranks):
        for parameter, states in enumerate(described):
            for key, (kind, form) in states.items():
                entry = entries.setdefault((parameter, key), _Entry(parameter, key, kind, form, rank))
                if entry.kind != kind or (kind != "number" and entry.form != form):
                    raise ValueError(
                        f"optimizers: the state {key!r} of parameter {parameter} is {kind} {form} on rank {rank} and "
                        f"{entry.kind} {entry.form} on rank {entry.root}; make the same optimizers on all ranks"
                    )
    return [entries[key] for key in sorted(entries)]


def _gather_texts(text: str, device: torch.device) -> Returning[list[str]]:
    """Return each rank's text, by rank."""
    packed = zlib.compress(text.encode(), 1)
    ((lengths,),) = yield [AllGather(torch.tensor([len(packed)], device=device))]
    sizes = [int(length) for (length,) in lengths.tolist()]
    padded = torch.frombuffer(bytearray(packed.ljust(max(sizes), b"\0")), dtype=torch.uint8)
    ((rows,),) = yield [AllGather(padded.to(device))]
    return [zlib.decompress(bytes(row[:size].tolist())).decode() for row, size in zip(rows.cpu(), sizes, strict=True)]


def _put_numbers(optimizers: Sequence[torch.optim.Optimizer], entries: Iterable[_Entry]) -> None:
    """Set this rank's numbers to those of the first rank that has them."""
    states = _States(optimizers)
    for entry in entries:
        if entry.kind == "number":
            states.put_number(entry)


def _chunks(entries: Iterable[_Entry], size: int) -> Iterator[list[_Entry]]:
    """Yield entries in chunks of at most ``CHUNK_BYTES``; a larger tensor is a chunk by itself.

    Args:
        entries: tensors' entries.
        size: bytes of an element; 0: those of the tensor's own number format.
    """
    chunk: list[_Entry] = []
    chunk_bytes = 0
    for entry in entries:
        length = entry.elements * (size or entry.dtype.itemsize)
        if chunk and chunk_bytes + length > CHUNK_BYTES:
            yield chunk
            chunk, chunk_bytes = [], 0
        chunk.append(entry)
        chunk_bytes += length
    if chunk:
        yield chunk


def _average(
    optimizers: Sequence[torch.optim.Optimizer], chunk: Sequence[_Entry], working: torch.dtype, device: torch.device
) -> Returning[None]:
    """Average each moment over the ranks that have a finite one, in one all-reduce.

    The summed tensor ends with a number for each moment: 1 if this rank's moment is finite, else 0. The sums of these
    numbers count the ranks.
    """
    states = _States(optimizers)
    elements = sum(entry.elements for entry in chunk)
    flat = torch.zeros(elements + len(chunk), dtype=working, device=device)
    first = 0
    for position, entry in enumerate(chunk):
        if (state := states.get(entry)) is not None:
            finite = torch.isfinite(state).all()
            values = torch.where(finite, state, torch.zeros_like(state)).reshape(-1)
            flat[first : first + entry.elements].copy_(values)
            flat[elements + position] = finite
        first += entry.elements
    (total,) = yield [AllReduce(flat)]
    counts = total[elements:].clamp(min=1)
    first = 0
    for position, entry in enumerate(chunk):
        states.put(entry, total[first : first + entry.elements] / counts[position])
        first += entry.elements


def _broadcast_entries(
    optimizers: Sequence[torch.optim.Optimizer], entries: Sequence[_Entry], device: torch.device
) -> Returning[None]:
    """Copy each tensor from the first rank that has it to all ranks, bit for bit."""
    states = _States(optimizers)
    tensors = [entry for entry in entries if entry.kind != "number"]
    for root in sorted({entry.root for entry in tensors}):
        for chunk in _chunks([entry for entry in tensors if entry.root == root], 0):
            sizes = [entry.elements * entry.dtype.itemsize for entry in chunk]
            packed = _packed([states.get(entry) for entry in chunk], sizes, device)
            if packed.numel():
                (packed,) = yield [Broadcast(packed, root)]
            for entry, state_bytes in zip(chunk, torch.split(packed, sizes), strict=True):
                states.put(entry, state_bytes.clone().view(entry.dtype))


# any tensors


def copy_from_first(
    tensors: Sequence[torch.Tensor], optimizers: Sequence[torch.optim.Optimizer], device: torch.device
) -> Returning[None]:
    """Copy rank 0's tensors and optimizer states to all ranks, bit for bit.

    A state that rank 0 lacks is copied from the first rank that has it. All other bytes are sent once, by rank 0.

    Args:
        tensors: parameters and buffers: dense, of any shapes; shapes and number formats are the same on all ranks.
        optimizers: torch's optimizers, as for ``average_states``.
        device: device of the tensors that the executor exchanges.

    Raises:
        SettingsError: a state is no plain dense tensor.
        ValueError: optimizers differ between ranks, or a state has different shapes, number formats or types.
    """
    entries = yield from _agreed_entries(optimizers, device)
    _put_numbers(optimizers, entries)
    yield from _broadcast_entries(optimizers, entries, device)
    chunk: list[torch.Tensor] = []
    for tensor in tensors:
        if chunk and sum(map(_nbytes, (*chunk, tensor))) > CHUNK_BYTES:
            yield from _broadcast(chunk, device)
            chunk = []
        chunk.append(tensor.detach())
    yield from _broadcast(chunk, device)


def _broadcast(tensors: Sequence[torch.Tensor], device: torch.device) -> Returning[None]:
    """Copy rank 0's tensors to all ranks, in one broadcast."""
    sizes = [*map(_nbytes, tensors)]
    packed = _packed(tensors, sizes, device)
    if not packed.numel():
        return
    (packed,) = yield [Broadcast(packed, 0)]
    for tensor, tensor_bytes in zip(tensors, torch.split(packed, sizes), strict=True):
        tensor.copy_(tensor_bytes.clone().view(tensor.dtype).view(tensor.shape))


def _nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _packed(tensors: Sequence[torch.Tensor | None], sizes: Sequence[int], device: torch.device) -> torch.Tensor:
    """Return the bytes of all tensors one after the other, flat; zeros for a missing tensor."""
    of_tensors = [
        torch.zeros(size, dtype=torch.uint8, device=device) if tensor is None else _bytes(tensor).to(device)
        for tensor, size in zip(tensors, sizes, strict=True)
    ]
    return torch.cat(of_tensors) if of_tensors else torch.zeros(0, dtype=torch.uint8, device=device)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's bytes in the order of its indices, flat; a view if the tensor is contiguous."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


# the scaler


def share_scaler(scaler: torch.amp.GradScaler, device: torch.device) -> Returning[None]:
    """Set the scaler, on all ranks, to the ranks' smallest scale and smallest count of steps since the scale changed.

    Called between ``update()`` and the next ``scale()`` of the scaler.

    Args:
        scaler: the gradient scaler; a disabled scaler stays as it is, and does not count.
        device: device of the tensors that the executor exchanges.
    """
    state = scaler.state_dict()  # empty if the scaler is disabled
    shared = ("scale", "_growth_tracker")
    numbers = [float(state.get(name, float("inf"))) for name in shared]
    ((rows,),) = yield [AllGather(torch.tensor(numbers, dtype=torch.float64, device=device))]
    scale, steps = rows.amin(0).tolist()
    if state:
        scaler.load_state_dict({**state, "scale": scale, "_growth_tracker": int(steps)})


# comparing


def differing_ranks(
    tensors: Sequence[torch.Tensor], optimizers: Sequence[torch.optim.Optimizer], device: torch.device
) -> Returning[list[int]]:
    """Return the ranks whose tensors or optimizer states differ from rank 0's in any bit.

    The ranks compare a checksum, of 64 bits, of all bits. A change of a single word of 8 bytes is always noticed. Any
    other change is missed with a probability of about 2^-60. Each rank sends 8 bytes.

    Args:
        tensors: parameters and buffers, of any shapes.
        optimizers: torch's optimizers.
        device: device of the tensors that the executor exchanges.

    Raises:
        SettingsError: a state is no plain dense tensor.
    """
    ((rows,),) = yield [AllGather(torch.tensor([checksum(tensors, optimizers)], device=device))]
    first, *others = (number for (number,) in rows.tolist())
    return [rank for rank, other in enumerate(others, 1) if other != first]


def checksum(tensors: Sequence[torch.Tensor], optimizers: Sequence[torch.optim.Optimizer]) -> int:
    """Return a checksum of all bits of tensors of any shapes and of optimizer states: a signed number of 64 bits.

    The checksum also covers shapes, number formats, keys, and states that are numbers, but not the order of keys.

    Raises:
        SettingsError: a state is no plain dense tensor.
    """
    states = _States(optimizers)
    described = states.described()
    entries = [
        _Entry(parameter, key, kind, form, 0)
        for parameter, states_by_key in enumerate(described)
        for key, (kind, form) in sorted(states_by_key.items())
        if kind != "number"
    ]
    compared = [*tensors, *(state for state in map(states.get, entries) if state is not None)]
    forms = [(list(tensor.shape), str(tensor.dtype)) for tensor in tensors]
    text = json.dumps([forms, described, _words_sums(compared)], sort_keys=True)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little", signed=True)


def _words_sums(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Return, for each tensor, a weighted sum of its integers, modulo 2^64. The host waits for each device once."""
    sums: dict[torch.device, dict[int, torch.Tensor]] = {}
    weights: dict[torch.device, list[torch.Tensor]] = {}
    for position, tensor in enumerate(tensors):
        of_device = weights.setdefault(tensor.device, _weights(tensor.device))
        sums.setdefault(tensor.device, {})[position] = _words_sum(tensor, of_device)
    numbers = {
        position: number
        for of_device in sums.values()
        for position, number in zip(of_device, torch.stack([*of_device.values()]).tolist(), strict=True)
    }
    return [numbers[position] for position in range(len(tensors))]


def _weights(device: torch.device) -> list[torch.Tensor]:
    """Return odd weights, ``[BLOCK]``, for each level of sums: integers of a block, blocks of a larger block, ..."""
    generator = torch.Generator().manual_seed(0x67726176)
    limit = 1 << 62
    return [torch.randint(-limit, limit, (BLOCK,), generator=generator).to(device) * 2 + 1 for _ in range(6)]


def _words_sum(tensor: torch.Tensor, weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return a weighted sum of a tensor's integers of 8 bytes, modulo 2^64: a scalar, int64."""
    chunk_bytes = max(1, CHUNK_BYTES // (8 * BLOCK)) * 8 * BLOCK
    chunk_sums = []
    for chunk in torch.split(_bytes(tensor), chunk_bytes):
        integers = chunk.new_zeros(-(-chunk.numel() // 8) * 8)
        integers[: chunk.numel()] = chunk
        chunk_sums.append(_blocks_sums(integers.view(torch.int64), weights[0]))
    sums = torch.cat(chunk_sums)
    for of_level in weights[1:]:
        if sums.numel() == 1:
            break
        sums = _blocks_sums(sums, of_level)
    return sums.sum()


def _blocks_sums(integers: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the weighted sum of each block of integers, ``[blocks]``."""
    blocks = max(1, -(-integers.numel() // BLOCK))
    padded = integers.new_zeros(blocks * BLOCK)
    padded[: integers.numel()] = integers
    return (padded.view(blocks, BLOCK) * weights).sum(1)
