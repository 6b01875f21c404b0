# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What was found, in words, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence

from gravac.lab.doctor.facts import OPTIONAL, Facts
from gravac.lab.doctor.memory import Memory
from gravac.lab.doctor.memory import in_words as part_words
from gravac.lab.doctor.ranks import Check
from gravac.lab.links.rates import format_rate

GRADIENT = 100e6
"""Parameters of the model whose exchange is told, to make a bandwidth mean something."""

BY_SETTINGS = (
    'OuterSettings(anchor_dtype="bfloat16") halves the anchor, offload=True keeps it in CPU memory, fragments=8 sends '
    "an eighth at a time"
)
"""What changes the memory of outer steps."""


def in_words(found: Facts, check: Check | None) -> str:
    """Return what was found, a line for each thing; ``check`` is ``None`` where ranks could not be tried."""
    missing = [name for name in OPTIONAL if found.optional.get(name) is None]
    present = [f"{name} {version}" for name, version in found.optional.items() if version is not None]
    built = "built without CUDA" if found.cuda is None else f"built for CUDA {found.cuda}"
    variables = [f"{name}={value}" for name, value in found.variables.items()]
    lines = [
        ("python", found.python),
        ("packages", ", ".join(f"{name} {version}" for name, version in found.packages.items())),
        ("optional", (", ".join(present) or "none") + (f"; not installed: {', '.join(missing)}" if missing else "")),
        ("backends", ", ".join(found.backends) or "none"),
        ("GPUs", ", ".join(found.devices) or f"none that torch can use ({built})"),
        ("NCCL", found.nccl or "none"),
        ("cores", str(found.cores)),
        ("environment", ", ".join(variables) or "nothing set that matters"),
        ("emulated links", "yes, for gravac demo and bench" if found.links is None else f"no: {found.links}"),
    ]
    if check is not None:
        where = f"{check.hosts} machine{'s' if check.hosts > 1 else ''}, {check.backend}, {check.device}"
        same = "the same weights" if check.same else "DIFFERENT weights"
        lines.append(("ranks", f"{check.ranks} on {where}; {same} after a few steps"))
        if check.wire_ratio is not None:
            lines.append(("compressed step", f"{check.wire_ratio:.1f} times fewer bytes than a dense one"))
        lacks = "all that native and outer steps need" if check.lacks is None else f"not all: {check.lacks}"
        lines.append(("torch has", lacks))
        if check.link is not None:
            rate = format_rate(float(f"{check.link.bandwidth:.3g}"))
            where = "loopback, no network" if check.loopback else "between the ranks"
            lines.append(("link", f"{rate}, {1e6 * check.link.latency:.0f} µs a message ({where})"))
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in lines)


def memory_words(memories: Sequence[Memory], model: str | None, elements: int | None) -> str:
    """Return what each mode takes of a rank's memory, a line for each part.

    Args:
        memories: parts of all modes.
        model: name of the model; ``None``: any, of which multiples are told.
        elements: number of its parameters.
    """
    whose = "in sizes of the model" if elements is None else f"of {model}, {elements / 1e6:.1f} M parameters"
    lines = [f"Memory that gravac takes on a rank, {whose}, float32:"]
    before = ""
    for memory in memories:
        lines.append(f"  {memory.mode if memory.mode != before else '':<7} {part_words(memory, elements)}")
        before = memory.mode
    lines.append(f"  {'':<7} {BY_SETTINGS}")
    return "\n".join(lines)


def advice(found: Facts, check: Check | None, failure: str | None = None) -> list[str]:
    """Return what to do, a sentence or two each; nothing where all is well and nothing is worth saying.

    Args:
        found: what is here.
        check: what ranks found; ``None`` where they could not be tried.
        failure: why not.
    """
    said = []
    if failure is not None:
        said.append(
            f"the ranks did not train: {failure}. On several machines check that all reach MASTER_ADDR and "
            "MASTER_PORT, and name the interface: GLOO_SOCKET_IFNAME=..., NCCL_SOCKET_IFNAME=..."
        )
    if check is not None:
        said += _of_ranks(check)
        if check.lacks is not None:
            said.append(check.lacks)
    if found.devices and "nccl" not in found.backends:
        said.append("there are GPUs and no NCCL: gradients would travel by gloo, staged in host memory, which is slow")
    if found.devices and found.optional.get("triton") is None:
        said.append("triton is missing: on a GPU, quantizers run as many small kernels; pip install triton")
    if found.links is not None:
        said.append(f"gravac demo and bench tta slow their link down by sleeping, since {found.links}")
    if any(found.optional.get(name) is None for name in ("rich", "matplotlib")):
        said.append("gravac demo, bench, advise and report need more packages: pip install 'gravac[lab]'")
    return said


def _of_ranks(check: Check) -> list[str]:
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
    seconds = 8 * 4 * GRADIENT * 2 * (check.ranks - 1) / check.ranks / check.link.bandwidth
    rate = format_rate(float(f"{check.link.bandwidth:.3g}"))
    return [
        f"at {rate} a dense float32 exchange of 100 M parameters takes {seconds:.3g} s: where that is more than your "
        "backward takes, compressing may pay. "
        f"gravac advise --link {check.link.bandwidth / 1e6:.4g}mbit --model ... --batch-seconds ... predicts it"
    ]
