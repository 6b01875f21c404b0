# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The programs: where their clones lie, how they are started small, and what they print and save."""

import re
import shutil
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gravac.settings import SettingsError

HERE = Path(__file__).parent

RANKS = 2

EVERY = "every=(1, 20)"
"""Settings in the patches, which a case replaces."""

TEXT = Path("distributed/minGPT-ddp/mingpt/data/input.txt")
"""The text that both programs train on (tiny Shakespeare, 1,115,394 characters), in a clone of pytorch/examples."""


@dataclass(frozen=True)
class Saved:
    """What a program saved by itself.

    Attributes:
        weights: the module's ``state_dict``.
        steps: number of steps before it.
    """

    weights: Mapping[str, torch.Tensor]
    steps: int


class Program(ABC):
    """A program of others.

    Attributes:
        name: name in reports.
        patch: file beside this one, with the lines that a user adds and those for a CPU.
        commit: commit that the patch was made for.
        script: file that is started, in the program's folder.
        steps: number of steps of a run, and of a resumed run.
    """

    name: str
    patch: str
    commit: str
    script: str
    steps: tuple[int, int]

    def set_up(self, sources: Path, folder: Path, settings: str) -> None:
        """Copy the program into a folder, with the patch and its data.

        Args:
            sources: folder with the clones.
            folder: folder that is made.
            settings: settings of ``AdaptiveCompressor``, as Python text, in place of the patch's.

        Raises:
            SettingsError: a clone is not there, or its files are not those that the patch was made for.
        """
        self.copy(sources, folder)
        patch = (HERE / self.patch).read_text(encoding="utf-8")
        assert patch.count(EVERY) == 1
        command = ["git", "apply", "-"]
        text = patch.replace(EVERY, settings)
        applied = subprocess.run(command, cwd=folder, input=text, capture_output=True, text=True, check=False)
        if applied.returncode != 0:
            raise SettingsError(
                f"{self.patch} does not fit {self.name} in {sources}: use commit {self.commit}; git says: "
                f"{applied.stderr}"
            )

    @abstractmethod
    def copy(self, sources: Path, folder: Path) -> None:
        """Copy the program and its data."""

    @abstractmethod
    def arguments(self, resumed: bool) -> list[str]:
        """Return the command line of a short run of a small model."""

    @abstractmethod
    def losses(self, output: str) -> list[float]:
        """Return the losses of the program's own evaluations, in order, from what it printed."""

    @abstractmethod
    def saved(self, folder: Path) -> Saved:
        """Load what the program saved last."""


class NanoGPT(Program):
    """``train.py`` of karpathy/nanoGPT: two micro steps on each rank, rank 0 evaluates and saves after 20 steps."""

    name, patch, script = "nanoGPT", "nanogpt.patch", "train.py"
    commit = "ce6195e92c58"
    steps = (81, 41)  # its loop makes one step after the last evaluation

    def copy(self, sources: Path, folder: Path) -> None:
        clone = existing(sources / "nanoGPT", "karpathy/nanoGPT")
        shutil.copytree(clone, folder, ignore=shutil.ignore_patterns(".git", "assets", "*.ipynb"))
        text = existing(sources / "examples", "pytorch/examples") / TEXT
        data = folder / "data" / "shakespeare_char"
        shutil.copy(text, data / "input.txt")
        command = [sys.executable, "prepare.py"]
        subprocess.run(command, cwd=data, check=True, stdout=subprocess.DEVNULL)

    def arguments(self, resumed: bool) -> list[str]:
        settings: dict[str, Any] = {
            "dataset": "shakespeare_char", "n_layer": 2, "n_head": 2, "n_embd": 64, "block_size": 32, "batch_size": 8,
            "gradient_accumulation_steps": 2 * RANKS, "learning_rate": 3e-3, "min_lr": 3e-4, "warmup_iters": 10,
            "lr_decay_iters": 120, "max_iters": 120 if resumed else 80, "eval_interval": 20, "eval_iters": 20,
            "log_interval": 20, "device": "cpu", "dtype": "float32", "backend": "gloo", "compile": False,
            "init_from": "resume" if resumed else "scratch",
        }  # fmt: skip
        return [f"--{name}={value}" for name, value in settings.items()]

    def losses(self, output: str) -> list[float]:
        return [float(loss) for loss in re.findall(r"^step \d+: .*val loss ([\d.]+|nan)", output, re.MULTILINE)]

    def saved(self, folder: Path) -> Saved:
        checkpoint = torch.load(folder / "out" / "ckpt.pt")
        return Saved(checkpoint["model"], checkpoint["iter_num"])


class MinGPT(Program):
    """``distributed/minGPT-ddp`` of pytorch/examples: float16 with a GradScaler, all ranks evaluate by forwards.

    Rank 0 saves after each epoch. Each rank draws its own part of the text at random.
    """

    name, patch, script = "minGPT-ddp", "mingpt_ddp.patch", "mingpt/main.py"
    commit = "1180444fdc93"
    of_epoch = 30
    steps = (3 * of_epoch, of_epoch)

    def copy(self, sources: Path, folder: Path) -> None:
        clone = existing(sources / "examples", "pytorch/examples")
        shutil.copytree(clone / "distributed" / "minGPT-ddp", folder)

    def arguments(self, resumed: bool) -> list[str]:
        batch, block = 32, 32
        samples = RANKS * batch * self.of_epoch / 0.9
        characters = int(samples) + block
        settings: dict[str, Any] = {
            "data_config.path": "mingpt/data/input.txt", "data_config.block_size": block,
            "data_config.truncate": (characters + 0.5) / 1_115_394,
            "gpt_config.n_layer": 2, "gpt_config.n_head": 2, "gpt_config.n_embd": 64,
            "trainer_config.max_epochs": 4 if resumed else 3, "trainer_config.save_every": 1,
            "trainer_config.batch_size": batch, "trainer_config.data_loader_workers": 1,
            "optimizer_config.learning_rate": 3e-3,
        }  # fmt: skip
        return [f"{name}={value}" for name, value in settings.items()]

    def losses(self, output: str) -> list[float]:
        first = re.findall(r"^\[RANK0\] Epoch 1 \| Iter 0 \| Train Loss ([\d.]+|nan)", output, re.MULTILINE)
        return [
            *map(float, first),
            *map(float, re.findall(r"^\[RANK0\].* Eval Loss ([\d.]+|nan)", output, re.MULTILINE)),
        ]

    def saved(self, folder: Path) -> Saved:
        snapshot = torch.load(folder / "gpt_snapshot.pt")
        return Saved(snapshot["model_state"], self.of_epoch * snapshot["finished_epoch"])


def existing(clone: Path, repository: str) -> Path:
    """Return a clone's folder.

    Raises:
        SettingsError: it is not there.
    """
    if not clone.is_dir():
        raise SettingsError(f"SOURCES: there is no {clone}; git clone https://github.com/{repository} {clone}")
    return clone


PROGRAMS: tuple[Program, ...] = (NanoGPT(), MinGPT())
