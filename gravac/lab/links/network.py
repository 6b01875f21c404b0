# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Emulated links: each worker in its own network namespace, joined by a bridge, at given rates.

One more namespace, the hub, holds the bridge, so nothing is added to the machine's own network::

    worker 0: eth0 == p0 :hub: p1 == eth0 :worker 1        tbf on eth0: upload; tbf on p0, p1: download
              eth1 == c0 :hub: c1 == eth1                  not throttled, by a bridge of its own

A namespace's name carries the process that owns it, so what a killed process left behind is recognised, and removed
the next time a network is made. What a link can be is in ``gravac.lab.links.link``, its changes over time in
``gravac.lab.links.schedule``.
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
"""Name of another, as fast as the machine is, for what belongs to the measurement and not to what is measured."""

MOST_WORKERS = 8

LARGEST_SEGMENT = 65_536
"""Largest number of bytes that TCP hands to an interface at once, unless told otherwise."""

_serial = itertools.count()


class LinkError(RuntimeError):
    """A namespace or link could not be made. The message holds the command and what it said."""


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
        link: link of every worker, full duplex: upload and download do not share. A plain rate, bits per second, holds
            for both directions. The link's first phase is in force; ``gravac.lab.links.schedule`` applies the others.

    Raises:
        ValueError: the number of workers or the link is out of range.
        LinkError: when entered: it could not be made, or the link asks for what the kernel cannot do.

    Example:
        >>> with EmulatedNetwork(2, 100e6) as network:                                        # doctest: +SKIP
        ...     subprocess.run([*network.prefix(0), "ip", "address"])
    """

    def __init__(self, workers: int, link: Link | str | float) -> None:
        if not 2 <= workers <= MOST_WORKERS:
            raise ValueError(f"workers: {workers} is outside 2 to {MOST_WORKERS}; use 2")
        self.workers = workers
        self.link = _link(link)
        if unknown := [rank for rank, _ in self.link.of_ranks if rank >= workers]:
            raise ValueError(f"link: {str(self.link)!r} names rank{unknown[0]}; ranks are 0 to {workers - 1}")
        self._stem = f"{mark()}-{next(_serial)}"
        self._impaired = bool(self.link.delay_ms or self.link.loss_percent)
        self._segment = LARGEST_SEGMENT
        if self.link.slowest is not None:
            # each fits the smallest bucket, headers included: tbf need not cut it, and none gets stuck when rates fall
            self._segment = min(self._segment, int(_burst(self.link.slowest) / 1.05))

    @property
    def hub(self) -> str:
        """The namespace of the bridge."""
        return f"{self._stem}-hub"

    def namespace(self, worker: int) -> str:
        """Return the namespace of a worker."""
        return f"{self._stem}-w{worker}"

    def address(self, worker: int) -> str:
        """Return a worker's IPv4 address."""
        return f"10.77.0.{worker + 1}"

    def prefix(self, worker: int) -> list[str]:
        """Return what to put before a command to run it in a worker's namespace. The command keeps its pid."""
        return ["ip", "netns", "exec", self.namespace(worker)]

    def set_rate(self, worker: int, rate: float) -> None:
        """Set both directions of a worker's link, also while traffic flows. Bits per second."""
        self._shape({worker: Phase(0.0, rate, rate)})

    def apply(self, phase: Phase) -> None:
        """Set both directions of every worker's link to its rates in a phase, also while traffic flows."""
        self._shape({worker: self.link.of_rank(worker, phase) for worker in range(self.workers)})

    def interface_bytes(self, worker: int) -> tuple[int, int]:
        """Return what a worker's interface has sent and received so far, headers included."""
        counted = self.interface_counters(worker)
        return counted.sent, counted.received

    def interface_counters(self, worker: int, interface: str = INTERFACE) -> Counters:
        """Return bytes and packets of one of a worker's interfaces so far.

        A large segment that the link passes whole counts as one packet with one header.
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

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Kill what still runs in the namespaces and remove them. May be called twice, and on half a network."""
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
                except LinkError:  # an old kernel: tbf cuts them, and a lower rate starts with an empty queue
                    self._segment = LARGEST_SEGMENT
            if self._impaired:
                for where, device in ((namespace, INTERFACE), (self.hub, port)):
                    _command("tc", "-n", where, "qdisc", "add", "dev", device, "root", "handle", "1:", *self._netem())
        self.apply(self.link.phases[0])

    def _join(self, worker: int, interface: str, port: str, bridge: str, address: str) -> None:
        """Join a worker to a bridge of the hub."""
        inside = ("ip", "-n", self.namespace(worker))
        _command(*inside, "link", "add", interface, "type", "veth", "peer", "name", port, "netns", self.hub)
        _command(*inside, "address", "add", f"{address}/24", "dev", interface)
        # no IPv6 addresses: gloo shall find one address, and the byte counters no neighbour discovery
        _command(*inside, "link", "set", interface, "addrgenmode", "none", "up")
        _command("ip", "-n", self.hub, "link", "set", port, "addrgenmode", "none", "master", bridge, "up")

    def _shape(self, rates: Mapping[int, Phase]) -> None:
        """Set the rates of workers' links, all at once, in one command per namespace."""
        commands = {self.namespace(worker): self._shaping(INTERFACE, one.up) for worker, one in rates.items()}
        commands[self.hub] = [line for worker, one in rates.items() for line in self._shaping(f"p{worker}", one.down)]
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
        """Return what ``tc`` is told to give one direction a rate."""
        # netem delays first, the bucket queues behind it: a packet that waits for the rate has not travelled meanwhile
        place = f"dev {device} parent 1:1 handle 10:" if self._impaired else f"dev {device} root"
        if rate is None:
            return [f"qdisc replace {place} " + ("pfifo limit 10000" if self._impaired else "noqueue")]
        lines = [f"qdisc replace {place} {_token_bucket(rate)}"]
        if _burst(rate) < self._segment:
            # A queued segment larger than the new bucket would never fit and block the link for good: start empty.
            empty = "pfifo limit 10000" if self._impaired else "noqueue"
            lines.insert(0, f"qdisc replace {place} {empty}")
        return lines

    def _netem(self) -> list[str]:
        words = ["netem", "limit", "100000"]
        if self.link.delay_ms:
            words += ["delay", f"{self.link.delay_ms:g}ms"]
        if self.link.loss_percent:
            words += ["loss", f"{self.link.loss_percent:g}%"]
        return words

    def _remove(self) -> None:
        for name in _namespaces():
            if name.startswith(f"{self._stem}-"):
                _remove(name)


def available() -> str | None:
    """``None`` when networks can be made here, otherwise the reason why not, in words."""
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
    """``None`` when the kernel has netem, which delays and loses packets, otherwise the reason why not, in words."""
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


def _link(link: Link | str | float) -> Link:
    if isinstance(link, Link):
        return link
    if isinstance(link, str):
        return parse_link(link)
    rate = parse_rate(link)
    return Link((Phase(0.0, rate, rate),))


def _burst(rate: float) -> int:
    # The bucket holds 1 ms of the rate, at least two full packets: what a pause saves up must not let a small message
    # pass for free. (tbf cuts larger segments itself.)
    return max(3200, int(rate / 8 / 1000))


def _token_bucket(rate: float) -> str:
    # The queue behind the bucket holds 50 ms, and a few of TCP's segments.
    limit = _burst(rate) + max(256_000, int(rate / 8 * 0.05))
    return f"tbf rate {int(rate)}bit burst {_burst(rate)} limit {limit}"


def _namespaces() -> list[str]:
    with suppress(OSError):
        return sorted(name for name in os.listdir("/run/netns") if name.startswith("gravac-"))
    return []


def _remove(namespace: str) -> None:
    # Two runs may clear away the same leftover at once, so each step may find that it is done.
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
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode != 0:
        message = (done.stderr or done.stdout).strip() or f"exit status {done.returncode}"
        raise LinkError(f"{' '.join(command)}: {message}")
    return done.stdout
