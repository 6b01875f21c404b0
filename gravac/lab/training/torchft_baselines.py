# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Attaches torchft's unchanged classes ``DiLoCo`` and ``LocalSGD`` to a model, to compare gravac with them.

Both classes exchange in float32 over gloo. They ask torchft's manager to average tensors, and to agree with the other
ranks on the ranks that take part. In the lab all ranks always take part. So a substitute for the manager averages over
the default process group. The substitute does not use torchft's lighthouse (the server that counts the ranks), so the
lighthouse's messages cost no time.
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
from gravac.lab.training.methods import DilocoSettings, Method
from gravac.telemetry.records import DecisionRecord


class TorchftExchange(Exchange):
    """torchft's ``DiLoCo`` or ``LocalSGD``, attached to a model; see ``Exchange`` for the interface.

    Args:
        method: method of torchft, such as ``torchft-diloco``.
        model: model to train, with the same weights on all ranks.
        optimizer: optimizer that each rank steps by itself between two exchanges (DiLoCo's inner optimizer).

    Raises:
        ValueError: torchft is not installed.
    """

    def __init__(self, method: Method, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if method.missing_package_message is not None:
            raise ValueError(method.missing_package_message)
        from torchft.local_sgd import DiLoCo, LocalSGD

        super().__init__(method, model)
        assert method.torchft is not None
        self._every, self._step_count, self._manager = method.torchft.every, 0, AllRanksManager()
        if isinstance(method.torchft, DilocoSettings):
            rate, momentum = method.torchft.rate, method.torchft.momentum
            outer_optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum, nesterov=momentum > 0)
            # bucketization sends one message for all tensors, as gravac does: the faster of torchft's two ways
            self._algorithm = DiLoCo(
                self._manager, [model], optimizer, outer_optimizer, self._every, use_bucketization=True
            )
        else:
            self._algorithm = LocalSGD(self._manager, model, optimizer, self._every)
        self._algorithm.__enter__()  # registers hooks on the optimizer's step
        optimizer.register_step_post_hook(self._count_step)
        self._shared_weights = self._copy_weights()

    def _count_step(self, *_: object) -> None:
        """Count a step; if torchft exchanged in this step, copy the weights, which all ranks now share.

        Registered as a hook on the optimizer's step after torchft's hook, so it runs after torchft's exchange.
        """
        self._step_count += 1
        if self._step_count % self._every == 0:
            self._shared_weights = self._copy_weights()

    def exchange_remainder(self) -> None:
        """Exchange what the ranks learned in the steps since the last exchange, if any; called after the last step."""
        if self._step_count % self._every == 0:
            return
        if isinstance(self.method.torchft, DilocoSettings):
            for fragment in self._algorithm._fragments:  # DiLoCo has no public function that exchanges before H steps
                fragment.prepare_sync()
                fragment.perform_sync()
        else:
            self._algorithm.sync()
        self._shared_weights = self._copy_weights()

    def shared_weights(self) -> AbstractContextManager[None]:
        """Return a context in which the model has the weights after the last exchange, which all ranks share."""
        return _temporary_weights(self.module, self._shared_weights)

    def shared_state(self) -> dict[str, torch.Tensor]:
        """Return a copy of the model's ``state_dict`` with the weights of the last exchange, which all ranks share.

        The entries are tensors of any shape, by name.
        """
        with self.shared_weights():
            return super().shared_state()

    @property
    def mode(self) -> Mode:
        """Mode of all steps: ``outer``."""
        return "outer"

    @property
    def cf(self) -> float | None:
        """Compression factor: 1, since torchft exchanges float32."""
        return 1.0

    @property
    def every(self) -> int | None:
        """Number of steps from one exchange to the next."""
        return self._every

    def exchange_count(self) -> int | None:
        """Return the number of exchanges so far."""
        return self._manager.exchange_count

    def exposed_seconds(self, after_last_gradient_s: float) -> float:
        """Return the seconds for which training waited for exchanges since the last call of this function.

        Args:
            after_last_gradient_s: not used.
        """
        exchange_wait_seconds, self._manager.exchange_wait_seconds = self._manager.exchange_wait_seconds, 0.0
        return exchange_wait_seconds

    def wire_bytes(self, steps: int, world: int) -> int:
        """Return the wire bytes that this rank has sent so far, by the formula of ring all-reduce.

        Args:
            steps: not used, since the payload bytes were counted.
            world: number of ranks.
        """
        return AllReduce.wire_bytes(self._manager.payload_bytes, world)

    def decisions(self) -> list[DecisionRecord]:
        """Return a list with one record, of the only candidate (way to run steps), which never changes."""
        return [start_record(Candidate("outer", DENSE, 1.0, self._every))]

    def close(self) -> None:
        """Remove torchft's hooks."""
        self._algorithm.__exit__(None, None, None)

    def _copy_weights(self) -> list[torch.Tensor]:
        """Return copies of the model's parameters, in the order of ``module.parameters()``."""
        return [parameter.detach().clone() for parameter in self.module.parameters()]


class AllRanksManager:
    """A substitute for torchft's manager, for runs in which every rank always takes part and no rank fails.

    Attributes:
        exchange_count: number of exchanges so far.
        payload_bytes: bytes that this rank handed to all-reduces so far.
        exchange_wait_seconds: seconds of waiting for all-reduces since the latest call of
            ``TorchftExchange.exposed_seconds``.
    """

    def __init__(self) -> None:
        self.exchange_count = self.payload_bytes = 0
        self.exchange_wait_seconds = 0.0
        self._use_async_quorum = False  # read by DiLoCo

    def register_state_dict_fn(self, key: str, load: Callable[[Any], None], save: Callable[[], Any]) -> None:
        """Do nothing: torchft's manager keeps these functions to restore a rank that failed, and here no rank fails."""

    def allow_state_dict_read(self) -> None:
        """Do nothing: torchft's manager would let recovering ranks read this rank's state; here no rank recovers."""

    def disallow_state_dict_read(self) -> None:
        """Do nothing: torchft's manager would keep recovering ranks from reading the state; here no rank recovers."""

    def start_quorum(self) -> None:
        """Do nothing: torchft's manager would agree on the ranks that take part, and here all ranks do."""

    def current_step(self) -> int:
        """Return the number of exchanges so far."""
        return self.exchange_count

    def should_commit(self) -> bool:
        """Count an exchange, and return True: torchft applies the exchanged mean, since every exchange succeeds."""
        self.exchange_count += 1
        return True

    def allreduce(self, tensor: torch.Tensor, should_quantize: bool = False) -> MeanInFlight:
        """Start to average a tensor over the ranks, in place; return an object that waits for the mean.

        Args:
            tensor: tensor of any shape, which holds the mean when the returned object's ``wait`` has returned.
            should_quantize: not used; the exchange is in the tensor's number format.
        """
        self.payload_bytes += tensor.numel() * tensor.element_size()
        return MeanInFlight(tensor, self)


class MeanInFlight:
    """An average over the ranks that is in flight, with the interface of torch's ``Work``.

    The constructor starts the all-reduce. When ``wait`` returns, the future is done, and its callbacks have run.

    Args:
        tensor: tensor of any shape to average, in place.
        manager: manager to whose ``exchange_wait_seconds`` the seconds of waiting are added.
    """

    def __init__(self, tensor: torch.Tensor, manager: AllRanksManager) -> None:
        self._tensor, self._manager = tensor, manager
        self._work: Any = dist.all_reduce(tensor, async_op=True)
        self._future: torch.futures.Future[torch.Tensor] = torch.futures.Future()

    def wait(self) -> bool:
        """Wait until the tensor holds the mean over the ranks; return True, as torch's ``Work`` does."""
        wait_start_time = time.perf_counter()
        self._work.wait()
        self._manager.exchange_wait_seconds += time.perf_counter() - wait_start_time
        self._tensor.div_(dist.get_world_size())
        self._future.set_result(self._tensor)
        return True

    def get_future(self) -> torch.futures.Future[torch.Tensor]:
        """Return a future of the tensor that holds the mean over the ranks; ``wait`` completes the future."""
        return self._future


@contextmanager
def _temporary_weights(module: torch.nn.Module, weights: list[torch.Tensor]) -> Iterator[None]:
    """Return a context in which a module has other weights; the module's own weights are restored on exit.

    Args:
        module: module whose weights are replaced.
        weights: a tensor for each parameter, in the order of ``module.parameters()``.
    """
    own_weights = [parameter.detach().clone() for parameter in module.parameters()]
    with torch.no_grad():
        torch._foreach_copy_(list(module.parameters()), weights)
    try:
        yield
    finally:
        with torch.no_grad():
            torch._foreach_copy_(list(module.parameters()), own_weights)
