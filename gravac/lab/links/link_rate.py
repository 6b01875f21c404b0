# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Measures the rate of an emulated link by a TCP stream from worker 1 to worker 0; only payload bytes count."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, NamedTuple

from gravac.lab.links.network import EmulatedNetwork, LinkError

PORT = 5077

SETTLE = 0.3
"""Seconds at the start of a stream that ``tcp_rate`` leaves out, while TCP adapts to the rate."""

SAMPLE = 0.05
"""Seconds between two samples of a stream."""

_RECEIVE = """
import json, socket, sys, time
address, port, interval = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
with socket.create_server((address, port)) as listener:
    listener.settimeout(20)
    print("ready", flush=True)
    connection, _ = listener.accept()
total, samples = 0, []
with connection:
    connection.settimeout(20)
    buffer = bytearray(1 << 18)
    while count := connection.recv_into(buffer):
        total += count
        now = time.monotonic()
        if not samples or now >= samples[-1][0] + interval:
            samples.append((now, total))
print(json.dumps(samples), flush=True)
"""

_SEND = """
import socket, sys, time
address, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
with socket.create_connection((address, port), timeout=20) as connection:
    payload = bytes(1 << 16)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        connection.sendall(payload)
"""


class Sample(NamedTuple):
    """Progress of a stream: a time of ``time.monotonic()``, and the bytes received until that time."""

    time: float
    received: int


@contextmanager
def stream(network: EmulatedNetwork, seconds: float) -> Iterator[list[Sample]]:
    """Send from worker 1 to worker 0 while the block runs.

    Args:
        network: network that was entered.
        seconds: seconds during which the sender sends; the block's end waits for bytes that are still queued.

    Yields:
        A list that holds the stream's samples once the block has ended.

    Raises:
        LinkError: sender or receiver failed; contains its output.
    """
    samples: list[Sample] = []
    listening = [_RECEIVE, network.address(0), str(PORT), str(SAMPLE)]
    sending = [_SEND, network.address(0), str(PORT), str(seconds)]
    with _python(network, 0, listening) as receiver:
        if not _pipe(receiver).readline():
            raise _failed("receiver", receiver)
        with _python(network, 1, sending) as sender:
            yield samples
            for name, process in (("sender", sender), ("receiver", receiver)):
                output, _ = process.communicate(timeout=seconds + 60)
                if process.returncode != 0:
                    raise LinkError(f"the {name} of a test stream failed: {output.strip()}")
            samples += [Sample(time, received) for time, received in json.loads(output)]


def tcp_rate(network: EmulatedNetwork, seconds: float = 2.0) -> float:
    """Return the payload bits per second of a TCP stream from worker 1 to worker 0, once its rate has settled.

    Args:
        network: network that was entered.
        seconds: seconds to measure.

    Raises:
        LinkError: the stream failed, or delivered too little to measure.
    """
    with stream(network, SETTLE + seconds) as samples:
        pass
    settled = [sample for sample in samples if sample.time >= samples[0].time + SETTLE]
    if len(settled) < 2:
        raise LinkError(f"a test stream brought nothing to measure within {seconds:g} s; measure for more seconds")
    return (settled[-1].received - settled[0].received) * 8 / (settled[-1].time - settled[0].time)


@contextmanager
def _python(network: EmulatedNetwork, worker: int, arguments: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Run a Python program in a worker's namespace while the block runs, and kill it at the block's end."""
    command = [*network.prefix(worker), sys.executable, "-c", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _pipe(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout is not None
    return process.stdout


def _failed(name: str, process: subprocess.Popen[str]) -> LinkError:
    return LinkError(f"the {name} of a test stream ended with exit status {process.wait(timeout=30)}")
