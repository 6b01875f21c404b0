# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Emulates links: each worker runs in its own network namespace, and a bridge connects the workers at the links' rates.

An additional namespace, the hub, contains the bridges, so that the machine's own network does not change. The kernel's
token bucket filter (tbf) limits the rates::

    worker 0: eth0 == p0 :hub: p1 == eth0 :worker 1        tbf on eth0: upload; tbf on p0, p1: download
              eth1 == c0 :hub: c1 == eth1                  a second bridge, without a limit

The name of a namespace identifies the process that owns the namespace. So a new network recognises and removes the
namespaces that a killed process left behind. ``gravac.lab.links.link`` describes links, and
``gravac.lab.links.schedule`` changes their rates over time.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple

from gravac.lab.links.link import Link, Phase, parse_link
from gravac.lab.links.owner import is_orphaned, owner_mark
from gravac.lab.links.rates import parse_rate

INTERFACE = "eth0"
"""Name of the emulated link's interface in each worker's namespace: the value of ``GLOO_SOCKET_IFNAME``."""

CONTROL_INTERFACE = "eth1"
"""Name of a worker's second interface, whose rate is not limited, for traffic that must not be measured."""

MAX_WORKERS = 8
"""Maximum number of workers of an emulated network."""

LARGEST_SEGMENT = 65_536
"""Largest number of bytes that TCP by default hands to an interface at once."""

_network_numbers = itertools.count()


class LinkError(RuntimeError):
    """A namespace or link could not be created; the message has the command and the command's output."""


class InterfaceCounters(NamedTuple):
    """Bytes and packets that an interface has sent and received, headers included."""

    sent: int
    received: int
    sent_packets: int
    received_packets: int


class EmulatedNetwork:
    """Network namespaces of workers, connected by emulated links; a ``with`` block creates and removes them.

    Args:
        workers: number of workers, 2 to 8.
        link: link of every worker, as a ``Link``, as text, or as a rate of both directions in bits per second. Links
            are full duplex: upload and download do not share a rate. The network applies the link's first phase;
            ``gravac.lab.links.schedule`` applies the others.

    Raises:
        ValueError: the number of workers or the link is out of range.
        LinkError: raised on entering: the network could not be created, or the kernel does not support the link.

    Example:
        >>> with EmulatedNetwork(2, 100e6) as network:                                        # doctest: +SKIP
        ...     subprocess.run([*network.prefix(0), "ip", "address"])
    """

    def __init__(self, workers: int, link: Link | str | float) -> None:
        if not 2 <= workers <= MAX_WORKERS:
            raise ValueError(f"workers: {workers} is outside 2 to {MAX_WORKERS}; use 2")
        self.workers = workers
        self.link = _as_link(link)
        if unknown_ranks := [rank for rank, _ in self.link.of_ranks if rank >= workers]:
            raise ValueError(f"link: {str(self.link)!r} names rank{unknown_ranks[0]}; ranks are 0 to {workers - 1}")
        self._name_stem = f"{owner_mark()}-{next(_network_numbers)}"
        self._has_impairments = bool(self.link.delay_ms or self.link.loss_percent)
        self._max_segment_bytes = LARGEST_SEGMENT
        if self.link.lowest_rate_bps is not None:
            # A segment with headers must fit the smallest token bucket. Then tbf need not cut segments, and no
            # segment gets stuck when rates fall.
            self._max_segment_bytes = min(
                self._max_segment_bytes, int(_token_bucket_bytes(self.link.lowest_rate_bps) / 1.05)
            )

    @property
    def hub(self) -> str:
        """Name of the namespace that contains the bridges."""
        return f"{self._name_stem}-hub"

    def namespace(self, worker: int) -> str:
        """Return the name of a worker's namespace."""
        return f"{self._name_stem}-w{worker}"

    def address(self, worker: int) -> str:
        """Return a worker's IPv4 address."""
        return f"10.77.0.{worker + 1}"

    def prefix(self, worker: int) -> list[str]:
        """Return the prefix of a command line that runs in a worker's namespace; the prefix starts no extra process."""
        return ["ip", "netns", "exec", self.namespace(worker)]

    def set_rate(self, worker: int, rate: float) -> None:
        """Set both directions of a worker's link to a rate in bits per second; may be called while traffic flows."""
        self._set_rates({worker: Phase(0.0, rate, rate)})

    def apply(self, phase: Phase) -> None:
        """Set every worker's link to the rates of a phase, in both directions; may be called while traffic flows."""
        self._set_rates({worker: self.link.rates_of_rank(worker, phase) for worker in range(self.workers)})

    def interface_bytes(self, worker: int) -> tuple[int, int]:
        """Return the bytes that a worker's link has sent and received so far, headers included."""
        counters = self.interface_counters(worker)
        return counters.sent, counters.received

    def interface_counters(self, worker: int, interface: str = INTERFACE) -> InterfaceCounters:
        """Return the bytes and packets that a worker's interface has sent and received so far.

        A large segment that the link does not cut into packets counts as one packet with one header.
        """
        (interface_state,) = json.loads(
            _run_command("ip", "-n", self.namespace(worker), "-s", "-j", "link", "show", interface)
        )
        sent_counters, received_counters = interface_state["stats64"]["tx"], interface_state["stats64"]["rx"]
        return InterfaceCounters(
            sent_counters["bytes"], received_counters["bytes"], sent_counters["packets"], received_counters["packets"]
        )

    def __enter__(self) -> EmulatedNetwork:
        remove_leftovers()
        if self._has_impairments and (missing_reason := netem_obstacle()) is not None:
            raise LinkError(
                f"link {str(self.link)!r}: {missing_reason}; leave out +ms and +%, or use a kernel that has netem "
                "(modprobe sch_netem loads the module)"
            )
        try:
            self._create()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill the processes in the namespaces and remove the namespaces.

        May be called twice, and on a network that was created only in part.
        """
        try:
            self._remove_namespaces()
        except BaseException:  # a signal interrupted the removal
            self._remove_namespaces()
            raise

    def _create(self) -> None:
        """Create the namespaces, bridges and interfaces, and apply the link's first phase."""
        _run_command("ip", "netns", "add", self.hub)
        for bridge in ("br0", "br1"):
            _ip(self.hub, f"link add {bridge} type bridge")
            _ip(self.hub, f"link set {bridge} addrgenmode none up")
        for worker in range(self.workers):
            namespace, hub_interface = self.namespace(worker), f"p{worker}"
            _run_command("ip", "netns", "add", namespace)
            _ip(namespace, "link set lo up")
            self._connect(worker, INTERFACE, hub_interface, "br0", self.address(worker))
            self._connect(worker, CONTROL_INTERFACE, f"c{worker}", "br1", f"10.78.0.{worker + 1}")
            if self._max_segment_bytes < LARGEST_SEGMENT:
                try:
                    _ip(namespace, f"link set {INTERFACE} gso_max_size {self._max_segment_bytes}")
                except LinkError:  # an old kernel: tbf cuts segments, and a lower rate starts with an empty queue
                    self._max_segment_bytes = LARGEST_SEGMENT
            if self._has_impairments:
                for device_namespace, device in ((namespace, INTERFACE), (self.hub, hub_interface)):
                    qdisc = ("qdisc", "add", "dev", device, "root", "handle", "1:", *self._netem_arguments())
                    _run_command("tc", "-n", device_namespace, *qdisc)
        self.apply(self.link.phases[0])

    def _connect(self, worker: int, interface: str, hub_interface: str, bridge: str, address: str) -> None:
        """Connect a worker to a bridge of the hub by a pair of interfaces.

        Args:
            worker: number of the worker.
            interface: name of the interface in the worker's namespace.
            hub_interface: name of the pair's interface in the hub.
            bridge: name of the bridge.
            address: IPv4 address of the worker's interface.
        """
        namespace = self.namespace(worker)
        _ip(namespace, f"link add {interface} type veth peer name {hub_interface} netns {self.hub}")
        _ip(namespace, f"address add {address}/24 dev {interface}")
        # Without IPv6 addresses gloo finds a single address, and the byte counters count no neighbour discovery.
        _ip(namespace, f"link set {interface} addrgenmode none up")
        _ip(self.hub, f"link set {hub_interface} addrgenmode none master {bridge} up")

    def _set_rates(self, phase_by_worker: Mapping[int, Phase]) -> None:
        """Set the rates of workers' links, by one ``tc`` process per namespace, concurrently.

        Args:
            phase_by_worker: rates of each link to change, by number of the worker.
        """
        commands_by_namespace = {
            self.namespace(worker): self._tc_rate_commands(INTERFACE, phase.up)
            for worker, phase in phase_by_worker.items()
        }
        commands_by_namespace[self.hub] = [
            line
            for worker, phase in phase_by_worker.items()
            for line in self._tc_rate_commands(f"p{worker}", phase.down)
        ]
        tc_processes = {
            namespace: subprocess.Popen(
                ["tc", "-n", namespace, "-batch", "-"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for namespace in commands_by_namespace
        }
        for namespace, process in tc_processes.items():
            output, _ = process.communicate(
                "".join(f"{line}\n" for line in commands_by_namespace[namespace]), timeout=30
            )
            if process.returncode != 0:
                raise LinkError(f"tc -n {namespace}: {'; '.join(commands_by_namespace[namespace])}: {output.strip()}")

    def _tc_rate_commands(self, device: str, rate: float | None) -> list[str]:
        """Return ``tc`` commands that limit a device to ``rate`` bits per second; ``None`` removes the limit."""
        # netem delays a packet first. Then the token bucket queues the packet, which waits for the rate, too.
        qdisc_position = f"dev {device} parent 1:1 handle 10:" if self._has_impairments else f"dev {device} root"
        if rate is None:
            return [f"qdisc replace {qdisc_position} " + ("pfifo limit 10000" if self._has_impairments else "noqueue")]
        tc_commands = [f"qdisc replace {qdisc_position} {_token_bucket_arguments(rate)}"]
        if _token_bucket_bytes(rate) < self._max_segment_bytes:
            # A queued segment larger than the new token bucket would block the link for ever: first empty the queue.
            unlimited_qdisc = "pfifo limit 10000" if self._has_impairments else "noqueue"
            tc_commands.insert(0, f"qdisc replace {qdisc_position} {unlimited_qdisc}")
        return tc_commands

    def _netem_arguments(self) -> list[str]:
        """Return the arguments by which ``tc`` adds the link's delay and loss to a device."""
        arguments = ["netem", "limit", "100000"]
        if self.link.delay_ms:
            arguments += ["delay", f"{self.link.delay_ms:g}ms"]
        if self.link.loss_percent:
            arguments += ["loss", f"{self.link.loss_percent:g}%"]
        return arguments

    def _remove_namespaces(self) -> None:
        """Remove the namespaces of this network, and kill the processes in these namespaces."""
        for namespace in _gravac_namespaces():
            if namespace.startswith(f"{self._name_stem}-"):
                _remove_namespace(namespace)


def emulation_obstacle() -> str | None:
    """Return the reason why this machine cannot emulate links; ``None`` if it can. Creates a small network to check."""
    if not sys.platform.startswith("linux"):
        return f"network namespaces exist on Linux only, this is {sys.platform}"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"the command {tool!r} is missing (Debian: apt install iproute2)"
    if os.geteuid() != 0:
        return "making network namespaces needs root, or a kernel that allows user namespaces"
    try:
        with EmulatedNetwork(2, 1e9) as network:
            _run_command(*network.prefix(0), "true")
    except LinkError as error:
        return str(error)
    return None


def netem_obstacle() -> str | None:
    """Return the reason why the kernel's netem, which delays and drops packets, does not work; ``None`` if it works."""
    namespace = f"{owner_mark()}-{next(_network_numbers)}-netem"
    try:
        _run_command("ip", "netns", "add", namespace)
        _run_command("tc", "-n", namespace, "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms")
    except LinkError as error:
        if "unknown" in str(error).lower() or "No such file" in str(error):
            return "the kernel has no netem (sch_netem): latency and loss are unavailable"
        return f"netem does not work here: {error}"
    finally:
        _run_unchecked("ip", "netns", "delete", namespace)
    return None


def remove_leftovers() -> list[str]:
    """Remove the namespaces of processes that are no longer alive, and return the names of these namespaces."""
    removed_namespaces = []
    for namespace in _gravac_namespaces():
        if is_orphaned(namespace):
            _remove_namespace(namespace)
            removed_namespaces.append(namespace)
    return removed_namespaces


def _as_link(link: Link | str | float) -> Link:
    if isinstance(link, Link):
        return link
    if isinstance(link, str):
        return parse_link(link)
    rate = parse_rate(link)
    return Link((Phase(0.0, rate, rate),))


def _token_bucket_bytes(rate: float) -> int:
    """Return the size, in bytes, of the token bucket that limits a link to ``rate`` bits per second."""
    # The bucket holds the bytes of 1 ms at the rate, but at least two full packets. The bucket is small, so that tokens
    # saved during a pause do not let a small message pass without delay. (tbf cuts larger segments itself.)
    return max(3200, int(rate / 8 / 1000))


def _token_bucket_arguments(rate: float) -> str:
    """Return the arguments by which ``tc`` limits a device to a rate in bits per second."""
    # The queue of the bucket holds the bytes of 50 ms at the rate, but at least a few of TCP's segments.
    limit_bytes = _token_bucket_bytes(rate) + max(256_000, int(rate / 8 * 0.05))
    return f"tbf rate {int(rate)}bit burst {_token_bucket_bytes(rate)} limit {limit_bytes}"


def _gravac_namespaces() -> list[str]:
    """Return the names of all namespaces on this machine that gravac created."""
    with suppress(OSError):
        return sorted(name for name in os.listdir("/run/netns") if name.startswith("gravac-"))
    return []


def _remove_namespace(namespace: str) -> None:
    """Kill the processes in a namespace, and remove the namespace."""
    # Two runs may remove the same namespace concurrently, so each command may fail because the other run was first.
    for _ in range(50):
        pids = _run_unchecked("ip", "netns", "pids", namespace).split()
        if not pids:
            break
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.02)
    _run_unchecked("ip", "netns", "delete", namespace)


def _run_unchecked(*command: str) -> str:
    """Run a command, which may fail, and return its standard output."""
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout


def _ip(namespace: str, arguments: str) -> None:
    """Run iproute2's command ``ip`` in a network namespace.

    Args:
        namespace: name of the namespace.
        arguments: arguments of ``ip``, separated by spaces.

    Raises:
        LinkError: the command fails.
    """
    _run_command("ip", "-n", namespace, *arguments.split())


def _run_command(*command: str) -> str:
    """Run a command and return its standard output; raise a ``LinkError`` if the command fails."""
    completed_process = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if completed_process.returncode != 0:
        message = (
            completed_process.stderr or completed_process.stdout
        ).strip() or f"exit status {completed_process.returncode}"
        raise LinkError(f"{' '.join(command)}: {message}")
    return completed_process.stdout
