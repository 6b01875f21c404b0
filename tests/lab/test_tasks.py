# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The text and the task are the same every time, and validation text is never trained on."""

from pathlib import Path

import numpy as np
import pytest
import torch

from gravac.lab.tasks.charlm import CharLM
from gravac.lab.tasks.text import VOCABULARY, library_text

pytestmark = pytest.mark.timeout(60)


def test_library_text_is_deterministic_bounded_and_in_vocabulary() -> None:
    first, second = library_text(limit=1_000_000), library_text(limit=1_000_000)
    assert np.array_equal(first.train, second.train)
    assert np.array_equal(first.validation, second.validation)
    assert 500_000 < len(first.train) + len(first.validation) <= 1_000_000 + first.files
    assert max(first.train.max(), first.validation.max()) < VOCABULARY


def test_validation_files_are_not_trained_on(tmp_path: Path) -> None:
    for index in range(24):
        (tmp_path / f"module_{index:02}.py").write_text(f"marker_{index:02} = 'é'\n" + "x = 1\n" * 2000)
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "left_out.py").write_text("left_out = True\n")
    text = library_text(tmp_path)
    train, validation = text.train.tobytes(), text.validation.tobytes()
    assert text.files == 24
    assert [b"marker_%02d" % index in validation for index in (11, 23)] == [True, True]
    assert [b"marker_%02d" % index in train for index in (0, 11, 22, 23)] == [True, False, True, False]
    assert b"left_out" not in train + validation


def test_too_little_text_names_the_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        library_text(tmp_path)


def test_task_gives_same_weights_everywhere_and_other_batches_per_rank_and_step() -> None:
    task, again = CharLM(), CharLM()
    torch.manual_seed(99)
    for mine, theirs in zip(task.model().parameters(), again.model().parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert torch.equal(task.batch(3, 1), again.batch(3, 1))
    assert not torch.equal(task.batch(3, 1), task.batch(3, 0))
    assert not torch.equal(task.batch(3, 1), task.batch(4, 1))
    assert 1e6 <= sum(parameter.numel() for parameter in task.model().parameters()) <= 2e6


def test_model_sees_no_later_character() -> None:
    task = CharLM(context=16)
    model = task.model()
    batch = task.batch(0, 0)[:1, :-1]
    changed = batch.clone()
    changed[0, 10] = (changed[0, 10] + 1) % VOCABULARY
    before, after = model(batch), model(changed)
    torch.testing.assert_close(before[0, :10], after[0, :10])
    assert not torch.equal(before[0, 10:], after[0, 10:])


def test_shares_of_validation_add_up_to_the_whole() -> None:
    task = CharLM(validation_sequences=10, context=16)
    model = task.model()
    whole = task.validate(model)
    shares = [task.validate(model, part, 3) for part in range(3)]
    assert sum(share.count for share in shares) == whole.count == 160
    assert sum(share.total for share in shares) == pytest.approx(whole.total, rel=1e-5)
