# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""One rank of minGPT-ddp of pytorch/examples, on characters, with a method's lines; see ``tests.measure.lines``.

    python -m tests.measure.programs.with_mingpt METHOD SEED RATE STEPS MORE EVALUATIONS

It runs in a folder that ``write`` made: the program's own ``Trainer``, model and data, patched for a CPU. Its
learning rate is constant, so that ``STEPS`` is not used. Rank 0 evaluates, which stops the clock. What is printed is in
the form of nanoGPT's ``train.py``. The program imports boto3 (``pip install boto3``).
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from gravac.settings import SettingsError
from tests.measure.programs.methods import BEGINS, attach, end
from tests.measure.turns import wait_for_turn

FOLDER = "minGPT-ddp"

CONTEXT, SEQUENCES = 64, 8
"""Characters of a sequence, and sequences of a rank's step."""

VALIDATED = 40
"""Number of batches of an evaluation."""


def write(clone: Path, folder: Path) -> None:
    """Copy the program into a folder that the ranks will run in, with the patch for a CPU.

    Args:
        clone: folder of a clone of pytorch/examples.
        folder: folder that the ranks will run in.

    Raises:
        SettingsError: the patch does not fit the clone.
    """
    shutil.copytree(clone / "distributed" / FOLDER, folder / FOLDER)
    patch = Path(__file__).with_name("mingpt_ddp.patch").read_text(encoding="utf-8")
    command = ["git", "apply", "-"]
    applied = subprocess.run(command, cwd=folder / FOLDER, input=patch, capture_output=True, text=True, check=False)
    if applied.returncode != 0:
        raise SettingsError(
            f"mingpt_ddp.patch does not fit {clone}: use a clone of pytorch/examples at commit 1180444fdc93; git "
            f"says: {applied.stderr}"
        )


def mean_loss(model: torch.nn.Module, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """Return a model's mean loss on batches, nats a character, without gradients and dropout."""
    training = model.training
    model.eval()
    with torch.no_grad():
        losses = [float(model(characters, targets)[1]) for characters, targets in batches]
    model.train(training)
    return sum(losses) / len(losses)


def main() -> None:
    method, *numbers = sys.argv[1:]
    seed, rate = int(numbers[0]), float(numbers[1])
    total, evaluations = map(int, numbers[3:])
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=os.environ["MEET"], rank=rank, world_size=world)
    os.chdir(FOLDER)
    sys.path.insert(0, "mingpt")
    import char_dataset  # the program's modules
    import model as program
    import trainer as loop

    torch.manual_seed(seed)  # of the split and the weights, alike on all ranks
    characters = char_dataset.CharDataset(char_dataset.DataConfig("mingpt/data/input.txt", CONTEXT, 0.9))
    count = int(0.9 * len(characters))
    train, test = torch.utils.data.random_split(characters, [count, len(characters) - count])
    train = torch.utils.data.Subset(train, range(world * SEQUENCES * total))  # type: ignore[assignment]
    held = torch.utils.data.Subset(test, range(VALIDATED * SEQUENCES))
    validation = list(torch.utils.data.DataLoader(held, batch_size=SEQUENCES))

    class Clocked(loop.Trainer):  # type: ignore[misc, name-defined]
        """The program's trainer, which evaluates now and then."""

        def train(self) -> None:
            self.made, self.began = 0, time.time()
            super().train()
            self.evaluate()

        def evaluate(self) -> None:
            paused = time.time()
            if rank == 0:
                loss = mean_loss(self.model.module, validation)
                seconds = paused - self.began
                print(f"step {self.made}: train loss 0.0, val loss {loss:.5f}, seconds {seconds:.3f}", flush=True)
                wait_for_turn()
            self.began += time.time() - paused

        def _run_batch(self, source: torch.Tensor, targets: torch.Tensor, train: bool = True) -> float:
            if self.made % (total // evaluations) == 0:
                self.evaluate()
            self.made += 1
            return float(super()._run_batch(source, targets, train))

    configuration = program.GPTConfig(
        n_layer=3, n_head=4, n_embd=144, vocab_size=characters.vocab_size, block_size=CONTEXT
    )
    network = program.GPT(configuration)
    optimizer = program.create_optimizer(network, program.OptimizerConfig(rate))
    torch.manual_seed(1000 * (seed + 1) + rank)  # of dropout
    asked = loop.TrainerConfig(
        max_epochs=1, batch_size=SEQUENCES, data_loader_workers=0, grad_norm_clip=1.0, save_every=2, use_amp=False
    )
    trainer = Clocked(asked, network, optimizer, train)
    attached = attach(method, trainer.model, trainer.optimizer)
    print(BEGINS, flush=True)
    trainer.train()
    end(attached)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
