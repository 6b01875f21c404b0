# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What the user asked for, to the letter, on two real ranks: over the machine's own link, and over a slow one.

A slow link is made of network namespaces, as root or where the kernel allows them without; elsewhere the test pauses
around collectives, in proportion to their bytes, and says so.
"""

import importlib.metadata
import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gravac import AdaptiveCompressor, GraVAC, topk
from gravac.collectives import AllReduce, Traffic
from gravac.compressors import Compressor, Context, Reduced, Rounds
from gravac.compressors.base import energy
from gravac.exchange.group import GroupTransport

ROOT = Path(__file__).parents[1]

SLOW_MBIT_PER_S = 8.0

IN_NAMESPACES = ("unshare", "--user", "--map-root-user", "--mount", "--net")
"""Command under which a user who is not root may create network namespaces, if the kernel allows it."""

CANDIDATES = (10.0, 20.0, 40.0, 160.0, 1000.0)

pytestmark = pytest.mark.timeout(600)


# what runs on each rank


class EveryNth(Compressor):
    """A compressor of this test's own: sends one element in ``cf``, others in each step."""

    name: ClassVar[str] = "every_nth"
    contractive: ClassVar[bool] = True
    one_round: ClassVar[bool] = True
    error_feedback: ClassVar[float] = 0.5

    def traffic(self, shape: tuple[int, ...], cf: float, dtype: torch.dtype, world: int = 2) -> tuple[Traffic, ...]:
        """See ``Compressor``."""
        return (Traffic(AllReduce, math.ceil(math.prod(shape) / cf) * 4),)

    def rounds(self, x: torch.Tensor, cf: float, ctx: Context) -> Rounds:
        """See ``Compressor``."""
        step = round(cf)
        mine = torch.zeros_like(x)
        mine[ctx.step % step :: step] = x[ctx.step % step :: step]
        values = mine[ctx.step % step :: step].clone()
        total = yield AllReduce(values)
        mean = torch.zeros_like(x)
        mean[ctx.step % step :: step] = total / ctx.world
        return Reduced(mean=mean, sent=mine, cf=x.numel() / max(1, values.numel()))

    def errors(self, x: torch.Tensor, cfs: Sequence[float], ctx: Context) -> list[torch.Tensor]:
        """See ``Compressor``."""
        return [energy(x) * (1 - 1 / round(cf)) for cf in cfs]


def train(compressor: AdaptiveCompressor, has_optimizer: bool, steps: int) -> dict[str, Any]:
    """Train a small network by a user's loop; return what the run says, and what DDP's hook ran."""
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(128, 128), torch.nn.Tanh())]
    ddp = DistributedDataParallel(torch.nn.Sequential(*layers, torch.nn.Linear(128, 10)), bucket_cap_mb=0.1)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.02, momentum=0.9)
    compressor.attach(ddp, optimizer) if has_optimizer else compressor.attach(ddp)
    adapter, cfs_in_hook = compressor._attachment.source, []
    hook = adapter.hook

    def noting(bucket: dist.GradBucket) -> Any:
        cfs_in_hook.append(compressor.cf)
        return hook(bucket)

    adapter.hook = noting  # type: ignore[method-assign]
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(steps):
        inputs = torch.randn(16, 128, generator=generator)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(ddp(inputs), inputs[:, :10].argmax(1)).backward()
        optimizer.step()
    weights = torch.cat([parameter.detach().flatten() for parameter in ddp.parameters()])
    sums = [torch.zeros_like(weights) for _ in range(dist.get_world_size())]
    dist.all_gather(sums, weights)
    compressor.close()
    return {
        "decisions": [(record.step, record.mode, record.cf, record.reason) for record in compressor.history],
        "cfs_in_hook": cfs_in_hook,
        "same_weights": all(torch.equal(other, weights) for other in sums),
        "finite": bool(torch.isfinite(weights).all()),
    }


def users_line(folder: str, has_optimizer: bool) -> dict[str, Any]:
    compressor = AdaptiveCompressor(topk, cf_range=(10, 1000), log_dir=f"{folder}/runs/vgg")
    return train(compressor, has_optimizer, 120)


def epsilon_refuses(folder: str, has_optimizer: bool) -> dict[str, Any]:
    controller = GraVAC(epsilon=0.9999, epsilon_mode="absolute", window=8, warmup=2)
    return train(AdaptiveCompressor(topk, (10, 1000), controller=controller), has_optimizer, 40)


def omega_ends(folder: str, has_optimizer: bool) -> dict[str, Any]:
    controller = GraVAC(epsilon=1e-9, epsilon_mode="absolute", omega=0.99, window=8, warmup=2)
    return train(AdaptiveCompressor(topk, (10, 1000), controller=controller), has_optimizer, 60)


def own_compressor(folder: str, has_optimizer: bool) -> dict[str, Any]:
    return train(AdaptiveCompressor(EveryNth(), cf_range=(10, 1000), log_dir=f"{folder}/own"), has_optimizer, 60)


def rank_main(name: str, has_optimizer: str, folder: str) -> None:
    """Run one of the functions above on a rank, and write what it returned."""
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    if "MISSION_PAUSES" in os.environ:
        _pause_in_collectives()
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    found = globals()[name](folder, has_optimizer == "True")
    Path(folder, f"found{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def _pause_in_collectives() -> None:
    """Pause before each of gravac's collectives for the time that its bytes would take over the slow link."""
    launch = GroupTransport._launch

    def slow(self: GroupTransport, request: Any) -> Any:
        before = self.ledger.wire_bytes
        pending = launch(self, request)
        time.sleep(8 * (self.ledger.wire_bytes - before) / (SLOW_MBIT_PER_S * 1e6))
        return pending

    GroupTransport._launch = slow  # type: ignore[method-assign]


# how ranks are started


def drive(name: str, has_optimizer: str, folder: str, link: str) -> None:
    """Start both ranks over a link and wait for them. With a link, this process may create network namespaces."""
    from gravac.lab.links.network import INTERFACE, EmulatedNetwork

    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}

    def ranks(prefixes: Sequence[Sequence[str]], interface: str) -> int:
        processes = [
            subprocess.Popen(
                [*prefix, sys.executable, "-m", __spec__.name, "rank", name, has_optimizer, folder],
                env={**environment, "RANK": str(rank), "GLOO_SOCKET_IFNAME": interface},
                cwd=ROOT,
            )
            for rank, prefix in enumerate(prefixes)
        ]
        return max(abs(process.wait(timeout=500)) for process in processes)

    if link == "none":
        sys.exit(ranks([[], []], "lo"))
    if link == "pauses":
        os.environ["MISSION_PAUSES"] = environment["MISSION_PAUSES"] = "1"
        sys.exit(ranks([[], []], "lo"))
    with EmulatedNetwork(2, f"{SLOW_MBIT_PER_S:g}mbit") as network:
        status = ranks([network.prefix(0), network.prefix(1)], INTERFACE)
    sys.exit(status)


def _slow_link() -> tuple[str, tuple[str, ...]]:
    """Return how a slow link can be made here, and the prefix of the command of a process that makes it."""
    if not all(map(shutil.which, ("ip", "tc"))):
        return "pauses", ()
    mounting = (*IN_NAMESPACES, "sh", "-c", 'mount -t tmpfs tmpfs /run && exec "$@"', "sh")
    for prefix in ((), mounting):
        trial = [*prefix, "sh", "-c", "ip netns add gravac-mission-trial && ip netns delete gravac-mission-trial"]
        if shutil.which(trial[0]) and subprocess.run(trial, capture_output=True, check=False).returncode == 0:
            return "namespaces", prefix
    return "pauses", ()


def on_ranks(name: str, has_optimizer: bool, folder: Path, slow: bool) -> list[dict[str, Any]]:
    """Run one of the functions above on two ranks; return what each returned."""
    link, prefix = _slow_link() if slow else ("none", ())
    if link == "pauses":
        print("no network namespaces here: the slow link is made of pauses around gravac's collectives")
    command = [*prefix, sys.executable, "-m", __name__, "drive", name, str(has_optimizer), str(folder), link]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=550, check=False)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-6000:]
    return [json.loads((folder / f"found{rank}.json").read_text()) for rank in range(2)]


# the tests


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the curves of TensorBoard's event files in a folder: step and value, by tag."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


@pytest.mark.parametrize(("slow", "has_optimizer"), [(False, True), (False, False), (True, True), (True, False)])
def test_the_users_line_runs_gravac(slow: bool, has_optimizer: bool, tmp_path: Path) -> None:
    first, second = on_ranks("users_line", has_optimizer, tmp_path, slow)
    assert first["decisions"] == second["decisions"]
    assert first["cfs_in_hook"] == second["cfs_in_hook"]
    assert all(found["same_weights"] and found["finite"] for found in (first, second))
    assert {10.0} < {*first["cfs_in_hook"]}, "the CF is switched in DDP's hook, beginning with top-k 10x"
    curves = scalars(tmp_path / "runs" / "vgg")
    evaluated = {cf for cf in first["cfs_in_hook"] if cf != 1.0}
    points_by_cf = {
        cf: [step for step, at in curves["gravac/cf"] if math.isclose(at, cf, rel_tol=1e-3)] for cf in evaluated
    }
    assert all(points_by_cf.values()), (points_by_cf, curves["gravac/cf"])
    for tag, low in (("gravac/gain", -1.0), ("gravac/t_system", 0.0), ("gravac/t_compression", 0.0)):
        values = dict(curves[tag])
        assert values and all(low <= value < math.inf for value in values.values()), tag
    assert all(0.0 <= gain <= 1.0 + 1e-6 for _, gain in curves["gravac/gain"])


def test_epsilon_refuses_a_cf(tmp_path: Path) -> None:
    first, second = on_ranks("epsilon_refuses", True, tmp_path, slow=True)
    assert first["decisions"] == second["decisions"]
    reasons = [reason for *_, reason in first["decisions"]]
    assert any(re.search(r"gain 0\.\d+ at .*is below ε 1", reason) for reason in reasons), reasons


def test_omega_ends_the_search(tmp_path: Path) -> None:
    first, second = on_ranks("omega_ends", True, tmp_path, slow=True)
    assert first["decisions"] == second["decisions"]
    reasons = [reason for *_, reason in first["decisions"]]
    assert any("saturates: it differs by at most 99 % (ω)" in reason for reason in reasons), reasons


def test_a_users_own_compressor_is_wrapped_the_same_way(tmp_path: Path) -> None:
    first, second = on_ranks("own_compressor", True, tmp_path, slow=True)
    assert first["decisions"] == second["decisions"]
    assert first["same_weights"] and first["finite"]
    assert 10.0 in first["cfs_in_hook"]
    assert scalars(tmp_path / "own")["gravac/gain"]


def test_gains_by_multi_level_compression_equal_direct_ones() -> None:
    x = torch.randn(10_000, generator=torch.Generator().manual_seed(0)) ** 3
    context = Context(name="w", step=0, rank=0, world=1, shape=(100, 100), seed=0)
    for cf, error in zip(CANDIDATES, topk.errors(x, CANDIDATES, context), strict=True):
        kept = x.abs().topk(math.ceil(x.numel() / cf)).values
        assert float(error) == pytest.approx(float(energy(x) - energy(kept)), rel=1e-4), cf


PACKAGES = ("torch", "numpy", "pydantic", "tensorboard")

ALONE = """
import importlib.abc, importlib.machinery, sys

refused = {refused!r}

class Refuse(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):  # torch asks for packages that it does not import
        return importlib.machinery.ModuleSpec(name, self) if name.split(".")[0] in refused else None

    def create_module(self, spec):
        raise ModuleNotFoundError(f"{{spec.name}} is no package that gravac may import", name=spec.name)

    def exec_module(self, module):
        pass

sys.meta_path.insert(0, Refuse())
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo", init_method="file://{folder}/store", rank=0, world_size=1)
ddp = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
from gravac import AdaptiveCompressor, topk
compressor = AdaptiveCompressor(topk, cf_range=(10, 1000), log_dir="{folder}/runs")
compressor.attach(ddp)
for _ in range(5):
    optimizer.zero_grad()
    ddp(torch.ones(2, 64)).sum().backward()
    optimizer.step()
compressor.close()
dist.destroy_process_group()
print("trained")
"""


def modules_of(packages: Sequence[str]) -> set[str]:
    """Return the top-level modules of packages and of all packages that these require, extras left out."""
    modules_by_package: dict[str, set[str]] = {}
    for module, names in importlib.metadata.packages_distributions().items():
        for name in names:
            modules_by_package.setdefault(_normal(name), set()).add(module)
    waiting, seen = [*map(_normal, packages)], set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            requirements = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:  # for another platform
            continue
        waiting += [_normal(re.split(r"[^\w.-]", text)[0]) for text in requirements if "extra ==" not in text]
    return {module for name in seen for module in modules_by_package.get(name, set())}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_it_runs_with_the_four_packages_alone(tmp_path: Path) -> None:
    refused = {*importlib.metadata.packages_distributions()} - modules_of(PACKAGES) - {"gravac"}
    assert {"pytest", "hypothesis", "rich"} <= refused
    script = ALONE.format(refused=refused, folder=tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
    ran = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.stdout == "trained\n", ran.stderr[-4000:]


def test_the_top_level_is_what_the_user_asked_for() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split(
        "\n"
    )
    if not any(listed):
        pytest.skip("not in a git repository")
    folders = {path.split("/")[0] for path in listed if "/" in path and not path.startswith(".")}
    assert folders == {"gravac", "policies", "tests", "examples", "docs"}
    assert "pyproject.toml" in listed


if __name__ == "__main__":
    {"rank": rank_main, "drive": drive}[sys.argv[1]](*sys.argv[2:])
