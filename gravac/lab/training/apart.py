# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Outer steps attached to a model: ranks train apart, without DDP, and ``OuterOptimizer`` exchanges."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from gravac import OuterOptimizer
from gravac.lab.training.exchange import OurExchange, watching
from gravac.lab.training.methods import Method
from gravac.modes.outer.sgd import OuterSGD
from gravac.telemetry.records import DecisionRecord


class OuterExchange(OurExchange):
    """Ours, after so many steps of each rank by itself.

    Args:
        method: the method.
        model: model to train.
        optimizer: trains it on this rank.
        run: what belongs to the run: ``samples_per_step``, ``log_dir``, ``seed``, ``pace``, ``controller``.
    """

    def __init__(self, method: Method, model: torch.nn.Module, optimizer: torch.optim.Optimizer, **run: Any) -> None:
        seen, see = watching()
        assert method.outer is not None
        between = method.outer
        self._outer = OuterOptimizer(
            model,
            optimizer,
            every=between.every,
            fragments=between.fragments,
            delay=between.delay,
            mixing=between.mixing,
            outer=partial(OuterSGD, rate=between.rate, momentum=between.momentum),
            sinks=[see],
            **{**method.sends, **run},
        )
        super().__init__(method, model, self._outer, seen)
        self._behind = between.behind
        self._steps = 0
        self._begins = [0]
        self._waited = 0.0

    def stepped(self) -> None:
        """See ``Exchange``."""
        since = time.perf_counter()
        self._outer.step()
        self._waited = time.perf_counter() - since
        self._steps += 1
        if self._outer.rounds == len(self._begins):
            self._begins.append(self._steps)

    @property
    def travels(self) -> bool:
        """See ``Exchange``. With a delay that is given a rank may take up what has come when others do not."""
        return self._behind == "auto" and self._outer.under_way

    def settle(self) -> None:
        """See ``Exchange``."""
        with self._outer.synced():
            pass

    def finish(self) -> None:
        """See ``Exchange``."""
        self._outer.synchronize()

    def shared(self) -> AbstractContextManager[None]:
        """See ``Exchange``."""
        return self._outer.synced(wait=self._behind != "auto")

    @property
    def every(self) -> int | None:
        """See ``Exchange``."""
        return self._outer.every

    def exchanges(self) -> int | None:
        """See ``Exchange``."""
        return self._outer.rounds

    def exposed(self, backward: float) -> float:
        """See ``Exchange``."""
        return self._waited

    def decisions(self) -> list[DecisionRecord]:
        """See ``Exchange``. Steps are those of the model, not rounds."""
        begins = self._begins
        return [replace(one, step=begins[min(one.step, len(begins) - 1)]) for one in super().decisions()]

    def split(self) -> tuple[float, float] | None:
        """See ``Exchange``; a step's share of its round, mean over the steps."""
        steps = sum(one.every for one in self._seen)
        if not steps:
            return None
        compressed = sum(one.compress_seconds for one in self._seen)
        return compressed / steps, sum(one.exchange_seconds for one in self._seen) / steps
