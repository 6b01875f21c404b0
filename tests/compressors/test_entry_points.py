# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A compressor and a controller of another package, those that the docs show, are known wherever a name is."""

import io
import os
import re
import runpy
import subprocess
import sys
import warnings
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from tests.packaging.pages import example
from tests.ranks import processes

ROOT = Path(__file__).parents[2]

CLIMB = '''

class Climb(Climb):
    """The documented controller, which looks once an epoch."""

    def for_run(self, steps_per_epoch: int) -> "Climb":
        return self(steps=steps_per_epoch)
'''

OFFERED = """
[gravac.compressors]
comb = throwaway_comb:comb

[gravac.controllers]
climb = throwaway_climb:Climb
"""

SPOILT = """
[gravac.compressors]
gone = nowhere_to_be_found:gone
topk = throwaway_comb:comb
another = throwaway_comb:comb
the_class = throwaway_comb:Comb

[gravac.controllers]
comb = throwaway_comb:comb
"""

COSTS = """
    coding_costs: ClassVar = ((10, 2.0, 1.5), (1000, 1.0, 0.5))
    efficiency_points: ClassVar = ((1, 1.0), (10, 0.9), (1000, 0.3))
"""
"""What the documented compressor leaves to whoever has measured it."""

POLICY = """
base = "comb"
cf_range = [10, 1000]
[controller]
name = "climb"
steps = 20
"""


def install(folder: Path, package: str, offered: str) -> None:
    """A distribution as pip leaves one behind."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(offered)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    feedback = "    error_feedback: ClassVar[float] = 0.5\n"
    assert feedback in example("Comb")
    (folder / "throwaway_comb.py").write_text(example("Comb").replace(feedback, feedback + COSTS))
    (folder / "throwaway_climb.py").write_text(example("Climb") + CLIMB)
    (folder / "policy.toml").write_text(POLICY)
    install(folder, "throwaway", OFFERED)
    return folder


def ran(rank: int, world: int, path: list[str], code: str, arguments: Sequence[str], told: str) -> str:
    """What a program printed and warned of, in a process that has imported gravac, and asked it for no name yet."""
    os.chdir(path[0])
    os.environ["COLUMNS"] = "200"
    sys.path[:0] = path
    sys.argv[1:] = arguments
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said), warnings.catch_warnings():
        warnings.simplefilter(told, UserWarning)  # type: ignore[arg-type]
        Path("program.py").write_text(code, encoding="utf-8")
        runpy.run_path("program.py", run_name="__main__")
    return said.getvalue()


def python(site: Path, code: str, *arguments: str, told: str = "error", spoilt: Sequence[Path] = ()) -> str:
    """What a program printed, with the throwaway package on its path; all of it must end well."""
    path = [str(folder) for folder in (site, *spoilt, ROOT)]
    return str(processes(ran, 1, path, code, arguments, told)[0])


def gravac(site: Path, *arguments: str) -> str:
    return python(
        site, "import sys; from gravac.cli import main; assert main(sys.argv[1:]) == 0", *arguments, told="default"
    )


def test_both_obey_every_law(site: Path) -> None:
    python(
        site,
        """
import torch
torch.set_num_threads(1)
from gravac import COMPRESSORS
from gravac.testing import compressor_laws as conformance
from gravac.controllers import CONTROLLERS
from gravac.testing import controller_laws as of_controllers
assert "comb" in COMPRESSORS and COMPRESSORS["comb"] is COMPRESSORS["comb"]
assert list(COMPRESSORS)[-1] == "comb" and list(CONTROLLERS)[-1] == "climb"
for law in conformance.LAWS:
    law(COMPRESSORS["comb"])
for law in of_controllers.LAWS:
    law(CONTROLLERS["climb"]())
""",
    )


def test_goodput_starts_with_it_where_the_link_says(site: Path) -> None:
    """Candidates know its efficiency, and coding and exchange by its own costs: on a slow link it is the start."""
    python(
        site,
        """
import torch
from gravac import AdaptiveCompressor
from gravac.averaging.average import Averager
from gravac.averaging.feedback import Feedback
from gravac.exchange.link_probe import LinkProbe
from gravac.engine.admission import admit
with AdaptiveCompressor("comb", (4, 1000), controller="goodput") as compressor:
    policy = compressor.policy
averager = Averager(policy.base, policy.dense_format, None, 1024, Feedback())
averager.world = 2
link = LinkProbe(latency=5e-5, bandwidth=1e8, copy_bytes_per_s=1e10)
forecasts = admit(policy, averager, [((1024, 1024), torch.float32)], link).forecasts
ours = next(known for known in forecasts if known.candidate.compressor == "comb" and known.candidate.cf == 4)
assert (ours.efficiency, ours.coding_s) == (0.9385, float(f"{3.5 * 4 * 2**20 / 1e10:.3g}")), ours
assert ours.exchange_s is not None
state, first = policy.controller.start(forecasts)
assert str(first.candidate) == "comb 4x" and "gravac expects" in first.reason, first
""",
    )


def test_policies_know_both_by_name(site: Path) -> None:
    python(
        site,
        """
from gravac import AdaptiveCompressor
from gravac.lab.training.expression import compressor, controller
from gravac.lab.training.methods import Method
with AdaptiveCompressor.from_policy("policy.toml") as one:
    assert (one.policy.base.name, one.policy.controller.name, one.policy.controller.steps) == ("comb", "climb", 20)
with AdaptiveCompressor("comb", controller="climb", steps_per_epoch=390) as one:
    assert one.policy.controller.steps == 390
assert compressor("comb").name == "comb" and controller("climb(steps=5)").steps == 5
assert Method.parse("climb:comb@10-100").base.name == "comb"
""",
    )
    assert re.search(r"controller\.steps +20", gravac(site, "policies", "policy.toml"))


def test_bench_and_advise_list_it(site: Path) -> None:
    pytest.importorskip("rich")
    few = ("--elements", "4096", "--cf", "10", "--repeats", "1", "--only", "comb", "topk")
    assert re.search(r"\bcomb +10\b", gravac(site, "bench", "compressors", *few))
    asked = ["advise", "--model", "resnet50", "--batch-seconds", "0.3", "--link", "1gbit", "--workers", "2", "--all"]
    done = subprocess.run(
        [sys.executable, "-m", "gravac", *asked],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (site, ROOT))), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"\bcomb +hook +100 +1\b.*\b0\.52\b", done.stdout)


def test_replay_tells_what_the_controller_would_have_decided(site: Path) -> None:
    python(
        site,
        """
from pathlib import Path
from gravac import load_policy
from tests.test_replay import record_run
record_run(Path("run.jsonl"), load_policy("policy.toml"), steps=120)
""",
    )
    said = gravac(site, "replay", "run.jsonl", "--policy", "policy.toml")
    assert "decisions: the same as recorded" in said


def test_what_cannot_be_loaded_is_told_when_asked_for_and_left_out_of_lists(site: Path, tmp_path: Path) -> None:
    install(tmp_path, "spoilt", SPOILT)
    said = python(
        site,
        """
import warnings
from gravac import COMPRESSORS, AdaptiveCompressor, topk
from gravac.controllers import CONTROLLERS
from gravac.costmodel import Machine
from gravac.lab.advise.choices import candidates
from gravac.lab.bench.bench import Bench
from gravac.lab.training.methods import Method
assert COMPRESSORS["topk"] is topk and AdaptiveCompressor("comb").policy.base.name == "comb"
def asked_for(name):
    yield lambda: AdaptiveCompressor(name)
    yield lambda: Method.parse(name + "@10")
    yield lambda: Bench(only=(name,))
    yield lambda: candidates([name], None, Machine(1e9))
for name, why in (
    ("gone", "compressor 'gone': nowhere_to_be_found:gone of package spoilt 1.0 cannot be loaded (ModuleNotFoundError"),
    ("another", "calls itself 'comb'"),
    ("the_class", "is not a compressor; let the entry point name a compressor object"),
):
    for ask in asked_for(name):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ask()
        except ValueError as error:
            assert why in str(error), error
        else:
            raise AssertionError(name)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    assert list(CONTROLLERS) == list(CONTROLLERS)
assert "climb" in list(CONTROLLERS) and "comb" not in list(CONTROLLERS)
assert ["is not a controller class" in str(one.message) for one in caught] == [True], caught
print(sorted(COMPRESSORS))
""",
        told="always",
        spoilt=[tmp_path],
    )
    assert "compressor 'topk' of package spoilt 1.0 is refused: gravac itself has a compressor of that name" in said
