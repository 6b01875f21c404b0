# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Emulates links: each worker runs in its own network namespace; a bridge joins the workers at the links' rates.

An additional namespace, the hub, holds the bridge, so nothing is added to the machine's own network::

    worker 0: eth0 == p0 :hub: p1 == eth0 :worker 1        tbf on eth0: upload; tbf on p0, p1: download
              eth1 == c0 :hub: c1 == eth1                  not throttled, by a bridge of its own

A namespace's name identifies the process that owns it. So a new network recognises and removes the namespaces that a
killed process left behind. ``gravac.lab.links.link`` describes links, ``gravac.lab.links.schedule`` applies their
changes over time.
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
from gravac.lab.links.owner import mark, orphaned
from gravac.lab.links.rates import parse_rate

INTERFACE = "eth0"
"""Name of a worker's interface inside its namespace, for ``GLOO_SOCKET_IFNAME``."""

CONTROL = "eth1"
"""Name of a second interface, as fast as the machine, for traffic of the measurement that must not be measured."""

MAX_WORKERS = 8

LARGEST_SEGMENT = 65_536
"""Largest number of bytes that TCP by default hands to an interface at once."""

_serial = itertools.count()


class LinkError(RuntimeError):
    """A namespace or link could not be made. The message has the command and its output."""


class Counters(NamedTuple):
    """Bytes and packets that an interface has sent and received, headers included."""

    sent: int
    received: int
    sent_packets: int
    received_packets: int


class EmulatedNetwork:
    """Workers joined by emulated links; a context manager that always cleans up.

    Args:
        workers: number of workers, 2 to 8.
        link: link of every worker, as a ``Link``, as text, or as a rate of both directions in bits per second. Links
            are full duplex: upload and download do not share a rate. The network applies the link's first phase;
            ``gravac.lab.links.schedule`` applies the others.

    Raises:
        ValueError: the number of workers or the link is out of range.
        LinkError: on entering: the network could not be made, or the kernel does not support the link.

    Example:
        >>> with EmulatedNetwork(2, 100e6) as network:                                        # doctest: +SKIP
        ...     subprocess.run([*network.prefix(0), "ip", "address"])
    """

    def __init__(self, workers: int, link: Link | str | float) -> None:
        if not 2 <= workers <= MAX_WORKERS:
            raise ValueError(f"workers: {workers} is outside 2 to {MAX_WORKERS}; use 2")
        self.workers = workers
        self.link = _as_link(link)
        if unknown := [rank for rank, _ in self.link.of_ranks if rank >= workers]:
            raise ValueError(f"link: {str(self.link)!r} names rank{unknown[0]}; ranks are 0 to {workers - 1}")
        self._stem = f"{mark()}-{next(_serial)}"
        self._impaired = bool(self.link.delay_ms or self.link.loss_percent)
        self._segment = LARGEST_SEGMENT
        if self.link.slowest is not None:
            # A segment fits the smallest bucket, headers included: tbf need not cut segments, and none gets stuck when
            # rates fall.
            self._segment = min(self._segment, int(_burst(self.link.slowest) / 1.05))

    @property
    def hub(self) -> str:
        """Name of the namespace that holds the bridge."""
        return f"{self._stem}-hub"

    def namespace(self, worker: int) -> str:
        """Return the name of a worker's namespace."""
        return f"{self._stem}-w{worker}"

    def address(self, worker: int) -> str:
        """Return a worker's IPv4 address."""
        return f"10.77.0.{worker + 1}"

    def prefix(self, worker: int) -> list[str]:
        """Return the words that run the command after them in a worker's namespace. The command keeps its pid."""
        return ["ip", "netns", "exec", self.namespace(worker)]

    def set_rate(self, worker: int, rate: float) -> None:
        """Set both directions of a worker's link to a rate in bits per second, also while traffic flows."""
        self._shape({worker: Phase(0.0, rate, rate)})

    def apply(self, phase: Phase) -> None:
        """Set both directions of every worker's link to its rates in a phase, also while traffic flows."""
        self._shape({worker: self.link.rates_of_rank(worker, phase) for worker in range(self.workers)})

    def interface_bytes(self, worker: int) -> tuple[int, int]:
        """Return the bytes that a worker's interface has sent and received so far, headers included."""
        counters = self.interface_counters(worker)
        return counters.sent, counters.received

    def interface_counters(self, worker: int, interface: str = INTERFACE) -> Counters:
        """Return the bytes and packets that a worker's interface has sent and received so far.

        A large segment that the link does not cut counts as a packet with a header.
        """
        (shown,) = json.loads(_command("ip", "-n", self.namespace(worker), "-s", "-j", "link", "show", interface))
        sent, received = shown["stats64"]["tx"], shown["stats64"]["rx"]
        return Counters(sent["bytes"], received["bytes"], sent["packets"], received["packets"])

    def __enter__(self) -> EmulatedNetwork:
        remove_leftovers()
        if self._impaired and (reason := netem_missing()) is not None:
            raise LinkError(
                f"link {str(self.link)!r}: {reason}; leave out +ms and +%, or use a kernel that has it "
                "(modprobe sch_netem loads it there)"
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

        May be called twice, and on a network that was made only in part.
        """
        try:
            self._remove()
        except BaseException:  # an interrupt in the middle of cleaning up
            self._remove()
            raise

    def _create(self) -> None:
        _command("ip", "netns", "add", self.hub)
        for bridge in ("br0", "br1"):
            _command("ip", "-n", self.hub, "link", "add", bridge, "type", "bridge")
            _command("ip", "-n", self.hub, "link", "set", bridge, "addrgenmode", "none", "up")
        for worker in range(self.workers):
            namespace, port = self.namespace(worker), f"p{worker}"
            inside = ("ip", "-n", namespace)
            _command("ip", "netns", "add", namespace)
            _command(*inside, "link", "set", "lo", "up")
            self._join(worker, INTERFACE, port, "br0", self.address(worker))
            self._join(worker, CONTROL, f"c{worker}", "br1", f"10.78.0.{worker + 1}")
            if self._segment < LARGEST_SEGMENT:
                try:
                    _command(*inside, "link", "set", INTERFACE, "gso_max_size", str(self._segment))
                except LinkError:  # an old kernel: tbf cuts segments, and a lower rate starts with an empty queue
                    self._segment = LARGEST_SEGMENT
            if self._impaired:
                for location, device in ((namespace, INTERFACE), (self.hub, port)):
                    qdisc = ("qdisc", "add", "dev", device, "root", "handle", "1:", *self._netem())
                    _command("tc", "-n", location, *qdisc)
        self.apply(self.link.phases[0])

    def _join(self, worker: int, interface: str, port: str, bridge: str, address: str) -> None:
        """Join a worker to a bridge of the hub.

        Args:
            worker: number of the worker.
            interface: name of the interface in the worker's namespace.
            port: name of the interface's peer in the hub.
            bridge: name of the bridge.
            address: IPv4 address of the worker's interface.
        """
        inside = ("ip", "-n", self.namespace(worker))
        _command(*inside, "link", "add", interface, "type", "veth", "peer", "name", port, "netns", self.hub)
        _command(*inside, "address", "add", f"{address}/24", "dev", interface)
        # Without IPv6 addresses gloo finds a single address, and the byte counters count no neighbour discovery.
        _command(*inside, "link", "set", interface, "addrgenmode", "none", "up")
        _command("ip", "-n", self.hub, "link", "set", port, "addrgenmode", "none", "master", bridge, "up")

    def _shape(self, rates: Mapping[int, Phase]) -> None:
        """Set the rates of workers' links concurrently, by a command per namespace."""
        commands = {self.namespace(worker): self._shaping(INTERFACE, phase.up) for worker, phase in rates.items()}
        commands[self.hub] = [
            line for worker, phase in rates.items() for line in self._shaping(f"p{worker}", phase.down)
        ]
        running = {
            namespace: subprocess.Popen(
                ["tc", "-n", namespace, "-batch", "-"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for namespace in commands
        }
        for namespace, process in running.items():
            output, _ = process.communicate("".join(f"{line}\n" for line in commands[namespace]), timeout=30)
            if process.returncode != 0:
                raise LinkError(f"tc -n {namespace}: {'; '.join(commands[namespace])}: {output.strip()}")

    def _shaping(self, device: str, rate: float | None) -> list[str]:
        """Return the lines by which ``tc`` sets the rate of one direction; ``None`` removes the limit."""
        # netem delays first, and the bucket queues behind it: a packet waits for the rate in addition to its delay.
        position = f"dev {device} parent 1:1 handle 10:" if self._impaired else f"dev {device} root"
        if rate is None:
            return [f"qdisc replace {position} " + ("pfifo limit 10000" if self._impaired else "noqueue")]
        lines = [f"qdisc replace {position} {_token_bucket(rate)}"]
        if _burst(rate) < self._segment:
            # A queued segment larger than the new bucket would never fit and block the link for good: start empty.
            empty = "pfifo limit 10000" if self._impaired else "noqueue"
            lines.insert(0, f"qdisc replace {position} {empty}")
        return lines

    def _netem(self) -> list[str]:
        """Return the arguments of ``tc`` for the link's delay and loss."""
        arguments = ["netem", "limit", "100000"]
        if self.link.delay_ms:
            arguments += ["delay", f"{self.link.delay_ms:g}ms"]
        if self.link.loss_percent:
            arguments += ["loss", f"{self.link.loss_percent:g}%"]
        return arguments

    def _remove(self) -> None:
        for name in _namespaces():
            if name.startswith(f"{self._stem}-"):
                _remove(name)


def available() -> str | None:
    """Return the reason why networks cannot be made on this machine; ``None`` if they can."""
    if not sys.platform.startswith("linux"):
        return f"network namespaces exist on Linux only, this is {sys.platform}"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"the command {tool!r} is missing (Debian: apt install iproute2)"
    if os.geteuid() != 0:
        return "making network namespaces needs root"
    try:
        with EmulatedNetwork(2, 1e9) as network:
            _command(*network.prefix(0), "true")
    except LinkError as error:
        return str(error)
    return None


def netem_missing() -> str | None:
    """Return the reason why netem, which delays and loses packets, does not work; ``None`` if it works."""
    namespace = f"{mark()}-{next(_serial)}-netem"
    try:
        _command("ip", "netns", "add", namespace)
        _command("tc", "-n", namespace, "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms")
    except LinkError as error:
        if "unknown" in str(error).lower() or "No such file" in str(error):
            return "the kernel has no netem (sch_netem): latency and loss are unavailable"
        return f"netem does not work here: {error}"
    finally:
        _output("ip", "netns", "delete", namespace)
    return None


def remove_leftovers() -> list[str]:
    """Remove the namespaces of processes that are no longer alive, and return their names."""
    leftovers = []
    for name in _namespaces():
        if orphaned(name):
            _remove(name)
            leftovers.append(name)
    return leftovers


def _as_link(link: Link | str | float) -> Link:
    if isinstance(link, Link):
        return link
    if isinstance(link, str):
        return parse_link(link)
    rate = parse_rate(link)
    return Link((Phase(0.0, rate, rate),))


def _burst(rate: float) -> int:
    # The bucket holds 1 ms of the rate, and at least two full packets: the tokens that a pause saves up must not let a
    # small message pass for free. (tbf cuts larger segments itself.)
    return max(3200, int(rate / 8 / 1000))


def _token_bucket(rate: float) -> str:
    # The queue behind the bucket holds 50 ms of the rate, and at least a few of TCP's segments.
    limit = _burst(rate) + max(256_000, int(rate / 8 * 0.05))
    return f"tbf rate {int(rate)}bit burst {_burst(rate)} limit {limit}"


def _namespaces() -> list[str]:
    with suppress(OSError):
        return sorted(name for name in os.listdir("/run/netns") if name.startswith("gravac-"))
    return []


def _remove(namespace: str) -> None:
    # Two runs may remove the same leftover concurrently, so each command may find its work done.
    for _ in range(50):
        pids = _output("ip", "netns", "pids", namespace).split()
        if not pids:
            break
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.02)
    _output("ip", "netns", "delete", namespace)


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout


def _command(*command: str) -> str:
    completed = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if completed.returncode != 0:
        message = (completed.stderr or completed.stdout).strip() or f"exit status {completed.returncode}"
        raise LinkError(f"{' '.join(command)}: {message}")
    return completed.stdout
