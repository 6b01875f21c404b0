# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Emulated links: each worker in its own network namespace, joined by a bridge, at a given rate.

One more namespace, the hub, holds the bridge, so nothing is added to the machine's own network::

    worker 0: eth0 == p0 :hub: p1 == eth0 :worker 1        tbf on eth0: upload; tbf on p0, p1: download

A namespace's name carries the process that owns it, so what a killed process left behind is recognised, and removed
the next time a network is made.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from types import TracebackType

from gravac.lab.owner import mark, orphaned
from gravac.lab.rates import parse_rate

INTERFACE = "eth0"
"""A worker's interface inside its namespace: what ``GLOO_SOCKET_IFNAME`` is set to."""

MOST_WORKERS = 8

_serial = itertools.count()


class LinkError(RuntimeError):
    """A namespace or link could not be made. The message holds the command and what it said."""


class Network:
    """Workers joined by emulated links; a context manager that always cleans up.

    Args:
        workers: 2 to 8.
        rate: of each worker's link, bits per second, full duplex: upload and download each have it to themselves.

    Raises:
        ValueError: the number of workers or the rate is out of range.

    Example:
        >>> with Network(2, 100e6) as network:                                        # doctest: +SKIP
        ...     subprocess.run([*network.prefix(0), "ip", "address"])
    """

    def __init__(self, workers: int, rate: float) -> None:
        if not 2 <= workers <= MOST_WORKERS:
            raise ValueError(f"workers: {workers} is outside 2 to {MOST_WORKERS}; use 2")
        self.workers = workers
        self.rate = parse_rate(rate)
        self._stem = f"{mark()}-{next(_serial)}"

    @property
    def hub(self) -> str:
        """The namespace of the bridge."""
        return f"{self._stem}-hub"

    def namespace(self, worker: int) -> str:
        """The namespace of a worker."""
        return f"{self._stem}-w{worker}"

    def address(self, worker: int) -> str:
        """A worker's IPv4 address."""
        return f"10.77.0.{worker + 1}"

    def prefix(self, worker: int) -> list[str]:
        """What to put before a command to run it in a worker's namespace. The command keeps its pid."""
        return ["ip", "netns", "exec", self.namespace(worker)]

    def set_rate(self, worker: int, rate: float) -> None:
        """Sets both directions of a worker's link, also while traffic flows. Bits per second."""
        shape = _token_bucket(rate)
        _command("tc", "-n", self.namespace(worker), "qdisc", "replace", "dev", INTERFACE, "root", *shape)
        _command("tc", "-n", self.hub, "qdisc", "replace", "dev", f"p{worker}", "root", *shape)

    def __enter__(self) -> Network:
        remove_leftovers()
        try:
            self._create()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Kills what still runs in the namespaces and removes them. May be called twice, and on half a network."""
        try:
            self._remove()
        except BaseException:  # an interrupt in the middle of cleaning up
            self._remove()
            raise

    def _create(self) -> None:
        _command("ip", "netns", "add", self.hub)
        _command("ip", "-n", self.hub, "link", "add", "br0", "type", "bridge")
        _command("ip", "-n", self.hub, "link", "set", "br0", "addrgenmode", "none", "up")
        for worker in range(self.workers):
            namespace, port = self.namespace(worker), f"p{worker}"
            inside = ("ip", "-n", namespace)
            _command("ip", "netns", "add", namespace)
            _command(*inside, "link", "add", INTERFACE, "type", "veth", "peer", "name", port, "netns", self.hub)
            _command(*inside, "link", "set", "lo", "up")
            _command(*inside, "address", "add", f"{self.address(worker)}/24", "dev", INTERFACE)
            # no IPv6 addresses: gloo shall find one address, and the byte counters no neighbour discovery
            _command(*inside, "link", "set", INTERFACE, "addrgenmode", "none", "up")
            _command("ip", "-n", self.hub, "link", "set", port, "addrgenmode", "none", "master", "br0", "up")
            self.set_rate(worker, self.rate)

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
        with Network(2, 1e9) as network:
            _command(*network.prefix(0), "true")
    except LinkError as error:
        return str(error)
    return None


def remove_leftovers() -> list[str]:
    """Removes the namespaces of processes that are no longer alive, and returns their names."""
    leftovers = []
    for name in _namespaces():
        if orphaned(name):
            _remove(name)
            leftovers.append(name)
    return leftovers


def _token_bucket(rate: float) -> tuple[str, ...]:
    # The bucket holds 1 ms of the rate, at least two full packets: what a pause saves up must not let a small message
    # pass for free. (tbf cuts larger segments itself.) The queue behind it holds 50 ms, and a few of TCP's segments.
    burst = max(3200, int(rate / 8 / 1000))
    limit = burst + max(256_000, int(rate / 8 * 0.05))
    return ("tbf", "rate", f"{int(rate)}bit", "burst", str(burst), "limit", str(limit))


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


def _command(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip() or f"exit status {done.returncode}"
        raise LinkError(f"{' '.join(command)}: {said}")
