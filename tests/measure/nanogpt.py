# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""nanoGPT's ``train.py``, a program that nothing here was tuned on: native, with the hook, and with outer steps.

Two ranks over gloo train on the source text of Python's standard library, by characters. The clone is not changed: a
copy of ``train.py`` gets the few edits that ``edits`` lists. An interrupted measurement continues where it was.

    python -m tests.measure.nanogpt CLONE [--json FILE] [--seeds N] [--steps N] [--defaults] [--show METHOD]

1. Native runs at ``RATES``; the best of them by validation loss, and a third of it, are the two learning rates.
2. Every method runs at both.
3. Efficiency is native's number of steps to the method's final validation loss over the run's number of steps.
"""

import argparse
import hashlib
import json
import os
import pickle
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gravac.lab.tasks.text import library_text
from gravac.settings import SettingsError
from tests.measure.results import keep, read, todays

RANKS = 2

RATES = (3e-3, 1e-3, 9e-3)
"""Learning rates that native is tried at; a third of the best is run too."""

PATIENCE = 1800
"""Seconds after which a run is ended as a failure."""

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS), "--master-addr", "127.0.0.1")

NATIVE = "native"

MODEL = "DDP(model, device_ids=[ddp_local_rank])"
"""What ``train.py`` wraps its model in."""

EVALUATED = re.compile(r"^step (\d+): train loss ([\d.]+|nan|inf), val loss ([\d.]+|nan|inf)", re.MULTILINE)

IMPORTED = "AdaptiveCompressor, Static, dense, quantize"

RECORD = "f'{r.mode}, {r.compressor} {r.cf:g}, every {r.every}, delay {r.delay}'"
"""A decision in words, as the program tells it."""

TOLD = (
    f"{{'wire_ratio': compressor.wire_ratio, 'chosen': sorted({{{RECORD} for r in compressor.history}}), "
    f"'turns': [[r.step, {RECORD}] for r in compressor.history if r.changed], "
    "'changes': [[c.step, c.before, c.after, c.seconds, c.wire_bytes] for c in compressor.changes], "
    "'mode': compressor.mode}"
)
"""What a run with gravac tells at its end."""

REPORT = "gravac reports "
"""Beginning of the line that a run with our methods prints at its end."""


@dataclass(frozen=True)
class Edit:
    """A passage of ``train.py`` that stands in the file once, what replaces the passage, and why."""

    why: str
    old: str
    new: str


@dataclass(frozen=True)
class Method:
    """A way to train.

    Attributes:
        name: name in records and tables.
        call: the call that a user would write; empty for native.
        kind: ``"native"``, ``"hook"`` or ``"outer"``.
    """

    name: str
    call: str = ""
    kind: str = NATIVE


def hook(bits: int) -> Method:
    """Return the DDP hook with a fixed number of bits and error feedback."""
    call = f"AdaptiveCompressor(quantize(bits={bits}), controller=Static(cf={32 // bits}))"
    return Method(f"hook, {bits} bit{'s' * (bits > 1)}", call, "hook")


def outer(rate: float) -> Method:
    """Return dense outer steps after every 10 steps, which wait for their exchange: nothing depends on time."""
    call = (
        "AdaptiveCompressor(dense, (1, 2), controller=Static(cf=1), every=10, "
        f"outer=OuterSettings(delay=0, optimizer=partial(OuterSGD, rate={rate:g})))"
    )
    return Method(f"outer, every 10 steps, rate {rate:g}", call, "outer")


def outer_default(rate: float) -> Method:
    """Return outer steps whose compressor and delay ``goodput`` chooses, by times that this machine has."""
    call = f"AdaptiveCompressor(every=10, outer=OuterSettings(optimizer=partial(OuterSGD, rate={rate:g})))"
    return Method(f"outer, every 10 steps, rate {rate:g}, goodput", call, "outer")


METHODS = (Method(NATIVE), hook(2), hook(1), outer(1.0), outer(0.7))

DEFAULTS = (outer_default(1.0),)
"""Methods that run only when asked for: what they choose depends on the machine's load."""


@dataclass(frozen=True)
class Configuration:
    """Settings of ``train.py``, and the number of training steps; everything else is as in the clone."""

    n_layer: int = 4
    n_head: int = 4
    n_embd: int = 144
    block_size: int = 64
    batch_size: int = 8
    dropout: float = 0.0
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    grad_clip: float = 1.0
    warmup_iters: int = 100
    max_iters: int = 1200
    eval_interval: int = 100
    eval_iters: int = 50

    def arguments(self, rate: float) -> list[str]:
        """Return the command line: AdamW with warm-up, then cosine to a tenth of the rate, in float32 on CPUs."""
        fixed: dict[str, Any] = {
            "dataset": "library",
            "gradient_accumulation_steps": RANKS,  # one micro step on each rank
            "learning_rate": float(rate),
            "min_lr": round(rate / 10, 12),
            "lr_decay_iters": self.max_iters,
            "backend": "gloo",
            "device": "cpu",
            "dtype": "float32",
            "compile": False,
            "always_save_checkpoint": False,
            "log_interval": 100,
        }
        return [f"--{name}={value}" for name, value in {**asdict(self), **fixed}.items()]


@dataclass(frozen=True)
class Case:
    """One run."""

    method: Method
    learning_rate: float
    seed: int

    @property
    def words(self) -> str:
        """The run in words."""
        return f"{self.method.name}, learning rate {self.learning_rate:g}, seed {self.seed}"


def edits(method: Method, seed: int) -> tuple[Edit, ...]:
    """Return what is replaced in ``train.py``: device, seed and evaluation for all methods, then the method's own."""
    common = (
        Edit("device", "    device = f'cuda:{ddp_local_rank}'\n", "    device = 'cpu'\n"),
        Edit("device", "    torch.cuda.set_device(device)\n", ""),
        Edit("seed", "manual_seed(1337 + seed_offset)", f"manual_seed({1337 + 1000 * seed} + seed_offset)"),
        Edit(
            "the same batches in every evaluation",
            "    model.eval()\n",
            "    model.eval()\n    random_state = torch.get_rng_state()\n    torch.manual_seed(4321)\n",
        ),
        Edit(
            "training continues with its own batches",
            "    model.train()\n",
            "    model.train()\n    torch.set_rng_state(random_state)\n",
        ),
    )
    if method.kind == NATIVE:
        return (*common, Edit("CPUs have no number", MODEL, "DDP(model)"))
    import_line = "from torch.nn.parallel import DistributedDataParallel as DDP\n"
    entry = Edit(
        "imports",
        import_line,
        f"{import_line}import json\nfrom functools import partial\nfrom gravac import {IMPORTED}\n"
        "from gravac.modes.outer.sgd import OuterSGD\nfrom gravac.policy import OuterSettings\n",
    )
    made = f"DDP(model)\n    compressor = {method.call}\n    compressor.attach(model, optimizer)"
    end = Edit(
        "report and close",
        "    destroy_process_group()",
        f"    if master_process:\n        print({REPORT!r} + json.dumps({TOLD}))\n    compressor.close()\n"
        "    destroy_process_group()",
    )
    return (*common, entry, Edit("gravac", MODEL, made), end)


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


def write_characters(folder: Path) -> dict[str, Any]:
    """Write ``train.bin``, ``val.bin`` and ``meta.pkl`` as nanoGPT's shakespeare_char does; return what they hold."""
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
    return {
        "vocabulary": len(letters),
        "training_characters": int(text.train.size),
        "validation_characters": int(text.validation.size),
        "files": text.files,
        "text_sha256": hashlib.sha256(text.train.tobytes() + text.validation.tobytes()).hexdigest()[:16],
    }


def run(clone: Path, case: Case, settings: Configuration) -> dict[str, Any]:
    """Train once, in a folder that is gone afterwards; return the row.

    Raises:
        SettingsError: the clone does not match.
        RuntimeError: the run failed or did not end; names the case and has the end of its output.
    """
    original = (clone / "train.py").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(patched(original, edits(case.method, case.seed)), encoding="utf-8")
        for other in ("model.py", "configurator.py"):
            shutil.copy(clone / other, folder)
        about = write_characters(folder / "data" / "library")
        arguments = settings.arguments(case.learning_rate)
        began = time.monotonic()
        output = launched(folder, arguments, case)
        seconds = time.monotonic() - began
    curve = [[int(step), float(train), float(val)] for step, train, val in EVALUATED.findall(output)]
    if not curve or curve[-1][0] != settings.max_iters:
        raise RuntimeError(
            f"{case.words}: no evaluation after step {settings.max_iters}; end of the output: {output[-6000:]}"
        )
    counted = re.search(r"num decayed .*?([\d,]+) parameters\nnum non-decayed .*?([\d,]+) parameters", output)
    assert counted
    reports = [line.removeprefix(REPORT) for line in output.splitlines() if line.startswith(REPORT)]
    return {
        "method": case.method.name,
        "call": case.method.call,
        "learning_rate": case.learning_rate,
        "seed": case.seed,
        "steps": settings.max_iters,
        "validation_loss": curve[-1][2],
        "training_loss": curve[-1][1],
        "curve": curve,
        "seconds": round(seconds),
        "ranks": RANKS,
        "parameters": sum(int(number.replace(",", "")) for number in counted.groups()),
        **about,
        **(json.loads(reports[0]) if reports else {}),
        "arguments": " ".join(arguments),
        "nanogpt": commit(clone),
    }


def launched(folder: Path, arguments: Sequence[str], case: Case) -> str:
    """Run ``train.py`` on all ranks with one thread each; return what they printed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (os.getcwd(), os.environ.get("PYTHONPATH"))))
    with (folder / "output.txt").open("w+", encoding="utf-8") as said:
        command = [*TORCHRUN, "--master-port", str(free_port()), "train.py", *arguments]
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=said, stderr=said, start_new_session=True
        )
        try:
            code: int | None = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)  # torchrun ends its workers
                process.wait()
        said.seek(0)
        output = said.read()
    if code != 0:
        ended = f"did not end in {PATIENCE} s" if code is None else f"ended with exit status {code}"
        raise RuntimeError(f"{case.words}: torchrun {ended}; end of the output: {output[-6000:]}")
    return output


def free_port() -> int:
    """Return a port of this machine that nothing listens at."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def commit(clone: Path) -> str:
    """Return the clone's commit, or nothing where there is none."""
    said = subprocess.run(["git", "-C", str(clone), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return said.stdout.strip()


def steps_to(curve: Sequence[Sequence[float]], loss: float) -> float | None:
    """Return the number of steps after which a curve first has a validation loss; linear between evaluations.

    Args:
        curve: (steps, training loss, validation loss) of each evaluation.
        loss: validation loss to reach, nats per character.

    Returns:
        Number of steps; ``None`` where the curve does not come so low.
    """
    before: Sequence[float] | None = None
    for point in curve:
        if point[2] <= loss:
            if before is None:
                return point[0]
            share = (before[2] - loss) / (before[2] - point[2])
            return before[0] + share * (point[0] - before[0])
        before = point
    return None


def efficiency(row: dict[str, Any], native: dict[str, Any]) -> float | None:
    """Return native's number of steps to the row's final validation loss over the run's; ``None``: never so low."""
    steps = steps_to(native["curve"], row["validation_loss"])
    return None if steps is None else steps / row["steps"]


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return what tells a run from others."""
    return row["method"], row["call"], f"{row['learning_rate']:.3g}", row["seed"], row["arguments"]


def two_rates(rows: Iterable[dict[str, Any]]) -> tuple[float, float]:
    """Return the best of ``RATES`` by native's validation loss with the first seed, and a third of the best."""
    tried = {row["learning_rate"]: row["validation_loss"] for row in rows if _tuning(row)}
    best = min(tried, key=tried.__getitem__)
    return best, float(f"{best / 3:.3g}")


def _tuning(row: dict[str, Any]) -> bool:
    return row["method"] == NATIVE and row["seed"] == 0 and row["learning_rate"] in RATES


def measure(clone: Path, path: str, options: argparse.Namespace) -> None:
    """Run what the file does not have yet."""
    file, settings = Path(path), Configuration(max_iters=options.steps)
    rows: list[dict[str, Any]] = read(file) if file.exists() else []

    def ensure(case: Case) -> None:
        wanted = {"method": case.method.name, "call": case.method.call, "seed": case.seed}
        wanted |= {"learning_rate": case.learning_rate, "arguments": " ".join(settings.arguments(case.learning_rate))}
        if key(wanted) in {key(row) for row in rows}:
            return
        row = run(clone, case, settings)
        rows.append(row)
        keep(rows, path)
        print(f"{case.words}: validation loss {row['validation_loss']} after {row['seconds']} s", flush=True)

    for rate in RATES:
        ensure(Case(METHODS[0], rate, 0))
    both = two_rates(rows)
    for seed in range(options.seeds):
        for method in (*METHODS, *(DEFAULTS if options.defaults else ())):
            for rate in both:
                ensure(Case(method, rate, seed))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clone", type=Path, help="folder of a clone of github.com/karpathy/nanoGPT")
    parser.add_argument("--json", default="docs/measurements/nanogpt.json")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=Configuration.max_iters)
    parser.add_argument("--defaults", action="store_true", help="also run outer steps whose candidates goodput chooses")
    parser.add_argument(
        "--show", help="measure nothing, print train.py with the edits for a method, such as 'hook, 2 bits'"
    )
    options = parser.parse_args()
    if options.show:
        method = {one.name: one for one in (*METHODS, *DEFAULTS)}[options.show]
        print(patched((options.clone / "train.py").read_text(encoding="utf-8"), edits(method, 0)))
        return
    todays()  # the machine's speed, before ranks take it
    measure(options.clone.resolve(), options.json, options)


if __name__ == "__main__":
    main()
