# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""torchft's ``DiLoCo`` and ``LocalSGD`` attached to a model, unchanged, in float32 over gloo.

These classes ask a manager to average tensors and to agree on the ranks that take part. In the lab all ranks always
take part. So a stand-in for the manager averages over the default group, without torchft's lighthouse, whose messages
therefore cost nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist

from gravac.candidate import DENSE, Candidate, Mode
from gravac.collectives import AllReduce
from gravac.lab.training.exchange import Exchange, start_record
from gravac.lab.training.methods import Diloco, Method
from gravac.telemetry.records import DecisionRecord


class TorchftExchange(Exchange):
    """torchft's ``DiLoCo`` or ``LocalSGD``, attached.

    Args:
        method: see ``Exchange``.
        model: model to train; all ranks begin with the same weights.
        optimizer: optimizer of the model on this rank.

    Raises:
        ValueError: torchft is not installed.
    """

    def __init__(self, method: Method, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if method.missing is not None:
            raise ValueError(method.missing)
        from torchft.local_sgd import DiLoCo, LocalSGD

        super().__init__(method, model)
        assert method.torchft is not None
        self._every, self._steps, self._manager = method.torchft.every, 0, EveryoneManager()
        if isinstance(method.torchft, Diloco):
            rate, momentum = method.torchft.rate, method.torchft.momentum
            outer = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum, nesterov=momentum > 0)
            # one message for all tensors, like gravac: the faster of torchft's two ways
            self._algorithm = DiLoCo(self._manager, [model], optimizer, outer, self._every, use_bucketization=True)
        else:
            self._algorithm = LocalSGD(self._manager, model, optimizer, self._every)
        self._algorithm.__enter__()  # registers hooks on the optimizer's step
        optimizer.register_step_post_hook(self._step_ended)
        self._shared = self._copy_weights()

    def _step_ended(self, *_: object) -> None:
        """Count a step, after torchft's hook on the optimizer's step; copy the weights after an exchange."""
        self._steps += 1
        if self._steps % self._every == 0:
            self._shared = self._copy_weights()

    def finish(self) -> None:
        """See ``Exchange``."""
        if self._steps % self._every == 0:
            return
        if isinstance(self.method.torchft, Diloco):
            for fragment in self._algorithm._fragments:  # DiLoCo has no other way to end a round early
                fragment.prepare_sync()
                fragment.perform_sync()
        else:
            self._algorithm.sync()
        self._shared = self._copy_weights()

    def shared(self) -> AbstractContextManager[None]:
        """See ``Exchange``: the weights after the last exchange."""
        return _temporary_weights(self.module, self._shared)

    def shared_state(self) -> dict[str, torch.Tensor]:
        """See ``Exchange``; tensors of any shapes."""
        with self.shared():
            return super().shared_state()

    @property
    def mode(self) -> Mode:
        """See ``Exchange``."""
        return "outer"

    @property
    def cf(self) -> float | None:
        """See ``Exchange``."""
        return 1.0

    @property
    def every(self) -> int | None:
        """See ``Exchange``."""
        return self._every

    def exchanges(self) -> int | None:
        """See ``Exchange``."""
        return self._manager.step

    def exposed(self, backward: float) -> float:
        """See ``Exchange``."""
        waited, self._manager.waited = self._manager.waited, 0.0
        return waited

    def wire_bytes(self, steps: int, world: int) -> int:
        """See ``Exchange``."""
        return AllReduce.wire_bytes(self._manager.payload, world)

    def decisions(self) -> list[DecisionRecord]:
        """See ``Exchange``."""
        return [start_record(Candidate("outer", DENSE, 1.0, self._every))]

    def close(self) -> None:
        """See ``Exchange``."""
        self._algorithm.__exit__(None, None, None)

    def _copy_weights(self) -> list[torch.Tensor]:
        return [parameter.detach().clone() for parameter in self.module.parameters()]


class EveryoneManager:
    """A stand-in for torchft's manager in which every rank always takes part, and no rank fails.

    Attributes:
        step: number of committed exchanges.
        payload: number of averaged bytes.
        waited: seconds of waiting for averages, until the reader resets it.
    """

    def __init__(self) -> None:
        self.step = self.payload = 0
        self.waited = 0.0
        self._use_async_quorum = False  # DiLoCo reads this attribute

    def register_state_dict_fn(self, key: str, load: Callable[[Any], None], save: Callable[[], Any]) -> None:
        """Keep nothing: no rank recovers."""

    def allow_state_dict_read(self) -> None:
        """Do nothing: nobody reads."""

    def disallow_state_dict_read(self) -> None:
        """Do nothing: nobody reads."""

    def start_quorum(self) -> None:
        """Do nothing: all ranks take part."""

    def current_step(self) -> int:
        """Return the number of committed exchanges."""
        return self.step

    def should_commit(self) -> bool:
        """Count an exchange, and return True."""
        self.step += 1
        return True

    def allreduce(self, tensor: torch.Tensor, should_quantize: bool = False) -> Averaging:
        """Start to average a tensor of any shape over the ranks, in place."""
        self.payload += tensor.numel() * tensor.element_size()
        return Averaging(tensor, self)


class Averaging:
    """An all-reduce in flight; when ``wait`` returns, its future is done and all callbacks of the future ran.

    Args:
        tensor: tensor to average in place.
        manager: manager that counts the seconds of waiting.
    """

    def __init__(self, tensor: torch.Tensor, manager: EveryoneManager) -> None:
        self._tensor, self._manager = tensor, manager
        self._work: Any = dist.all_reduce(tensor, async_op=True)
        self._future: torch.futures.Future[torch.Tensor] = torch.futures.Future()

    def wait(self) -> bool:
        """Wait for the mean."""
        began = time.perf_counter()
        self._work.wait()
        self._manager.waited += time.perf_counter() - began
        self._tensor.div_(dist.get_world_size())
        self._future.set_result(self._tensor)
        return True

    def get_future(self) -> torch.futures.Future[torch.Tensor]:
        """Return a future of the mean, in the tensor's shape."""
        return self._future


@contextmanager
def _temporary_weights(module: torch.nn.Module, weights: list[torch.Tensor]) -> Iterator[None]:
    """Set a module's weights for the duration of a block, and restore its own weights at the end."""
    own_weights = [parameter.detach().clone() for parameter in module.parameters()]
    with torch.no_grad():
        torch._foreach_copy_(list(module.parameters()), weights)
    try:
        yield
    finally:
        with torch.no_grad():
            torch._foreach_copy_(list(module.parameters()), own_weights)
