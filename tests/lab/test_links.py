# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Links have their rates when they should, and nothing of them is left, however their owner ends."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import pytest

from gravac.lab.links import network as links
from gravac.lab.links import rootless
from gravac.lab.links.link import Phase, parse_link
from gravac.lab.links.network import EmulatedNetwork, LinkError, emulation_obstacle, netem_obstacle, remove_leftovers
from gravac.lab.links.owner import is_orphaned, owner_mark, pid_scope, start_ticks
from gravac.lab.links.rootless import IN_USER_NAMESPACE

HUNG = 120.0
"""Seconds after which a test gives up on what should have happened; no test passes by waiting for so long."""

REASON = emulation_obstacle()
needs_namespaces = pytest.mark.skipif(REASON is not None, reason=f"no network namespaces here: {REASON}")

RECEIVE = """
import socket, sys
listener = socket.create_server((sys.argv[1], 5000))
print("ready", flush=True)
connection, _ = listener.accept()
size, *marks = map(int, sys.argv[2:])
came = 0
while came < size:
    came += len(connection.recv(1 << 16)) or sys.exit("the sender is gone")
    while marks and came >= marks[0]:
        print(marks.pop(0), flush=True)
connection.sendall(b"x")
"""

SEND = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], 5000))
began = time.perf_counter()
connection.sendall(bytes(int(sys.argv[2])))
connection.recv(1)
print(time.perf_counter() - began)
"""

OWNER = """
import json, subprocess, sys, time
from gravac.lab.links.network import EmulatedNetwork
with EmulatedNetwork(2, 1e8) as network:
    inside = subprocess.Popen([*network.prefix(0), "sleep", "600"])
    print(json.dumps([network.hub, network.namespace(0), network.namespace(1), inside.pid]), flush=True)
    time.sleep(600)
"""


def namespaces() -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return [line.split()[0] for line in listed.splitlines()]


@contextmanager
def sending(network: EmulatedNetwork, size: int, *marks: int) -> Iterator[tuple[IO[str], "subprocess.Popen[str]"]]:
    """Sends so many bytes from worker 1 to worker 0; a line comes for each number of bytes in ``marks`` that arrived.

    Ends when all are there. The sender prints the seconds from the first byte until it hears so: no fewer than the link
    needs, and any more on a busy machine.
    """
    listening = [*network.prefix(0), sys.executable, "-c", RECEIVE, network.address(0), *map(str, (size, *marks))]
    telling = [*network.prefix(1), sys.executable, "-c", SEND, network.address(0), str(size)]
    with subprocess.Popen(listening, stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout and receiver.stdout.readline()
        with subprocess.Popen(telling, stdout=subprocess.PIPE, text=True) as sender:
            try:
                yield receiver.stdout, sender
                assert (sender.wait(HUNG), receiver.wait(HUNG)) == (0, 0)
            finally:
                sender.kill()
                receiver.kill()


def most(network: EmulatedNetwork, size: int) -> float:
    """Bits per second that a stream of so many bytes came to; a busy machine makes it less, nothing makes it more."""
    with sending(network, size) as (_, sender):
        assert sender.stdout
        seconds = float(sender.stdout.readline())
    return 8 * size / seconds


def shaping(network: EmulatedNetwork, worker: int) -> list[dict[str, Any]]:
    """What holds a worker's upload, and its download."""
    places = ((network.namespace(worker), "eth0"), (network.hub, f"p{worker}"))
    shown = [["tc", "-n", name, "-j", "qdisc", "show", "dev", device] for name, device in places]
    return [json.loads(subprocess.run(command, capture_output=True, check=True).stdout)[0] for command in shown]


def rates(network: EmulatedNetwork, worker: int) -> list[float | None]:
    """Bits per second of a worker's upload and download, as the kernel has them; ``None`` is not limited."""
    found = shaping(network, worker)
    assert {qdisc["kind"] for qdisc in found} <= {"tbf", "noqueue"}
    return [8 * qdisc["options"]["rate"] if qdisc["kind"] == "tbf" else None for qdisc in found]


def runs(pid: int) -> bool:
    """Whether a process is alive; one that nobody waited for is not."""
    return start_ticks(pid) is not None


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
    with EmulatedNetwork(3, 1e8) as network:
        mine = {network.hub, *(network.namespace(worker) for worker in range(3))}
        assert mine <= set(namespaces())
    assert not mine & set(namespaces())


@needs_namespaces
def test_network_is_removed_when_its_block_raises_with_a_process_inside() -> None:
    with pytest.raises(KeyboardInterrupt), EmulatedNetwork(2, 1e8) as network:
        inside = subprocess.Popen([*network.prefix(1), "sleep", "600"])
        raise KeyboardInterrupt
    assert inside.wait(HUNG) == -signal.SIGKILL
    assert not any(name in namespaces() for name in (network.hub, network.namespace(0), network.namespace(1)))


@needs_namespaces
def test_half_made_network_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: EmulatedNetwork, phase: Phase) -> None:
        raise LinkError("no tbf")

    monkeypatch.setattr(EmulatedNetwork, "apply", refuse)
    network = EmulatedNetwork(2, 1e8)
    with pytest.raises(LinkError, match="no tbf"), network:
        pass
    assert network.hub not in namespaces()


@needs_namespaces
def test_what_a_living_owner_has_is_left_alone_and_what_a_killed_owner_left_is_removed_at_the_next_start(
    owner: "subprocess.Popen[str]",
) -> None:
    names, inside = names_and_pid(owner)
    assert not set(names) & set(remove_leftovers())
    assert set(names) <= set(namespaces())
    assert runs(inside)
    owner.kill()  # SIGKILL: it cannot clean up
    owner.wait()
    with EmulatedNetwork(2, 1e8):
        assert not set(names) & set(namespaces())
        assert not runs(inside)


@needs_namespaces
@pytest.mark.parametrize("rate", [20e6, 100e6, 1000e6])
def test_no_stream_is_faster_than_its_link(rate: float) -> None:
    """How close it comes depends on the machine, too."""
    with EmulatedNetwork(2, rate) as network:
        assert rates(network, 0) == rates(network, 1) == [rate, rate]
        assert most(network, int(rate / 8 / 4)) <= rate


@needs_namespaces
@pytest.mark.parametrize(("words", "rate"), [("40mbit/15mbit", 15e6), ("15mbit/40mbit", 15e6)])
def test_each_direction_has_its_own_rate(words: str, rate: float) -> None:
    """A worker's upload meets another's download: the slower of the two holds, whichever it is."""
    with EmulatedNetwork(2, parse_link(words)) as network:
        assert most(network, 400_000) <= rate
        network.apply(Phase(0, 40e6, 40e6))
        assert rates(network, 0) == rates(network, 1) == [40e6, 40e6]


@needs_namespaces
def test_upload_is_on_the_worker_and_download_on_the_hub() -> None:
    with EmulatedNetwork(2, parse_link("40mbit/15mbit")) as network:
        assert [rates(network, worker) for worker in range(2)] == [[15e6, 40e6]] * 2


@needs_namespaces
def test_a_rank_may_have_a_link_of_its_own() -> None:
    with EmulatedNetwork(2, parse_link("40mbit,rank1:30mbit/15mbit")) as network:
        assert [rates(network, worker) for worker in range(2)] == [[40e6, 40e6], [15e6, 30e6]]
    with pytest.raises(ValueError, match="names rank2; ranks are 0 to 1"):
        EmulatedNetwork(2, "40mbit,rank2:30mbit")


@needs_namespaces
def test_unthrottled_has_no_bucket_and_can_be_throttled_and_freed() -> None:
    with EmulatedNetwork(2, parse_link("unthrottled")) as network:
        assert rates(network, 0) == rates(network, 1) == [None, None]
        network.set_rate(1, 20e6)
        assert rates(network, 0) == [None, None] and rates(network, 1) == [20e6, 20e6]
        assert most(network, 500_000) <= 20e6
        network.apply(network.link.phases[0])
        assert rates(network, 0) == rates(network, 1) == [None, None]
        assert most(network, 500_000) > 0


@needs_namespaces
@pytest.mark.parametrize("known", [True, False], ids=["phases of the link", "unforeseen"])
def test_a_stream_goes_on_when_rates_fall_and_rise(known: bool) -> None:
    """From a rate whose segments are larger than the next rate's bucket: none may stay stuck in the queue."""
    link = parse_link("400mbit,1s:20mbit,2s:400mbit" if known else "400mbit")
    with EmulatedNetwork(2, link) as network, sending(network, 3_000_000, 250_000, 1_000_000) as (arrived, _):
        for rate in (20e6, 400e6):
            assert arrived.readline()
            network.apply(Phase(0, rate, rate))
            assert rates(network, 0) == rates(network, 1) == [rate, rate]


@needs_namespaces
def test_a_rate_that_fell_while_traffic_flowed_holds() -> None:
    with EmulatedNetwork(2, 400e6) as network:
        with sending(network, 1_000_000, 250_000) as (arrived, _):
            assert arrived.readline()
            for worker in range(2):
                network.set_rate(worker, 40e6)
        assert most(network, 1_000_000) <= 40e6


@needs_namespaces
def test_interface_counters_grow_by_what_is_sent() -> None:
    size = 500_000  # which the queue holds: nothing is dropped and sent again
    with EmulatedNetwork(2, 100e6) as network:
        before = [network.interface_bytes(worker) for worker in range(2)]
        with sending(network, size):
            pass
        after = [network.interface_bytes(worker) for worker in range(2)]
        (_, received), (sent, _) = [(b[0] - a[0], b[1] - a[1]) for a, b in zip(before, after, strict=True)]
        assert network.interface_counters(1).sent_packets > 0
    assert size < received < 1.1 * size  # a bucket may cut segments on their way: more headers arrive than left
    assert size < sent < 1.1 * size


@needs_namespaces
def test_netem_is_tried_without_a_trace() -> None:
    reason = netem_obstacle()
    assert not [name for name in namespaces() if name.startswith(f"{owner_mark()}-")]
    assert reason is None or "netem" in reason


@needs_namespaces
def test_delay_without_netem_is_refused_with_the_reason_and_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = "the kernel has no netem (sch_netem): latency and loss are unavailable"
    monkeypatch.setattr(links, "netem_obstacle", lambda: reason)
    for words in ("100mbit+20ms", "100mbit+0.1%"):
        network = EmulatedNetwork(2, parse_link(words))
        with pytest.raises(LinkError) as refused, network:
            pass
        assert reason in str(refused.value)
        assert words in str(refused.value)
        assert "leave out" in str(refused.value)
        assert network.hub not in namespaces()


@needs_namespaces
def test_workers_see_their_own_network_only() -> None:
    with EmulatedNetwork(2, 1e8) as network:
        shown = subprocess.run(
            [*network.prefix(1), "ip", "-br", "address"], capture_output=True, text=True, check=True
        ).stdout
    assert sorted(line.split("@")[0].split()[0] for line in shown.splitlines()) == ["eth0", "eth1", "lo"]
    assert network.address(1) in shown


@pytest.mark.parametrize("workers", [0, 1, 9])
def test_number_of_workers_is_refused_by_name(workers: int) -> None:
    with pytest.raises(ValueError, match=f"workers: {workers} is outside 2 to 8"):
        EmulatedNetwork(workers, 1e8)


def test_reason_why_not_is_given_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr("shutil.which", lambda tool: f"/sbin/{tool}")
    assert "needs root, or a kernel that allows user namespaces" in str(emulation_obstacle())
    monkeypatch.setattr("shutil.which", lambda tool: None)
    assert "apt install iproute2" in str(emulation_obstacle())


UNPRIVILEGED = ("unshare", "--user", "--map-user=1000", "--map-group=1000")

RESTARTED = f"""
import os, runpy, subprocess, sys
def run(program, command):
    prefix = command[: command.index(sys.executable)]
    asked = "from gravac.lab.links.network import emulation_obstacle; print(os.geteuid(), emulation_obstacle())"
    subprocess.run([*prefix, sys.executable, "-c", "import os;" + asked], check=True)
os.execvp = run
runpy.run_path({rootless.__file__!r})["restart_in_user_namespace"]()  # without the package, whose import is slow
print(os.geteuid())
"""


@needs_namespaces
def test_who_is_not_root_gets_namespaces_from_a_kernel_that_allows_it() -> None:
    nested = [*UNPRIVILEGED, *IN_USER_NAMESPACE, "true"]
    if not shutil.which("unshare") or subprocess.run(nested, capture_output=True, check=False).returncode:
        pytest.skip("this kernel allows no user namespace in a user namespace")
    command = [*UNPRIVILEGED, sys.executable, "-c", RESTARTED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HUNG, check=True)
    assert done.stdout.splitlines() == ["0 None", "1000"]


def test_owner_is_told_by_pid_start_time_and_place() -> None:
    living = f"{owner_mark()}-0-hub"
    assert not is_orphaned(living)
    _, pid, start, here, *_ = living.split("-")
    assert here == pid_scope()
    assert is_orphaned(f"gravac-{pid}-{int(start) + 1}-{here}-0-hub")  # the pid is in use again
    assert is_orphaned(f"gravac-{2**30}-{start}-{here}-0-hub")  # no such pid
    assert not is_orphaned("gravac-something-else")


def test_what_belongs_to_another_machine_or_pid_namespace_is_left_alone() -> None:
    """There the pid may be alive: it says nothing here."""
    _, pid, start, here = owner_mark().split("-")
    other = f"{int(here, 16) ^ 1:08x}"
    assert not is_orphaned(f"gravac-{pid}-{int(start) + 1}-{other}-0-hub")
    assert not is_orphaned(f"gravac-{pid}-{int(start) + 1}-0-hub"), "of a version that did not tell the place"
    assert not is_orphaned(f"gravac-{pid}-unknown-{here}-0-hub")
    assert not is_orphaned(f"gravac-{pid}-{int(start) + 1}-unknown-0-hub")
