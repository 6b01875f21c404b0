# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Parameter shapes of models that papers on gradient compression use, in the order of ``model.parameters()``."""

import math
from collections.abc import Callable, Sequence

Shape = tuple[int, ...]
"""Shape of one parameter."""


def elements_of(shapes: Sequence[Sequence[int]]) -> int:
    """Return the total number of elements of tensors with the given shapes."""
    return sum(map(math.prod, shapes))


def resnet50(classes: int = 1000) -> list[Shape]:
    """Return the parameter shapes of ResNet-50 (He et al. 2016), bottlenecks 3-4-6-3: 25.6 M parameters (97 MiB)."""
    return _resnet((3, 4, 6, 3), classes)


def resnet101(classes: int = 1000) -> list[Shape]:
    """Return the parameter shapes of ResNet-101 (He et al. 2016), bottlenecks 3-4-23-3, as in the GraVAC paper.

    44.5 M parameters (170 MiB).
    """
    return _resnet((3, 4, 23, 3), classes)


def _resnet(depths: tuple[int, int, int, int], classes: int) -> list[Shape]:
    """Return the parameter shapes of a ResNet with four stages of bottlenecks, of width 64, 128, 256 and 512.

    ``depths`` is the number of bottlenecks of each stage. A bottleneck is a 1x1, a 3x3 and a 1x1 convolution,
    each with a batch norm.
    """
    shapes: list[Shape] = [(64, 3, 7, 7), (64,), (64,)]
    input_channels = 64
    for block_count, width in zip(depths, (64, 128, 256, 512), strict=True):
        for block in range(block_count):
            for shape in ((width, input_channels, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1)):
                shapes += [shape, (shape[0],), (shape[0],)]
            if block == 0:
                shapes += [(4 * width, input_channels, 1, 1), (4 * width,), (4 * width,)]
            input_channels = 4 * width
    return [*shapes, (classes, 2048), (classes,)]


def vgg16(classes: int = 1000) -> list[Shape]:
    """Return the parameter shapes of VGG-16 (Simonyan & Zisserman 2015, D): 138.4 M parameters (528 MiB)."""
    return _vgg((2, 2, 3, 3, 3), classes)


def vgg19(classes: int = 1000) -> list[Shape]:
    """Return the parameter shapes of VGG-19 (Simonyan & Zisserman 2015, E): 143.7 M parameters (548 MiB)."""
    return _vgg((2, 2, 4, 4, 4), classes)


def _vgg(depths: tuple[int, int, int, int, int], classes: int) -> list[Shape]:
    """Return the parameter shapes of a VGG: five stages of 3x3 convolutions, then three fully connected layers.

    ``depths`` is the number of convolutions of each stage; stages are 64, 128, 256, 512 and 512 channels wide.
    """
    shapes: list[Shape] = []
    input_channels = 3
    for convolution_count, width in zip(depths, (64, 128, 256, 512, 512), strict=True):
        for _ in range(convolution_count):
            shapes += [(width, input_channels, 3, 3), (width,)]
            input_channels = width
    for outputs, features in ((4096, 512 * 7 * 7), (4096, 4096), (classes, 4096)):
        shapes += [(outputs, features), (outputs,)]
    return shapes


def lstm(vocabulary: int = 10_000, hidden: int = 1500, layers: int = 2) -> list[Shape]:
    """Return the parameter shapes of the large LSTM of Zaremba et al. 2014: 66.0 M parameters (252 MiB).

    Args:
        vocabulary: number of words; the default is that of the Penn Treebank.
        hidden: number of features of the embedding and of each layer.
        layers: number of layers.
    """
    shapes: list[Shape] = [(vocabulary, hidden)]
    for _ in range(layers):
        shapes += [(4 * hidden, hidden), (4 * hidden, hidden), (4 * hidden,), (4 * hidden,)]
    return [*shapes, (vocabulary, hidden), (vocabulary,)]


def bert_large(vocabulary: int = 30_522, hidden: int = 1024, layers: int = 24, positions: int = 512) -> list[Shape]:
    """Return the parameter shapes of BERT large (Devlin et al. 2019), uncased: 335.1 M parameters (1278 MiB).

    The shapes include the pooler, and exclude the heads for pre-training.

    Args:
        vocabulary: number of tokens.
        hidden: number of features of a token.
        layers: number of transformer layers.
        positions: maximum number of tokens of a sequence.
    """
    norm_shapes: list[Shape] = [(hidden,), (hidden,)]
    square_layer_shapes: list[Shape] = [(hidden, hidden), (hidden,)]
    shapes: list[Shape] = [(vocabulary, hidden), (positions, hidden), (2, hidden), *norm_shapes]
    for _ in range(layers):
        shapes += [*square_layer_shapes * 4, *norm_shapes]  # query, key, value, output
        shapes += [(4 * hidden, hidden), (4 * hidden,), (hidden, 4 * hidden), (hidden,), *norm_shapes]
    return [*shapes, *square_layer_shapes]


def bert_base() -> list[Shape]:
    """Return the parameter shapes of BERT base, like ``bert_large``: 109.5 M parameters (418 MiB)."""
    return bert_large(hidden=768, layers=12)


MODELS: dict[str, Callable[[], list[Shape]]] = {
    "resnet50": resnet50,
    "resnet101": resnet101,
    "vgg16": vgg16,
    "vgg19": vgg19,
    "lstm": lstm,
    "bert-base": bert_base,
    "bert-large": bert_large,
}
"""Functions that return the parameter shapes of a model, by the model's name; each can be called without arguments."""
