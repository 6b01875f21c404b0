# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Links have their rate, and nothing of them is left, however their owner ends."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gravac.lab.links import LinkError, Network, available, remove_leftovers
from gravac.lab.owner import mark, orphaned, started

pytestmark = pytest.mark.timeout(60)

REASON = available()
needs_namespaces = pytest.mark.skipif(REASON is not None, reason=f"no network namespaces here: {REASON}")

RECEIVE = """
import socket, sys
listener = socket.create_server((sys.argv[1], 5000))
print("ready", flush=True)
connection, _ = listener.accept()
left = int(sys.argv[2])
while left > 0:
    left -= len(connection.recv(1 << 16))
connection.sendall(b"x")
"""

SEND = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], 5000))
began = time.perf_counter()
connection.sendall(bytes(int(sys.argv[2])))
connection.recv(1)
print(int(sys.argv[2]) * 8 / (time.perf_counter() - began))
"""

OWNER = """
import json, subprocess, sys, time
from gravac.lab.links import Network
with Network(2, 1e8) as network:
    inside = subprocess.Popen([*network.prefix(0), "sleep", "600"])
    print(json.dumps([network.hub, network.namespace(0), network.namespace(1), inside.pid]), flush=True)
    time.sleep(600)
"""


def namespaces() -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return [line.split()[0] for line in listed.splitlines()]


def runs(pid: int) -> bool:
    """Whether a process is alive; one that nobody waited for is not."""
    return started(pid) is not None


@pytest.fixture
def owner() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.wait()
    assert process.stdout
    process.stdout.close()
    remove_leftovers()


def names_and_pid(owner: "subprocess.Popen[str]") -> tuple[list[str], int]:
    assert owner.stdout
    *names, pid = json.loads(owner.stdout.readline())
    return names, pid


@needs_namespaces
def test_network_exists_inside_its_block_and_not_after() -> None:
    with Network(3, 1e8) as network:
        mine = {network.hub, *(network.namespace(worker) for worker in range(3))}
        assert mine <= set(namespaces())
    assert not mine & set(namespaces())


@needs_namespaces
def test_network_is_removed_when_its_block_raises_with_a_process_inside() -> None:
    with pytest.raises(KeyboardInterrupt), Network(2, 1e8) as network:
        inside = subprocess.Popen([*network.prefix(1), "sleep", "600"])
        raise KeyboardInterrupt
    assert inside.wait(timeout=5) == -signal.SIGKILL
    assert not any(name in namespaces() for name in (network.hub, network.namespace(0), network.namespace(1)))


@needs_namespaces
def test_half_made_network_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Network, worker: int, rate: float) -> None:
        raise LinkError("no tbf")

    monkeypatch.setattr(Network, "set_rate", refuse)
    network = Network(2, 1e8)
    with pytest.raises(LinkError, match="no tbf"), network:
        pass
    assert network.hub not in namespaces()


@needs_namespaces
def test_leftovers_of_a_killed_owner_are_removed_at_the_next_start(owner: "subprocess.Popen[str]") -> None:
    names, inside = names_and_pid(owner)
    owner.kill()  # SIGKILL: it cannot clean up
    owner.wait()
    assert set(names) <= set(namespaces())
    assert runs(inside)
    with Network(2, 1e8):
        assert not set(names) & set(namespaces())
        assert not runs(inside)


@needs_namespaces
def test_network_of_a_living_owner_is_left_alone(owner: "subprocess.Popen[str]") -> None:
    names, inside = names_and_pid(owner)
    assert not set(names) & set(remove_leftovers())
    assert set(names) <= set(namespaces())
    assert runs(inside)


@needs_namespaces
@pytest.mark.parametrize("rate", [20e6, 100e6, 1000e6])
def test_tcp_reaches_the_rate_within_a_tenth(rate: float) -> None:
    size = str(int(rate / 8))  # a second's worth
    with Network(2, rate) as network:
        receiver = subprocess.Popen(
            [*network.prefix(0), sys.executable, "-c", RECEIVE, network.address(0), size], stdout=subprocess.PIPE
        )
        with receiver:
            assert receiver.stdout and receiver.stdout.readline()
            sender = [*network.prefix(1), sys.executable, "-c", SEND, network.address(0), size]
            reached = float(subprocess.run(sender, capture_output=True, text=True, check=True, timeout=30).stdout)
    assert 0.9 * rate <= reached <= rate


@needs_namespaces
def test_workers_see_their_own_network_only() -> None:
    with Network(2, 1e8) as network:
        shown = subprocess.run(
            [*network.prefix(1), "ip", "-br", "address"], capture_output=True, text=True, check=True
        ).stdout
    assert sorted(line.split("@")[0].split()[0] for line in shown.splitlines()) == ["eth0", "lo"]
    assert network.address(1) in shown


@pytest.mark.parametrize("workers", [0, 1, 9])
def test_number_of_workers_is_refused_by_name(workers: int) -> None:
    with pytest.raises(ValueError, match=f"workers: {workers} is outside 2 to 8"):
        Network(workers, 1e8)


def test_reason_why_not_is_given_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr("shutil.which", lambda tool: f"/sbin/{tool}")
    assert available() == "making network namespaces needs root"
    monkeypatch.setattr("shutil.which", lambda tool: None)
    assert "apt install iproute2" in str(available())


def test_owner_is_told_by_pid_and_start_time() -> None:
    living = f"{mark()}-0-hub"
    assert not orphaned(living)
    _, pid, start, *_ = living.split("-")
    assert orphaned(f"gravac-{pid}-{int(start) + 1}-0-hub")  # the pid is in use again
    assert not orphaned("gravac-something-else")
