# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Describes the facts about a machine and the result of a check as text, and gives advice."""

from __future__ import annotations

from collections.abc import Sequence

from gravac.lab.doctor.facts import OPTIONAL, Facts
from gravac.lab.doctor.memory import Memory
from gravac.lab.doctor.memory import describe as describe_memory
from gravac.lab.doctor.ranks import Check
from gravac.lab.links.rates import format_rate

EXAMPLE_PARAMETERS = 100e6
"""Number of parameters of an example model, whose exchange time illustrates a bandwidth."""

BY_SETTINGS = (
    'OuterSettings(anchor_dtype="bfloat16") halves the anchor, offload=True keeps it in CPU memory, fragments=8 sends '
    "an eighth at a time"
)
"""Text about the settings that reduce the memory of outer steps."""


def in_words(facts: Facts, check: Check | None) -> str:
    """Return a text with a line for each fact.

    Args:
        facts: facts about this machine.
        check: result of the check of ranks; ``None`` if the check failed.
    """
    missing = [name for name in OPTIONAL if facts.optional.get(name) is None]
    present = [f"{name} {version}" for name, version in facts.optional.items() if version is not None]
    built = "built without CUDA" if facts.cuda is None else f"built for CUDA {facts.cuda}"
    variables = [f"{name}={setting}" for name, setting in facts.variables.items()]
    lines = [
        ("python", facts.python),
        ("packages", ", ".join(f"{name} {version}" for name, version in facts.packages.items())),
        ("optional", (", ".join(present) or "none") + (f"; not installed: {', '.join(missing)}" if missing else "")),
        ("backends", ", ".join(facts.backends) or "none"),
        ("GPUs", ", ".join(facts.devices) or f"none that torch can use ({built})"),
        ("NCCL", facts.nccl or "none"),
        ("cores", str(facts.cores)),
        ("environment", ", ".join(variables) or "nothing set that matters"),
        ("emulated links", "yes, for gravac demo and bench" if facts.links is None else f"no: {facts.links}"),
    ]
    if check is not None:
        location = f"{check.hosts} machine{'s' if check.hosts > 1 else ''}, {check.backend}, {check.device}"
        weights = "the same weights" if check.same else "DIFFERENT weights"
        lines.append(("ranks", f"{check.ranks} on {location}; {weights} after a few steps"))
        if check.wire_ratio is not None:
            lines.append(("compressed step", f"{check.wire_ratio:.1f} times fewer bytes than a dense one"))
        lacks = "all that native and outer steps need" if check.lacks is None else f"not all: {check.lacks}"
        lines.append(("torch has", lacks))
        if check.link is not None:
            rate = format_rate(float(f"{check.link.bandwidth:.3g}"))
            path = "loopback, no network" if check.loopback else "between the ranks"
            lines.append(("link", f"{rate}, {1e6 * check.link.latency:.0f} µs a message ({path})"))
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in lines)


def memory_words(memories: Sequence[Memory], model: str | None, elements: int | None) -> str:
    """Return a text about the memory that each mode takes on a rank, with a line for each purpose.

    Args:
        memories: memory of all modes.
        model: name of the model; ``None`` for any model.
        elements: number of the model's parameters; ``None`` gives multiples of the model's size.
    """
    unit = "in sizes of the model" if elements is None else f"of {model}, {elements / 1e6:.1f} M parameters"
    lines = [f"Memory that gravac takes on a rank, {unit}, float32:"]
    previous = ""
    for memory in memories:
        lines.append(f"  {memory.mode if memory.mode != previous else '':<7} {describe_memory(memory, elements)}")
        previous = memory.mode
    lines.append(f"  {'':<7} {BY_SETTINGS}")
    return "\n".join(lines)


def advice(facts: Facts, check: Check | None, failure: str | None = None) -> list[str]:
    """Return recommendations, each of a sentence or two; an empty list if there are none.

    Args:
        facts: facts about this machine.
        check: result of the check of ranks; ``None`` if the check failed.
        failure: reason of the failure.
    """
    recommendations = []
    if failure is not None:
        recommendations.append(
            f"the ranks did not train: {failure}. On several machines check that all reach MASTER_ADDR and "
            "MASTER_PORT, and name the interface: GLOO_SOCKET_IFNAME=..., NCCL_SOCKET_IFNAME=..."
        )
    if check is not None:
        recommendations += _rank_advice(check)
        if check.lacks is not None:
            recommendations.append(check.lacks)
    if facts.devices and "nccl" not in facts.backends:
        recommendations.append(
            "there are GPUs and no NCCL: gradients would travel by gloo, staged in host memory, which is slow"
        )
    if facts.devices and facts.optional.get("triton") is None:
        recommendations.append("triton is missing: on a GPU, quantizers run as many small kernels; pip install triton")
    if facts.links is not None:
        recommendations.append(f"gravac demo and bench tta slow their link down by sleeping, since {facts.links}")
    if any(facts.optional.get(name) is None for name in ("rich", "matplotlib")):
        recommendations.append("gravac demo, bench, advise and report need more packages: pip install 'gravac[lab]'")
    return recommendations


def _rank_advice(check: Check) -> list[str]:
    """Return recommendations that follow from the check of ranks."""
    if not check.same:
        return [
            "ranks hold different weights after the same steps, which must not be: please report it, with this output "
            "(gravac doctor --json)"
        ]
    if check.ranks == 1:
        return ["one rank exchanges nothing, so there is nothing to compress: launch two or more"]
    if check.loopback:
        return [
            "gravac works on this machine. Of your network this says nothing: run it the way you train, such as "
            "torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint HOST:29500 -m gravac doctor"
        ]
    if check.link is None:
        return []
    seconds = 8 * 4 * EXAMPLE_PARAMETERS * 2 * (check.ranks - 1) / check.ranks / check.link.bandwidth
    rate = format_rate(float(f"{check.link.bandwidth:.3g}"))
    return [
        f"at {rate} a dense float32 exchange of 100 M parameters takes {seconds:.3g} s: where that is more than your "
        "backward takes, compressing may pay. "
        f"gravac advise --link {check.link.bandwidth / 1e6:.4g}mbit --model ... --batch-seconds ... predicts it"
    ]
