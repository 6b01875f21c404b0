# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Describes as text what ``gravac doctor`` found: facts about a machine, a check of ranks, memory and advice."""

from __future__ import annotations

from collections.abc import Sequence

from gravac.exchange.link_probe import LinkProbe
from gravac.lab.doctor.facts import OPTIONAL_PACKAGES, Facts
from gravac.lab.doctor.memory import Memory, describe_memory
from gravac.lab.doctor.ranks import Check
from gravac.lab.links.rates import format_rate
from gravac.lab.mesh import Mesh, parse_mesh

EXAMPLE_PARAMETERS = 100e6
"""Number of parameters of an example model: the advice says how long its exchange takes at the measured bandwidth."""


def describe_facts(facts: Facts, check: Check | None) -> str:
    """Return a text with a line for each fact, and for the result of the check.

    Args:
        facts: facts about this machine.
        check: result of the check of ranks; ``None`` if the check failed.
    """
    missing_packages = [name for name in OPTIONAL_PACKAGES if facts.optional.get(name) is None]
    installed_packages = [f"{name} {version}" for name, version in facts.optional.items() if version is not None]
    cuda_build = "built without CUDA" if facts.cuda is None else f"built for CUDA {facts.cuda}"
    variable_settings = [f"{name}={setting}" for name, setting in facts.variables.items()]
    lines = [
        ("python", facts.python),
        ("packages", ", ".join(f"{name} {version}" for name, version in facts.packages.items())),
        (
            "optional",
            (", ".join(installed_packages) or "none")
            + (f"; not installed: {', '.join(missing_packages)}" if missing_packages else ""),
        ),
        ("backends", ", ".join(facts.backends) or "none"),
        ("GPUs", ", ".join(facts.devices) or f"none that torch can use ({cuda_build})"),
        ("NCCL", facts.nccl or "none"),
        ("cores", str(facts.cores)),
        ("environment", ", ".join(variable_settings) or "no variable is set that changes how ranks connect"),
        (
            "emulated links",
            "possible, for gravac demo, bench tta and calibrate"
            if facts.links is None
            else f"impossible: {facts.links}",
        ),
    ]
    if check is not None:
        location_text = f"{check.hosts} machine{'s' if check.hosts > 1 else ''}, {check.backend}, {check.device}"
        weights_text = "the same weights" if check.same else "DIFFERENT weights"
        ranks_text = str(check.ranks) if check.mesh is None else f"{check.ranks}, as mesh {check.mesh},"
        lines.append(("ranks", f"{ranks_text} on {location_text}; {weights_text} after a few compressed steps"))
        if check.wire_ratio is not None:
            lines.append(("compressed step", f"{check.wire_ratio:.1f} times fewer bytes than a dense step"))
        feature = "native and outer steps" if check.mesh is None else "models in shards"
        names_text = (
            f"all private attributes that {feature} use"
            if check.lacks is None
            else f"not all private attributes that {feature} use: {check.lacks}"
        )
        lines.append(("torch has", names_text))
        path_text = "loopback, no network" if check.loopback else "between the ranks"
        if check.link is not None:
            lines.append(("link" if check.mesh is None else "link of replicas", _describe_link(check.link, path_text)))
        if check.shard_link is not None:
            lines.append(("link in a replica", _describe_link(check.shard_link, path_text)))
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in lines)


def _describe_link(link: LinkProbe, path_text: str) -> str:
    """Return a text that states the speed of a link; ``path_text`` says what the link connects."""
    return f"{format_rate(float(f'{link.bandwidth:.3g}'))}, {1e6 * link.latency:.0f} µs a message ({path_text})"


def describe_memories(
    memories: Sequence[Memory], model: str | None, elements: int | None, mesh: Mesh | None = None
) -> str:
    """Return a text that states the memory that each mode of steps takes on a rank, a line for each purpose.

    Args:
        memories: memory of each mode for each purpose, as ``memory_of_modes`` returns it.
        model: name of the model; ``None``: no particular model.
        elements: number of the model's parameters; ``None``: memory is given in multiples of the model's size.
        mesh: mesh of a model in shards; ``None``: DDP, without shards.
    """
    rank_text = "a rank" if mesh is None else f"a rank of the mesh {mesh}"
    unit_text = (
        "in multiples of the model's size" if elements is None else f"of {model}, {elements / 1e6:.1f} M parameters"
    )
    lines = [f"Memory that gravac takes on {rank_text}, {unit_text}, float32:"]
    previous_mode = ""
    for memory in memories:
        lines.append(f"  {memory.mode if memory.mode != previous_mode else '':<7} {describe_memory(memory, elements)}")
        previous_mode = memory.mode
    return "\n".join(lines)


def advice(facts: Facts, check: Check | None, failure: str | None = None) -> list[str]:
    """Return what the user should do on this machine, a text for each recommendation; empty if nothing is to be done.

    Args:
        facts: facts about this machine.
        check: result of the check of ranks; ``None`` if the check failed.
        failure: reason why the check failed; ``None`` if the check succeeded.
    """
    recommendations = []
    if failure is not None:
        recommendations.append(
            f"the ranks did not train: {failure}. On several machines, check that all machines reach MASTER_ADDR and "
            "MASTER_PORT, and name the network interface: GLOO_SOCKET_IFNAME=..., NCCL_SOCKET_IFNAME=..."
        )
    if check is not None:
        recommendations += _rank_advice(check)
        if check.lacks is not None:
            recommendations.append(check.lacks)
    if facts.devices and "nccl" not in facts.backends:
        recommendations.append(
            "there are GPUs and no NCCL: gloo would send gradients through host memory, which is slow; install a "
            "torch that has NCCL"
        )
    if facts.links is not None:
        recommendations.append(
            "gravac demo and bench tta slow exchanges down by sleeping, instead of emulating links, since "
            f"{facts.links}"
        )
    if any(facts.optional.get(name) is None for name in ("rich", "matplotlib")):
        recommendations.append("gravac demo, bench and advise need more packages: pip install 'gravac[lab]'")
    return recommendations


def _rank_advice(check: Check) -> list[str]:
    """Return recommendations that follow from the check of ranks, such as to report unequal weights."""
    if not check.same:
        return [
            "ranks hold different weights after the same steps, which is a bug of gravac: please report it with the "
            "output of gravac doctor --json"
        ]
    if check.ranks == 1:
        return ["one rank exchanges nothing, so there is nothing to compress: launch two or more ranks"]
    if check.loopback:
        mesh_placeholder = "" if check.mesh is None else " --mesh RxS, with R machines of S ranks each"
        return [
            "gravac works on this machine, but this check says nothing about your network: run gravac doctor the way "
            f"you train, such as torchrun --nnodes 2 --nproc-per-node {1 if check.mesh is None else 'S'} "
            f"--rdzv-backend c10d --rdzv-endpoint HOST:29500 -m gravac doctor{mesh_placeholder}"
        ]
    if check.link is None:
        return []
    mesh = None if check.mesh is None else parse_mesh(check.mesh)
    averaging_ranks, ranks_of_link = (check.ranks, 1) if mesh is None else (mesh.replicas, mesh.shards)
    link_bandwidth = ranks_of_link * check.link.bandwidth  # all ranks of a replica sent while the link was measured
    exchange_s = 8 * 4 * EXAMPLE_PARAMETERS * 2 * (averaging_ranks - 1) / averaging_ranks / link_bandwidth
    rate = format_rate(float(f"{link_bandwidth:.3g}"))
    mesh_option = "" if mesh is None else f"--mesh {mesh} "
    recommendations = [
        f"at {rate} a dense float32 exchange of 100 M parameters takes {exchange_s:.3g} s. If your backward "
        "takes less, compression may save time; to predict how much, run "
        f"gravac advise {mesh_option}--link {link_bandwidth / 1e6:.4g}mbit --model ... --batch-seconds ..."
    ]
    if check.replica_hosts > 1:
        recommendations.append(
            f"the ranks of a replica run on {check.replica_hosts} machines, so torch sends weights and gradients "
            "within a replica over the network, too. gravac compresses only what replicas exchange with each other; if "
            "a replica fits on one machine, give a mesh of as many replicas as machines"
        )
    return recommendations
