# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What ranks of a mesh run that evaluate a state later: a module without the imports of tests, which each rank pays."""

import torch

from gravac.lab.mesh import Mesh
from gravac.lab.tasks.charlm import CharLM
from gravac.lab.training.attach import attach
from gravac.lab.training.methods import Method
from gravac.lab.training.sharded import device_mesh, shard


def metrics_of_a_postponed_state(rank: int, world: int) -> list[float]:
    """Train a step, copy the state that ranks share, train more; metrics of the first state, then of its copy."""
    task, mesh = CharLM(scale=0.1, layers=2, validation_sequences=16), Mesh(2, world // 2)
    model, evaluated_later = task.model(), task.model()
    for module in (model, evaluated_later):
        shard(task, module, device_mesh(mesh))
    optimizer = task.optimizer(model)
    exchange = attach(
        Method.parse("outer(every=2):quantize(4)"), model, optimizer, samples_per_step=8 * world, log_dir=None
    )

    def train(step: int) -> None:
        optimizer.zero_grad()
        task.loss(model, task.batch(step, rank)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    def metric(module: torch.nn.Module) -> float:
        return task.metric.compute(task.validate(module, mesh.replica_of(rank), mesh.replicas))

    for step in range(2):
        train(step)
    state = exchange.shared_state()
    with exchange.shared_weights():
        first = metric(model)
    train(2)
    train(3)
    evaluated_later.load_state_dict(state)
    with exchange.shared_weights():
        metrics = [first, metric(evaluated_later), metric(model)]
    exchange.close()
    return metrics
