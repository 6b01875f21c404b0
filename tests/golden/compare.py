# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Whether two recordings are the same: tensors bit for bit, all else equal. What is in them does not matter here."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch

SHOWN = 20
"""Most differences of a case that are printed."""


def compare(before: Path, after: Path, in_rounds: Collection[str] = ()) -> int:
    """Compare the recordings in two folders, print what differs, and return the number of differences.

    A case that only ``before`` recorded is a difference, and so are two folders without recordings. A case that only
    ``after`` recorded is printed: it is new, and its first recording is what later ones are compared with.

    Args:
        before: folder of one side.
        after: folder of the other side.
        in_rounds: names of cases whose candidates are compared in their order, and not by the numbers of their steps: a
            commit may count rounds or training steps.
    """
    cases = sorted({file.stem for folder in (before, after) for file in folder.glob("*.pt")})
    if not cases:
        print("no recordings")
        return 1
    total = 0
    for case in cases:
        sides = {"before": before / f"{case}.pt", "after": after / f"{case}.pt"}
        if not sides["before"].exists():
            print(f"{case}: new")
            continue
        if not sides["after"].exists():
            lines = ["recorded before only"]
        else:
            recordings = [torch.load(file, weights_only=True) for file in sides.values()]
            lines = differences(*(map(unnumbered, recordings) if case in in_rounds else recordings))
        print(f"{case}: {f'{len(lines)} differences' if lines else 'the same, bit for bit'}")
        for line in lines[:SHOWN]:
            print(f"  {line}")
        total += len(lines)
    return total


def unnumbered(recording: Any) -> Any:
    """Return a recording without the numbers of the steps that candidates ran in, or were decided for."""
    if isinstance(recording, Mapping):
        return {
            key: [{**candidate, "step": None} for candidate in part] if key in ("decided", "ran") else unnumbered(part)
            for key, part in recording.items()
        }
    return recording


def differences(before: Any, after: Any, path: str = "") -> list[str]:
    """Return a line for each place where two recordings differ, with its path."""
    if isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor):
        if (before.dtype, before.shape) != (after.dtype, after.shape):
            return [f"{path}: {_form(before)} before, {_form(after)} after"]
        unlike = int((_bits(before) != _bits(after)).any(dim=-1).sum())
        return [f"{path}: {unlike} of {before.numel()} elements differ"] if unlike else []
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        lines = []
        for key in sorted({*before, *after}, key=str):
            at = f"{path}/{key}" if path else str(key)
            if key in before and key in after:
                lines += differences(before[key], after[key], at)
            else:
                lines.append(f"{at}: {'before' if key in before else 'after'} only")
        return lines
    if isinstance(before, list) and isinstance(after, list):
        pairs = enumerate(zip(before, after, strict=False))
        lines = [line for at, (one, other) in pairs for line in differences(one, other, f"{path}[{at}]")]
        if len(before) != len(after):
            lines.append(f"{path}: {len(before)} entries before, {len(after)} after")
        return lines
    same = type(before) is type(after) and (before == after or (before != before and after != after))
    return [] if same else [f"{path}: {before!r} before, {after!r} after"]


def _form(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {[*tensor.shape]}"


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's bytes, ``[elements, bytes of an element]``."""
    return tensor.contiguous().view(-1, 1).view(torch.uint8)
