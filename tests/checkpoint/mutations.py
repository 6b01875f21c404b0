# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Valid states and files, spoilt in one or several places; and whether two states are the same, bit for bit."""

import math
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

NUMBERS: tuple[Any, ...] = (
    math.nan, math.inf, -math.inf, -5, -1, 0, 1, 3, 0.5, 10**30, 2**60, 1e308, -1e308, 5e-324, True, "5", None, [], {},
)  # fmt: skip
WORDS: tuple[Any, ...] = ("", "x", "../x", "dense", "topk", 5, None, [], {}, True)
CONTAINERS: tuple[Any, ...] = (None, 5, "x", [], {}, [1], {"x": 1}, math.nan, [[]], torch.zeros(2))


def spoilt(plain: Any, seed: int) -> Any:
    """Return a copy of a state, changed in one to three places."""
    chance = random.Random(seed)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        plain = _changed_at(plain, chance)
    return plain


def flipped_bytes(file: Path, seed: int) -> Iterator[int]:
    """Change each byte of a file in turn, in one to eight bits; the file is whole again before the next."""
    chance = random.Random(seed)
    content = file.read_bytes()
    for at, byte in enumerate(content):
        file.write_bytes(
            content[:at]
            + bytes([byte ^ chance.choice((1 << chance.randrange(8), chance.randrange(1, 256)))])
            + content[at + 1 :]
        )
        yield at
    file.write_bytes(content)


def same(one: Any, other: Any) -> bool:
    """Whether two states are the same, bit for bit; nan is nan, lists may be tuples, and dicts in any order."""
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        both = isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
        return both and one.dtype == other.dtype and torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))
    if isinstance(one, Mapping):
        return isinstance(other, Mapping) and {*one} == {*other} and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        alike = isinstance(other, (list, tuple)) and len(one) == len(other)
        return alike and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _changed_at(plain: Any, chance: random.Random) -> Any:
    """Walk down to a part, more often to one that lies deep, and change it; return what holds it."""
    if isinstance(plain, dict) and plain and chance.random() < 0.93:
        key = chance.choice([*plain])
        return {**plain, key: _changed_at(plain[key], chance)}
    if isinstance(plain, (list, tuple)) and plain and chance.random() < 0.9:
        at = chance.randrange(len(plain))
        return type(plain)([*plain[:at], _changed_at(plain[at], chance), *plain[at + 1 :]])
    if isinstance(plain, dict):
        return _changed_dict(plain, chance)
    if isinstance(plain, (list, tuple)):
        return _changed_list(plain, chance)
    if isinstance(plain, torch.Tensor):
        return _changed_tensor(plain, chance)
    return chance.choice(WORDS if isinstance(plain, str) else CONTAINERS + NUMBERS if plain is None else NUMBERS)


def _changed_dict(plain: dict[Any, Any], chance: random.Random) -> Any:
    keys, how = [*plain], chance.randrange(5)
    if how == 0 and keys:
        gone = chance.choice(keys)
        return {key: part for key, part in plain.items() if key != gone}
    if how == 1:
        return {**plain, chance.choice(("x", 5, "", *keys)): chance.choice(CONTAINERS + NUMBERS)}
    if how == 2 and len(keys) > 1:
        first, second = chance.sample(keys, 2)
        return {**plain, first: plain[second], second: plain[first]}
    if how == 3 and keys:
        old = chance.choice(keys)
        return {(f"{key}x" if key == old else key): part for key, part in plain.items()}
    return chance.choice(CONTAINERS)


def _changed_list(plain: Any, chance: random.Random) -> Any:
    how = chance.randrange(4)
    if how == 0:
        return plain[:-1]
    if how == 1:
        return type(plain)([*plain, *plain[-1:]])
    if how == 2:
        return type(plain)(reversed(plain))
    return chance.choice(CONTAINERS)


def _changed_tensor(tensor: torch.Tensor, chance: random.Random) -> Any:
    how = chance.randrange(9) if tensor.layout == torch.strided else 8
    if how < 3 and tensor.numel():
        spoilt = tensor.clone().reshape(-1)
        if spoilt.is_floating_point():
            spoilt[chance.randrange(spoilt.numel())] = (math.nan, math.inf, -3.0)[how]
        return spoilt.view(tensor.shape)
    if how == 3:
        return tensor.reshape(-1)[: tensor.numel() // 2].clone()
    if how == 4:
        return tensor.reshape(-1)[:1].clone()
    if how == 5:
        return tensor.unsqueeze(0)
    if how == 6:
        return tensor.to(chance.choice((torch.float64, torch.float16, torch.int32, torch.bool, torch.complex64)))
    if how == 7:
        return tensor.to_sparse() if tensor.dim() else torch.zeros(0)
    return chance.choice(CONTAINERS)
