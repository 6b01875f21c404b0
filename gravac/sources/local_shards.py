# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Local model of a model in shards: each rank exchanges its shards with the ranks that hold the same shards.

Between two such exchanges, each replica trains by itself: torch exchanges only among the ranks of one replica. Outer
steps read and overwrite this rank's shards, as plain tensors that share memory with the model's parameters.
"""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import torch

from gravac.sources.fsdp2 import ShardedModel, in_shards_like, local_tensor
from gravac.sources.local_model import LocalModel, with_inner_optimizers


class LocalShards(LocalModel):
    """This rank's shards of a model, and of the optimizers' states, as plain tensors that share the model's memory.

    Args:
        model: the model in shards.
        trained_module: the module whose parameters are in shards.
        optimizers: torch's optimizers that train ``trained_module``.

    Attributes:
        exchange_shapes: shape in which each parameter is exchanged, by name, the same on all ranks. In each dimension,
            the shape has the largest size of all ranks' shards.
    """

    def __init__(
        self, model: ShardedModel, trained_module: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]
    ) -> None:
        self._model, self._trained_module = model, trained_module
        self._local_parameters = {name: torch.nn.Parameter(shard) for name, shard in model.shards.items()}
        module_of_shards = torch.nn.Module()
        for name, local in self._local_parameters.items():
            owner, key = _owner_of(module_of_shards, name)
            owner.register_parameter(key, local)
        parameters_and_shards = [
            (parameter, self._local_parameters[name]) for name, parameter in model.parameters.items()
        ]
        views = [ShardOptimizer(optimizer, parameters_and_shards) for optimizer in with_inner_optimizers(optimizers)]
        super().__init__(module_of_shards, views)
        self.exchange_shapes = model.padded_shapes
        self.prepare()

    def prepare(self) -> None:
        """Make ``module``'s parameters and buffers share memory with the model's present shards and buffers."""
        self._model.reshard()  # so that the next forward gathers what outer steps write
        for name, shard in self._model.shards.items():
            local = self._local_parameters[name]
            if local.data_ptr() != shard.data_ptr():
                local.data = shard
        for name, buffer in self._trained_module.named_buffers():
            owner, key = _owner_of(self.module, name)
            owner.register_buffer(key, local_tensor(buffer))

    def state_dict_entries(
        self, trained_module: torch.nn.Module, weights: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Return given shards as entries of a module's state dict: as ``DTensor``, with the module's names and dtypes.

        Args:
            trained_module: module that the user trains and saves.
            weights: tensors of the shapes of this rank's shards, by the parameters' names.
        """
        self._model.reshard()
        name_by_id = {id(parameter): name for name, parameter in self._model.parameters.items()}
        return {
            name: in_shards_like(weights[name_by_id[id(parameter)]].to(local_tensor(parameter)), parameter)
            for name, parameter in trained_module.named_parameters(remove_duplicate=False)
            if id(parameter) in name_by_id
        }

    def gradient(self, parameter: torch.nn.Parameter) -> torch.Tensor | None:
        """Return this rank's shard of the gradient of a parameter of ``module``; ``None`` if there is no gradient."""
        name = next(name for name, local in self._local_parameters.items() if local is parameter)
        gradient: torch.Tensor | None = local_tensor(self._model.parameters[name].grad)
        return gradient


class ShardOptimizer(torch.optim.Optimizer):
    """View of an optimizer of a model in shards, with this rank's shards in place of each ``DTensor``.

    Tensors of the view share memory with the optimizer's.

    Args:
        optimizer: optimizer that trains the ``DTensor`` parameters.
        parameters_and_shards: pairs of a ``DTensor`` parameter and this rank's shard of the parameter.

    Attributes:
        sharded_optimizer: the argument ``optimizer``.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, parameters_and_shards: Sequence[tuple[torch.Tensor, torch.Tensor]]
    ) -> None:
        self.sharded_optimizer = optimizer
        self._shard_by_id = {id(parameter): local for parameter, local in parameters_and_shards}
        self._parameter_by_id = {id(local): parameter for parameter, local in parameters_and_shards}

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Copies of the optimizer's parameter groups, with this rank's shards as parameters."""
        return [
            {**group, "params": [*map(self.shard_of, group["params"])]} for group in self.sharded_optimizer.param_groups
        ]

    @property
    def state(self) -> "Mapping[torch.Tensor, dict[str, Any]]":  # type: ignore[override]
        """View of the optimizer's state, in which this rank's shard replaces each ``DTensor``, keys and values alike.

        Each key has the shape of this rank's shard of the parameter, and so have tensors such as Adam's moments.
        Setting an entry of a parameter's state sets the optimizer's entry, too.
        """
        return _StateView(self)

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state dict, with this rank's shards in place of each ``DTensor``."""
        saved_state = self.sharded_optimizer.state_dict()
        return {**saved_state, "state": _with_local_shards(saved_state["state"])}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load, into the optimizer, a state dict that the method ``state_dict`` returned."""
        parameters = [parameter for group in self.sharded_optimizer.param_groups for parameter in group["params"]]
        parameter_numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        parameter_by_number = dict(zip(parameter_numbers, parameters, strict=True))
        sharded_state = {
            number: {key: in_shards_if_fits(entry, parameter_by_number[number]) for key, entry in entries.items()}
            for number, entries in state_dict["state"].items()
        }
        self.sharded_optimizer.load_state_dict({**state_dict, "state": sharded_state})

    def shard_of(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return this rank's shard of a parameter; the parameter itself if no shard of the parameter is known."""
        return self._shard_by_id.get(id(parameter), parameter)

    def parameter_of(self, local: torch.Tensor) -> torch.Tensor:
        """Return the parameter, of any shape, that a shard belongs to; the tensor itself if it is no shard."""
        return self._parameter_by_id.get(id(local), local)


class _StateView(Mapping[torch.Tensor, dict[str, Any]]):
    """View of an optimizer's ``state``, whose keys are this rank's shards of the parameters.

    Args:
        view: the ``ShardOptimizer`` whose ``state`` is this view.
    """

    def __init__(self, view: ShardOptimizer) -> None:
        self._view, self._states = view, view.sharded_optimizer.state

    def __getitem__(self, local: torch.Tensor) -> "_ParameterState":
        parameter = self._view.parameter_of(local)
        return _ParameterState(self._states[parameter], parameter)  # adds an empty state if the parameter has none

    def get(self, local: torch.Tensor, default: Any = None) -> Any:
        """Return the state of a shard's parameter, or ``default`` if the optimizer has no such state."""
        return self[local] if self._view.parameter_of(local) in self._states else default

    def __iter__(self) -> Iterator[torch.Tensor]:
        return map(self._view.shard_of, self._states)

    def __len__(self) -> int:
        return len(self._states)


class _ParameterState(dict[str, Any]):
    """State of one parameter, such as Adam's moments, with this rank's shards; setting an entry changes the optimizer.

    Args:
        entries: the optimizer's state of the parameter, by key, such as ``"exp_avg"``.
        parameter: the parameter, of any shape.
    """

    def __init__(self, entries: MutableMapping[str, Any], parameter: torch.Tensor) -> None:
        super().__init__(_with_local_shards(entries))
        self._entries, self._parameter = entries, parameter

    def __setitem__(self, key: str, entry: Any) -> None:
        super().__setitem__(key, entry)
        self._entries[key] = in_shards_if_fits(entry, self._parameter)


def in_shards_if_fits(entry: Any, parameter: torch.Tensor) -> Any:
    """Return an entry of optimizer state as a ``DTensor`` if it has a shard's shape, otherwise unchanged.

    The shard is this rank's shard of the parameter whose state this is.

    Args:
        entry: a tensor of any shape, or anything else that an optimizer stores.
        parameter: the parameter, of any shape, in shards or not.
    """
    shard = local_tensor(parameter)
    fits_shard = isinstance(entry, torch.Tensor) and shard is not parameter and entry.shape == shard.shape
    return in_shards_like(entry, parameter) if fits_shard else entry


def _with_local_shards(entry: Any) -> Any:
    """Replace each ``DTensor`` in an entry of an optimizer's state, also in containers, by this rank's shard."""
    if isinstance(entry, Mapping):
        return {key: _with_local_shards(inner_entry) for key, inner_entry in entry.items()}
    if type(entry) in (list, tuple):
        return type(entry)(map(_with_local_shards, entry))
    return local_tensor(entry)


def _owner_of(module: torch.nn.Module, name: str) -> tuple[torch.nn.Module, str]:
    """Return the submodule for a tensor's dotted name, and the name's last part; create submodules that are missing."""
    path, _, key = name.rpartition(".")
    owner = module
    for child_name in filter(None, path.split(".")):
        if child_name not in owner._modules:
            owner.add_module(child_name, torch.nn.Module())
        owner = owner.get_submodule(child_name)
    return owner, key
