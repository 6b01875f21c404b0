# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""torchft's ``DiLoCo`` and ``LocalSGD`` attached to a model: its classes as they are, in float32 over gloo.

They ask a manager to average tensors and to agree on who takes part. Here all ranks always do, so that a stand-in
averages over the default group, without torchft's lighthouse: its messages cost nothing here.
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
from gravac.lab.training.exchange import Exchange, start_of
from gravac.lab.training.methods import Diloco, Method
from gravac.telemetry.records import DecisionRecord


class TorchftExchange(Exchange):
    """One of torchft's two.

    Args:
        method: the method.
        model: model to train; all ranks begin with the same weights.
        optimizer: trains it on this rank.

    Raises:
        ValueError: torchft is missing.
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
            # one message for all tensors, as ours: the better of its two ways
            self._algorithm = DiLoCo(self._manager, [model], optimizer, outer, self._every, use_bucketization=True)
        else:
            self._algorithm = LocalSGD(self._manager, model, optimizer, self._every)
        self._algorithm.__enter__()  # hooks on the optimizer's step
        optimizer.register_step_post_hook(self._step_ended)
        self._shared = self._held()

    def _step_ended(self, *_: object) -> None:
        """The optimizer has made a step, and torchft's hook on it has exchanged."""
        self._steps += 1
        if self._steps % self._every == 0:
            self._shared = self._held()

    def finish(self) -> None:
        """See ``Exchange``."""
        if self._steps % self._every == 0:
            return
        if isinstance(self.method.torchft, Diloco):
            for fragment in self._algorithm._fragments:  # it has no other way to end a round early
                fragment.prepare_sync()
                fragment.perform_sync()
        else:
            self._algorithm.sync()
        self._shared = self._held()

    def shared(self) -> AbstractContextManager[None]:
        """See ``Exchange``: the weights after the last exchange."""
        return _holding(self.module, self._shared)

    def shared_state(self) -> dict[str, torch.Tensor]:
        """See ``Exchange``."""
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
        return [start_of(Candidate("outer", DENSE, 1.0, self._every))]

    def close(self) -> None:
        """See ``Exchange``."""
        self._algorithm.__exit__(None, None, None)

    def _held(self) -> list[torch.Tensor]:
        return [parameter.detach().clone() for parameter in self.module.parameters()]


class EveryoneManager:
    """Stands in for torchft's manager where every rank always takes part, and none fails.

    Attributes:
        step: number of exchanges that were committed.
        payload: bytes that were averaged.
        waited: seconds waited for averages, until somebody takes note.
    """

    def __init__(self) -> None:
        self.step = self.payload = 0
        self.waited = 0.0
        self._use_async_quorum = False  # DiLoCo asks

    def register_state_dict_fn(self, key: str, load: Callable[[Any], None], save: Callable[[], Any]) -> None:
        """Keep nothing: no rank recovers."""

    def allow_state_dict_read(self) -> None:
        """Do nothing: nobody reads."""

    def disallow_state_dict_read(self) -> None:
        """Do nothing: nobody reads."""

    def start_quorum(self) -> None:
        """Do nothing: all ranks take part."""

    def current_step(self) -> int:
        """Return the number of exchanges that were committed."""
        return self.step

    def should_commit(self) -> bool:
        """Commit."""
        self.step += 1
        return True

    def allreduce(self, tensor: torch.Tensor, should_quantize: bool = False) -> Averaging:
        """Average a tensor of any shape over the ranks, in place."""
        self.payload += tensor.numel() * tensor.element_size()
        return Averaging(tensor, self)


class Averaging:
    """A tensor on its way; its future is done, and what was to follow has followed, when ``wait`` returns.

    Args:
        tensor: is averaged in place.
        manager: counts the seconds waited.
    """

    def __init__(self, tensor: torch.Tensor, manager: EveryoneManager) -> None:
        self._tensor, self._manager = tensor, manager
        self._work: Any = dist.all_reduce(tensor, async_op=True)
        self._future: torch.futures.Future[torch.Tensor] = torch.futures.Future()

    def wait(self) -> bool:
        """Wait for the mean."""
        since = time.perf_counter()
        self._work.wait()
        self._manager.waited += time.perf_counter() - since
        self._tensor.div_(dist.get_world_size())
        self._future.set_result(self._tensor)
        return True

    def get_future(self) -> torch.futures.Future[torch.Tensor]:
        """Return a future of the mean, in the tensor's shape."""
        return self._future


@contextmanager
def _holding(module: torch.nn.Module, weights: list[torch.Tensor]) -> Iterator[None]:
    """Have a module hold other weights for a while."""
    own = [parameter.detach().clone() for parameter in module.parameters()]
    with torch.no_grad():
        torch._foreach_copy_(list(module.parameters()), weights)
    try:
        yield
    finally:
        with torch.no_grad():
            torch._foreach_copy_(list(module.parameters()), own)
