# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""nanoGPT's model and optimizer, from a clone of it, on the text that ``charlm`` has, by characters."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import ClassVar

import torch
from torch import Tensor, nn

from gravac.lab.tasks.characters import Characters
from gravac.lab.tasks.text import VOCABULARY


def cloned(clone: Path) -> ModuleType:
    """Return the module ``model.py`` of a clone of nanoGPT.

    Raises:
        FileNotFoundError: there is none.
    """
    name = "nanogpt_model_of_clone"
    if name not in sys.modules:
        file = clone / "model.py"
        if not file.is_file():
            raise FileNotFoundError(
                f"nanogpt: {file} is missing; name the folder of a clone of github.com/karpathy/nanoGPT"
            )
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@dataclass(frozen=True)
class NanoGPT(Characters):
    """nanoGPT with the configuration of ``tests.measure.programs.nanogpt``: 1.0 M parameters at the default width.

    Attributes:
        learning_rate: learning rate of AdamW as nanoGPT sets it up: betas 0.9 and 0.95, decay 0.1 of matrices alone.
        clone: folder of the clone.
        width: width of the embedding.
        layers: number of layers.
    """

    name: ClassVar[str] = "nanogpt"
    budget: ClassVar[int] = 600
    steps_per_evaluation: ClassVar[int] = 10

    learning_rate: float = 3e-3
    clone: Path = Path()
    sequences: int = 8
    context: int = 64
    width: int = 144
    layers: int = 4

    def model(self) -> nn.Module:
        """Return a freshly initialised model: the same weights on every rank."""
        module = cloned(self.clone)
        sizes = module.GPTConfig(
            block_size=self.context, vocab_size=VOCABULARY, n_layer=self.layers, n_head=4, n_embd=self.width,
            dropout=0.0, bias=False,
        )  # fmt: skip
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            model: nn.Module = module.GPT(sizes)
        return model

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """AdamW as nanoGPT configures it."""
        optimizer: torch.optim.Optimizer = model.configure_optimizers(0.1, self.learning_rate, (0.9, 0.95), "cpu")  # type: ignore[operator]
        return optimizer

    def _logits(self, model: nn.Module, characters: Tensor) -> Tensor:
        characters = characters.contiguous()  # nanoGPT makes a view of it
        logits: Tensor = model(characters, characters)[0]  # without targets nanoGPT returns the last place alone
        return logits
