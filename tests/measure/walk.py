# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The way of a gradient through the package: functions that a compressed step enters, and calls that go upward.

Two ranks on gloo train a small DDP model of two buckets with top-k at CF 10. After some steps that warm up and let DDP
rebuild its buckets, rank 0 profiles single steps, on every thread: the thread of backward from the communication hook
of the first bucket until ``backward()`` returns, which is after the last bucket's future has its result and after the
end of backward; the other threads until all work of the step has ended.

- A *function* is a function or method of the package, closures included; lambdas, comprehensions and generator
  expressions are no functions, and no callers either. A generator is entered when it first runs; resumptions do not
  count.
- The *caller* of a function is the nearest function of the package on the stack of that thread.
- A *climb* is the entry of a function whose layer is above the layer of its caller, by ``tests.packaging.layers``. Two
  functions between which climbs happen are a *climbing edge*.
- The way *from averaging on* is what the threads other than that of backward enter once ``START`` is entered.

Threads take turns differently from step to step, so that counts differ by a few; ``STEPS`` steps are profiled, and the
printed way is that of the step with the median number of functions.

    python -m tests.measure.walk [--json FILE]
"""

import argparse
import dis
import inspect
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

import gravac
from gravac import AdaptiveCompressor, Static, topk
from tests.distributed.training import batch, network, sgd, train
from tests.measure.results import Rows, keep
from tests.packaging.layers import LAYERS, layer_of, room_of
from tests.ranks import processes

START = "averaging/average.py:Averager.average"
"""Function that the second count starts from."""

BUCKET_MB = 0.12
"""Size of a bucket, MiB, with which the model comes to two buckets."""

WARM = 8
"""Steps before the first one that is profiled."""

STEPS = 5
"""Steps that are profiled."""

FOLDER = os.path.dirname(gravac.__file__) + os.sep


@dataclass(frozen=True)
class Function:
    """A function of the package.

    Attributes:
        path: its file, from the package's folder on.
        name: its qualified name in that file.
    """

    path: str
    name: str

    def __str__(self) -> str:
        return f"{self.path}:{self.name}"

    @property
    def module(self) -> str:
        """Dotted name of its module."""
        return ".".join(["gravac", *Path(self.path).with_suffix("").parts]).removesuffix(".__init__")


@dataclass(frozen=True)
class Entry:
    """The entry of a function.

    Attributes:
        thread: name of the thread that entered it.
        function: the function.
        caller: the nearest function of the package on the stack; ``None`` if there is none.
    """

    thread: str
    function: Function
    caller: Function | None

    @property
    def climbs(self) -> bool:
        """True if the function lies in a layer above its caller's."""
        return self.caller is not None and layer_of(self.function.module) > layer_of(self.caller.module)


@dataclass(frozen=True)
class Walk:
    """The counts of one way.

    Attributes:
        functions: distinct functions by thread, each in order of first entry; a function is listed once.
        climbs: number of entries that climb, by caller and function.
    """

    functions: dict[str, list[Function]]
    climbs: Counter[tuple[Function, Function]]

    @property
    def number(self) -> int:
        """Number of distinct functions."""
        return sum(map(len, self.functions.values()))

    def row(self, what: str) -> dict[str, Any]:
        """Return the counts as a row of the record."""
        entered = [function for functions in self.functions.values() for function in functions]
        return {
            "what": what,
            "functions": self.number,
            "files": len({function.path for function in entered}),
            "climbs": self.climbs.total(),
            "climbing_edges": len(self.climbs),
        }


class Profile:
    """Records entries of the package's functions, by ``sys.setprofile``, on every thread that was given it.

    Attributes:
        on: whether entries are recorded.
    """

    def __init__(self) -> None:
        self.on = False
        self._entered: list[tuple[str, CodeType, CodeType | None]] = []

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Take an event of the interpreter."""
        if self.on and event == "call" and is_function(frame.f_code) and not resumes(frame):
            self._entered.append((threading.current_thread().name, frame.f_code, caller_of(frame)))

    def take(self) -> list[Entry]:
        """Return the entries recorded since the last call."""
        entered, self._entered = self._entered, []
        return [
            Entry(thread, function_of(code), None if caller is None else function_of(caller))
            for thread, code, caller in entered
        ]


def is_function(code: CodeType) -> bool:
    """Return whether code is of a function of the package, and has a name of its own."""
    return code.co_filename.startswith(FOLDER) and not code.co_name.startswith("<")


def function_of(code: CodeType) -> Function:
    """Return the function that code is of."""
    path = Path(code.co_filename.removeprefix(FOLDER)).as_posix()
    return Function(path, getattr(code, "co_qualname", code.co_name))  # from Python 3.11 on


def caller_of(frame: FrameType) -> CodeType | None:
    """Return the code of the nearest function of the package below a frame; ``None`` if there is none."""
    below = frame.f_back
    while below is not None and not is_function(below.f_code):
        below = below.f_back
    return None if below is None else below.f_code


def resumes(frame: FrameType) -> bool:
    """Return whether a frame that is entered is of a generator that has run before."""
    if not frame.f_code.co_flags & inspect.CO_GENERATOR or frame.f_lasti < 0:
        return False
    operation, argument = frame.f_code.co_code[frame.f_lasti : frame.f_lasti + 2]
    return dis.opname[operation] != "RESUME" or argument & 3 != 0  # 0: at the start of a function


def walk(entries: Sequence[Entry]) -> Walk:
    """Count the entries of one step."""
    functions: dict[str, list[Function]] = {}
    listed: set[Function] = set()
    for thread in dict.fromkeys(entry.thread for entry in entries):
        own = dict.fromkeys(entry.function for entry in entries if entry.thread == thread)
        functions[thread] = [function for function in own if function not in listed]
        listed.update(own)
    climbs = Counter((entry.caller, entry.function) for entry in entries if entry.caller is not None and entry.climbs)
    return Walk(functions, climbs)


def from_averaging(entries: Sequence[Entry]) -> list[Entry]:
    """Return what the threads of the exchange enter from ``START`` on.

    Raises:
        ValueError: no thread enters ``START``.
    """
    first = next((i for i, entry in enumerate(entries) if str(entry.function) == START), None)
    if first is None:
        raise ValueError(f"no thread entered {START}; set START in tests/measure/walk.py to where averaging starts")
    backward = threading.main_thread().name
    return [entry for entry in entries[first:] if entry.thread != backward]


def profiled(rank: int, world: int) -> list[list[Entry]]:
    """Train on one rank; return the entries of each profiled step."""
    profile = Profile()
    threading.setprofile(profile)  # which the threads get that the compressor starts
    ddp = DistributedDataParallel(network(), bucket_cap_mb=BUCKET_MB)
    optimizer = sgd(ddp)
    steps: list[list[Entry]] = []
    with AdaptiveCompressor(topk, cf_range=(10, 1000), controller=Static(cf=10)) as compressor:
        compressor.attach(ddp, optimizer)
        train(ddp, optimizer, rank, range(WARM))
        sizes = ddp._get_ddp_logging_data()["rebuilt_bucket_sizes"]
        assert len(sizes.split(",")) == 2, f"the model has buckets of {sizes} bytes"
        for step in range(WARM, WARM + STEPS):
            assert compressor.cf == 10  # and waits for all work of earlier steps
            x, y = batch(rank, step)
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(ddp(x), y)
            profile.on = True
            sys.setprofile(profile)
            loss.backward()
            sys.setprofile(None)
            optimizer.step()
            assert compressor.cf == 10
            profile.on = False
            steps.append(profile.take())
    return steps


def numbered(way: Walk) -> Iterator[str]:
    """Give a line for every function of a way, numbered, below the thread and the file."""
    number = 0
    for thread, functions in way.functions.items():
        yield f"thread {thread}"
        path = ""
        for function in functions:
            if function.path != path:
                path = function.path
                yield f"  {path} ({layer_of(function.module)} {room_of(function.module)})"
            number += 1
            yield f"  {number:4d}  {function.name}"


def rows(steps: Sequence[Walk], later: Sequence[Walk]) -> Rows:
    """Return the record: counts of the printed step with those of all steps beside them, its way and its climbs.

    Args:
        steps: ways of the profiled steps.
        later: the same from averaging on.
    """
    printed = median(steps)
    shown = steps[printed]
    counts = [
        {
            **ways[printed].row(what),
            "functions_of_steps": [way.number for way in ways],
            "climbs_of_steps": [way.climbs.total() for way in ways],
        }
        for what, ways in (("whole step", steps), ("from averaging on", later))
    ]
    ways = [
        {"what": "way", "thread": thread, "functions": [str(function) for function in functions]}
        for thread, functions in shown.functions.items()
    ]
    edges = [[str(caller), str(function), count] for (caller, function), count in shown.climbs.items()]
    return [*counts, *ways, {"what": "climbs", "edges": edges}]


def median(steps: Sequence[Walk]) -> int:
    """Return the position of the step with the median number of functions."""
    return sorted(range(len(steps)), key=lambda position: steps[position].number)[len(steps) // 2]


def main() -> None:
    """Profile, print, and keep the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="write the record to this file")
    arguments = parser.parse_args()
    entries = processes(profiled, 2)[0]
    steps, later = [walk(step) for step in entries], [walk(from_averaging(step)) for step in entries]
    record = rows(steps, later)
    shown = steps[median(steps)]
    print("\n".join(numbered(shown)))
    print("\nclimbs, by edge; layers of", len(LAYERS))
    for (caller, function), count in shown.climbs.items():
        print(f"  {count:3d}  {caller} -> {function}")
    for row in record[:2]:
        print("\n" + row["what"])
        for name in ("functions", "files", "climbs", "climbing_edges", "functions_of_steps", "climbs_of_steps"):
            print(f"  {name.replace('_', ' '):<20}{row[name]}")
    if arguments.json:
        keep(record, arguments.json)


if __name__ == "__main__":
    main()
