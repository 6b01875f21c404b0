# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""One rank of Hugging Face's Trainer with a small GPT-2 from its configuration, on characters; see ``programs_links``.

    python -m tests.measure.programs.with_trainer METHOD SEED RATE STEPS MORE EVALUATIONS

gravac comes in by ``GravacCallback``, as its page says. The learning rate is that of ``train_task``. Rank 0 evaluates,
which stops the clock. What is printed is in the form of nanoGPT's ``train.py``.
"""

import json
import os
import sys
import tempfile
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from gravac.integrations.transformers import GravacCallback
from gravac.lab.tasks.text import VOCABULARY, library_text
from tests.measure.nanogpt import REPORT
from tests.measure.nanogpt_links import BEGINS
from tests.measure.programs.methods import FLOAT16, PROBING, SETTINGS, RunReport
from tests.measure.progress import factor
from tests.measure.turns import wait_for_turn

CONTEXT, SEQUENCES = 64, 8
"""Characters of a sequence, and sequences of a rank's step."""

PROBED, VALIDATED = 4, 40
"""Number of batches of each rank that the probe has, and of an evaluation."""


class Sequences(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Sequences from places of a text that are drawn at random, the same ones for the same seed.

    Args:
        text: characters as places in the vocabulary.
        count: number of sequences.
        seed: of the places.
    """

    def __init__(self, text: "np.ndarray[Any, Any]", count: int, seed: int) -> None:
        self._text = text
        self._starts = np.random.default_rng(seed).integers(0, len(text) - CONTEXT, count)

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        start = self._starts[at]
        characters = torch.from_numpy(self._text[start : start + CONTEXT].astype(np.int64))
        return {"input_ids": characters, "labels": characters}

    def batches(self) -> list[torch.Tensor]:
        """Return all of them, ``SEQUENCES`` at a time."""
        each = [self[at]["input_ids"] for at in range(len(self))]
        return [torch.stack(each[at : at + SEQUENCES]) for at in range(0, len(each), SEQUENCES)]


class Clock(TrainerCallback):
    """Has rank 0 evaluate now and then, and prints the loss and the seconds of training."""

    def __init__(self, model: torch.nn.Module, batches: list[torch.Tensor], interval: int) -> None:
        self._model, self._batches, self._interval = model, batches, interval
        self._began = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Start the clock."""
        print(BEGINS, flush=True)
        self._began = time.time()
        self._evaluate(0)

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Evaluate after each ``interval`` steps."""
        if state.global_step % self._interval == 0:
            self._evaluate(state.global_step)

    def _evaluate(self, step: int) -> None:
        paused = time.time()
        if int(os.environ["RANK"]) == 0:
            loss = mean_loss(self._model, self._batches)
            print(f"step {step}: train loss 0.0, val loss {loss:.5f}, seconds {paused - self._began:.3f}", flush=True)
            wait_for_turn()
        self._began += time.time() - paused


class Float16(TrainerCallback):
    """Has DistributedDataParallel average in float16, by torch's own hook."""

    def __init__(self) -> None:
        self.trainer: Trainer | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Register the hook."""
        assert self.trainer is not None
        self.trainer.model_wrapped.register_comm_hook(None, fp16_compress_hook)


def mean_loss(model: torch.nn.Module, batches: list[torch.Tensor]) -> float:
    """Return a model's mean loss on batches, nats a character, without gradients."""
    training = model.training
    model.eval()
    with torch.no_grad():
        losses = [float(model(input_ids=batch, labels=batch).loss) for batch in batches]
    model.train(training)
    return sum(losses) / len(losses)


def main() -> None:
    method, *numbers = sys.argv[1:]
    seed, rate = int(numbers[0]), float(numbers[1])
    steps, total, evaluations = map(int, numbers[2:])
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")  # accelerate asks for them
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=os.environ["MEET"], rank=rank, world_size=world)
    text = library_text()
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=144, n_layer=3, n_head=4,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factor("cosine", min(step, steps - 1), steps))
    probed = Sequences(text.validation, PROBED * SEQUENCES, 1000 + rank).batches()
    report = RunReport()
    with tempfile.TemporaryDirectory(prefix="gravac-measure-") as folder:
        arguments = TrainingArguments(
            output_dir=folder, use_cpu=True, max_steps=total, per_device_train_batch_size=SEQUENCES, seed=seed,
            max_grad_norm=1.0, save_strategy="no", logging_steps=50, report_to="none", disable_tqdm=True,
        )  # fmt: skip
        validation = Sequences(text.validation, VALIDATED * SEQUENCES, 7).batches()
        clock = Clock(model, validation, total // evaluations)
        float16 = Float16()
        trainer = Trainer(
            model,
            arguments,
            train_dataset=Sequences(text.train, world * SEQUENCES * total, seed),
            optimizers=(optimizer, schedule),
            callbacks=[float16] if method == FLOAT16 else [],
        )
        float16.trainer = trainer
        ours = None
        if method in SETTINGS:
            measured = {"probe": lambda: mean_loss(model, probed)} if method in PROBING else {}
            ours = GravacCallback(trainer, **SETTINGS[method], **measured, sinks=[report])
            trainer.add_callback(ours)
        trainer.add_callback(clock)
        trainer.train()
    if ours is not None and ours.compressor is not None:
        plain = report.as_plain(ours.compressor)
        if rank == 0:
            print(REPORT + json.dumps(plain))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
