# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The command ``gravac doctor``: reports what is installed, checks that ranks train to equal weights, gives advice."""

from __future__ import annotations

import argparse
import json
import math

from gravac.commands.common import FAILED, Commands, set_work


def add(commands: Commands) -> None:
    """Register the subcommand ``gravac doctor`` and its arguments with ``argparse``."""
    parser = commands.add_parser(
        "doctor",
        help="check what is installed, and whether ranks connect and train",
        description="Prints versions, devices and backends, trains a small model for a few compressed steps, prints "
        "the memory that each mode of steps takes, and gives advice. Trains on torchrun's ranks if torchrun started "
        "the command, otherwise on two ranks that the command starts on this machine.",
    )
    parser.add_argument(
        "--model",
        help="print the memory for resnet50, vgg16, lstm or bert-base (default: in multiples of a model's size)",
    )
    parser.add_argument("--json", action="store_true", help="print all results as JSON")
    set_work(parser, _run)


def _run(options: argparse.Namespace) -> int:
    from gravac.lab import doctor
    from gravac.lab.advise import shapes_of
    from gravac.lab.local_ranks import under_torchrun

    shapes = None if options.model is None else shapes_of(options.model)
    memories = doctor.memory_of_modes(shapes)

    is_under_torchrun = under_torchrun()
    check, failure = None, None
    try:
        check = doctor.check_launched() if is_under_torchrun else doctor.check_here()
    except (RuntimeError, OSError) as error:
        failure = str(error).splitlines()[0] if str(error) else type(error).__name__
    if is_under_torchrun and check is None and failure is None:
        return 0  # rank 0 reports
    facts = doctor.facts()
    advice = doctor.advice(facts, check, failure)
    if options.json:
        report = {
            "facts": facts.model_dump(),
            "ranks": check and check.model_dump(),
            "memory": [memory.model_dump() for memory in memories],
            "failure": failure,
            "advice": advice,
        }
        print(json.dumps(report, indent=2))
    else:
        elements = None if shapes is None else sum(map(math.prod, shapes))
        memory = doctor.memory_words(memories, options.model, elements)
        print("\n".join([doctor.in_words(facts, check), "", memory, "", *(f"- {line}" for line in advice)]))
    return FAILED if failure is not None or (check is not None and not check.same) else 0
