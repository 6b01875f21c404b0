# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The command ``gravac doctor``: reports what is installed, checks that ranks train to equal weights, gives advice."""

from __future__ import annotations

import argparse
import json
import math

from gravac.commands.common import FAILED, Commands, set_work


def add(commands: Commands) -> None:
    """Add the command and its arguments to the command line's parser."""
    parser = commands.add_parser(
        "doctor",
        help="check what is installed, and whether ranks find each other",
        description="Tells versions, devices and backends, trains a small model for a few compressed steps, tells what "
        "each mode takes of memory, and says what to do. Under torchrun between its ranks; otherwise between two that "
        "it starts here.",
    )
    parser.add_argument("--model", help="whose memory is told: resnet50, vgg16, lstm, bert-base (multiples of any)")
    parser.add_argument("--json", action="store_true", help="print everything found as JSON")
    set_work(parser, _run)


def _run(options: argparse.Namespace) -> int:
    from gravac.lab import doctor
    from gravac.lab.advise import shapes_of
    from gravac.lab.local_ranks import under_torchrun

    shapes = None if options.model is None else shapes_of(options.model)
    memories = doctor.memory_of_modes(shapes)

    launched = under_torchrun()
    check, failure = None, None
    try:
        check = doctor.check_launched() if launched else doctor.check_here()
    except (RuntimeError, OSError) as error:
        failure = str(error).splitlines()[0] if str(error) else type(error).__name__
    if launched and check is None and failure is None:
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
