# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Predicts a model's step time with every compressor and compression factor (CF), and whether compression saves time.

``gravac.costmodel`` predicts time. How much progress a compressed step loses is only assumed, from measurements on
other tasks; ``gravac bench tta`` measures this loss of progress.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from gravac.candidate import DENSE, Forecast, Mode, Span
from gravac.collectives import AllReduce, wire_ratio
from gravac.compressors import COMPRESSORS, Compressor, Dense, ladder
from gravac.costmodel import Format, Load, Machine, Network, Prediction, crossing, load
from gravac.costmodel.step import BUCKET_BYTES
from gravac.engine.admission import efficiency_belief
from gravac.lab.advise.option import Option, has_measured_efficiency
from gravac.lab.advise.outer_steps import (
    CompressorLoad,
    crossing_bandwidth_of_outer_steps,
    fixed_code,
    forecast_outer_steps,
)
from gravac.lab.advise.verdict import adaptive_code, each_step_verdict, expected_choice, outer_steps_verdict
from gravac.lab.advise.wrapping import IN_DDP, IN_SHARDS
from gravac.lab.mesh import Mesh
from gravac.lab.shapes import MODELS, Shape, elements_of

CF_RANGE = (1.0, 1000.0)
"""Lowest and highest compression factor (CF) that is considered, unless the user names a lower or higher CF."""

USUAL_CFS = (10.0, 100.0, 1000.0)
"""CFs predicted for a compressor that supports any CF, unless the user names others."""

LATENCY = 50e-6
"""Latency of a message in seconds, assumed without a calibration: typical of TCP in a data centre."""

COPY = 14e9
"""Bytes per second of copying a tensor, assumed without a calibration: the speed of one CPU core."""


@dataclass(frozen=True, slots=True)
class Advice:
    """Predictions for a model, and the recommendations that follow from them.

    Attributes:
        choices: torch's own exchange in float32 and in 16 bit, then every compressor and CF with an exchange in each
            step, then outer steps.
        each_step: text that names the best choice with an exchange of gradients in each step.
        outer: text that names the best choice with outer steps.
        verdict: text that names the mode that gravac is expected to run, and the reason.
        mode: mode that gravac is expected to run.
        reason: text that explains ``each_step``: predicted step times, and choices that are nearly as good.
        code: line of code to paste, with which gravac chooses while training.
        fixed: line of code to paste instead of ``code``, which runs the expected choice from start to end.
        workers: number of ranks.
        network: network between the workers; on a mesh, between the replicas: all ranks of a replica share its link.
        machine: speed of each worker.
        batch_s: seconds of forward, backward and optimizer for one batch.
        elements: number of elements of the model.
        exchanged_elements: number of elements whose gradients each rank exchanges: all of the model; on a mesh, those
            of the rank's shards.
        dense_wire_bytes: bytes that a rank sends in a dense float32 exchange; on a mesh, to other replicas.
        mesh: mesh of a model in shards; ``None``: DDP, without shards.
        is_selected: whether the user named compressors or CFs; any of these may then be among the best choices.
    """

    choices: tuple[Option, ...]
    each_step: str
    outer: str
    verdict: str
    mode: Mode
    reason: str
    code: str
    fixed: str
    workers: int
    network: Network
    machine: Machine
    batch_s: float
    elements: int
    exchanged_elements: int
    dense_wire_bytes: int
    mesh: Mesh | None = None
    is_selected: bool = False

    @property
    def by_progress(self) -> tuple[Option, ...]:
        """All choices by descending ``progress``: the first is expected to reach a given accuracy soonest."""
        return tuple(sorted(self.choices, key=lambda choice: -choice.progress))

    @property
    def eligible(self) -> tuple[Option, ...]:
        """Choices that may be among the best, by descending ``progress``.

        These are the recommendable choices, and all that compress if the user named compressors or CFs.
        """
        return tuple(
            choice
            for choice in self.by_progress
            if choice.recommendable or (self.is_selected and choice.compressor != DENSE)
        )

    def best(self, count: int) -> tuple[Option, ...]:
        """Return the ``eligible`` choices with the most ``progress``, in descending order.

        torch's own exchanges and the best choice of mode ``hook`` are always included.

        Args:
            count: number of choices to return; more are returned only if more are always included.
        """
        always_included = [choice for choice in self.eligible if choice.reference]
        always_included += [choice for choice in self.eligible if choice.mode == "hook"][:1]
        other_choices = [choice for choice in self.eligible if choice not in always_included][
            : max(0, count - len(always_included))
        ]
        return tuple(choice for choice in self.eligible if choice in (*always_included, *other_choices))


def shapes_of(model: str | torch.nn.Module | Sequence[Shape]) -> list[Shape]:
    """Return the shapes of the parameters that training updates.

    Args:
        model: name of a model of ``gravac.lab.shapes.MODELS``, a module, or the shapes themselves.

    Raises:
        ValueError: the name is unknown, or the model has nothing to train; the message names the model.
    """
    if isinstance(model, str):
        if model not in MODELS:
            raise ValueError(f"model: {model!r} is unknown; known: {', '.join(MODELS)}")
        return MODELS[model]()
    if isinstance(model, torch.nn.Module):
        shapes = [tuple(parameter.shape) for parameter in model.parameters() if parameter.requires_grad]
    else:
        shapes = [tuple(shape) for shape in model]
    if not shapes:
        raise ValueError(f"model: {type(model).__name__} has no parameter to train; give a model with such parameters")
    return shapes


def candidates(
    names: Sequence[str] | None, cfs: Sequence[float] | None, machine: Machine
) -> list[tuple[Compressor, float]]:
    """Return pairs of a compressor and a CF to predict, in the order of the names.

    Args:
        names: names of compressors; ``None`` for all with known costs and measured efficiency. ``ladder`` is then left
            out, since its members are among them.
        cfs: requested compression factors. A compressor that supports only certain CFs has a pair for each supported
            CF that is within 10 % of a requested CF. ``None``: ``USUAL_CFS`` for compressors that support any CF, and
            all supported CFs of others.
        machine: machine, with the known costs of encode and decode of each compressor.

    Raises:
        ValueError: a compressor is unknown or not measured, a CF is below 1, or no compressor supports any of the CFs.
    """
    measured_compressors = {
        name: compressor
        for name, compressor in COMPRESSORS.items()
        if compressor.compresses and machine.coding(compressor, 1.0)
    }
    for name in names or ():
        known_names = ", ".join(measured_compressors)
        if name not in COMPRESSORS or not COMPRESSORS[name].compresses:
            raise ValueError(f"compressors: {name!r} is unknown; known: {known_names}")
        if name not in measured_compressors:
            raise ValueError(
                f"compressors: the costs of {name!r} were never measured; add coding_costs to its class (gravac bench "
                f"compressors measures them), or use one of {known_names}"
            )
    for cf in cfs or ():
        if not (math.isfinite(cf) and cf >= 1):
            raise ValueError(f"cf: {cf!r} is not a compression factor; give 1 or more, such as 10")
    selected_candidates: list[tuple[Compressor, float]] = []
    default_names = [
        name
        for name, compressor in measured_compressors.items()
        if name != ladder.name and has_measured_efficiency(compressor, 1.0)
    ]
    for name in dict.fromkeys(names or default_names):
        compressor = measured_compressors[name]
        lowest_cf, highest_cf = min(CF_RANGE[0], *(cfs or CF_RANGE)), max(CF_RANGE[1], *(cfs or CF_RANGE))
        supported_cfs = compressor.candidates((lowest_cf, highest_cf))
        if isinstance(supported_cfs, Span):
            cfs_in_span = [cf for cf in sorted(cfs or USUAL_CFS) if supported_cfs.low <= cf <= supported_cfs.high]
            selected_candidates += [(compressor, cf) for cf in cfs_in_span]
        else:
            nearby_cfs = [
                cf
                for cf in supported_cfs
                if cfs is None or any(abs(cf / requested_cf - 1) <= 0.1 for requested_cf in cfs)
            ]
            selected_candidates += [(compressor, cf) for cf in nearby_cfs]
    if not selected_candidates:
        raise ValueError(
            f"cf: none of the compressors supports a compression factor near {list(cfs or USUAL_CFS)}; leave cf out, "
            "or predict more compressors"
        )
    return selected_candidates


def exchange_load(
    shapes: Sequence[Shape],
    compressor: Compressor | None,
    cf: float,
    batch_s: float,
    workers: int | Mesh,
    machine: Machine,
    dense: Format,
) -> Load:
    """Return the work of a step with an exchange, as ``costmodel.load`` does; ``workers`` may also be a mesh.

    On a mesh, a rank exchanges its shards with the ranks that hold the same shards. The ranks of a replica share a
    link, so ``Load.bits`` has the bits of all these ranks; ``Load.wire_bytes`` has the bytes of one rank. The function
    assumes as many FSDP2 units (modules that ``fully_shard`` wraps) as DDP would make buckets of the whole model.

    Args:
        shapes: shapes of the whole model's parameters.
        compressor: compressor; ``None``: dense.
        cf: compression factor.
        batch_s: seconds of forward, backward and optimizer for one batch.
        workers: number of ranks, or the mesh of a model in shards.
        machine: speed of each worker.
        dense: number format of tensors that are not compressed.
    """
    if not isinstance(workers, Mesh):
        return load(shapes, compressor, cf, batch_s, workers, machine, dense=dense)
    elements = elements_of(shapes)
    fsdp2_units = max(1, min(len(shapes), round(4 * elements / BUCKET_BYTES)))
    shard_shapes = [workers.shard_shape(shape) for shape in shapes]
    rank_load = load(shard_shapes, compressor, cf, batch_s, workers.replicas, machine, buckets=fsdp2_units, dense=dense)
    return replace(rank_load, bits=workers.shards * rank_load.bits)


def advise(
    model: str | torch.nn.Module | Sequence[Shape],
    batch_s: float,
    workers: int | Mesh,
    network: Network,
    machine: Machine | None = None,
    compressors: Sequence[str] | None = None,
    cfs: Sequence[float] | None = None,
    price_per_hour: float | None = None,
    dense: Format = "bfloat16",
) -> Advice:
    """Predict the step time of every choice, and return the predictions with texts that recommend the best choices.

    Args:
        model: name of a model of ``gravac.lab.shapes.MODELS``, a module, or shapes of parameters.
        batch_s: seconds of forward, backward and optimizer of one batch on one worker; on a mesh, including the
            exchange within a replica.
        workers: number of ranks, 1 or more; or the mesh of a model in shards.
        network: network between the workers; on a mesh, between the replicas: all ranks of a replica share its link.
        machine: speed of each worker; ``None`` for one CPU core.
        compressors: names of compressors; ``None`` for all with known costs and measured efficiency, except ``ladder``.
        cfs: compression factors to predict; ``None`` for 10, 100 and 1000, and for all CFs of a compressor that
            supports only certain CFs.
        price_per_hour: price of one worker's hour, in any currency; ``None``: no costs are predicted.
        dense: 16-bit number format of the exchange that choices are compared with.

    Raises:
        ValueError: an argument is out of range or unknown; the message names the argument.
    """
    machine = machine or Machine(COPY)
    if not (math.isfinite(batch_s) and batch_s > 0):
        raise ValueError(f"batch_seconds: {batch_s!r} is out of range; give seconds, above 0")
    mesh = workers if isinstance(workers, Mesh) else None
    ranks = workers.ranks if isinstance(workers, Mesh) else workers
    averaging_ranks = ranks if mesh is None else mesh.replicas  # number of ranks that average with each other
    wrapping = IN_DDP if mesh is None else IN_SHARDS
    if ranks < 1:
        raise ValueError(f"workers: {workers!r} is out of range; give 1 or more")
    if price_per_hour is not None and not (math.isfinite(price_per_hour) and price_per_hour >= 0):
        raise ValueError(f"price_per_hour: {price_per_hour!r} is out of range; give a price of 0 or more")
    shapes = shapes_of(model)
    elements = elements_of(shapes)
    exchanged_elements = elements if mesh is None else mesh.shard_elements(shapes)
    dense_wire_bytes = AllReduce.wire_bytes(4 * exchanged_elements, averaging_ranks)

    def cost_of_1000_steps(step_s: float) -> float | None:
        return None if price_per_hour is None else 1000 * step_s / 3600 * ranks * price_per_hour

    def option_in_each_step(
        compressor_load: CompressorLoad, prediction: Prediction, break_even: float | None = None
    ) -> Option:
        compressor, cf = compressor_load.compressor, compressor_load.cf
        belief = efficiency_belief(compressor.profile(cf))
        return Option(
            compressor=compressor.name if compressor.compresses else DENSE,
            cf=cf,
            step_s=prediction.step_s,
            compress_s=prediction.compress_s,
            exposed_s=prediction.exposed_s,
            speed_up=sixteen_bit_prediction.step_s / prediction.step_s,
            wire_ratio=wire_ratio(dense_wire_bytes, prediction.wire_bytes),
            break_even=break_even,
            efficiency=belief.efficiency,
            deviation=belief.deviation,
            measured=has_measured_efficiency(compressor, cf),
            cost=cost_of_1000_steps(prediction.step_s),
        )

    def outer_option(compressor_load: CompressorLoad, forecast: Forecast) -> Option:
        assert forecast.step_s is not None
        assert forecast.coding_s is not None
        candidate = forecast.candidate
        crossing_bandwidth = crossing_bandwidth_of_outer_steps(
            compressor_load, candidate.every, candidate.delay, sixteen_bit_load, network, machine
        )
        return Option(
            compressor=candidate.compressor,
            cf=candidate.cf,
            step_s=forecast.step_s,
            compress_s=forecast.coding_s,
            exposed_s=forecast.step_s - forecast.coding_s - batch_s,
            speed_up=sixteen_bit_prediction.step_s / forecast.step_s,
            wire_ratio=forecast.wire_ratio,
            break_even=_break_even_bandwidth(crossing_bandwidth, forecast.step_s < sixteen_bit_prediction.step_s),
            efficiency=forecast.efficiency,
            deviation=forecast.deviation,
            cost=cost_of_1000_steps(forecast.step_s),
            every=candidate.every,
            measured=has_measured_efficiency(compressor_load.compressor, candidate.cf, candidate.every),
        )

    float32_load = exchange_load(shapes, None, 1, batch_s, workers, machine, "float32")
    sixteen_bit_load = exchange_load(shapes, None, 1, batch_s, workers, machine, dense)
    sixteen_bit_prediction = sixteen_bit_load.over(network, machine)
    dense_loads = [
        CompressorLoad(Dense(), 1.0, float32_load),
        CompressorLoad(Dense(dtype=dense), 2.0, sixteen_bit_load),
    ]
    each_step_options = [
        option_in_each_step(dense_load, dense_load.load.over(network, machine)) for dense_load in dense_loads
    ]
    compressed_loads: list[CompressorLoad] = []
    for compressor, cf in candidates(compressors, cfs, machine):
        compressed_load = exchange_load(shapes, compressor, cf, batch_s, workers, machine, dense)
        compressed_loads.append(CompressorLoad(compressor, cf, compressed_load))
        prediction = compressed_load.over(network, machine)
        crossing_bandwidth = _crossing_bandwidth_of_compressed_step(compressed_load, sixteen_bit_load, network, machine)
        break_even = _break_even_bandwidth(crossing_bandwidth, prediction.step_s < sixteen_bit_prediction.step_s)
        each_step_options.append(option_in_each_step(compressed_loads[-1], prediction, break_even))
    forecasts = (
        forecast_outer_steps(dense_loads, compressed_loads, dense_wire_bytes, network, machine, averaging_ranks)
        if averaging_ranks > 1
        else []
    )
    outer_options = [outer_option(compressor_load, forecast) for compressor_load, forecast in forecasts]
    each_step_text, reason = each_step_verdict(each_step_options[2:], sixteen_bit_prediction, wrapping)
    expected_option, verdict = expected_choice(each_step_options, outer_options, wrapping)
    return Advice(
        choices=(*each_step_options, *outer_options),
        each_step=each_step_text,
        outer=outer_steps_verdict(outer_options),
        verdict=verdict,
        mode=expected_option.mode,
        reason=reason,
        code=adaptive_code(expected_option, wrapping),
        fixed=fixed_code(expected_option, dense, wrapping),
        workers=ranks,
        network=network,
        machine=machine,
        batch_s=batch_s,
        elements=elements,
        exchanged_elements=exchanged_elements,
        dense_wire_bytes=dense_wire_bytes,
        mesh=mesh,
        is_selected=compressors is not None or cfs is not None,
    )


def _crossing_bandwidth_of_compressed_step(
    compressed_load: Load, sixteen_bit_load: Load, network: Network, machine: Machine
) -> float | None:
    """Return the bandwidth, bits per second, below which a compressed step is shorter than a step in 16 bit.

    ``None`` if the compressed step is shorter at every bandwidth, or at none.

    Args:
        compressed_load: load of the compressed step.
        sixteen_bit_load: load of the step in 16 bit.
        network: network between the workers, whose latency is used at every bandwidth.
        machine: speed of each worker.
    """

    def is_shorter(bandwidth: float) -> bool:
        varied_network = Network(network.alpha, bandwidth)
        return (
            compressed_load.over(varied_network, machine).step_s < sixteen_bit_load.over(varied_network, machine).step_s
        )

    return crossing(is_shorter)


def _break_even_bandwidth(crossing_bandwidth: float | None, is_faster: bool) -> float:
    """Return ``Option.break_even`` in bits per second: the crossing, or inf (always faster) or 0 (never faster).

    Args:
        crossing_bandwidth: bandwidth below which an option is faster than 16 bit; ``None``: it is faster at every
            bandwidth, or at none.
        is_faster: whether the option is faster than 16 bit at the bandwidth of the network.
    """
    return crossing_bandwidth if crossing_bandwidth is not None else math.inf if is_faster else 0.0
