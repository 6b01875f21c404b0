# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Outer steps of a model in shards: each rank exchanges its shards with the ranks that hold the same shards.

A replica trains by itself: torch exchanges within it, and nothing over the replicas. What outer steps read and
overwrite are this rank's shards, as plain tensors that share memory with the model's parameters.
"""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import torch

from gravac.sources.fsdp2 import ShardedModel, in_shards_like, local_tensor
from gravac.sources.hooked import HookedSource
from gravac.sources.local_model import LocalModel, innermost
from gravac.sources.module_steering import SteeredModule


class SteeredShards(SteeredModule):
    """A model in shards as a source of gradients; see ``gravac.modes.switch.Source``.

    Args:
        source: hands the gradients of this rank's shards to the engine.
        module: module that the training loop calls.
        model: the model in shards.
    """

    def __init__(self, source: HookedSource, module: torch.nn.Module, model: ShardedModel) -> None:
        super().__init__(source, module, shares_buffers=False)
        self._model = model

    def local_model(self, optimizers: Sequence[torch.optim.Optimizer]) -> LocalModel:
        """Return the local model: this rank's shards of the parameters and of the optimizers' states."""
        return LocalShards(self._model, innermost(self.inner_module), optimizers)


class LocalShards(LocalModel):
    """This rank's shards of a model, and of the optimizers' states, as plain tensors that share the model's memory.

    Args:
        model: the model in shards.
        trained_module: the module that is in shards.
        optimizers: torch's optimizers that train it.

    Attributes:
        exchange_shapes: shape in which each parameter is exchanged, by name, the same on all ranks: the largest size
            of all ranks' shards in each dimension.
    """

    def __init__(
        self, model: ShardedModel, trained_module: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]
    ) -> None:
        self._model, self._trained_module = model, trained_module
        self._local_parameters = {name: torch.nn.Parameter(shard) for name, shard in model.shards.items()}
        module = torch.nn.Module()
        for name, parameter in self._local_parameters.items():
            owner, key = _owner_of(module, name)
            owner.register_parameter(key, parameter)
        super().__init__(module, [ShardOptimizer(optimizer, self._parameters_and_shards()) for optimizer in optimizers])
        self.exchange_shapes = model.padded_shapes
        self.prepare()

    def prepare(self) -> None:
        """Make the plain tensors share memory with the model's present shards, and register its present buffers."""
        self._model.reshard()
        for name, shard in self._model.shards.items():
            parameter = self._local_parameters[name]
            if parameter.data_ptr() != shard.data_ptr():
                parameter.data = shard
        for name, buffer in self._trained_module.named_buffers():
            owner, key = _owner_of(self.module, name)
            owner.register_buffer(key, local_tensor(buffer))

    def state_dict_entries(
        self, trained_module: torch.nn.Module, weights: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Return weights in shards, with the names and number formats that they have in a module's state dict.

        Args:
            trained_module: module that the user trains and saves.
            weights: tensors of the shapes of this rank's shards, by the parameters' names.
        """
        self._model.reshard()
        names = {id(parameter): name for name, parameter in self._model.parameters.items()}
        return {
            name: in_shards_like(weights[names[id(parameter)]].to(local_tensor(parameter)), parameter)
            for name, parameter in trained_module.named_parameters(remove_duplicate=False)
            if id(parameter) in names
        }

    def gradient(self, parameter: torch.nn.Parameter) -> torch.Tensor | None:
        """Return this rank's shard of the gradient of a parameter of ``module``; ``None`` if there is no gradient."""
        in_shards = next((sharded for sharded, local in self._parameters_and_shards() if local is parameter), parameter)
        gradient: torch.Tensor | None = local_tensor(in_shards.grad)
        return gradient

    def _parameters_and_shards(self) -> "list[tuple[torch.nn.Parameter, torch.nn.Parameter]]":
        """Return each ``DTensor`` parameter, with this rank's shard of it."""
        return [(parameter, self._local_parameters[name]) for name, parameter in self._model.parameters.items()]


class ShardOptimizer(torch.optim.Optimizer):
    """View of an optimizer of a model in shards, with this rank's shards in place of each ``DTensor``.

    What is written to the view is written to the optimizer.

    Args:
        optimizer: optimizer of the parameters in shards, which the view stands for.
        parameters_and_shards: each ``DTensor`` parameter, with this rank's shard of it.

    Attributes:
        sharded_optimizer: the argument ``optimizer``.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters_and_shards: "Sequence[tuple[torch.nn.Parameter, torch.nn.Parameter]]",
    ) -> None:
        self.sharded_optimizer = optimizer
        self._local_by_id = {id(parameter): local for parameter, local in parameters_and_shards}
        self._parameter_by_id = {id(local): parameter for parameter, local in parameters_and_shards}

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """Default settings of the optimizer's parameter groups."""
        return self.sharded_optimizer.defaults

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Parameter groups, with this rank's shards as their parameters."""
        return [
            {**group, "params": [*map(self._local, group["params"])]} for group in self.sharded_optimizer.param_groups
        ]

    @property
    def state(self) -> "MutableMapping[torch.Tensor, MutableMapping[str, Any]]":  # type: ignore[override]
        """State of each parameter, with tensors of the shard's shape; keys are this rank's shards."""
        return _States(self)

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state dict, with this rank's shards in place of each ``DTensor``."""
        saved = self.sharded_optimizer.state_dict()
        return {**saved, "state": {number: _with_local(entries) for number, entries in saved["state"].items()}}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a state dict that ``state_dict`` returned."""
        parameters = [parameter for group in self.sharded_optimizer.param_groups for parameter in group["params"]]
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        parameter_by_number = dict(zip(numbers, parameters, strict=True))
        state = {
            number: {key: in_shards_if_fits(entry, parameter_by_number[number]) for key, entry in entries.items()}
            for number, entries in state_dict["state"].items()
        }
        self.sharded_optimizer.load_state_dict({**state_dict, "state": state})

    def _local(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return this rank's shard of a parameter; the parameter itself if it is not exchanged."""
        return self._local_by_id.get(id(parameter), parameter)

    def parameter_of(self, local: torch.Tensor) -> torch.Tensor:
        """Return the parameter, of any shape, that a shard belongs to; the tensor itself if it is no shard."""
        return self._parameter_by_id.get(id(local), local)


class _States(MutableMapping[torch.Tensor, MutableMapping[str, Any]]):
    """View of an optimizer's ``state``, whose keys are this rank's shards of the parameters.

    Args:
        view: the ``ShardOptimizer`` whose ``state`` is this view.
    """

    def __init__(self, view: ShardOptimizer) -> None:
        self._view = view

    def __getitem__(self, local: torch.Tensor) -> MutableMapping[str, Any]:
        parameter = self._view.parameter_of(local)
        return _Entries(self._view.sharded_optimizer.state[parameter], parameter)

    def __contains__(self, local: object) -> bool:
        return isinstance(local, torch.Tensor) and self._view.parameter_of(local) in self._view.sharded_optimizer.state

    def get(self, local: torch.Tensor, default: Any = None) -> Any:
        """Return the state of a parameter, or ``default`` if the optimizer has none."""
        if local not in self:  # self[local] would add an entry to the optimizer's state
            return default
        return self[local]

    def __setitem__(self, local: torch.Tensor, entries: Mapping[str, Any]) -> None:
        self[local].update(entries)

    def __delitem__(self, local: torch.Tensor) -> None:
        del self._view.sharded_optimizer.state[self._view.parameter_of(local)]

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter([self._view._local(parameter) for parameter in self._view.sharded_optimizer.state])

    def __len__(self) -> int:
        return len(self._view.sharded_optimizer.state)


class _Entries(MutableMapping[str, Any]):
    """View of an optimizer's state of one parameter, such as Adam's moments, with this rank's shards.

    Args:
        entries: the state, by key.
        parameter: the parameter, of any shape.
    """

    def __init__(self, entries: dict[str, Any], parameter: torch.Tensor) -> None:
        self._entries, self._parameter = entries, parameter

    def __getitem__(self, key: str) -> Any:
        return _with_local(self._entries[key])

    def __setitem__(self, key: str, entry: Any) -> None:
        self._entries[key] = in_shards_if_fits(entry, self._parameter)

    def __delitem__(self, key: str) -> None:
        del self._entries[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def in_shards_if_fits(entry: Any, parameter: torch.Tensor) -> Any:
    """Return an entry of a parameter's optimizer state in shards, if it has the shape of this rank's shard.

    Args:
        entry: a tensor of any shape, or anything else that an optimizer stores.
        parameter: the parameter, of any shape, in shards or not.
    """
    shard = local_tensor(parameter)
    fits = isinstance(entry, torch.Tensor) and shard is not parameter and entry.shape == shard.shape
    return in_shards_like(entry, parameter) if fits else entry


def _with_local(entry: Any) -> Any:
    """Return an entry of an optimizer's state; this rank's shards replace each ``DTensor``, also in containers."""
    if isinstance(entry, Mapping):
        return {key: _with_local(inner) for key, inner in entry.items()}
    if type(entry) in (list, tuple):
        return type(entry)(map(_with_local, entry))
    return local_tensor(entry)


def _owner_of(module: torch.nn.Module, name: str) -> tuple[torch.nn.Module, str]:
    """Return the submodule that has, or will have, a tensor of a dotted name, and the tensor's key in it."""
    path, _, key = name.rpartition(".")
    owner = module
    for child_name in filter(None, path.split(".")):
        if child_name not in owner._modules:
            owner.add_module(child_name, torch.nn.Module())
        owner = owner.get_submodule(child_name)
    return owner, key
