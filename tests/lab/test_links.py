# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Links have their rates when they should, and nothing of them is left, however their owner ends."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from gravac.lab.links import network as links
from gravac.lab.links.link import Phase, parse_link
from gravac.lab.links.link_rate import stream, tcp_rate
from gravac.lab.links.network import LinkError, Network, available, netem_missing, remove_leftovers
from gravac.lab.links.owner import mark, orphaned, started
from gravac.lab.links.schedule import Schedule

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
from gravac.lab.links.network import Network
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
    def refuse(self: Network, phase: Phase) -> None:
        raise LinkError("no tbf")

    monkeypatch.setattr(Network, "apply", refuse)
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
@pytest.mark.parametrize(("words", "rate"), [("40mbit/15mbit", 15e6), ("15mbit/40mbit", 15e6)])
def test_each_direction_has_its_own_rate(words: str, rate: float) -> None:
    """A worker's upload meets another's download: the slower of the two holds, whichever it is."""
    with Network(2, parse_link(words)) as network:
        assert 0.9 * rate <= tcp_rate(network, 0.7) <= rate
        network.apply(Phase(0, 40e6, 40e6))
        assert 0.9 * 40e6 <= tcp_rate(network, 0.7) <= 40e6


@needs_namespaces
def test_upload_is_on_the_worker_and_download_on_the_hub() -> None:
    with Network(2, parse_link("40mbit/15mbit")) as network:
        shown = [
            json.loads(
                subprocess.run(["tc", "-n", name, "-j", "qdisc", "show", "dev", device], capture_output=True).stdout
            )
            for name, device in ((network.namespace(1), "eth0"), (network.hub, "p1"))
        ]
    assert [qdisc[0]["options"]["rate"] * 8 for qdisc in shown] == [15e6, 40e6]


@needs_namespaces
def test_unthrottled_is_faster_than_any_bucket_here_and_can_be_throttled_and_freed() -> None:
    with Network(2, parse_link("unthrottled")) as network:
        free = tcp_rate(network, 0.4)
        network.set_rate(1, 20e6)
        slow = tcp_rate(network, 0.4)
        network.apply(network.link.phases[0])
        assert slow <= 20e6 < 10 * slow < min(free, tcp_rate(network, 0.4))


@needs_namespaces
def test_schedule_is_applied_in_time_and_traffic_follows() -> None:
    """From a rate whose segments are larger than the next rate's bucket: none may stay stuck in the queue."""
    with Network(2, parse_link("400mbit,1s:20mbit,2.5s:400mbit")) as network, Schedule(network) as schedule:
        with stream(network, 4.5) as samples:
            time.sleep(0.5)
            began = time.monotonic()
            schedule.start()
        changes = schedule.changes
    assert [change.asked for change in changes] == [1, 2.5]
    assert all(0 <= change.applied - change.asked <= 0.2 for change in changes)

    def rate(start: float, end: float) -> float:
        within = [sample for sample in samples if began + start <= sample.at <= began + end]
        return (within[-1].received - within[0].received) * 8 / (within[-1].at - within[0].at)

    assert rate(0, 1) > 100e6
    assert 10e6 < rate(1.5, 2.5) < 25e6
    assert rate(3, 4) > 100e6


@needs_namespaces
def test_rate_may_fall_while_traffic_flows_without_a_schedule() -> None:
    with Network(2, 400e6) as network, stream(network, 2) as samples:
        time.sleep(0.5)
        for worker in range(2):
            network.set_rate(worker, 40e6)
        fell = time.monotonic()
    after = [sample for sample in samples if sample.at > fell + 0.5]
    assert (after[-1].received - after[0].received) * 8 / (after[-1].at - after[0].at) < 45e6


class Recorder(Network):
    """A network that only notes what it is asked for."""

    def __init__(self, words: str, failing: bool = False) -> None:
        super().__init__(2, parse_link(words))
        self.asked: list[Phase] = []
        self.failing = failing

    def apply(self, phase: Phase) -> None:
        if self.failing and self.asked:
            raise LinkError("the link is gone")
        self.asked.append(phase)


def test_schedule_begins_anew_with_each_run_and_ends_with_it() -> None:
    network = Recorder("1gbit,0.5s:50mbit,3600s:1gbit")
    for _ in range(2):
        with Schedule(network) as schedule:
            schedule.start()
            time.sleep(0.8)
            schedule.start()  # no second time
        assert len(schedule.changes) == 1
    assert network.asked == [*network.link.phases[:2]] * 2


def test_schedule_that_was_never_started_applies_the_first_phase_only() -> None:
    network = Recorder("1gbit,0.5s:50mbit")
    with Schedule(network) as schedule:
        time.sleep(0.6)
    assert network.asked == [network.link.phases[0]]
    assert not schedule.changes


def test_error_in_a_schedule_is_raised_where_its_block_ends_but_hides_no_other() -> None:
    with pytest.raises(LinkError, match="the link is gone"), Schedule(Recorder("1gbit,0.5s:50mbit", True)) as schedule:
        schedule.start()
        time.sleep(0.7)
    with pytest.raises(KeyboardInterrupt), Schedule(Recorder("1gbit,0.5s:50mbit", True)) as schedule:
        schedule.start()
        time.sleep(0.7)
        raise KeyboardInterrupt


@needs_namespaces
def test_interface_counters_grow_by_what_is_sent() -> None:
    with Network(2, 100e6) as network:
        before = [network.interface_bytes(worker) for worker in range(2)]
        with stream(network, 0.5) as samples:
            pass
        after = [network.interface_bytes(worker) for worker in range(2)]
        (_, received), (sent, _) = [(b[0] - a[0], b[1] - a[1]) for a, b in zip(before, after, strict=True)]
        assert network.interface_counters(1).sent_packets > 0
    assert received == pytest.approx(sent, rel=0.01)  # they are not read at the same moment
    assert 1 < sent / samples[-1].received < 1.1


@needs_namespaces
def test_netem_is_tried_without_a_trace() -> None:
    before = namespaces()
    reason = netem_missing()
    assert namespaces() == before
    assert reason is None or "netem" in reason


@needs_namespaces
def test_delay_without_netem_is_refused_with_the_reason_and_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    reason = "the kernel has no netem (sch_netem): latency and loss are unavailable"
    monkeypatch.setattr(links, "netem_missing", lambda: reason)
    for words in ("100mbit+20ms", "100mbit+0.1%"):
        network = Network(2, parse_link(words))
        with pytest.raises(LinkError) as refused, network:
            pass
        assert reason in str(refused.value)
        assert words in str(refused.value)
        assert "leave out" in str(refused.value)
        assert network.hub not in namespaces()


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
