# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Trains a small GPT-2 on bytes with Hugging Face's Trainer in two processes, with gravac as a callback.

    pip install ".[transformers]"
    torchrun --nproc-per-node 2 examples/trainer_ddp.py

The text is the source of Python's standard library. Nothing is downloaded.

To see the chosen compression factors: tensorboard --logdir runs
"""

import argparse

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from gravac.integrations.transformers import GravacCallback
from gravac.lab.tasks.text import VOCABULARY, library_text

CONTEXT = 64


class Sequences(Dataset[dict[str, torch.Tensor]]):
    """Bytes of a text, cut into sequences of ``CONTEXT`` bytes."""

    def __init__(self) -> None:
        text = torch.from_numpy(library_text().train).long()
        self.sequences = text[: len(text) // CONTEXT * CONTEXT].view(-1, CONTEXT)

    def __len__(self) -> int:
        return len(self.sequences)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.sequences[index], "labels": self.sequences[index]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--every", type=int, default=1, help="steps from one exchange to the next")
    parsed = parser.parse_args()
    steps = parsed.steps
    torch.set_num_threads(1)
    torch.manual_seed(0)
    size = {"n_positions": CONTEXT, "n_embd": 128, "n_layer": 2, "n_head": 4}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=0, **size))
    arguments = TrainingArguments(
        output_dir="runs/trainer",
        use_cpu=True,
        max_steps=steps,
        per_device_train_batch_size=8,
        learning_rate=3e-3,
        logging_steps=10,
        save_steps=steps,  # every rank's residuals are in the checkpoint, too
        ddp_find_unused_parameters=False,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(model, arguments, train_dataset=Sequences())

    gravac = GravacCallback(trainer, every=parsed.every, log_dir="runs/trainer")
    trainer.add_callback(gravac)

    trainer.train()
    if trainer.is_world_process_zero() and gravac.compressor is not None:
        for record in gravac.compressor.history:
            if record.changed:
                print(record)
    trainer.accelerator.end_training()


if __name__ == "__main__":
    main()
