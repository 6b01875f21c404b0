# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""nanoGPT's ``train.py`` for a race: edits for a CPU, with a clock and turns, and the lines of a method.

The clone is not changed: a copy of ``train.py`` gets the edits. It trains on the source text of Python's standard
library, by characters.
"""

import pickle
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gravac.lab.tasks.text import library_text
from gravac.settings import SettingsError
from tests.measure.programs.methods import BEGINS, FLOAT32, METHODS, RANKS

MODEL = "DDP(model, device_ids=[ddp_local_rank])"
"""What ``train.py`` wraps its model in."""


class Edit(NamedTuple):
    """A passage of ``train.py`` that stands in the file once, what replaces the passage, and why."""

    why: str
    old: str
    new: str


def edits(method: str, seed: int) -> Iterator[Edit]:
    """Yield what is replaced in ``train.py``: device, seed, evaluation, links and clock, then the method's lines."""
    yield Edit("device", "    device = f'cuda:{ddp_local_rank}'\n", "    device = 'cpu'\n")
    yield Edit("device", "    torch.cuda.set_device(device)\n", "")
    yield Edit("seed", "manual_seed(1337 + seed_offset)", f"manual_seed({1337 + 1000 * seed} + seed_offset)")
    yield Edit(
        "the same batches in every evaluation",
        "    model.eval()\n",
        "    model.eval()\n    random_state = torch.get_rng_state()\n    torch.manual_seed(4321)\n",
    )
    yield Edit(
        "training continues with its own batches",
        "    model.train()\n",
        "    model.train()\n    torch.set_rng_state(random_state)\n",
    )
    yield Edit(
        "ranks on links of their own meet by a file",
        "init_process_group(backend=backend)",
        "init_process_group(backend=backend, init_method=os.environ['MEET'], rank=int(os.environ['RANK']), "
        "world_size=int(os.environ['WORLD_SIZE']))",
    )
    begins = "local_iter_num = 0 # number of iterations in the lifetime of this process\n"
    imports = "from tests.measure.turns import wait_for_turn\n"
    yield Edit("the clock", begins, f"{begins}{imports}print('{BEGINS}', flush=True)\nbegan = time.time()\n")
    evaluation = "    if iter_num % eval_interval == 0 and master_process:\n"
    yield Edit("the clock", evaluation, f"    paused = time.time()\n{evaluation}")
    printed = "val loss {losses['val']:.4f}\""
    yield Edit("the clock", printed, "val loss {losses['val']:.4f}, seconds {paused - began:.3f}\", flush=True")
    eval_only = "    if iter_num == 0 and eval_only:\n"
    turn = f"{evaluation}        wait_for_turn()\n"
    yield Edit("turns", eval_only, f"{turn}    began += time.time() - paused\n{eval_only}")
    if method == FLOAT32:
        yield Edit("CPUs have no number", MODEL, "DDP(model)")
        return
    ddp = "from torch.nn.parallel import DistributedDataParallel as DDP\n"
    yield Edit("imports", ddp, f"{ddp}from tests.measure.programs.methods import attach, end\n")
    attached = f"DDP(model)\n    attached = attach({method!r}, model, optimizer)"
    yield Edit(METHODS[method].call, MODEL, attached)
    yield Edit("report and close", "    destroy_process_group()", "    end(attached)\n    destroy_process_group()")


def patched(text: str, made: Iterable[Edit]) -> str:
    """Return ``train.py`` with all edits.

    Raises:
        SettingsError: a passage is not there, or there several times.
    """
    for edit in made:
        count = text.count(edit.old)
        if count != 1:
            raise SettingsError(
                f"train.py: {edit.old.strip()!r} occurs {count} times instead of once (edit: {edit.why}); use a "
                "clone of nanoGPT at commit 3adf61e1"
            )
        text = text.replace(edit.old, edit.new)
    return text


def arguments(width: int, rate: float, steps: int, total: int, evaluations: int) -> list[str]:
    """Return the command line: AdamW with warm-up, then cosine to a tenth of the rate, in float32 on CPUs.

    Args:
        width: width of the embedding.
        rate: learning rate.
        steps: number of steps in which the learning rate falls.
        total: number of steps that are made.
        evaluations: number of evaluations after the first one.
    """
    settings = {
        "n_layer": 4, "n_head": 4, "n_embd": width, "block_size": 64, "batch_size": 8, "dropout": 0.0,
        "weight_decay": 0.1, "beta1": 0.9, "beta2": 0.95, "grad_clip": 1.0, "warmup_iters": min(100, steps // 4),
        "max_iters": total, "eval_interval": total // evaluations, "eval_iters": 10, "dataset": "library",
        "gradient_accumulation_steps": RANKS,  # one micro step on each rank
        "learning_rate": float(rate), "min_lr": round(rate / 10, 12), "lr_decay_iters": steps, "backend": "gloo",
        "device": "cpu", "dtype": "float32", "compile": False, "always_save_checkpoint": False, "log_interval": 100,
    }  # fmt: skip
    return [f"--{name}={value}" for name, value in settings.items()]


def write_characters(folder: Path) -> None:
    """Write ``train.bin``, ``val.bin`` and ``meta.pkl`` as nanoGPT's shakespeare_char does."""
    text = library_text()
    characters = np.union1d(text.train, text.validation)
    folder.mkdir(parents=True)
    for name, part in (("train", text.train), ("val", text.validation)):
        np.searchsorted(characters, part).astype(np.uint16).tofile(folder / f"{name}.bin")
    letters = [chr(code) for code in characters]
    meta = {
        "vocab_size": len(letters),
        "itos": dict(enumerate(letters)),
        "stoi": {letter: number for number, letter in enumerate(letters)},
    }
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))
