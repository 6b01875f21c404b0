# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Settings of ``gravac bench tta``, which compares the time to accuracy of methods on tasks and links.

For each task and seed, a *reference run* trains first, with plain DDP over an unthrottled link. The target of all other
runs is the reference run's metric at 80 % of its steps. Then, seed after seed, every method trains on every link. A run
stops when it reaches the target. It also stops when its time is ``limit`` times the time that the reference run took to
the target.

With ``mesh``, models train in shards (HSDP). Each replica has one link, which its ranks share. The reference run then
uses torch's own HSDP instead of DDP.

``more_seeds`` adds seeds, one after another, for methods whose times to the target on a link differ by more than 10 %
between seeds. The runs of all seeds stay in the results.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from gravac.lab.json_file import check_folder_can_be_made, check_writable
from gravac.lab.links.link import parse_link
from gravac.lab.links.network import MAX_WORKERS
from gravac.lab.mesh import Mesh
from gravac.lab.tasks import TASKS, make
from gravac.lab.tasks.base import Task
from gravac.lab.training.methods import Method

REFERENCE_METHOD = "fp32"
"""Text of the method of the reference run, which trains first and sets the target of all other runs."""

DEFAULT_METHODS = (
    "fp32",
    "fp16",
    "quantize(8)",
    "quantize(2)",
    "topkc@10",
    "topk@10",
    "gravac:topk",
    "goodput:ladder@2-1000",
)
"""Texts of the methods to compare by default, without a mesh."""

DEFAULT_MESH_METHODS = ("fp32", "fp16", "bf16", "adaptive", "adaptive(every=(1, 100))")
"""Texts of the methods to compare by default on a mesh.

torch's own HSDP in three number formats; gravac with an exchange in each step; and gravac that may choose outer steps.
"""


@dataclass(frozen=True)
class RunMatrix:
    """Settings of ``gravac bench tta``: what to run, how long, and how.

    Attributes:
        tasks: names of reference tasks.
        links: texts of links, such as ``"100mbit"``; see ``gravac.lab.links.link``.
        methods: texts of methods, such as ``"topk@10"``; see ``gravac.lab.training.methods``.
        workers: number of worker processes, 2 to 8; on a mesh, the number of its ranks.
        seeds: seeds of the runs, each 0 or more; every combination of task, link and method runs with each seed.
        more_seeds: maximum number of further seeds, for methods whose times to the target differ by more than 10 %
            between seeds.
        scale: scale of the tasks' models; 1 suits two cores.
        target: validation metric to reach; ``None``: the metric of the reference run at 80 % of its steps.
        budget: number of steps of the reference run, 2 or more; ``None``: the task's own number, ``Task.budget``.
        limit: time after which a run is stopped, as a multiple of the reference run's time to the target; above 0.
        paced: whether gravac slows down its own exchange to the link's rate, instead of using emulated links.
        data: folder of a task's data; empty if the tasks need no folder.
        json: file for the results; runs that the file has already are not repeated. ``None``: no file.
        log_dir: folder of TensorBoard logs; ``None``: no logs.
        mesh: replicas x shards of models in shards (HSDP); ``None``: DDP, without shards.

    Raises:
        ValueError: a setting is out of range, or conflicts with another setting.
    """

    tasks: tuple[str, ...]
    links: tuple[str, ...]
    methods: tuple[str, ...] = DEFAULT_METHODS
    workers: int = 2
    seeds: tuple[int, ...] = (0, 1, 2)
    more_seeds: int = 0
    scale: float = 1.0
    target: float | None = None
    budget: int | None = None
    limit: float = 6.0
    paced: bool = False
    data: str = ""
    json: Path | None = None
    log_dir: Path | None = None
    mesh: Mesh | None = None

    def __post_init__(self) -> None:
        if self.mesh is not None:
            self._check_mesh(self.mesh)
        if not 2 <= self.workers <= MAX_WORKERS:
            raise ValueError(f"workers: {self.workers} is outside 2 to {MAX_WORKERS}; use 2")
        if self.budget is not None and self.budget < 2:
            raise ValueError(f"budget: {self.budget} is below 2 steps; use more, such as 300")
        if any(seed < 0 for seed in self.seeds):
            raise ValueError(f"seeds: {min(self.seeds)} is below 0; use 0, 1 and 2")
        if self.target is not None and not math.isfinite(self.target):
            raise ValueError(f"target: {self.target} is no finite number; give a validation metric, such as 1.8")
        if not self.limit > 0:
            raise ValueError(
                f"limit: {self.limit:g} is not above 0; give a multiple of the reference run's time, such as 6"
            )
        if self.more_seeds < 0:
            raise ValueError(f"more_seeds: {self.more_seeds} is below 0; use 2, or 0 for none")
        for setting_name in ("tasks", "links", "methods", "seeds"):
            if not getattr(self, setting_name):
                raise ValueError(f"{setting_name}: () is empty; give at least one of the {setting_name}")
        for task in self.tasks:
            self.task(task, 0)
        for link_text in self.links:
            link = parse_link(link_text)
            if self.paced and (len(link.phases) > 1 or link.delay_ms or link.loss_percent):
                raise ValueError(
                    f"link: {link_text!r} cannot be paced, since pacing imitates only a constant rate, not delay or "
                    "loss; use a plain rate such as 100mbit, or emulated links"
                )
        for method_text in self.methods:
            if Method.parse(method_text).powersgd_rank is not None and self.paced:
                raise ValueError(
                    f"method: {method_text!r} cannot be paced, since gravac can slow down only its own exchange to the "
                    "link's rate; leave the method out, or use emulated links"
                )
        if self.json is not None:
            check_writable("json", self.json)
        if self.log_dir is not None:
            check_folder_can_be_made("log_dir", self.log_dir)

    def _check_mesh(self, mesh: Mesh) -> None:
        """Raise ``ValueError`` if the mesh has too many ranks, or conflicts with another setting of the matrix."""
        if mesh.ranks > MAX_WORKERS:
            raise ValueError(f"mesh: {mesh} has {mesh.ranks} ranks, but at most {MAX_WORKERS} can run; use 2x2")
        if self.workers != mesh.ranks:
            raise ValueError(
                f"workers: {self.workers} is not {mesh.ranks}, the number of ranks of the mesh {mesh}; give "
                f"{mesh.ranks}"
            )
        if self.paced:
            raise ValueError(
                f"mesh: {mesh} cannot be paced, since gravac cannot slow down torch's own exchange between replicas; "
                "use emulated links, which need Linux and root"
            )
        for task_name in self.tasks:
            if task_name in TASKS and not TASKS[task_name].blocks:
                sharded_tasks = ", ".join(task for task in TASKS if TASKS[task].blocks)
                raise ValueError(
                    f"task: {task_name!r} has no blocks by which its model could be cut into shards; with a mesh use "
                    f"{sharded_tasks}"
                )
        for method_text in self.methods:
            if (error_message := Method.parse(method_text).mesh_error_message) is not None:
                raise ValueError(error_message)

    @property
    def mesh_text(self) -> str | None:
        """The mesh as text, such as ``"2x2"``, for the records of runs; ``None`` without a mesh."""
        return None if self.mesh is None else str(self.mesh)

    def task(self, name: str, seed: int) -> Task:
        """Return a new task, with the matrix's scale and folder of data.

        Args:
            name: name of the task.
            seed: seed of the initial weights and of the batches.

        Raises:
            ValueError: the name is unknown, or the scale or the folder of data is wrong.
        """
        return make(name, scale=self.scale, seed=seed, data=self.data)
