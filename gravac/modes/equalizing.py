# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Makes optimizer states and gradient scaler equal on all ranks after outer steps; weights are equal already.

Each function that returns a ``Job`` is a job: a generator that yields collectives, and is resumed with their
results. ``Engine.run_between_steps`` runs a job on every rank at the same point, on the executor's thread or stream,
while the training loop waits for the job's result. ``equalize_ranks`` runs these jobs in order:

1. ``average_states`` averages the optimizers' moments.
2. ``equalize_scaler`` sets the ranks' smallest loss scale on all ranks.
3. ``differing_ranks`` compares a checksum over the bits of all tensors and states that must be equal.
4. ``copy_from_first`` copies rank 0's tensors and states, only if the checksums differ.
"""

import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gravac.collectives import AllGather, AllReduce, Broadcast
from gravac.exchange.executor import Job
from gravac.modes.checksum import bytes_of, checksum_of
from gravac.settings import SettingsError
from gravac.sources.local_model import optimizer_of_user

CHUNK_BYTES = 1 << 24
"""Largest number of bytes in one collective; a larger tensor has a collective of its own. While ranks exchange, each
rank needs a few times as many bytes of additional memory."""


def equalize_ranks(
    tensors: Sequence[torch.Tensor],
    optimizers: Sequence[torch.optim.Optimizer],
    scaler: torch.amp.GradScaler | None,
    device: torch.device,
) -> Job[list[int]]:
    """Make optimizer states and scaler equal on all ranks; if anything still differs, copy rank 0's tensors and states.

    Args:
        tensors: parameters, and buffers that all ranks share, of any shapes; expected to be equal on all ranks.
        optimizers: torch's optimizers, in the same order on all ranks.
        scaler: the gradient scaler; ``None`` if there is none.
        device: device of the tensors that the executor exchanges.

    Returns:
        Ranks that differed from rank 0, and now have copies of rank 0's tensors and states; empty if all were equal.
    """
    yield from average_states(optimizers, device)
    if scaler is not None:
        yield from equalize_scaler(scaler, device)
    unequal_ranks = yield from differing_ranks(tensors, optimizers, device)
    if unequal_ranks:
        yield from copy_from_first(tensors, optimizers, device)
    return unequal_ranks


# optimizer states


def average_states(optimizers: Sequence[torch.optim.Optimizer], device: torch.device) -> Job[None]:
    """Average the optimizers' states over the ranks; all ranks have the same bits afterwards.

    - A floating-point tensor becomes the mean over the ranks whose tensor is finite; zeros if no rank has a finite
      tensor. The mean is computed in float32, or in float64 for float64 tensors, and rounded to the tensor's number
      format.
    - All other tensors are copied from rank 0, or, if rank 0 lacks the tensor, from the first rank that has it. Such
      tensors are ``step``, integers, and scalar states of a parameter that is no scalar.
    - Numbers that are no tensors are copied in the same way.
    - A rank may lack a state, if a scaler skipped all its steps, or if the state is ``None``. Such a rank gets the
      state.
    - Anything else (text, lists, states whose key is no text) is not exchanged.

    The all-reduces send 4 bytes for each element of a floating-point state (8 in float64). That is two model sizes for
    Adam, three with ``amsgrad``, one for SGD with momentum. Ranks also exchange some kilobytes that describe which rank
    has which state, and the bytes of all other tensors, each sent by a single rank.

    Args:
        optimizers: torch's optimizers, with the same parameters in the same order on all ranks.
        device: device of the tensors that the executor exchanges.

    Raises:
        SettingsError: a state is no plain dense tensor (quantized, sharded or sparse).
        ValueError: optimizers differ between ranks, or a state has different shapes, number formats or types.
    """
    entries = yield from _agreed_entries(optimizers, device)
    _set_numbers(optimizers, entries)
    moment_entries = [entry for entry in entries if entry.is_moment]
    for mean_dtype in (torch.float32, torch.float64):
        entries_of_dtype = [entry for entry in moment_entries if entry.mean_dtype is mean_dtype]
        for chunk in _in_chunks(entries_of_dtype, mean_dtype.itemsize):
            yield from _average_moments(optimizers, chunk, mean_dtype, device)
    yield from _broadcast_entries(optimizers, [entry for entry in entries if not entry.is_moment], device)


@dataclass(frozen=True)
class _StateEntry:
    """Description, the same on all ranks, of one entry of a parameter's optimizer state, such as Adam's ``exp_avg``.

    Attributes:
        parameter_index: position of the parameter in the list of all optimizers' parameters.
        key: key of the entry in the parameter's state, such as ``"exp_avg"``.
        kind: ``"moment"``, a tensor to average; ``"tensor"``, a tensor to copy from ``root``; or ``"number"``, a number
            to copy.
        layout_or_number: ``[number format, shape, device]`` of a tensor; an empty device means the parameter's device.
            For an entry of kind ``"number"``, the number itself.
        root: lowest rank that has the entry; sends the entry if ranks copy it.
    """

    parameter_index: int
    key: str
    kind: str
    layout_or_number: Any
    root: int

    def __str__(self) -> str:
        if self.kind == "number":
            return f"the number {self.layout_or_number}"
        dtype, shape, device = self.layout_or_number
        action = "average" if self.is_moment else "copy"
        return f"a tensor to {action} ({dtype} of shape {tuple(shape)}{f' on {device}' if device else ''})"

    @property
    def is_moment(self) -> bool:
        """True if the entry is a tensor that the ranks average."""
        return self.kind == "moment"

    @property
    def dtype(self) -> torch.dtype:
        """Number format of the tensor."""
        dtype = getattr(torch, self.layout_or_number[0])
        assert isinstance(dtype, torch.dtype)
        return dtype

    @property
    def mean_dtype(self) -> torch.dtype:
        """Number format in which the tensor is averaged."""
        return torch.float64 if self.dtype is torch.float64 else torch.float32

    @property
    def elements(self) -> int:
        """Number of elements of the tensor."""
        return torch.Size(self.layout_or_number[1]).numel()


class _OptimizerStates:
    """Reads and writes this rank's states of all parameters in all optimizers.

    Args:
        optimizers: torch's optimizers.
    """

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._optimizers_and_parameters = [
            (optimizer, parameter)
            for optimizer in optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        ]

    def descriptions(self) -> list[dict[str, list[Any]]]:
        """Return the layout of the optimizer's state on this rank: a dictionary for each parameter, in order.

        A dictionary maps each key of the parameter's state, such as ``"exp_avg"``, to ``[kind, form]``. ``_StateEntry``
        describes ``kind`` and ``form``.

        Raises:
            SettingsError: a state is no plain dense tensor.
        """
        return [self._description(optimizer, parameter) for optimizer, parameter in self._optimizers_and_parameters]

    def _description(self, optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> dict[str, list[Any]]:
        """Return the layout of a parameter's state as one dictionary of ``descriptions``."""
        description: dict[str, list[Any]] = {}
        for key, state in _state_of(optimizer, parameter).items():
            if not isinstance(key, str):
                continue
            if isinstance(state, torch.Tensor):
                _refuse_not_plain(optimizer, key, state)
                is_count = key == "step" or (state.dim() == 0 and parameter.dim() > 0)
                device = "" if state.device == parameter.device else str(state.device)
                layout = [str(state.dtype).removeprefix("torch."), list(state.shape), device]
                description[key] = ["moment" if state.is_floating_point() and not is_count else "tensor", layout]
            elif isinstance(state, int | float):
                description[key] = ["number", state]
        return description

    def tensor_of(self, entry: _StateEntry) -> torch.Tensor | None:
        """Return this rank's tensor of an entry, of any shape; ``None`` if the rank lacks the tensor."""
        optimizer, parameter = self._optimizers_and_parameters[entry.parameter_index]
        state = _state_of(optimizer, parameter).get(entry.key)
        return state.detach() if isinstance(state, torch.Tensor) else None

    def overwrite(self, entry: _StateEntry, new_elements: torch.Tensor) -> None:
        """Overwrite this rank's tensor of an entry; create the tensor if this rank lacks it.

        Args:
            entry: description of the tensor.
            new_elements: new elements of the tensor, flat, in row-major order, of any number format.
        """
        _, shape, device = entry.layout_or_number
        state = self.tensor_of(entry)
        if state is None:
            optimizer, parameter = self._optimizers_and_parameters[entry.parameter_index]
            detached = parameter.detach()
            if tuple(shape) == tuple(detached.shape):
                state = torch.empty_like(detached, dtype=entry.dtype, device=device or None)
            else:
                state = torch.empty(shape, dtype=entry.dtype, device=device or detached.device)
            optimizer.state[parameter][entry.key] = state
        state.copy_(new_elements.view(shape))

    def set_number(self, entry: _StateEntry) -> None:
        """Set this rank's state to the number that an entry of kind ``"number"`` describes."""
        optimizer, parameter = self._optimizers_and_parameters[entry.parameter_index]
        optimizer.state[parameter][entry.key] = entry.layout_or_number


def _state_of(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> dict[Any, Any]:
    """Return a parameter's state by key; an empty dictionary, not stored in the optimizer, if there is no state."""
    state: dict[Any, Any] = optimizer.state.get(parameter, {})
    return state


def _refuse_not_plain(optimizer: torch.optim.Optimizer, key: str, state: torch.Tensor) -> None:
    """Raise a ``SettingsError`` if an optimizer's tensor is quantized, not dense, or of a subclass such as DTensor."""
    is_plain = type(state) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    if not is_plain or state.layout != torch.strided or state.is_quantized:
        kind_text = type(state).__name__ if not is_plain else "quantized" if state.is_quantized else str(state.layout)
        optimizer_name = type(optimizer_of_user(optimizer)).__name__
        raise SettingsError(
            f"every: ranks cannot average the state {key!r} of {optimizer_name}, which is not a plain dense tensor "
            f"({kind_text}); use another optimizer, or every=1"
        )


def _agreed_entries(optimizers: Sequence[torch.optim.Optimizer], device: torch.device) -> Job[list[_StateEntry]]:
    """Exchange descriptions of the ranks' states; return an entry for each state that at least one rank has.

    The entries are the same, in the same order, on all ranks.

    Raises:
        SettingsError: a state is no plain dense tensor.
        ValueError: optimizers differ between ranks, or a state has different shapes, number formats or types.
    """
    texts = yield from gather_texts(json.dumps(_OptimizerStates(optimizers).descriptions()), device)
    descriptions_of_ranks: list[list[dict[str, list[Any]]]] = [json.loads(text) for text in texts]
    parameter_counts = {len(descriptions) for descriptions in descriptions_of_ranks}
    if len(parameter_counts) > 1:
        raise ValueError(
            f"optimizers: ranks have different numbers of parameters, {sorted(parameter_counts)}; give the optimizers "
            "the same parameters on all ranks"
        )
    entries: dict[tuple[int, str], _StateEntry] = {}
    for rank, descriptions in enumerate(descriptions_of_ranks):
        for parameter_index, description in enumerate(descriptions):
            for key, (kind, layout_or_number) in description.items():
                entry_of_rank = _StateEntry(parameter_index, key, kind, layout_or_number, rank)
                entry = entries.setdefault((parameter_index, key), entry_of_rank)
                if entry.kind != kind or (kind != "number" and entry.layout_or_number != layout_or_number):
                    raise ValueError(
                        f"optimizers: the state {key!r} of parameter {parameter_index} is {entry_of_rank} on rank "
                        f"{rank}, but {entry} on rank {entry.root}; make the same optimizers on all ranks"
                    )
    return [entries[key] for key in sorted(entries)]


def gather_texts(text: str, device: torch.device) -> Job[list[str]]:
    """Gather a text from each rank; return the texts, by rank."""
    packed_text = zlib.compress(text.encode(), 1)
    ((length_rows,),) = yield [AllGather(torch.tensor([len(packed_text)], dtype=torch.int64, device=device))]
    text_sizes = [int(length) for (length,) in length_rows.tolist()]
    padded_bytes = torch.frombuffer(bytearray(packed_text.ljust(max(text_sizes), b"\0")), dtype=torch.uint8)
    ((rows,),) = yield [AllGather(padded_bytes.to(device))]
    return [
        zlib.decompress(bytes(row[:size].tolist())).decode() for row, size in zip(rows.cpu(), text_sizes, strict=True)
    ]


def _set_numbers(optimizers: Sequence[torch.optim.Optimizer], entries: Iterable[_StateEntry]) -> None:
    """Set each state of kind ``"number"`` to the number of the lowest rank that has the state."""
    states = _OptimizerStates(optimizers)
    for entry in entries:
        if entry.kind == "number":
            states.set_number(entry)


def _in_chunks(entries: Iterable[_StateEntry], element_bytes: int) -> Iterator[list[_StateEntry]]:
    """Yield entries in chunks of at most ``CHUNK_BYTES``; a larger tensor is a chunk by itself.

    Args:
        entries: descriptions of tensors.
        element_bytes: bytes in which each element is sent; 0: the size of the tensor's own number format.
    """
    chunk: list[_StateEntry] = []
    chunk_bytes = 0
    for entry in entries:
        tensor_bytes = entry.elements * (element_bytes or entry.dtype.itemsize)
        if chunk and chunk_bytes + tensor_bytes > CHUNK_BYTES:
            yield chunk
            chunk, chunk_bytes = [], 0
        chunk.append(entry)
        chunk_bytes += tensor_bytes
    if chunk:
        yield chunk


def _average_moments(
    optimizers: Sequence[torch.optim.Optimizer],
    chunk: Sequence[_StateEntry],
    mean_dtype: torch.dtype,
    device: torch.device,
) -> Job[None]:
    """Average each moment (tensor of floating-point numbers, such as Adam's ``exp_avg``) of a chunk, in one all-reduce.

    The mean is over the ranks whose moment is finite. To count these ranks, the all-reduced tensor ends with a number
    for each moment: 1 if this rank has the moment and all its elements are finite, otherwise 0.
    """
    states = _OptimizerStates(optimizers)
    elements = sum(entry.elements for entry in chunk)
    flat_moments = torch.zeros(elements + len(chunk), dtype=mean_dtype, device=device)
    offset = 0
    for position, entry in enumerate(chunk):
        if (state := states.tensor_of(entry)) is not None:
            is_finite = torch.isfinite(state).all()
            finite_values = torch.where(is_finite, state, torch.zeros_like(state)).reshape(-1)
            flat_moments[offset : offset + entry.elements].copy_(finite_values)
            flat_moments[elements + position] = is_finite
        offset += entry.elements
    (flat_sum,) = yield [AllReduce(flat_moments)]
    finite_rank_counts = flat_sum[elements:].clamp(min=1)
    offset = 0
    for position, entry in enumerate(chunk):
        states.overwrite(entry, flat_sum[offset : offset + entry.elements] / finite_rank_counts[position])
        offset += entry.elements


def _broadcast_entries(
    optimizers: Sequence[torch.optim.Optimizer], entries: Sequence[_StateEntry], device: torch.device
) -> Job[None]:
    """Copy each tensor that the entries describe to all ranks, bit for bit, from the lowest rank that has the tensor.

    Entries of kind ``"number"`` are skipped.
    """
    states = _OptimizerStates(optimizers)
    tensor_entries = [entry for entry in entries if entry.kind != "number"]
    for root in sorted({entry.root for entry in tensor_entries}):
        for chunk in _in_chunks([entry for entry in tensor_entries if entry.root == root], 0):
            byte_counts = [entry.elements * entry.dtype.itemsize for entry in chunk]
            packed_bytes = _pack_bytes([states.tensor_of(entry) for entry in chunk], byte_counts, device)
            if packed_bytes.numel():
                (packed_bytes,) = yield [Broadcast(packed_bytes, root)]
            for entry, state_bytes in zip(chunk, torch.split(packed_bytes, byte_counts), strict=True):
                states.overwrite(entry, state_bytes.clone().view(entry.dtype))


# any tensors


def copy_from_first(
    tensors: Sequence[torch.Tensor], optimizers: Sequence[torch.optim.Optimizer], device: torch.device
) -> Job[None]:
    """Copy rank 0's tensors and optimizer states to all ranks, bit for bit.

    Rank 0 sends each byte once. If rank 0 lacks a state, the first rank that has the state sends it.

    Args:
        tensors: parameters and buffers: dense, of any shapes; shapes and number formats are the same on all ranks.
        optimizers: torch's optimizers, as for ``average_states``.
        device: device of the tensors that the executor exchanges.

    Raises:
        SettingsError: a state is no plain dense tensor.
        ValueError: optimizers differ between ranks, or a state has different shapes, number formats or types.
    """
    entries = yield from _agreed_entries(optimizers, device)
    _set_numbers(optimizers, entries)
    yield from _broadcast_entries(optimizers, entries, device)
    chunk: list[torch.Tensor] = []
    for tensor in tensors:
        if chunk and sum(map(_nbytes, (*chunk, tensor))) > CHUNK_BYTES:
            yield from _broadcast(chunk, device)
            chunk = []
        chunk.append(tensor.detach())
    yield from _broadcast(chunk, device)


def _broadcast(tensors: Sequence[torch.Tensor], device: torch.device) -> Job[None]:
    """Copy rank 0's tensors to all ranks, in one broadcast."""
    byte_counts = [*map(_nbytes, tensors)]
    packed_bytes = _pack_bytes(tensors, byte_counts, device)
    if not packed_bytes.numel():
        return
    (packed_bytes,) = yield [Broadcast(packed_bytes, 0)]
    for tensor, tensor_bytes in zip(tensors, torch.split(packed_bytes, byte_counts), strict=True):
        tensor.copy_(tensor_bytes.clone().view(tensor.dtype).view(tensor.shape))


def _nbytes(tensor: torch.Tensor) -> int:
    """Return the number of bytes of a tensor's elements."""
    return tensor.numel() * tensor.element_size()


def _pack_bytes(
    tensors: Sequence[torch.Tensor | None], byte_counts: Sequence[int], device: torch.device
) -> torch.Tensor:
    """Return the bytes of all tensors one after the other: shape ``[bytes]``, uint8; zeros in place of a ``None``.

    Args:
        tensors: tensors of any shapes; ``None`` for a tensor that this rank lacks.
        byte_counts: bytes of each tensor.
        device: device of the result.
    """
    flat_bytes = [
        torch.zeros(byte_count, dtype=torch.uint8, device=device) if tensor is None else bytes_of(tensor).to(device)
        for tensor, byte_count in zip(tensors, byte_counts, strict=True)
    ]
    return torch.cat(flat_bytes) if flat_bytes else torch.zeros(0, dtype=torch.uint8, device=device)


# the scaler


def equalize_scaler(scaler: torch.amp.GradScaler, device: torch.device) -> Job[None]:
    """Give the scalers of all ranks the smallest scale, and the smallest number of steps since the scale changed.

    Called between ``update()`` and the next ``scale()`` of the scaler.

    Args:
        scaler: this rank's gradient scaler. A disabled scaler is ignored and not changed.
        device: device of the tensors that the executor exchanges.
    """
    state = scaler.state_dict()  # empty if the scaler is disabled
    scale_numbers = [float(state.get(key, float("inf"))) for key in ("scale", "_growth_tracker")]
    ((numbers_of_ranks,),) = yield [AllGather(torch.tensor(scale_numbers, dtype=torch.float64, device=device))]
    smallest_scale, growth_steps = numbers_of_ranks.amin(0).tolist()
    if state:
        scaler.load_state_dict({**state, "scale": smallest_scale, "_growth_tracker": int(growth_steps)})


# comparing


def differing_ranks(
    tensors: Sequence[torch.Tensor], optimizers: Sequence[torch.optim.Optimizer], device: torch.device
) -> Job[list[int]]:
    """Return the ranks whose tensors or optimizer states differ from rank 0's in any bit.

    The ranks compare a checksum of 64 bits. A change within a single word of 8 bytes always changes the checksum. Any
    other change is missed with a probability of about 2^-60. Each rank sends 8 bytes.

    Args:
        tensors: parameters and buffers, of any shapes.
        optimizers: torch's optimizers.
        device: device of the tensors that the executor exchanges.

    Raises:
        SettingsError: a state is no plain dense tensor.
    """
    own_checksum = torch.tensor([checksum(tensors, optimizers)], dtype=torch.int64, device=device)
    ((checksum_rows,),) = yield [AllGather(own_checksum)]
    first_checksum, *other_checksums = (rank_checksum for (rank_checksum,) in checksum_rows.tolist())
    return [rank for rank, rank_checksum in enumerate(other_checksums, 1) if rank_checksum != first_checksum]


def checksum(tensors: Sequence[torch.Tensor], optimizers: Sequence[torch.optim.Optimizer]) -> int:
    """Return a checksum of all bits of tensors, of any shapes, and of optimizer states: a signed number of 64 bits.

    The checksum also covers shapes, number formats, keys of states, and states that are numbers. It does not depend on
    the order of keys.

    Raises:
        SettingsError: a state is no plain dense tensor.
    """
    states = _OptimizerStates(optimizers)
    descriptions = states.descriptions()
    entries = [
        _StateEntry(parameter_index, key, kind, layout_or_number, 0)
        for parameter_index, states_by_key in enumerate(descriptions)
        for key, (kind, layout_or_number) in sorted(states_by_key.items())
        if kind != "number"
    ]
    all_tensors = [*tensors, *(state for state in map(states.tensor_of, entries) if state is not None)]
    return int(checksum_of([descriptions], all_tensors))
