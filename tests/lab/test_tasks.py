# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Texts, photographs and tasks are the same every time, and what validates is never trained on."""

import importlib.util
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from gravac.lab.tasks import TASKS, make
from gravac.lab.tasks.base import Metric, Score, Task, train_dense
from gravac.lab.tasks.charlm import CharLM
from gravac.lab.tasks.cifar import Cifar
from gravac.lab.tasks.denoise import photographs
from gravac.lab.tasks.text import VOCABULARY, library_text

IMPROVEMENT = {"charlm": 1.0, "lstm": 0.8, "denoise": 2.0, "digits": 0.01, "gpt2": 1.0, "modernbert": 1.0}
"""What 60 dense steps of each task that needs no data gain at least."""

with_transformers = (
    pytest.mark.framework,
    pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed"),
)

NAMES = [
    pytest.param(name, marks=with_transformers) if name in ("gpt2", "modernbert") else name for name in IMPROVEMENT
]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=NAMES)
def task(request: pytest.FixtureRequest) -> Task:
    return make(request.param, scale=0.1)


def tensors(batch: object) -> list[torch.Tensor]:
    return [batch] if isinstance(batch, torch.Tensor) else list(batch)  # type: ignore[call-overload]


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


def test_every_task_is_tested_here() -> None:
    assert set(IMPROVEMENT) == {name for name, kind in TASKS.items() if not issubclass(kind, Cifar)}


def test_weights_are_the_same_everywhere_and_the_global_generator_is_left_alone(task: Task) -> None:
    state = torch.get_rng_state()
    mine = task.model().state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    theirs = make(task.name, scale=0.1).model().state_dict()
    assert all(torch.equal(mine[key], theirs[key]) for key in mine | theirs)
    other = make(task.name, scale=0.1, seed=1).model().state_dict()
    assert any(not torch.equal(mine[key], other[key]) for key in mine)


def test_batches_repeat_and_differ_by_step_rank_and_seed(task: Task) -> None:
    first, again = tensors(task.batch(3, 1)), tensors(make(task.name, scale=0.1).batch(3, 1))
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    for other in (task.batch(3, 0), task.batch(4, 1), make(task.name, seed=1).batch(3, 1)):
        assert not torch.equal(first[0], tensors(other)[0])
    assert {len(tensor) for tensor in first} == {task.batch_size}


def test_shares_of_validation_add_up_and_leave_the_model_in_training(task: Task) -> None:
    model = task.model()
    whole = task.validate(model)
    shares = [task.validate(model, part, 3) for part in range(3)]
    assert sum(share.count for share in shares) == whole.count > 0
    assert sum(share.total for share in shares) == pytest.approx(whole.total, rel=1e-5)
    assert model.training and all(parameter.grad is None for parameter in model.parameters())


def test_scale_is_about_linear_in_parameters(task: Task) -> None:
    small, large = (
        sum(parameter.numel() for parameter in make(task.name, scale=scale).model().parameters()) for scale in (0.25, 1)
    )
    assert 2.5 < large / small < 5
    assert 1e6 <= large <= 2e6 or task.name == "digits"


def test_sixty_dense_steps_improve_the_metric(task: Task) -> None:
    before = task.metric.compute(task.validate(task.model()))
    (steps, after), *more = train_dense(task, 1, [60])
    gain = IMPROVEMENT[task.name] * (1 if task.metric.higher_is_better else -1)
    assert steps == 60 and not more
    assert task.metric.is_reached(after, before + gain), (before, after)


def test_denoising_beats_its_noisy_input() -> None:
    task = make("denoise", scale=0.1)
    (_, cleaned), *_ = train_dense(task, 1, [60])
    assert cleaned > 20 + 4  # of noise with deviation 0.1: 20 dB
    assert set(photographs()) == {"china", "flower"}
    assert all(picture.min() >= 0 and picture.max() <= 1 for picture in photographs().values())


def test_metric_values_and_targets() -> None:
    loss, psnr = Metric("loss", "nats"), Metric("PSNR", "dB", higher_is_better=True, decibels=True)
    assert loss.compute(Score(6.0, 4)) == 1.5
    assert psnr.compute(Score(0.4, 40)) == pytest.approx(20)
    assert math.isnan(psnr.compute(Score(0.0, 40)))
    assert [loss.is_reached(value, 1.5) for value in (1.4, 1.5, 1.6, math.nan)] == [True, True, False, False]
    assert [psnr.is_reached(value, 20) for value in (21, 20, 19, math.nan)] == [True, True, False, False]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "imagenet"}, "task: 'imagenet' is unknown; choose from charlm, lstm"),
        ({"name": "lstm", "scale": 0}, "scale: 0 is not in"),
        ({"name": "lstm", "scale": 1001}, "scale: 1001 is not in"),
        ({"name": "lstm", "scale": math.nan}, "scale: nan is not in"),
        ({"name": "lstm", "learning_rate": 0.0}, "learning_rate: 0.0 is not"),
        ({"name": "lstm", "data": "cifar"}, "data: 'cifar' is given, but the task 'lstm' needs no folder of data"),
        ({"name": "vgg16"}, "data: '' names no folder; download"),
        ({"name": "resnet101", "data": "nowhere"}, "data: 'nowhere' has no CIFAR in it; download"),
    ],
)
def test_make_names_what_is_wrong(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**settings)  # type: ignore[arg-type]


def test_make_passes_settings_on() -> None:
    task = make("denoise", scale=2, seed=3, learning_rate=0.5)
    assert (task.name, task.scale, task.seed, task.learning_rate) == ("denoise", 2, 3, 0.5)
    assert make("denoise").learning_rate > 0
    assert task.learning_rate_at(0) == pytest.approx(0.5 / task.warmup)
    assert task.learning_rate_at(task.warmup) == 0.5


def cifar(folder: Path, hundred: bool, count: int = 6) -> Path:
    """A made-up binary version: picture ``i`` of a file has class ``i`` and pixels of value ``10 i``."""
    folder /= "cifar-100-binary" if hundred else "cifar-10-batches-bin"
    folder.mkdir()
    labels = [99, 0] if hundred else [0]
    record = b"".join(bytes([*labels[:-1], index]) + bytes([10 * index]) * 3072 for index in range(count))
    for name in ("train", "test") if hundred else (*(f"data_batch_{part}" for part in range(1, 6)), "test_batch"):
        (folder / f"{name}.bin").write_bytes(record)
    return folder


@pytest.mark.parametrize("hundred", [False, True])
@pytest.mark.parametrize("name", ["resnet101", "vgg16"])
def test_cifar_trains_on_a_local_binary_version(tmp_path: Path, name: str, hundred: bool) -> None:
    inside = cifar(tmp_path, hundred)
    task, again = (make(name, scale=0.001, data=str(folder)) for folder in (tmp_path, inside))
    images, classes = task.batch(0, 1)
    assert images.shape == (task.batch_size, 3, 32, 32) and images.dtype == torch.float32
    assert torch.equal(images, again.batch(0, 1)[0])
    assert not torch.equal(images, task.batch(1, 1)[0])
    assert set(classes.tolist()) == set(range(6))
    red = (images[:, 0].amax((1, 2)) * 0.247 + 0.491) * 255  # padding is black, so the brightest pixel is the picture's
    torch.testing.assert_close(red, 10.0 * classes, atol=0.01, rtol=0)
    model = task.model()
    assert model(images[:2]).shape == (2, 100 if hundred else 10)
    task.loss(model, (images[:8], classes[:8])).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    scores = [task.validate(model, part, 2) for part in range(2)]
    assert [score.count for score in scores] == [3, 3]
    assert 0 <= sum(score.total for score in scores) <= 600 and model.training


def test_cifar_pictures_keep_their_orientation_but_for_flips(tmp_path: Path) -> None:
    picture = np.broadcast_to(np.arange(32, dtype=np.uint8)[:, None] + 100, (3, 32, 32))  # brighter downwards
    folder = cifar(tmp_path, hundred=True)
    (folder / "train.bin").write_bytes(bytes([0, 1]) + picture.tobytes())
    images, _ = make("vgg16", data=str(tmp_path)).batch(0, 0)
    middle = images[:, :, 4:28, 4:28]
    assert (middle[:, :, 1:] > middle[:, :, :-1]).all()
    assert torch.equal(middle, middle[..., :1].expand_as(middle))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not one or more records"),
        (b"x" * 3074, "not one or more records"),
        (bytes([10]) * 3073, "class 10, but classes go from 0 to 9"),
    ],
)
def test_broken_cifar_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    (cifar(tmp_path, hundred=False) / "data_batch_3.bin").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        make("vgg16", data=str(tmp_path)).batch(0, 0)


def test_dense_training_tells_a_better_learning_rate() -> None:
    slow, quick = (make("digits", scale=0.1, learning_rate=rate) for rate in (1e-6, 0.1))
    metrics = [dict(train_dense(task, 1, [10, 40])) for task in (slow, quick)]
    assert [[*after] for after in metrics] == [[10, 40], [10, 40]]
    assert metrics[1][40] < metrics[0][40]


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
