# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The command ``gravac doctor``: reports what is installed, and tests whether ranks train to equal weights."""

from __future__ import annotations

import argparse
import json
import math

from gravac.commands.common import FAILED, Commands, add_mesh_option, mesh_of, set_work


def add(commands: Commands) -> None:
    """Register the subcommand ``gravac doctor`` and its arguments with ``argparse``."""
    parser = commands.add_parser(
        "doctor",
        help="check what is installed, and whether ranks connect and train",
        description="Prints versions, devices and backends, trains a small model for a few compressed steps, prints "
        "the memory of each mode of steps, and gives advice. Trains on torchrun's ranks if torchrun started the "
        "command. Otherwise the command starts two ranks on this machine, or up to four for a mesh.",
    )
    parser.add_argument(
        "--model",
        help="print the memory for resnet50, resnet101, vgg16, vgg19, lstm, bert-base or bert-large (default: in "
        "multiples of a model's size)",
    )
    add_mesh_option(parser, "train in shards, and print the memory of a rank, and what a rank sends between replicas")
    parser.add_argument("--json", action="store_true", help="print all results as JSON")
    set_work(parser, _run)


def _run(options: argparse.Namespace) -> int:
    from gravac.lab import doctor
    from gravac.lab.advise import shapes_of
    from gravac.lab.local_ranks import under_torchrun

    mesh = mesh_of(options)
    shapes = None if options.model is None else shapes_of(options.model)
    memories = doctor.memory_of_modes(shapes, mesh)
    traffic = () if mesh is None else doctor.traffic_of_mesh(mesh, shapes)

    is_under_torchrun = under_torchrun()
    check, failure = None, None
    try:
        check = doctor.check_launched(mesh) if is_under_torchrun else doctor.check_here(mesh)
    except (RuntimeError, OSError) as error:
        failure = str(error).splitlines()[0] if str(error) else type(error).__name__
    if is_under_torchrun and check is None and failure is None:
        return 0  # only rank 0 prints
    facts = doctor.facts()
    advice = doctor.advice(facts, check, failure)
    if options.json:
        all_results = {
            "facts": facts.model_dump(),
            "ranks": check and check.model_dump(),
            "memory": [memory.model_dump() for memory in memories],
            "traffic": [link_traffic.model_dump() for link_traffic in traffic],
            "failure": failure,
            "advice": advice,
        }
        print(json.dumps(all_results, indent=2))
    else:
        elements = None if shapes is None else sum(map(math.prod, shapes))
        description_texts = [
            doctor.describe_facts(facts, check),
            doctor.describe_memories(memories, options.model, elements, mesh),
        ]
        if mesh is not None:
            description_texts.append(doctor.describe_traffic(traffic, mesh, options.model, shapes))
        print("\n".join(["\n\n".join(description_texts), "", *(f"- {recommendation}" for recommendation in advice)]))
    return FAILED if failure is not None or (check is not None and not check.same) else 0
