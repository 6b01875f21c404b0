# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What each of a newcomer's changes must do, run in a process of its own inside the copy that it was applied to."""

import importlib
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from gravac import AdaptiveCompressor, Static, topk
from gravac.exchange.lockstep import Lockstep
from gravac.measurement import LocalMeasurement
from gravac.telemetry import StepRecord, read_jsonl
from gravac.testing import compressor_laws as conformance
from tests.distributed.training import batch, network, parallel, sgd, weights
from tests.engine.adapter import Averaged
from tests.ranks import processes

RANKS = 2
BACKWARDS = 2
LEARNING_RATE = 0.3

# what a patch brings is imported inside the check of it: here, and where tests are collected, it is not there
_new = importlib.import_module


def compressor() -> None:
    """Obeys every law, is known by its name, and trains: the ranks agree, the loss falls, few bytes travel."""
    cyclic = _new("gravac.compressors.cyclic").cyclic
    for law in conformance.LAWS:
        law(cyclic)
    xs = [torch.arange(10.0)]
    sent = [conformance.exchange(cyclic, xs, 4, step=step)[0].mean for step in range(4)]
    total = torch.zeros(10)
    for one in sent:
        assert not isinstance(one, torch.Tensor)
        one.add_to(total)
    assert total.tolist() == [0.0, 2.0, *range(2, 10)], "runs of 3 of 10 come in turn; the fourth starts over"
    modules, compressors = trained(40, base="cyclic", controller=Static(cf=8))
    assert compressors[0].wire_ratio is not None and compressors[0].wire_ratio > 4
    assert falls(modules)


def controller() -> None:
    """Obeys every law, is known by its name, and climbs while training, for the reasons that it gives."""
    ratchet = _new("gravac.controllers.ratchet").Ratchet
    laws = _new("gravac.testing.controller_laws").LAWS
    for law in laws:
        law(ratchet(gain=0.3, window=5))
    assert AdaptiveCompressor(topk, controller="ratchet").policy.controller == ratchet()
    modules, compressors = trained(60, base=topk, cf_range=(4, 64), controller=ratchet(gain=0.4, window=5))
    told = compressors[0].history
    cfs = [record.cf for record in told]
    assert cfs == sorted(cfs) and cfs[-1] > 2, cfs
    for before, record in zip([1.0, *cfs], told, strict=False):
        high = record.gain >= 0.4
        assert record.changed == (record.cf > before) and ("at least 0.4" in record.reason) == high, record
    assert [str(record) for record in told] == [str(record) for record in compressors[1].history]
    assert falls(modules)


def quantity(folder: str) -> None:
    """Agreed over the ranks, in JSONL, in a checkpoint, in TensorBoard with a chart; older files are read."""
    saved = logged(folder)
    lines = [json.loads(line) for line in (Path(folder) / "gravac.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "step"]
    assert len(steps) == 29
    for step in steps:
        assert math.isclose(step["starved_seconds"], 0.2), "rank 0 waited 0.1 s, rank 1 0.3 s"
        assert math.isclose(step["input_wait_seconds"], 0.1)
    older = Path(folder) / "older.jsonl"
    older.write_text(
        "".join(json.dumps({k: v for k, v in line.items() if k != "starved_seconds"}) + "\n" for line in lines)
    )
    records = [one for one in read_jsonl(older) if isinstance(one, StepRecord)]
    assert len(records) == 29 and all(math.isnan(asdict(one)["starved_seconds"]) for one in records)

    resumed = AdaptiveCompressor(topk, controller=Static(cf=10))
    resumed.load_state_dict(saved)
    (measurement,) = resumed._engine.state.pending
    assert math.isclose(measurement.numbers["starved_seconds"], 0.3)  # type: ignore[arg-type]
    assert charted(folder, "Waiting for inputs, seconds: this rank, mean of all", "gravac/starved_seconds", 0.2)


def chart(folder: str) -> None:
    """Has a curve in TensorBoard, and a chart that shows the curve."""
    logged(folder)
    assert charted(folder, "Learning rate", "gravac/learning_rate", LEARNING_RATE)


def framework(folder: str) -> None:
    """Passes the test that the patch adds: Relay with gravac, against plain DDP."""
    relay = _new("tests.integrations.test_relay")
    for accumulate in (1, 2):
        files = Path(folder) / str(accumulate)
        files.mkdir(parents=True)
        relay.test_relay_trains_as_plain_ddp_and_resumes_bit_for_bit(accumulate, files)
    relay.test_one_process_trains_without_gravac_and_says_so()
    relay.test_a_wrong_setting_is_refused_at_once()


def logged(folder: str) -> dict[str, Any]:
    """Log a run of 30 steps of two ranks, of which each waits for inputs; return the second rank's state."""
    _, compressors = trained(30, waits=True, base=topk, controller=Static(cf=10), log_dir=folder)
    saved = compressors[1].state_dict()
    for one in compressors:
        one.close()
    return saved


def charted(folder: str, title: str, tag: str, number: float) -> bool:
    """True if the log has a chart of that title with the tag's curve, and the curve is that number all the time."""
    reader: Any = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(folder)
    events.Reload()
    points = [event.value for event in events.Scalars(tag)]
    layout = _new("tensorboard.plugins.custom_scalar.layout_pb2").Layout()
    (tensor,) = events.Tensors("custom_scalars__config__")
    layout.ParseFromString(tensor.tensor_proto.string_val[0])
    charts = {drawn.title: list(drawn.multiline.tag) for category in layout.category for drawn in category.chart}
    is_flat = len(points) >= 3 and all(math.isclose(point, number, rel_tol=1e-6) for point in points)
    return f"{tag}$" in charts[title] and is_flat


def adapter() -> None:
    """Gives the weights that DDP gives, which accumulates by ``no_sync``, bit for bit."""
    accumulation = _new("gravac.integrations.accumulation").Accumulation
    ranks = Lockstep(RANKS)
    loops = []
    for executor in ranks.executors:
        made = AdaptiveCompressor(topk, controller=Static(cf=10))
        module = network()

        def door(known: Any, made: AdaptiveCompressor = made, executor: Any = executor) -> Any:
            return made.door(known, executor=executor)

        optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
        loops.append((module, accumulation(module, door, backwards=BACKWARDS), optimizer))
    for step in range(6):
        for rank, (module, loop, optimizer) in enumerate(loops):
            optimizer.zero_grad()
            steps = [loop.backward(loss_of(module, rank, BACKWARDS * step + at)) for at in range(BACKWARDS)]
            assert steps == [False, True]
        for _, loop, optimizer in loops:
            loop.wait()
            optimizer.step()
    mine = [torch.cat([p.detach().flatten() for p in module.parameters()]) for module, _, _ in loops]
    assert torch.equal(*mine)
    assert torch.equal(mine[0], processes(by_ddp, RANKS)[0])


def by_ddp(rank: int, world: int) -> torch.Tensor:
    ddp = parallel()
    optimizer = sgd(ddp)
    with AdaptiveCompressor(topk, controller=Static(cf=10)) as made:
        made.attach(ddp)
        for step in range(6):
            optimizer.zero_grad()
            with ddp.no_sync():
                (loss_of(ddp, rank, BACKWARDS * step) / BACKWARDS).backward()
            (loss_of(ddp, rank, BACKWARDS * step + 1) / BACKWARDS).backward()
            optimizer.step()
    return weights(ddp)


def trained(steps: int, waits: bool = False, **settings: Any) -> tuple[list[torch.nn.Module], list[AdaptiveCompressor]]:
    """Modules trained over ranks in memory; where it ``waits``, rank r does so 0.1 + 0.2 r seconds a step, it says."""
    ranks = Lockstep(RANKS)
    modules = [network(2) for _ in range(RANKS)]
    compressors = [AdaptiveCompressor(**settings) for _ in range(RANKS)]
    averaged = [
        Averaged(module, lambda known, c=one, e=executor: c.door(known, executor=e))  # type: ignore[misc]
        for module, one, executor in zip(modules, compressors, ranks.executors, strict=True)
    ]
    for rank, one in enumerate(averaged) if waits else ():

        def fill(measurement: LocalMeasurement, inputs: float = 0.1 + 0.2 * rank) -> None:
            measurement.forward_began, measurement.optimizer_ended = inputs, 0.0
            measurement.learning_rate = LEARNING_RATE

        one.door.end = lambda end=one.door.end, fill=fill: end(fill)  # type: ignore[method-assign, misc]
    for step in range(steps):
        for rank, module in enumerate(modules):
            module.zero_grad()
            loss_of(module, rank, step).backward()
            averaged[rank].hand_over()
        for one, module in zip(averaged, modules, strict=True):
            one.wait()
            with torch.no_grad():  # torch.optim would import dynamo, seconds where all cores are busy
                for parameter in module.parameters():
                    parameter -= LEARNING_RATE * parameter.grad
    mine, others = (torch.cat([p.detach().flatten() for p in module.parameters()]) for module in modules)
    assert torch.equal(mine, others)
    return modules, compressors


def falls(modules: list[torch.nn.Module]) -> bool:
    """Whether the loss is lower than before training."""
    with torch.no_grad():
        return float(loss_of(modules[0], 0, 999)) < float(loss_of(network(2), 0, 999))


def loss_of(module: torch.nn.Module, rank: int, step: int) -> torch.Tensor:
    x, y = batch(rank, step)
    return torch.nn.functional.cross_entropy(module(x), y)
