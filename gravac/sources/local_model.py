# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The class ``LocalModel``: the weights and optimizers of one rank, which outer steps read and overwrite."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch

from gravac.sources.ddp import canonical_name


class LocalModel:
    """Parameters, buffers and optimizers that one rank trains by itself in outer steps.

    Args:
        module: module whose parameters and buffers the ranks exchange in outer steps.
        optimizers: torch's optimizers that train the module.

    Attributes:
        module: module whose parameters and buffers the ranks exchange in outer steps; none of them is a ``DTensor``.
        optimizers: optimizers of the parameters of ``module``; their states hold no ``DTensor``.
        exchange_shapes: shape in which a parameter is exchanged, by the parameter's name, if not its own shape. The
            shape has as many elements as the parameter, or more.
    """

    exchange_shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({})

    def __init__(self, module: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.module, self.optimizers = module, tuple(optimizers)

    def prepare(self) -> None:
        """Make the parameters of ``module`` share memory with the weights that the user's module has at present.

        Called before outer steps exchange weights, and before outer steps read or overwrite weights between two steps.
        """

    def gradient(self, parameter: torch.nn.Parameter) -> torch.Tensor | None:
        """Return this rank's gradient of a parameter of ``module``, of its shape; ``None`` if there is none."""
        return parameter.grad

    def state_dict_entries(
        self, trained_module: torch.nn.Module, weights: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Return weights with the names, number formats and types that they have in a module's state dict.

        Args:
            trained_module: module that the user trains and saves.
            weights: tensors of the shapes of this rank's parameters, by the parameters' names.
        """
        weight_by_id = {
            id(parameter): weights[canonical_name(name)]
            for name, parameter in self.module.named_parameters()
            if canonical_name(name) in weights
        }
        named_parameters = trained_module.named_parameters(remove_duplicate=False)
        return {
            name: weight_by_id[id(parameter)].to(parameter)
            for name, parameter in named_parameters
            if id(parameter) in weight_by_id
        }


def optimizer_of_user(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return the optimizer that the user created, given that optimizer or a view of it (``LocalModel.optimizers``)."""
    sharded_optimizer: torch.optim.Optimizer = getattr(optimizer, "sharded_optimizer", optimizer)
    return sharded_optimizer


def innermost(module: torch.nn.Module) -> torch.nn.Module:
    """Return the module inside the wrapper of ``torch.compile``; the module itself if it is not compiled."""
    inner = getattr(module, "_orig_mod", module)
    assert isinstance(inner, torch.nn.Module)
    return inner
