# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The tasks ``resnet101`` and ``vgg16``: the usual networks on a local copy of CIFAR-10 or CIFAR-100.

The tasks read only the *binary version* of the data set, in which a record has label bytes and then 3072 pixel bytes.
Nothing is unpickled, and nothing is downloaded. At scale 1 the networks have their usual width, which needs a GPU. On
two cores, use scale 0.01.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gravac.lab.tasks.base import Metric, Score, Task

PICTURE_SIDE = 32
"""Width and height of a picture, in pixels."""

PIXEL_BYTES = 3 * PICTURE_SIDE * PICTURE_SIDE
"""Number of bytes of a picture: three bytes per pixel, one for each colour."""

CROP_PADDING = 4
"""Width in pixels of the black border around a training picture, before the picture is cropped at random."""

COLOUR_MEAN = np.array([0.491, 0.482, 0.447], np.float32).reshape(3, 1, 1)
"""Mean of each colour over CIFAR, for pixels in [0, 1]."""

COLOUR_DEVIATION = np.array([0.247, 0.243, 0.262], np.float32).reshape(3, 1, 1)
"""Standard deviation of each colour over CIFAR, for pixels in [0, 1]."""


class ArchiveLayout(NamedTuple):
    """Names and record format of the files of a data set's binary version.

    A file is a series of records, one per picture: label bytes, then ``PIXEL_BYTES`` pixel bytes. The last label byte
    is the class of the picture.

    Attributes:
        folder: name of the archive's folder in which the files are.
        train_files: names of the files with training records.
        test_file: name of the file with test records.
        label_bytes: number of label bytes of a record.
        class_count: number of classes.
    """

    folder: str
    train_files: tuple[str, ...]
    test_file: str
    label_bytes: int
    class_count: int


LAYOUTS = (
    ArchiveLayout(
        folder="cifar-10-batches-bin",
        train_files=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
        test_file="test_batch.bin",
        label_bytes=1,
        class_count=10,
    ),
    ArchiveLayout(
        folder="cifar-100-binary", train_files=("train.bin",), test_file="test.bin", label_bytes=2, class_count=100
    ),
)

DATA_REMEDY = (
    'download and unpack the "binary version" of CIFAR-10 or CIFAR-100 yourself, and give the folder that has '
    f"{' or '.join(layout.folder for layout in LAYOUTS)} in it; nothing is downloaded for you"
)
"""Last part of every error message about the data: what the user should do."""


def locate_records(folder: str) -> tuple[Path, ArchiveLayout]:
    """Find the files of CIFAR-10 or CIFAR-100; return their folder and their layout.

    Args:
        folder: folder that contains the files, or the parent of that folder.

    Raises:
        ValueError: ``folder`` is empty, or the folder lacks files of the binary version.
    """
    if not folder:
        raise ValueError(f"data: {folder!r} names no folder; {DATA_REMEDY}")
    for layout in LAYOUTS:
        for records_folder in (Path(folder), Path(folder, layout.folder)):
            if all((records_folder / name).is_file() for name in (*layout.train_files, layout.test_file)):
                return records_folder, layout
    raise ValueError(f"data: {folder!r} has no CIFAR in it; {DATA_REMEDY}")


class Pictures(NamedTuple):
    """Pictures and the class of each.

    Attributes:
        images: pixels ``(count, 3, PICTURE_SIDE, PICTURE_SIDE)``, uint8.
        classes: number of each picture's class, from 0, ``(count,)``, int64.
    """

    images: npt.NDArray[np.uint8]
    classes: npt.NDArray[np.int64]


@lru_cache(maxsize=4)
def pictures(folder: Path, layout: ArchiveLayout, for_training: bool) -> Pictures:
    """Read all training pictures, or all test pictures, and the class of each.

    Args:
        folder: folder that contains the files.
        layout: names and record format of the files.
        for_training: whether to read the training pictures; if not, the test pictures are read.

    Raises:
        ValueError: a file is empty, or its last record is incomplete, or a class is out of range.
    """
    records_of_files = []
    for path in (folder / name for name in (layout.train_files if for_training else (layout.test_file,))):
        content = np.frombuffer(path.read_bytes(), np.uint8)
        if not content.size or content.size % (layout.label_bytes + PIXEL_BYTES):
            raise ValueError(
                f"data: {path} has {content.size} bytes, not one or more records of "
                f"{layout.label_bytes + PIXEL_BYTES} bytes; {DATA_REMEDY}"
            )
        records_of_files.append(content.reshape(-1, layout.label_bytes + PIXEL_BYTES))
    records = np.concatenate(records_of_files)
    classes = records[:, layout.label_bytes - 1].astype(np.int64)
    if classes.max() >= layout.class_count:
        raise ValueError(
            f"data: {folder} has class {classes.max()}, but classes go from 0 to {layout.class_count - 1}; "
            f"{DATA_REMEDY}"
        )
    return Pictures(records[:, layout.label_bytes :].reshape(-1, 3, PICTURE_SIDE, PICTURE_SIDE), classes)


def normalised_images(images: npt.NDArray[np.uint8]) -> Tensor:
    """Return pictures as float32, each colour with a mean of about 0 and a standard deviation of about 1.

    Argument and result have the shape ``(count, 3, PICTURE_SIDE, PICTURE_SIDE)``.
    """
    return torch.from_numpy((images.astype(np.float32) / 255 - COLOUR_MEAN) / COLOUR_DEVIATION)


@dataclass(frozen=True)
class Cifar(Task):
    """Base class of the tasks on CIFAR; subclasses make the model. A *sample* is one picture. See ``Task``.

    Attributes:
        learning_rate: learning rate of SGD with momentum 0.9 and weight decay 5e-4. The default is the usual rate; it
            was not tuned for these tasks.
        data: folder with the binary version of CIFAR-10 or CIFAR-100, see ``locate_records``.
        pictures: number of pictures that a rank trains on in a step.
        validation_pictures: maximum number of test pictures for the accuracy. Every evaluation uses the same pictures.
    """

    metric: ClassVar[Metric] = Metric("test accuracy", "%", higher_is_better=True)
    budget: ClassVar[int] = 6000
    steps_per_evaluation: ClassVar[int] = 200
    warmup: ClassVar[int] = 200

    learning_rate: float = 0.05
    data: str = ""
    pictures: int = 64
    validation_pictures: int = 10_000

    def __post_init__(self) -> None:
        locate_records(self.data)  # so a wrong folder raises an error now, and not in a rank's first step

    @property
    def batch_size(self) -> int:
        """Number of pictures that a rank trains on in a step."""
        return self.pictures

    @property
    def classes(self) -> int:
        """Number of classes of the data, 10 or 100."""
        return locate_records(self.data)[1].class_count

    @cached_property
    def train(self) -> Pictures:
        """All training pictures and the class of each, read when first used."""
        return pictures(*locate_records(self.data), for_training=True)

    @cached_property
    def test(self) -> Pictures:
        """The first ``validation_pictures`` test pictures and the class of each, to measure the accuracy on."""
        images, classes = pictures(*locate_records(self.data), for_training=False)
        return Pictures(images[: self.validation_pictures], classes[: self.validation_pictures])

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return a new SGD optimizer for the model's parameters, with momentum 0.9 and weight decay 5e-4."""
        return torch.optim.SGD(model.parameters(), lr=self.learning_rate, momentum=0.9, weight_decay=5e-4)

    def batch(self, step: int, rank: int) -> tuple[Tensor, Tensor]:
        """Return ``(pictures, classes)`` of a step on a rank; the pictures are cropped and flipped at random.

        Pictures are ``(batch_size, 3, PICTURE_SIDE, PICTURE_SIDE)``, float32; classes ``(batch_size,)``, int64.
        """
        generator = np.random.default_rng((self.seed, rank, step))
        sampled_indices = generator.integers(0, len(self.train.classes), self.batch_size)
        rows, columns = (
            generator.integers(0, 2 * CROP_PADDING + 1, (len(sampled_indices), 1)) + np.arange(PICTURE_SIDE)
            for _ in range(2)
        )
        columns = np.where(generator.random((len(sampled_indices), 1)) < 0.5, columns[:, ::-1], columns)
        padded_images = np.pad(
            self.train.images[sampled_indices],
            ((0, 0), (0, 0), (CROP_PADDING, CROP_PADDING), (CROP_PADDING, CROP_PADDING)),
        )
        picture_indices = np.arange(len(sampled_indices))[:, None, None, None]
        colour_indices = np.arange(3)[:, None, None]
        images = padded_images[picture_indices, colour_indices, rows[:, None, :, None], columns[:, None, None, :]]
        return normalised_images(images), torch.from_numpy(self.train.classes[sampled_indices])

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the mean cross-entropy in nats, a scalar tensor."""
        return F.cross_entropy(model(batch[0]), batch[1])

    def validate(self, model: nn.Module, portion_index: int = 0, portion_count: int = 1) -> Score:
        """Return 100 x the number of correctly classified pictures, and the number of pictures, as a ``Score``.

        The pictures are a part of the test pictures; the arguments are those of ``Task.validate``.
        """
        images = self.test.images[portion_index::portion_count]
        classes = self.test.classes[portion_index::portion_count]
        correct_count = 0
        was_training = model.training
        model.eval()
        with torch.no_grad():
            for batch_start in range(0, len(classes), 250):
                predicted_classes = model(normalised_images(images[batch_start : batch_start + 250])).argmax(1)
                correct_count += int(
                    (predicted_classes == torch.from_numpy(classes[batch_start : batch_start + 250])).sum()
                )
        model.train(was_training)
        return Score(100.0 * correct_count, len(classes))

    def _scaled_channels(self, channels: int) -> int:
        """Return a layer's number of channels at the task's scale.

        Args:
            channels: number of channels of the layer at scale 1.
        """
        return max(4, round(channels * math.sqrt(self.scale)))


def convolution(input_channels: int, output_channels: int, kernel_side: int, stride: int = 1) -> list[nn.Module]:
    """Return a list of two layers: a convolution without bias, and a batch norm to follow it.

    Args:
        input_channels: number of input channels.
        output_channels: number of output channels.
        kernel_side: width and height of the kernel, in pixels.
        stride: stride of the convolution, in pixels.
    """
    return [
        nn.Conv2d(input_channels, output_channels, kernel_side, stride, kernel_side // 2, bias=False),
        nn.BatchNorm2d(output_channels),
    ]


class Bottleneck(nn.Module):
    """Bottleneck block of a ResNet: the input plus the result of a 1x1, a 3x3 and a 1x1 convolution, then a ReLU.

    Args:
        input_channels: number of input channels.
        narrow_channels: number of channels of the 3x3 convolution; the output has four times as many channels.
        stride: stride of the 3x3 convolution, in pixels.
    """

    def __init__(self, input_channels: int, narrow_channels: int, stride: int) -> None:
        super().__init__()
        output_channels = 4 * narrow_channels
        self.branch = nn.Sequential(
            *convolution(input_channels, narrow_channels, 1), nn.ReLU(),
            *convolution(narrow_channels, narrow_channels, 3, stride), nn.ReLU(),
            *convolution(narrow_channels, output_channels, 1),
        )  # fmt: skip
        same_shape = input_channels == output_channels and stride == 1
        self.shortcut = (
            nn.Identity() if same_shape else nn.Sequential(*convolution(input_channels, output_channels, 1, stride))
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output for the input ``x``; both are float32.

        ``x`` is ``(batch, input_channels, side, side)``. The output is
        ``(batch, 4 * narrow_channels, side / stride, side / stride)``.
        """
        out: Tensor = F.relu(self.branch(x) + self.shortcut(x))
        return out


@dataclass(frozen=True)
class ResNet101(Cifar):
    """The task ``resnet101``: ResNet-101 for pictures of 32x32 pixels. See ``Cifar``.

    For such small pictures, the first convolution is 3x3 with stride 1, and no pooling follows it.
    """

    name: ClassVar[str] = "resnet101"

    def model(self) -> nn.Module:
        """Return a new model with the same weights on every rank."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            channels = self._scaled_channels(64)
            layers = [*convolution(3, channels, 3), nn.ReLU()]
            for stage, block_count in enumerate((3, 4, 23, 3)):
                narrow_channels = self._scaled_channels(64 << stage)
                for block_index in range(block_count):
                    layers.append(Bottleneck(channels, narrow_channels, 2 if stage and not block_index else 1))
                    channels = 4 * narrow_channels
            return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, self.classes))


@dataclass(frozen=True)
class VGG16(Cifar):
    """The task ``vgg16``: VGG-16 with batch norms, for pictures of 32x32 pixels. See ``Cifar``."""

    name: ClassVar[str] = "vgg16"

    def model(self) -> nn.Module:
        """Return a new model with the same weights on every rank."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            channels = 3
            layers: list[nn.Module] = []
            for full_channels, convolution_count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
                for _ in range(convolution_count):
                    layers += [*convolution(channels, self._scaled_channels(full_channels), 3), nn.ReLU()]
                    channels = self._scaled_channels(full_channels)
                layers.append(nn.MaxPool2d(2))
            return nn.Sequential(
                *layers, nn.Flatten(),
                nn.Linear(channels, self._scaled_channels(4096)), nn.ReLU(),
                nn.Linear(self._scaled_channels(4096), self._scaled_channels(4096)), nn.ReLU(),
                nn.Linear(self._scaled_channels(4096), self.classes),
            )  # fmt: skip
