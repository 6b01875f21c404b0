# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Record the runs: each once without a stop, and once stopped, saved and resumed by new objects."""

import io
import time
from collections.abc import Iterable
from pathlib import Path

import torch

from gravac.exchange.lockstep import Lockstep
from tests.golden.cases import CASES, Case
from tests.golden.ranks import Net, Plain
from tests.golden.script import Script, scripted
from tests.ranks import processes

LATENCY = 3
"""Most exchanges from a measurement to its decision, see ``Executor``."""

ELEMENTS = sum(parameter.numel() for parameter in Net().parameters())


def record(out: Path, cases: Iterable[str]) -> None:
    """Record cases, one file each: a recording of each rank, by name.

    Args:
        out: folder of the files.
        cases: names of the cases.
    """
    out.mkdir(parents=True, exist_ok=True)
    for name in cases:
        began = time.monotonic()
        by_process = processes(recorded, 1 if CASES[name].in_memory else CASES[name].ranks, name)
        ranks = [recording for recordings in by_process for recording in recordings]
        torch.save({f"rank {rank}": recording for rank, recording in enumerate(ranks)}, out / f"{name}.pt")
        decided = ranks[0]["uninterrupted"]["decided"]
        changes = sum(decision["changed"] for decision in decided)
        took = time.monotonic() - began
        print(f"{name}: recorded, {len(decided)} decisions, {changes} of them changes ({took:.0f} s)", flush=True)


def recorded(rank: int, world: int, name: str) -> list[Plain]:
    """Return a recording of each rank in this process, ``rank`` alone unless the ranks are in memory."""
    case = CASES[name]
    end = case.steps + case.more
    with scripted(ELEMENTS) as script:
        whole = Run(case, rank, script)
        whole.train(range(end))
        uninterrupted = whole.results()
    with scripted(ELEMENTS) as script:
        stopped = Run(case, rank, script)
        stopped.train(range(case.steps))
        saved = stopped.save()
        beginnings = stopped.end()
    del whole, stopped
    with scripted(ELEMENTS) as script:
        more = Run(case, rank, script, saved)
        more.train(range(case.steps, end))
        resumed = more.results()
    for without, beginning, rest in zip(uninterrupted, beginnings, resumed, strict=True):
        rest["losses"] = torch.cat([beginning["losses"], rest["losses"]])
        numbers = {candidate["step"]: number for number, candidate in enumerate(without["ran"])}  # of exchanges
        # a checkpoint may have the clocks of exchanges that ranks had not agreed on, and so their records, or not
        last = max((numbers.get(candidate["step"], 0) for candidate in beginning["ran"]), default=0) + LATENCY
        more_ran = [candidate for candidate in rest["ran"] if numbers.get(candidate["step"], last + 1) > last]
        rest["ran"] = beginning["ran"] + more_ran
    pairs = zip(uninterrupted, resumed, strict=True)
    return [{"uninterrupted": without, "resumed": with_stop} for without, with_stop in pairs]


class Run:
    """The ranks of a case that are in this process, as they train.

    Args:
        case: what they train.
        rank: number of the only rank, unless the ranks are in memory.
        script: answers for clocks.
        saved: what a stopped run saved; nothing starts anew.
    """

    def __init__(self, case: Case, rank: int, script: Script, saved: bytes = b"") -> None:
        checkpoint = torch.load(io.BytesIO(saved), weights_only=True) if saved else {"made": {}, "ranks": {}}
        self._case, self._script = case, script
        script.made = checkpoint["made"]
        self._lockstep = Lockstep(case.ranks, host_looks=False, seconds=1e-3) if case.in_memory else None
        executors = {rank: None} if self._lockstep is None else dict(enumerate(self._lockstep.executors))
        self._ranks = {
            number: case.rank(number, case.settings, case.optimizer, executor, checkpoint["ranks"].get(number))
            for number, executor in executors.items()
        }
        self._losses: list[torch.Tensor] = []

    def train(self, steps: range) -> None:
        """Make steps, by their numbers."""
        ranks = self._ranks.values()
        for step in steps:
            if step == self._case.falls_at:
                for rank in ranks:
                    rank.optimizer.param_groups[0]["lr"] /= 10
            self._losses.append(torch.stack([rank.leave(step) for rank in ranks]))
            if self._lockstep is not None:
                self._lockstep.run()
            for rank in ranks:
                rank.arrive()

    def save(self) -> bytes:
        """Return a file of all that another run resumes from."""
        file = io.BytesIO()
        states = {number: rank.state_dict() for number, rank in self._ranks.items()}
        torch.save({"made": self._script.made, "ranks": states}, file)
        return file.getvalue()

    def results(self) -> list[Plain]:
        """Return what each rank came to, and end them."""
        finals = [rank.final() for rank in self._ranks.values()]
        return [{**final, **end} for final, end in zip(finals, self.end(), strict=True)]

    def end(self) -> list[Plain]:
        """Close what compresses; return the losses and decisions of each rank."""
        losses = torch.stack(self._losses, dim=1)
        ends = [rank.end() for rank in self._ranks.values()]
        return [{"losses": own, **end} for own, end in zip(losses, ends, strict=True)]
