# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""``gravac bench tta``: the time to accuracy of methods, tasks and links, side by side.

For each task and seed native DDP trains first over an unthrottled link. The target is its metric at 80 % of its budget,
and its time to accuracy on that link is *the limit*, that of a free network. Then every method runs on every link, the
methods of a cell (task, link, seed) one after another, seed after seed. Each run stops at the target, or at ``limit``
times the limit.

``factored`` saves time on static methods, whose number of steps to the target does not depend on the link. The number
is measured once, unthrottled, and multiplied by the time of a step on each link. That time is measured in a short
session in which the methods alternate. Adaptive methods and methods with local steps always run in full. With
``times_each_seed`` the time of a step is measured for every seed, just before its adaptive runs, instead of once.

``more_seeds`` adds seeds, one after another, for each method on each link whose times differ by more than 10 % between
seeds. All runs stay in the results.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from gravac.lab.links.link import parse_link
from gravac.lab.links.network import MAX_WORKERS
from gravac.lab.tasks import make
from gravac.lab.tasks.base import Task
from gravac.lab.training.methods import Method

REFERENCE = "fp32"
"""Method whose unthrottled run sets target and limit."""

METHODS = ("fp32", "fp16", "quantize(8)", "quantize(2)", "topkc@10", "topk@10", "gravac:topk", "goodput:ladder@2-1000")
"""Methods to compare by default."""


@dataclass(frozen=True)
class Matrix:
    """Settings of ``gravac bench tta``; wrong settings are refused at construction.

    Attributes:
        tasks: names of reference tasks.
        links: texts of links, see ``gravac.lab.links.link``.
        methods: texts of methods, see ``gravac.lab.training.methods``.
        workers: number of workers, 2 to 8.
        seeds: seeds, 0 and up.
        more_seeds: maximum number of further seeds, for methods whose times differ by more than ``SPREAD`` between
            seeds.
        scale: scale of the tasks.
        target: target of the metric; ``None``: the metric of dense training at 80 % of its budget.
        budget: number of steps of the reference run; ``None``: the task's budget.
        limit: multiple of the reference's unthrottled time to the target, at which a run is stopped.
        factored: whether steps and step times of static methods are measured separately; see the module's docstring.
        times_each_seed: whether the step times of static methods are measured for every seed.
        paced: whether the exchange limits itself to the link's rate, instead of using emulated links.
        data: folder of a task's data, for tasks that need a folder.
        json: file of results; runs in the file are not repeated. ``None``: no file.
        log_dir: folder of TensorBoard logs; ``None``: no logs.

    Raises:
        ValueError: names the argument, the value and the remedy.
    """

    tasks: tuple[str, ...]
    links: tuple[str, ...]
    methods: tuple[str, ...] = METHODS
    workers: int = 2
    seeds: tuple[int, ...] = (0, 1, 2)
    more_seeds: int = 0
    scale: float = 1.0
    target: float | None = None
    budget: int | None = None
    limit: float = 6.0
    factored: bool = False
    times_each_seed: bool = False
    paced: bool = False
    data: str = ""
    json: Path | None = None
    log_dir: Path | None = None

    def __post_init__(self) -> None:
        if not 2 <= self.workers <= MAX_WORKERS:
            raise ValueError(f"workers: {self.workers} is outside 2 to {MAX_WORKERS}; use 2")
        if self.budget is not None and self.budget < 2:
            raise ValueError(f"budget: {self.budget} is below 2 steps; use 300")
        if not self.limit > 0:
            raise ValueError(f"limit: {self.limit:g} is not above 0; use 6")
        if self.more_seeds < 0:
            raise ValueError(f"more_seeds: {self.more_seeds} is below 0; use 2, or 0 for none")
        if not (self.tasks and self.links and self.methods and self.seeds):
            raise ValueError("tasks, links, methods and seeds: give at least one of each")
        for task in self.tasks:
            self.task(task, 0)
        for text in self.links:
            link = parse_link(text)
            if self.paced and (len(link.phases) > 1 or link.delay_ms or link.loss_percent):
                raise ValueError(f"link: {text!r} cannot be paced; use a plain rate such as 100mbit, or real links")
            if self.factored and len(link.phases) > 1:
                raise ValueError(f"link: {text!r} changes while training, so its runs cannot be factored; run in full")
        for text in self.methods:
            method = Method.parse(text)
            if method.missing is not None:
                raise ValueError(method.missing)
            if self.paced and (method.rank is not None or method.torchft is not None):
                raise ValueError(f"method: {text!r} is torch's own and cannot be paced; leave it out")
        if self.times_each_seed and not self.factored:
            raise ValueError("times_each_seed: without factored all times are taken for every seed; leave it out")
        if self.json is not None and not self.json.absolute().parent.is_dir():
            raise ValueError(f"json: {self.json.parent} is not a folder; make it first, or name another")
        if self.json is not None and not os.access(self.json.absolute().parent, os.W_OK):
            raise ValueError(f"json: {self.json.parent} is not writable; name another")

    def task(self, name: str, seed: int) -> Task:
        """Make a task of the matrix."""
        return make(name, scale=self.scale, seed=seed, data=self.data)
