# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The command; see the package."""

import argparse
import importlib.util
import json
import sys
from collections.abc import Sequence

from tests.measure.gpu.parts import PARTS, Row, run_all, summary

NEEDED = ("torch", "numpy", "pydantic", "pydantic_core", "annotated_types", "typing_inspection", "typing_extensions")

SECONDS = 585.0
"""For everything."""


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; return 2 where it cannot run, 1 where something failed."""
    parser = argparse.ArgumentParser(prog="measure-gpu", description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--only", nargs="+", choices=[part.name for part in PARTS], metavar="NAME")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    arguments = parser.parse_args(words)
    wrong = unfit()
    if wrong:
        print(f"measure-gpu: {wrong}", file=sys.stderr)
        return 2
    from tests.measure.results import keep  # not before it is known that it can be imported

    printed = 0

    def kept(rows: list[Row]) -> None:
        nonlocal printed
        print("\n".join(json.dumps(row) for row in rows[printed:]), flush=True)
        printed = len(rows)
        if arguments.json:
            keep(rows, arguments.json)

    chosen = [part for part in PARTS if not arguments.only or part.name in arguments.only]
    rows = run_all(chosen, arguments.seconds, kept)
    print("\n".join(summary(rows)))
    return int(any("failed" in row for row in rows))


def unfit() -> str:
    """Say in one line why nothing can be measured here; nothing where it can."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        return f"cannot import {', '.join(missing)}: put the folder that contains the packages on PYTHONPATH"
    import torch

    if not torch.cuda.is_available():
        return f"needs an NVIDIA GPU, and torch {torch.__version__} sees none"
    return ""


if __name__ == "__main__":
    sys.exit(main())
