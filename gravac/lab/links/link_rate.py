# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Measures the rate of an emulated link by a TCP stream from worker 1 to worker 0, in payload bits per second."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, NamedTuple

from gravac.lab.links.network import EmulatedNetwork, LinkError

PORT = 5077
"""TCP port of worker 0 on which the receiver of a stream listens."""

SETTLING_SECONDS = 0.3
"""Seconds at the start of a stream that ``tcp_rate`` leaves out, while TCP adapts to the rate."""

SAMPLE_SECONDS = 0.05
"""Seconds between two samples of a stream."""

_RECEIVER_PROGRAM = """
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

_SENDER_PROGRAM = """
import socket, sys, time
address, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
with socket.create_connection((address, port), timeout=20) as connection:
    payload = bytes(1 << 16)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        connection.sendall(payload)
"""


class Sample(NamedTuple):
    """Progress of a stream: a time of ``time.monotonic()`` in seconds, and the bytes received until that time."""

    time_s: float
    received_bytes: int


@contextmanager
def stream(network: EmulatedNetwork, seconds: float) -> Iterator[list[Sample]]:
    """Send a TCP stream from worker 1 to worker 0 while the block runs.

    Args:
        network: emulated network whose ``with`` block is running.
        seconds: seconds for which the sender sends; the end of the block waits until all bytes have arrived.

    Yields:
        A list, to which the stream's samples are appended when the block ends.

    Raises:
        LinkError: sender or receiver failed; the message has the output or the exit status of that process.
    """
    samples: list[Sample] = []
    receiver_arguments = [_RECEIVER_PROGRAM, network.address(0), str(PORT), str(SAMPLE_SECONDS)]
    sender_arguments = [_SENDER_PROGRAM, network.address(0), str(PORT), str(seconds)]
    with _run_python(network, 0, receiver_arguments) as receiver:
        if not _output_of(receiver).readline():
            raise _early_end_error("receiver", receiver)
        with _run_python(network, 1, sender_arguments) as sender:
            yield samples
            for role, process in (("sender", sender), ("receiver", receiver)):
                output, _ = process.communicate(timeout=seconds + 60)
                if process.returncode != 0:
                    raise LinkError(f"the {role} of a test stream failed: {output.strip()}")
            samples += [Sample(time_s, received_bytes) for time_s, received_bytes in json.loads(output)]


def tcp_rate(network: EmulatedNetwork, seconds: float = 2.0) -> float:
    """Return the payload bits per second of a TCP stream from worker 1 to worker 0, after ``SETTLING_SECONDS``.

    Args:
        network: emulated network whose ``with`` block is running.
        seconds: seconds to measure, after ``SETTLING_SECONDS``.

    Raises:
        LinkError: the stream failed, or delivered too little to measure.
    """
    with stream(network, SETTLING_SECONDS + seconds) as samples:
        pass
    settled_samples = [sample for sample in samples if sample.time_s >= samples[0].time_s + SETTLING_SECONDS]
    if len(settled_samples) < 2:
        raise LinkError(
            f"a test stream delivered too few bytes to measure within {seconds:g} s; measure for more seconds"
        )
    return (
        (settled_samples[-1].received_bytes - settled_samples[0].received_bytes)
        * 8
        / (settled_samples[-1].time_s - settled_samples[0].time_s)
    )


@contextmanager
def _run_python(network: EmulatedNetwork, worker: int, arguments: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Run a Python program in a worker's namespace while the block runs; the block's end kills the program."""
    command = [*network.prefix(worker), sys.executable, "-c", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _output_of(process: subprocess.Popen[str]) -> IO[str]:
    """Return the standard output of a process that ``_run_python`` started."""
    assert process.stdout is not None
    return process.stdout


def _early_end_error(role: str, process: subprocess.Popen[str]) -> LinkError:
    """Return an error about a sender or receiver that ended too early, with its exit status."""
    return LinkError(f"the {role} of a test stream ended with exit status {process.wait(timeout=30)}")
