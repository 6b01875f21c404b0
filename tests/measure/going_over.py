# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Ranks that train apart on slow links: what they share when they are one again, are evaluated, saved, and resumed.

Each part runs on each link, two ranks, a small ``charlm``:

- ``fixed``: ``AdaptiveCompressor(every=10)`` as it comes. While ranks train apart, the loss is taken by a plain forward
  without gradients and logged; then ``state_dict`` is saved, loaded into another model, and that one's loss compared.
  After ``detach`` weights and moments of all ranks are compared bit for bit, at once and 100 native steps later.
- ``resume``: a run that is saved in the middle of a round and goes on, against one that loads what was saved.
- ``changes``: a script that goes all ways over: seconds of a change, bytes that rank 0's interface sent meanwhile, and
  bytes of tensors that Python holds after it.

    python -m tests.measure.going_over [--json FILE] [--links L ...] [--after N] [--minutes N]
"""

import gc
import hashlib
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gravac import AdaptiveCompressor, Static, checkpoint, quantize, topk
from gravac.lab.links.network import INTERFACE, EmulatedNetwork
from gravac.lab.tasks import make
from gravac.policy import OuterSettings
from tests.measure.rank_lines import RANK, Say, lines_of, rank_main
from tests.measure.resuming import Book, Progress, parser_of, resumable, until
from tests.modes.scripted import HOOK, NATIVE, Entry, Scripted, script

LINKS = ("5mbit", "20mbit")

SCALE = 0.1

EVERY = 10

AFTER = 100
"""Number of native steps after which ranks that came together are compared again."""

APART: Entry = (0, "outer", "topk", 10.0, EVERY)

TOUR = script((0, NATIVE), (12, APART), (42, NATIVE), (54, HOOK), (64, APART), (94, HOOK), (120, NATIVE))
"""All six ways over."""

TOUR_STEPS = 132

LOOKED_AT = (13, 20, 27, 34)
"""Numbers of steps after which the model is evaluated and saved, in the middle of a round and at its end."""


class Run:
    """A model that one rank trains."""

    def __init__(self, rank: int, compressor: AdaptiveCompressor) -> None:
        self.task, self.rank = make("charlm", scale=SCALE), rank
        self.ddp = DistributedDataParallel(self.task.model(), bucket_cap_mb=0.2)
        self.optimizer = self.task.optimizer(self.ddp)
        self.compressor = compressor
        compressor.attach(self.ddp, self.optimizer)
        self.steps = 0

    def step(self) -> None:
        """Make a training step."""
        self.optimizer.zero_grad()
        torch.autograd.backward(self.task.loss(self.ddp, self.task.batch(self.steps, self.rank)))
        self.optimizer.step()
        self.steps += 1

    def loss(self, module: torch.nn.Module | None = None) -> float:
        """Return the loss of one batch, the same on all ranks, by a forward without gradients."""
        with torch.no_grad():
            return float(self.task.loss(self.ddp if module is None else module, self.task.batch(10**6, 0)))

    def weights(self) -> torch.Tensor:
        """Return this rank's parameters, flat."""
        return torch.cat([parameter.detach().flatten() for parameter in self.ddp.parameters()])


def sent_bytes() -> int:
    """Return the bytes that this rank's interface has sent, headers included."""
    for text in Path("/proc/net/dev").read_text().splitlines():
        name, _, counters = text.partition(":")
        if name.strip() == INTERFACE:
            return int(counters.split()[8])
    raise RuntimeError(f"interface {INTERFACE!r} is not in /proc/net/dev; run the rank on an emulated link")


def tensor_bytes() -> int:
    """Return the bytes of all tensors that Python holds, each storage once."""
    gc.collect()
    storages = {}
    for found in gc.get_objects():
        if isinstance(found, torch.Tensor) and found.layout is torch.strided:
            storage = found.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def equal(run: Run) -> bool:
    """Return whether all ranks have the same weights and moments, bit for bit. Called on every rank.

    Checksums are compared: the tensors themselves would take the slow link longer than what is measured.
    """
    digest = hashlib.sha256()
    moments = [state[name] for state in run.optimizer.state.values() for name in sorted(state)]
    for tensor in (*run.ddp.parameters(), *run.ddp.buffers(), *filter(torch.is_tensor, moments)):
        digest.update(tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    found = torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)
    all_ranks = [torch.empty_like(found) for _ in range(dist.get_world_size())]
    dist.all_gather(all_ranks, found)
    return all(torch.equal(all_ranks[0], other) for other in all_ranks)


def all_true(values: Sequence[bool]) -> bool:
    """Return whether all values are true on all ranks. Called on every rank."""
    told = torch.tensor([float(all(values))])
    dist.all_reduce(told, op=dist.ReduceOp.MIN)
    return bool(told)


def fixed(rank: int, argument: dict[str, Any]) -> dict[str, Any]:
    """Train apart, evaluate and save; come together."""
    run = Run(rank, AdaptiveCompressor(every=EVERY))
    model_bytes = 4 * sum(parameter.numel() for parameter in run.ddp.parameters())
    as_logged, logged, apart, held = [], [], [], []
    while run.steps < 4 * EVERY:
        run.step()
        if run.steps not in LOOKED_AT:
            continue
        before = tensor_bytes()
        logged.append(run.loss())
        held.append(tensor_bytes() - before)
        with tempfile.TemporaryDirectory() as folder:
            torch.save(run.ddp.module.state_dict(), Path(folder, "model.pt"))
            other = run.task.model()
            other.load_state_dict(torch.load(Path(folder, "model.pt"), weights_only=True))
        as_logged.append(run.loss(other) == logged[-1])
        losses = [torch.zeros(1, dtype=torch.float64) for _ in range(dist.get_world_size())]
        dist.all_gather(losses, torch.tensor([logged[-1]], dtype=torch.float64))
        as_logged.append(all(bool(losses[0] == loss) for loss in losses))
    apart.append(not equal(run))
    rounds = run.compressor.outer
    ended = 0 if rounds is None else rounds.ended
    decided = [str(record.reason) for record in run.compressor.history][-1:]
    sent, since = sent_bytes(), time.perf_counter()
    run.compressor.detach()
    seconds, sent = time.perf_counter() - since, sent_bytes() - sent
    at_once = equal(run)
    for _ in range(argument["after"]):
        run.step()
    later = equal(run)
    row = {
        "saved_loss_is_logged_loss": all_true(as_logged),
        "looked": len(logged),
        "logged": [round(loss, 4) for loss in logged],
        "ranks_were_apart": all_true(apart),
        "rounds": ended,
        "decided": decided,
        "equal_at_once": all_true([at_once]),
        "equal_later": all_true([later]),
        "after": argument["after"],
        "detach_s": round(seconds, 4),
        "detach_bytes": sent,
        "model_bytes": model_bytes,
        "held_bytes": max(held),
    }
    run.compressor.close()
    return row


def resume(rank: int, argument: dict[str, Any]) -> dict[str, Any]:
    """Save in the middle of a round and go on; load and go on; compare."""

    def fresh() -> Run:
        settings = OuterSettings(delay=0)  # what is late depends on time, and a run that waits on nothing
        return Run(
            rank,
            AdaptiveCompressor(quantize(bits=4), (8, 8), controller=Static(cf=8), every=EVERY, outer=settings),
        )

    with tempfile.TemporaryDirectory() as own:
        folders: list[Any] = [own]
        dist.broadcast_object_list(folders, 0)
        folder = Path(folders[0])
        run = fresh()
        for _ in range(argument["at"]):
            run.step()
        if rank == 0:
            torch.save({"model": run.ddp.module.state_dict(), "optimizer": run.optimizer.state_dict()}, folder / "m.pt")
        checkpoint.save(folder / "gravac", run.compressor)
        for _ in range(argument["more"]):
            run.step()
        expected = run.weights()
        run.compressor.close()
        again = fresh()
        saved = torch.load(folder / "m.pt", weights_only=True)
        again.ddp.module.load_state_dict(saved["model"])
        again.optimizer.load_state_dict(saved["optimizer"])
        checkpoint.load(folder / "gravac", again.compressor)
        again.steps = argument["at"]
        for _ in range(argument["more"]):
            again.step()
        bit_for_bit = all_true([torch.equal(expected, again.weights())])
        again.compressor.close()
        dist.barrier()
    return {"resumed_bit_for_bit": bit_for_bit, "saved_after": argument["at"], "more": argument["more"]}


def changes(rank: int, argument: dict[str, Any]) -> dict[str, Any]:
    """Go all ways over; tell what each change took."""
    compressor = AdaptiveCompressor(topk, (10, 10), controller=Scripted(script=TOUR), every=(1, EVERY), dense_below=0)
    run = Run(rank, compressor)
    model_bytes = 4 * sum(parameter.numel() for parameter in run.ddp.parameters())
    seen: list[dict[str, Any]] = []
    together = []
    last: list[int] = [0, 0]

    def before(*_: object) -> None:
        last[:] = [sent_bytes(), len(compressor.changes)]

    def after(*_: object) -> None:
        if len(compressor.changes) > last[1]:
            change = compressor.changes[-1]
            seen.append(
                {
                    "step": change.step, "before": change.before, "after": change.after,
                    "seconds": round(change.seconds, 4), "bytes": sent_bytes() - last[0],
                }
            )  # fmt: skip

    run.ddp.register_forward_pre_hook(before, prepend=True)
    run.ddp.register_forward_hook(after)
    for _ in range(TOUR_STEPS):
        known = len(seen)
        run.step()
        if len(seen) > known:
            seen[-1]["tensor_bytes"] = tensor_bytes()
        if compressor.mode != "outer":
            together.append(equal(run))
    row = {"changes": seen, "equal_whenever_one": all_true(together), "model_bytes": model_bytes}
    compressor.close()
    return row


PARTS: dict[str, Callable[[int, dict[str, Any]], dict[str, Any]]] = {
    "fixed": fixed,
    "resume": resume,
    "changes": changes,
}


def trains(rank: int, world: int, argument: dict[str, Any], say: Say) -> None:
    """Run a part on a rank."""
    say(PARTS[argument["part"]](rank, argument))


def measure(book: Book, links: Sequence[str], after: int, minutes: float) -> None:
    """Run the parts that the file does not have."""
    over = until(minutes)
    todo = [(part, link) for link in links for part in PARTS if not book.find(part=part, link=link)]
    progress = Progress(len(todo))
    for part, link in todo:
        if over():
            return
        argument = {"part": part, "after": after, "at": 25, "more": 35}
        with EmulatedNetwork(2, link) as network, lines_of("tests.measure.going_over", argument, network) as rows:
            for row in rows:
                book.add({"part": part, "link": link, **row})
        progress.say(f"{part} on {link}")


def held_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return what held of ranks that train apart, as Markdown."""
    lines = ["| what | " + " | ".join(dict.fromkeys(row["link"] for row in rows)) + " |"]
    lines.append("|" + " --- |" * (len(dict.fromkeys(row["link"] for row in rows)) + 1))
    found = {(row["part"], row["link"]): row for row in rows}
    links = list(dict.fromkeys(row["link"] for row in rows))
    asked: list[tuple[str, str, Callable[[dict[str, Any]], str]]] = [
        ("ranks' weights differ while they train apart", "fixed", lambda row: _yes(row["ranks_were_apart"])),
        (
            "times that the saved file gave the logged loss",
            "fixed",
            lambda row: f"all {row['looked']}" if row["saved_loss_is_logged_loss"] else f"not all {row['looked']}",
        ),
        ("ranks are equal bit for bit after `detach`", "fixed", lambda row: _yes(row["equal_at_once"])),
        (
            "ranks are equal after native steps more",
            "fixed",
            lambda row: f"{_yes(row['equal_later'])}, after {row['after']}",
        ),
        ("a run resumed within a round has the same bits", "resume", lambda row: _yes(row["resumed_bit_for_bit"])),
        ("ranks are equal in each step of other modes", "changes", lambda row: _yes(row["equal_whenever_one"])),
        ("`detach` took, sent", "fixed", lambda row: f"{row['detach_s']:.2f} s, {row['detach_bytes'] / 1e6:.2f} MB"),
        ("bytes of the model's weights", "fixed", lambda row: f"{row['model_bytes'] / 1e6:.2f} MB"),
        ("memory that evaluation takes besides", "fixed", lambda row: f"{row['held_bytes'] / 1e6:.2f} MB"),
    ]  # fmt: skip
    for words, part, shown in asked:
        cells = [shown(found[part, link]) if (part, link) in found else "" for link in links]
        lines.append(f"| {words} | {' | '.join(cells)} |")
    return "\n".join(lines)


def changes_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return what each change took, as Markdown."""
    lines = [
        "| link | step | change | seconds | bytes sent / bytes of weights | bytes of tensors / bytes of weights |",
        "|" + " --- |" * 6,
    ]
    for row in rows:
        for change in row.get("changes", ()):
            size = row["model_bytes"]
            lines.append(
                f"| {row['link']} | {change['step']} | {change['before']} to {change['after']} | "
                f"{change['seconds']:.4f} | {change['bytes'] / size:.2f} | {change['tensor_bytes'] / size:.1f} |"
            )
    return "\n".join(lines)


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def main() -> int:
    if sys.argv[1:2] == [RANK]:
        return rank_main(trains, sys.argv[1:])
    parser = parser_of(__doc__, "docs/measurements/going_over.json")
    parser.add_argument("--links", nargs="+", default=LINKS)
    parser.add_argument("--after", type=int, default=AFTER, help="native steps after which ranks are compared again")
    parser.add_argument("--show", action="store_true", help="measure nothing, print the tables")
    options = parser.parse_args()
    book = Book(options.json)
    status = 0
    if not options.show:
        status = resumable(lambda: measure(book, options.links, options.after, options.minutes))
    if book.rows:
        print(held_table(book.rows))
        print(changes_table(book.rows))
    return status


if __name__ == "__main__":
    raise SystemExit(main())
