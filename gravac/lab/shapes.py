# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Parameter shapes of the models the field measures on, in registration order."""

Shape = tuple[int, ...]


def resnet101(classes: int = 1000) -> list[Shape]:
    """He et al. 2016, bottlenecks 3-4-23-3: 44.5 M parameters (170 MiB, as in the GraVAC paper)."""
    shapes: list[Shape] = [(64, 3, 7, 7), (64,), (64,)]
    inputs = 64
    for blocks, width in ((3, 64), (4, 128), (23, 256), (3, 512)):
        for block in range(blocks):
            for shape in ((width, inputs, 1, 1), (width, width, 3, 3), (4 * width, width, 1, 1)):
                shapes += [shape, (shape[0],), (shape[0],)]
            if block == 0:
                shapes += [(4 * width, inputs, 1, 1), (4 * width,), (4 * width,)]
            inputs = 4 * width
    return [*shapes, (classes, 2048), (classes,)]


def vgg16(classes: int = 1000) -> list[Shape]:
    """Simonyan & Zisserman 2015, configuration D: 138.4 M parameters (528 MiB)."""
    shapes: list[Shape] = []
    inputs = 3
    for width in (64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512):
        shapes += [(width, inputs, 3, 3), (width,)]
        inputs = width
    for outputs, features in ((4096, 512 * 7 * 7), (4096, 4096), (classes, 4096)):
        shapes += [(outputs, features), (outputs,)]
    return shapes


def lstm(words: int = 10_000, hidden: int = 1500, layers: int = 2) -> list[Shape]:
    """Zaremba et al. 2014, the large PTB model: 66.0 M parameters (252 MiB)."""
    shapes: list[Shape] = [(words, hidden)]
    for _ in range(layers):
        shapes += [(4 * hidden, hidden), (4 * hidden, hidden), (4 * hidden,), (4 * hidden,)]
    return [*shapes, (words, hidden), (words,)]


MODELS = {"resnet101": resnet101, "vgg16": vgg16, "lstm": lstm}
"""Shapes by model name; each can be called without arguments."""
