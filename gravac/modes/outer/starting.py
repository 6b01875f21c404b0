# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What outer steps begin with: parameters to train, weights that all ranks share, settings that must be alike."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from gravac.engine.engine import refuse_complex
from gravac.exchange.alike import described
from gravac.policy import OuterSettings
from gravac.sources.ddp import canonical
from gravac.texts import text_of, texts_of


def trained(module: torch.nn.Module, fragments: int) -> dict[str, torch.nn.Parameter]:
    """Return the parameters to train, by name.

    Raises:
        TypeError: a parameter is complex.
        ValueError: there are none, or fewer than fragments.
    """
    parameters = {canonical(name): p for name, p in module.named_parameters() if p.requires_grad}
    refuse_complex(parameters)
    if len(parameters) < fragments:
        raise ValueError(
            f"module: it has {len(parameters)} parameters to train, which do not make {fragments} fragments"
        )
    return parameters


def check_memory(module: torch.nn.Module) -> None:
    """Refuse tensors of a module that cannot be exchanged as they lie in memory.

    Raises:
        ValueError: a parameter or buffer is sparse or quantized, or several of its elements are one place in memory; a
            parameter to train has gaps in memory, or shares memory with another one or with a buffer.
    """
    parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    for what, named in (("parameter", parameters), ("buffer", buffers)):
        for name, tensor in named.items():
            refuse_overlap(f"{what} {canonical(name)}", tensor)
    trains = {f"parameter {canonical(name)}": p for name, p in parameters.items() if p.requires_grad}
    for name, parameter in trains.items():
        if not torch.ops.aten.is_non_overlapping_and_dense(parameter):
            raise ValueError(
                f"module: {name} has shape {tuple(parameter.shape)} and strides {parameter.stride()}, which leave gaps "
                "in memory; replace it by torch.nn.Parameter(parameter.detach().contiguous())"
            )
    held = {f"buffer {name}": buffer for name, buffer in buffers.items()}
    _refuse_shared(*({name: tensor for name, tensor in of.items() if tensor.numel()} for of in (trains, held)))


def _refuse_shared(trains: Mapping[str, torch.Tensor], buffers: Mapping[str, torch.Tensor]) -> None:
    """Refuse a parameter to train that shares memory with another one, or with a buffer."""
    lies = [
        _Lies.of(name, tensor, trained)
        for trained, named in ((True, trains), (False, buffers))
        for name, tensor in named.items()
    ]
    before: _Lies | None = None
    for one in sorted(lies):
        together = before is not None and before.storage == one.storage
        if before is not None and together and one.first < before.last and (one.trains or before.trains):
            raise ValueError(
                f"module: {before.name} and {one.name} share memory, so that each exchange would change both; tie "
                "parameters by giving one Parameter two names, and keep buffers in memory of their own"
            )
        if before is None or not together or one.last > before.last:
            before = one


class _Lies(NamedTuple):
    """Where a tensor lies in memory: from the first byte of a storage to one before the last; and what it is."""

    storage: int
    first: int
    last: int
    name: str
    trains: bool

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor, trains: bool) -> "_Lies":
        size, first = tensor.element_size(), tensor.element_size() * int(tensor.storage_offset())
        reach = sum(stride * (number - 1) for stride, number in zip(tensor.stride(), tensor.shape, strict=True))
        return cls(tensor.untyped_storage()._cdata, first, first + size * (1 + reach), name, trains)


def refuse_overlap(what: str, tensor: torch.Tensor) -> None:
    """Refuse a tensor that is not as many places in memory as it has elements.

    Args:
        what: names the tensor in errors.
        tensor: any tensor.

    Raises:
        ValueError: it is sparse or quantized, or several of its elements are one place in memory.
    """
    if tensor.layout != torch.strided or tensor.is_quantized:
        kind = "quantized" if tensor.is_quantized else f"of layout {tensor.layout}"
        raise ValueError(f"module: {what} is {kind}, which ranks cannot exchange; use a dense tensor")
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and tensor.numel() and stride <= reach:
            raise ValueError(
                f"module: {what} has shape {tuple(tensor.shape)} and strides {tensor.stride()}, so that several of its "
                "elements are one place in memory (expand() makes such tensors); replace it by its .contiguous() copy"
            )
        reach += stride * (size - 1)


class Watch:
    """Notices parameters that ranks would train apart in silence.

    Args:
        module: trained on this rank.
        inner: optimizers that train it.
        parameters: what is exchanged, by name.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        inner: Sequence[torch.optim.Optimizer],
        parameters: Mapping[str, torch.nn.Parameter],
    ) -> None:
        self._module, self._inner = module, inner
        self._exchanged = {id(parameter): (parameter, _form(parameter)) for parameter in parameters.values()}

    def check(self) -> None:
        """Refuse what has become of the parameters since, where it does not fit what is exchanged.

        Raises:
            ValueError: a parameter that is to be trained is not exchanged, or one that is exchanged was moved to
                another device, number format, shape or memory format.
        """
        for name, parameter in self._module.named_parameters():
            if id(parameter) in self._exchanged:
                form, then = _form(parameter), self._exchanged[id(parameter)][1]
                if form != then:
                    raise ValueError(
                        f"module: parameter {canonical(name)} is {_words(form)}, and was {_words(then)} when this "
                        "compressor was attached; move the module before"
                    )
            elif parameter.requires_grad:
                raise ValueError(
                    f"module: parameter {canonical(name)} requires a gradient, and did not, or was another tensor, "
                    "when this compressor was attached, so that ranks would train it apart; close() this one and make "
                    "a new one, or have all that will ever be trained require gradients at the start: a parameter may "
                    "be frozen later"
                )
        for group in [group for optimizer in self._inner for group in optimizer.param_groups]:
            for parameter in group["params"]:
                if parameter.requires_grad and id(parameter) not in self._exchanged:
                    raise ValueError(
                        f"optimizer: it trains a tensor of shape {tuple(parameter.shape)} that is no parameter of the "
                        "module, so that ranks would train it apart; give a module that has all that the optimizer "
                        "trains, such as torch.nn.ModuleList([...])"
                    )


Form = tuple[torch.dtype, torch.device, torch.Size, tuple[int, ...]]
"""Number format, device, shape and strides of a tensor."""


def _form(tensor: torch.Tensor) -> Form:
    return tensor.dtype, tensor.device, tensor.shape, tensor.stride()


def _words(form: Form) -> str:
    dtype, device, shape, strides = form
    return f"{dtype} of shape {tuple(shape)}, strides {strides}, on {device}"


def share(module: torch.nn.Module, group: dist.ProcessGroup | None) -> None:
    """Give all ranks the weights and buffers of their first, bit for bit, however they lie in memory.

    They are sent as bytes, so that number formats that a backend does not know are too.

    Raises:
        RuntimeError: there is no process group.
    """
    if not dist.is_initialized():
        raise RuntimeError("no process group: call torch.distributed.init_process_group first")
    first = 0 if group is None else dist.get_global_rank(group, 0)
    for tensor in (*module.parameters(), *module.buffers()):
        own = tensor.detach()
        whole = own.resolve_conj().resolve_neg().contiguous()
        if whole.numel():
            dist.broadcast(whole.reshape(-1).view(torch.uint8), first, group=group)
        if whole.data_ptr() != own.data_ptr() or own.is_conj() or own.is_neg():
            own.copy_(whole)


def same_on_all_ranks(module: torch.nn.Module, settings: OuterSettings) -> dict[str, str]:
    """Return what must be the same on all ranks besides ``AdaptiveCompressor``'s settings, as text, by field.

    That is all settings but the number of samples, of which only whether it is set; and all parameters and buffers,
    which the ranks are given by their first.
    """
    samples = "not set" if settings.samples is None else "set"
    own = {**texts_of(settings), "samples": samples, "local_buffers": text_of(sorted(settings.local_buffers))}
    parameters = {canonical(name): parameter for name, parameter in module.named_parameters()}
    trains = (", trained" if parameter.requires_grad else ", frozen" for parameter in parameters.values())
    known = {field: text + how for (field, text), how in zip(described(parameters).items(), trains, strict=True)}
    return {**own, **known, **described(dict(module.named_buffers()), "buffer")}


def described_optimizer(optimizer: torch.optim.Optimizer) -> str:
    """Return an optimizer's class, and its parameter groups' settings, as text."""
    groups = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    return f"{type(optimizer).__qualname__} {', '.join(map(text_of, groups))}"


def device_of(module: torch.nn.Module) -> torch.device:
    """Return where a module's parameters lie: the CPU, if it has none."""
    return next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
