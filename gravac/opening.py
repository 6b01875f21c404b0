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
from gravac.policy import RunSettings
from gravac.restoring import Restoring
from gravac.telemetry.sinks import Sinks

NOTHING_ELSE: Mapping[str, str] = MappingProxyType({})
"""Default of ``same``, the texts that ranks compare besides settings and parameters: no further texts."""


class RunOpening:
    """Compares a run's settings over the ranks and creates its executor, once model and process group are known.

    Args:
        settings: settings of the run.
        engine: engine that gets the executor.
        admission: object that admits candidates; ``open`` gives it the link's speed and seconds of encode and decode.
        sinks: sinks of the run's records, which are opened on rank 0.
        restoring: object that checks that a loaded state is of this rank.
        group: group of the ranks that average; ``None``: the default group.

    Attributes:
        settings: settings of the run.
        engine: engine that gets the executor.
        admission: object that admits candidates.
        restoring: object that checks and restores loaded states.
        group: group of the ranks that average; ``None``: the default group.
        agree_group: group of the ranks that agree on decisions; ``None``: the ranks that average.
        executor: executor that the user gave; ``None``: the run creates one.
    """

    def __init__(
        self,
        settings: RunSettings,
        engine: Engine,
        admission: RunAdmission,
        sinks: Sinks,
        restoring: Restoring,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self.group = group
        self.agree_group: dist.ProcessGroup | None = None
        self.executor: Executor | None = None
        self.settings, self.engine, self.admission = settings, engine, admission
        self.restoring, self._sinks = restoring, sinks

    def open(self, same: Mapping[str, str] = NOTHING_ELSE) -> None:
        """Compare settings over the ranks, create the executor, and give it to the engine; do nothing if it has one.

        An executor that the user gave is used without a comparison.

        Args:
            same: texts by name that must be equal on all ranks, besides settings and parameters.

        Raises:
            SettingsError: a setting differs between ranks, the loaded state is of another rank, or rank 0 cannot write
                its logs.
            RuntimeError: there is no process group yet, or its backend fits no executor.
        """
        if self.engine.ready_to_run:
            return
        opened = self._compare_and_create(same) if self.executor is None else OpenedExecutor(self.executor)
        executor = opened.executor
        self.admission.link = opened.link
        try:
            self.restoring.check_rank(executor.rank, executor.world)
            if executor.agree_rank == 0:
                self._sinks.open()
            self.admission.coding = time_codecs(self.settings.policy, self.engine.forms, opened)
        except BaseException as failure:
            executor.abandon(failure)  # so that the other ranks raise, too
            executor.close()
            self._sinks.close()
            raise
        self.engine.use(executor, self.admission.coding)

    def _compare_and_create(self, same: Mapping[str, str]) -> OpenedExecutor:
        """Compare settings over the ranks that agree, and parameters over those that average; create an executor.

        Args:
            same: texts by name that must be equal on all ranks, besides settings and parameters.
        """
        settings, device = self.settings, self.engine.device
        texts = {**settings.shared(), **same}
        if self.agree_group is not None:
            check_alike(texts, device, self.agree_group)
            self.engine.decide_by(largest_shapes(self.engine.shapes, self.agree_group))
        check_alike({**texts, **self.engine.parameter_texts}, device, self.group)
        return open_executor(device, self.group, self.agree_group, settings.executor, settings.pace)
