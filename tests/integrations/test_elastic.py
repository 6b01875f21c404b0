# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""torchrun over several "machines": one that is lost, and a rank that fails; training goes on from the checkpoint.

As root on Linux each machine is a network namespace, behind an emulated link; elsewhere all are on loopback. Long runs
start torchrun itself; the test of each day has the same agents and ranks in processes that are forked.
"""

import multiprocessing
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from gravac.lab.links import network as links
from tests.ranks import PRELOADED

EXAMPLE = Path(__file__).parents[2] / "examples" / "torchrun_elastic.py"

PATIENCE = 280.0
"""Seconds after which a test gives up; agents and ranks of torchrun start three times within it, beside other tests."""

pytestmark = pytest.mark.timeout(400)

APART = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""A store of its own for every start: in a shared one gloo finds the addresses of the start before."""


RENDEZVOUS = {"keep_alive_interval": 1, "keep_alive_max_attempt": 3, "last_call_timeout": 2, "join_timeout": 60}
"""A machine that is gone is missed after three beats of a second; who may join late is waited for as long."""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("", 0))
        return int(found.getsockname()[1])


class Machines:
    """Agents of torchrun, one for each machine, and what they said."""

    def __init__(self, folder: Path, count: int, least: int, network: links.EmulatedNetwork | None) -> None:
        self.folder, self._least, self._count, self._network = folder, least, count, network
        self.agents: list[subprocess.Popen[bytes]] = []

    def start(self, *arguments: str) -> None:
        host = "localhost" if self._network is None else self._network.address(0)
        configured = ",".join(f"{name}={setting}" for name, setting in RENDEZVOUS.items())
        port = free_port()
        interface = "lo" if self._network is None else links.INTERFACE
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": interface, "OMP_NUM_THREADS": "1", **APART}
        for machine in range(self._count):
            command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", f"{self._least}:{self._count}"]
            command += ["--nproc-per-node", "1", "--max-restarts", "2", "--rdzv-backend", "c10d", "--rdzv-id", "run"]
            command += ["--rdzv-endpoint", f"{host}:{port}", "--local-addr", self._own(machine)]
            command += ["--rdzv-conf", f"{configured},is_host={machine == 0}".lower()]
            prefix = [] if self._network is None else self._network.prefix(machine)
            with self._log(machine).open("wb") as log:
                self.agents.append(
                    subprocess.Popen(
                        [*prefix, *command, str(EXAMPLE), "--folder", str(self.folder), *arguments],
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        env=environment,
                        start_new_session=True,
                    )
                )

    def _own(self, machine: int) -> str:
        return "localhost" if self._network is None else self._network.address(machine)

    def _log(self, machine: int) -> Path:
        return self.folder / f"machine{machine}.log"

    def said(self) -> str:
        """All that was said by now."""
        return "".join(self._log(machine).read_text(errors="replace") for machine in range(self._count))

    def until(self, words: str) -> str:
        """Wait until somebody has said something."""
        end = time.monotonic() + PATIENCE
        while words not in self.said():
            assert time.monotonic() < end, f"nobody said {words!r}:\n{self.said()[-6000:]}"
            time.sleep(0.1)
        return self.said()

    def lose(self, machine: int) -> None:
        """End an agent and its ranks at once, as a machine that is switched off."""
        agent = self.agents[machine].pid
        ranks = subprocess.run(["pgrep", "-P", str(agent)], capture_output=True, text=True, check=True).stdout.split()
        for process in (agent, *map(int, ranks)):
            os.kill(process, signal.SIGKILL)

    def end(self) -> None:
        for agent in self.agents:
            if agent.poll() is None:
                os.killpg(agent.pid, signal.SIGTERM)
        for agent in self.agents:
            try:
                agent.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(agent.pid, signal.SIGKILL)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def machines(place: ExitStack, folder: Path, count: int, least: int) -> Machines:
    here = links.emulation_obstacle() is None
    network = place.enter_context(links.EmulatedNetwork(count, 1e9)) if here else None
    made = Machines(folder, count, least, network)
    place.callback(made.end)
    return made


def example(*arguments: str) -> None:
    """A rank: the example as ``python`` runs it, which prints with what words the script exits."""
    sys.argv = [str(EXAMPLE), *arguments]
    try:
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    except SystemExit as left:
        print(left, flush=True)
        raise


def agent(machine: int, port: int, folder: Path, *arguments: str) -> None:
    """Do what torchrun does on a machine, with ranks that are forked."""
    os.environ.update({"GLOO_SOCKET_IFNAME": "lo", **APART})
    config = LaunchConfig(
        min_nodes=2,
        max_nodes=2,
        nproc_per_node=1,
        run_id="run",
        rdzv_backend="c10d",
        rdzv_endpoint=f"localhost:{port}",
        rdzv_configs={**RENDEZVOUS, "is_host": machine == 0},
        max_restarts=2,
        start_method="fork",
        local_addr="localhost",
        logs_specs=DefaultLogsSpecs(log_dir=str(folder / f"machine{machine}"), redirects=Std.OUT),
    )
    elastic_launch(config, example)("--folder", str(folder), *arguments)


def test_a_rank_that_fails_is_started_anew_with_all_that_was_kept(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED])
    given = free_port(), tmp_path, "--steps", "18", "--every", "5", "--fail-at", "12"
    agents = [context.Process(target=agent, args=(machine, *given)) for machine in range(2)]
    for process in agents:
        process.start()
    end = time.monotonic() + PATIENCE
    for process in agents:
        process.join(max(0.0, end - time.monotonic()))
    for process in agents:
        process.terminate()  # ends its ranks, too
        process.join(20)
        process.kill()
    said = "".join(log.read_text() for log in sorted(tmp_path.glob("machine*/**/stdout.log")))
    assert [process.exitcode for process in agents] == [0, 0], said
    assert "2 ranks, from step 0" in said and "fails in step 12" in said and "2 ranks, from step 10" in said
    assert "step 18: loss" in said


@pytest.mark.long
def test_a_rank_of_torchrun_that_fails_is_started_anew_with_all_that_was_kept(place: ExitStack, tmp_path: Path) -> None:
    pair = machines(place, tmp_path, 2, 2)
    pair.start("--steps", "30", "--fail-at", "15")
    said = pair.until("step 30: loss")
    assert "2 ranks, from step 0" in said and "fails in step 15" in said and "2 ranks, from step 10" in said


@pytest.mark.long
def test_when_a_machine_is_lost_the_others_go_on(place: ExitStack, tmp_path: Path) -> None:
    three = machines(place, tmp_path, 3, 2)
    three.start("--steps", "100000", "--every", "5")
    three.until("3 ranks, from step 0")
    while not (tmp_path / "latest").exists():
        time.sleep(0.05)
    three.lose(2)
    said = three.until("2 ranks, from step ")
    at = int(said.split("2 ranks, from step ")[1].split()[0])
    assert at >= 5 and at % 5 == 0
    while int((tmp_path / "latest").read_text()) <= at:
        time.sleep(0.05)
