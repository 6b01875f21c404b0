# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What the tasks ``gpt2`` and ``modernbert`` ask of their models; what all tasks share is in ``test_tasks``."""

import importlib.util

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gravac.lab.tasks import make
from gravac.lab.tasks.characters import NO_TARGET
from gravac.lab.tasks.language import (
    BYTE_COUNT,
    MASK_FRACTION,
    MASK_TOKEN,
    RANDOM_FRACTION,
    TARGET_FRACTION,
    mask_bytes,
)
from gravac.settings import SettingsError

with_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)


@given(count=st.integers(1, 5), length=st.integers(1, 70), seed=st.integers(0, 2**32))
def test_what_is_asked_for_was_there_and_nothing_else_is_changed(count: int, length: int, seed: int) -> None:
    sequences = torch.from_numpy(np.random.default_rng(seed).integers(0, BYTE_COUNT, (count, length)))
    shown, targets = mask_bytes(sequences, np.random.default_rng(seed)).unbind(1)
    asked = targets != NO_TARGET
    assert torch.equal(asked.sum(1), torch.full((count,), max(1, round(TARGET_FRACTION * length))))
    assert torch.equal(targets[asked], sequences[asked]) and torch.equal(shown[~asked], sequences[~asked])
    assert int(shown.min()) >= 0 and int(shown.max()) <= MASK_TOKEN
    assert torch.equal(mask_bytes(sequences, np.random.default_rng(seed))[:, 0], shown)


def test_most_are_shown_as_the_mask_some_as_another_byte_and_some_as_they_are() -> None:
    sequences = torch.full((400, 100), 7)
    shown, targets = mask_bytes(sequences, np.random.default_rng(0)).unbind(1)
    hidden = shown[targets != NO_TARGET]
    assert float((hidden == MASK_TOKEN).float().mean()) == pytest.approx(MASK_FRACTION, abs=0.02)
    assert float(((hidden != MASK_TOKEN) & (hidden != 7)).float().mean()) == pytest.approx(RANDOM_FRACTION, abs=0.02)


@pytest.mark.framework
@with_transformers
@pytest.mark.parametrize(("name", "looks_ahead"), [("gpt2", False), ("modernbert", True)])
def test_a_later_byte_is_seen_by_modernbert_alone(name: str, looks_ahead: bool) -> None:
    model = make(name, scale=0.1).model()
    tokens = torch.arange(16)[None]
    changed = tokens.clone()
    changed[0, 10] = 99
    with torch.no_grad():
        before, after = (model(input_ids=one).logits for one in (tokens, changed))
    assert torch.allclose(before[0, :10], after[0, :10]) is not looks_ahead
    assert not torch.allclose(before[0, 10:], after[0, 10:])


@pytest.mark.framework
@with_transformers
@pytest.mark.parametrize("name", ["gpt2", "modernbert"])
def test_a_run_depends_on_its_seed_alone_and_every_parameter_learns(name: str) -> None:
    task = make(name, scale=0.1)
    model = task.model()
    first, second = (task.loss(model, task.batch(0, 0)) for _ in range(2))
    assert torch.equal(first, second)  # no dropout
    first.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("name", ["gpt2", "modernbert"])
def test_without_transformers_the_extra_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(SettingsError, match=rf"task: '{name}' needs transformers; pip install 'gravac.transformers.'"):
        make(name)
