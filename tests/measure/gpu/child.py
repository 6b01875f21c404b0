# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The process of one part: ``python -m tests.measure.gpu.child MODULE FILE [WITHOUT ...]`` adds its rows to a file."""

import importlib
import json
import sys


def main(module: str, kept: str, *without: str) -> None:
    sys.modules.update(dict.fromkeys(without))  # type: ignore[arg-type]
    with open(kept, "a", encoding="utf-8") as file:
        for row in importlib.import_module(module).rows():
            file.write(json.dumps(row) + "\n")
            file.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
