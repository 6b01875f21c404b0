# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The class ``LocalModel``: the weights and optimizers of one rank, which outer steps read and overwrite."""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

import torch

from gravac.sources.parameters import canonical_name


class LocalModel:
    """Parameters, buffers and optimizers that one rank trains by itself in outer steps.

    Args:
        module: module whose parameters and buffers the ranks exchange in outer steps.
        optimizers: torch's optimizers that train the module, see ``with_inner_optimizers``.
        trained_names: names of the parameters that ranks exchange; ``None``: those that require gradients now.

    Attributes:
        module: module whose parameters and buffers the ranks exchange in outer steps; none of them is a ``DTensor``.
        optimizers: optimizers of the parameters of ``module``; their states hold no ``DTensor``.
        exchange_shapes: shape in which a parameter is exchanged, by the parameter's name; with as many elements as the
            parameter, or more. A parameter without an entry is exchanged in its own shape.
        trained_names: names of the parameters that ranks exchange, also of those that are frozen at present.
    """

    exchange_shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({})

    def __init__(
        self,
        module: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        trained_names: Collection[str] | None = None,
    ) -> None:
        self.module, self.optimizers = module, tuple(optimizers)
        if trained_names is None:
            trained_names = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
        self.trained_names = frozenset(map(canonical_name, trained_names))

    def prepare(self) -> None:
        """Make the parameters of ``module`` share memory with the weights that the user's module has at present.

        Called before outer steps read, overwrite or exchange weights. In this class, there is nothing to do, since
        ``module`` is the user's module.
        """

    def gradient(self, parameter: torch.nn.Parameter) -> torch.Tensor | None:
        """Return this rank's gradient of one of ``module``'s parameters; ``None`` if the parameter has no gradient."""
        return parameter.grad

    def state_dict_entries(
        self, trained_module: torch.nn.Module, weights: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Return given weights as entries of a module's state dict: with its names, dtypes and devices.

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


def with_inner_optimizers(optimizers: Sequence[torch.optim.Optimizer]) -> tuple[torch.optim.Optimizer, ...]:
    """Return optimizers, then the optimizers that they hold as attributes and step themselves, as Lookahead and SAM do.

    An inner optimizer whose state is that of the outer one is left out.
    """
    all_optimizers = [*optimizers]
    for optimizer in all_optimizers:  # the list grows, so the loop also visits inner optimizers of inner optimizers
        for attribute in vars(optimizer).values():
            if isinstance(attribute, torch.optim.Optimizer) and all(
                attribute is not other and attribute.state is not other.state for other in all_optimizers
            ):
                all_optimizers.append(attribute)
    return tuple(all_optimizers)


def optimizer_of_user(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return the user's own optimizer, given an entry of ``LocalModel.optimizers``: that optimizer, or a view of it."""
    sharded_optimizer: torch.optim.Optimizer = getattr(optimizer, "sharded_optimizer", optimizer)
    return sharded_optimizer


def innermost(module: torch.nn.Module) -> torch.nn.Module:
    """Return the module inside the wrapper of ``torch.compile``; the module itself if it is not compiled."""
    inner = getattr(module, "_orig_mod", module)
    assert isinstance(inner, torch.nn.Module)
    return inner
