# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""One rank of minGPT-ddp of pytorch/examples, on characters, with the lines of its patch; see ``programs_links``.

    python -m tests.measure.programs.with_mingpt METHOD SEED RATE STEPS MORE EVALUATIONS

It runs in a folder that ``write`` made: the program's own ``Trainer``, model and data, patched for a CPU and with the
lines that a user adds. Its learning rate is constant, so that ``STEPS`` is not used. Rank 0 evaluates, which stops the
clock. What is printed is in the form of nanoGPT's ``train.py``.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

from tests.measure.nanogpt import REPORT
from tests.measure.nanogpt_links import BEGINS
from tests.measure.programs.methods import FLOAT16, PROBING, SETTINGS, RunReport
from tests.measure.turns import wait_for_turn
from tests.real.programs import MinGPT

FOLDER = "minGPT-ddp"

CONTEXT, SEQUENCES = 64, 8
"""Characters of a sequence, and sequences of a rank's step."""

PROBED, VALIDATED = 4, 40
"""Number of batches of each rank that the probe has, and of an evaluation."""

GIVEN = "GRAVAC_SETTINGS"
"""Name in the program's module ``trainer`` of the function that gives the settings, by trainer."""


def write(sources: Path, folder: Path, method: str) -> None:
    """Write the program into a folder, with gravac's lines if the method has them.

    Args:
        sources: folder with a clone of pytorch/examples, named ``examples``.
        folder: folder that the ranks will run in.
        method: one of ``tests.measure.programs.methods``.
    """
    MinGPT().set_up(sources, folder / FOLDER, f"**{GIVEN}(self)")
    path = folder / FOLDER / "mingpt" / "trainer.py"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if method in SETTINGS or "self.compressor" not in line]
    path.write_text("".join(kept), encoding="utf-8")


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

    def batches(first: int, number: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        chosen = torch.utils.data.Subset(test, range(first * SEQUENCES, (first + number) * SEQUENCES))
        return list(torch.utils.data.DataLoader(chosen, batch_size=SEQUENCES))

    validation = batches(0, VALIDATED)
    probed = batches(VALIDATED + rank * PROBED, PROBED)
    report = RunReport()

    def settings(made: Any) -> dict[str, Any]:
        bare = made.model.module
        measured = {"probe": lambda: mean_loss(bare, probed), "total_steps": total} if method in PROBING else {}
        return {**SETTINGS[method], **measured, "sinks": [report]}

    setattr(loop, GIVEN, settings)

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
    if method == FLOAT16:
        trainer.model.register_comm_hook(None, fp16_compress_hook)
    print(BEGINS, flush=True)
    trainer.train()
    if method in SETTINGS:
        plain = report.as_plain(trainer.compressor)
        if rank == 0:
            print(REPORT + json.dumps(plain))
        trainer.compressor.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
