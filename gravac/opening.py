# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Opens a run: compares its settings over the ranks, then creates the executor, which runs the collectives."""

from collections.abc import Mapping
from types import MappingProxyType

import torch.distributed as dist

from gravac.building import RunAdmission
from gravac.engine.codec_timing import time_codecs
from gravac.engine.engine import Engine
from gravac.exchange.comparing import check_alike, largest_shapes
from gravac.exchange.executor import Executor
from gravac.exchange.opening import OpenedExecutor, open_executor
from gravac.policy import Policy
from gravac.restoring import Restoring
from gravac.telemetry.sinks import Sinks

NO_FURTHER_TEXTS: Mapping[str, str] = MappingProxyType({})
"""Default of the argument ``texts_to_compare``: ranks compare settings and parameters, but no further texts."""


class RunOpening:
    """Compares a run's settings over the ranks and creates its executor, once model and process group are known.

    Args:
        policy: settings of the run.
        engine: engine that gets the executor.
        admission: object that admits candidates; gets the measured speed of the link and seconds of encode and decode.
        sinks: sinks of the run's records; opened on rank 0 only.
        restoring: object that checks whether a loaded state was saved by this rank.
        group: group of the ranks that average; ``None``: the default group.

    Attributes:
        policy: settings of the run.
        engine: engine that gets the executor.
        admission: object that admits candidates.
        restoring: object that restores a loaded state, and checks whether the state fits rank and model.
        group: group of the ranks that average; ``None``: the default group.
        agree_group: group of the ranks that make the same decisions; ``None``: the ranks that average.
        executor: executor that the user gave; ``None``: ``open`` creates an executor.
    """

    def __init__(
        self,
        policy: Policy,
        engine: Engine,
        admission: RunAdmission,
        sinks: Sinks,
        restoring: Restoring,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self.group = group
        self.agree_group: dist.ProcessGroup | None = None
        self.executor: Executor | None = None
        self.policy, self.engine, self.admission = policy, engine, admission
        self.restoring, self._sinks = restoring, sinks

    def open(self, texts_to_compare: Mapping[str, str] = NO_FURTHER_TEXTS) -> None:
        """Compare settings over the ranks, create the executor, and give the executor to the engine.

        Called on every rank. Does nothing if the engine has an executor already. With an executor that the user gave,
        settings are not compared.

        Args:
            texts_to_compare: further texts, by name, that must be equal on all ranks; settings and parameters are
                always compared.

        Raises:
            SettingsError: a setting differs between ranks, the loaded state is of another rank, or rank 0 cannot write
                its logs.
            RuntimeError: there is no process group yet, or no executor can use its backend.
        """
        if self.engine.ready_to_run:
            return
        opened_executor = (
            self._compare_and_create(texts_to_compare) if self.executor is None else OpenedExecutor(self.executor)
        )
        executor = opened_executor.executor
        self.admission.link = opened_executor.link
        try:
            self.restoring.check_rank(executor.rank, executor.world)
            if executor.agree_rank == 0:
                self._sinks.open()
            self.admission.coding = time_codecs(self.policy, self.engine.forms, opened_executor)
        except BaseException as failure:
            executor.abandon(failure)  # so that the other ranks raise, too
            executor.close()
            self._sinks.close()
            raise
        self.engine.use(executor, self.admission.coding)

    def _compare_and_create(self, texts_to_compare: Mapping[str, str]) -> OpenedExecutor:
        """Compare settings and parameters over the ranks; return a new executor, with the link's speed and the device.

        Args:
            texts_to_compare: further texts, by name, that must be equal on all ranks.
        """
        device = self.engine.device
        shared_texts = {**self.policy.shared(), **texts_to_compare}
        if self.agree_group is not None:
            check_alike(shared_texts, device, self.agree_group)
            self.engine.decide_by(largest_shapes(self.engine.shapes, self.agree_group))
        check_alike({**shared_texts, **self.engine.parameter_texts}, device, self.group)
        return open_executor(device, self.group, self.agree_group)
