# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Workers of the lab as forks of a process that has imported torch: a start costs 0.1 s and not 2 to 3 s."""

import ctypes
import multiprocessing
import multiprocessing.forkserver
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import IO, Any, NamedTuple

from tests.ranks import PRELOADED

_popen = subprocess.Popen
_context = multiprocessing.get_context("forkserver")

IN_NAMESPACE = ["ip", "netns", "exec"]


def start(command: Sequence[str], **options: Any) -> "subprocess.Popen[Any] | ForkedPython":
    """Start a process as ``subprocess.Popen`` does, but fork it if it is ``python -m gravac.lab.MODULE ARGUMENTS``.

    A worker in a network namespace, started by ``ip netns exec``, is forked too, and enters its namespace itself.
    """
    namespace, python = (command[3], command[4:]) if [*command[:3]] == IN_NAMESPACE else (None, command)
    if [*python[:2]] == [sys.executable, "-m"] and python[2].startswith("gravac.lab."):
        return ForkedPython(python[2:], namespace=namespace, **options)
    return _popen(command, **options)


def prepare() -> None:
    """Start the process to fork from, which is one for all tests, unless it runs."""
    _context.set_forkserver_preload([*PRELOADED])
    multiprocessing.forkserver.ensure_running()


class _Surroundings(NamedTuple):
    """What a forked process has of its own before its module runs."""

    env: Mapping[str, str]
    namespace: str | None
    log: str | None
    new_session: bool


class ForkedPython:
    """What the lab uses of ``subprocess.Popen``, for a module that runs as ``__main__`` in a forked process.

    Args:
        arguments: name of the module, and its command line arguments.
        env: environment variables.
        namespace: name of the network namespace to enter; ``None``: that of this process.
        stdin: ``subprocess.PIPE``, which is all that the lab asks for, or ``None``.
        stdout: file that takes the output and the errors of the process; ``None``: those of this process.
        stderr: the same file.
        start_new_session: whether the process leads a session and process group of its own.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        env: Mapping[str, str],
        *,
        namespace: str | None = None,
        stdin: int | None = None,
        stdout: IO[bytes] | None = None,
        stderr: IO[bytes] | None = None,
        start_new_session: bool = False,
    ) -> None:
        assert stdin in (None, subprocess.PIPE) and stdout is stderr
        self.stdin, read_end = _context.Pipe()
        surroundings = _Surroundings({**env}, namespace, None if stdout is None else stdout.name, start_new_session)
        self._process = _context.Process(target=_run_module, args=([*arguments], surroundings, read_end), daemon=True)
        self._process.start()
        read_end.close()
        self.stdin.recv_bytes()  # the process has its session and its output: now Popen would return
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0.0)
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()


def _run_module(arguments: list[str], surroundings: _Surroundings, stdin: Connection) -> None:
    if surroundings.new_session:
        os.setsid()
    if surroundings.log is not None:
        log = os.open(surroundings.log, os.O_WRONLY | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
    if surroundings.namespace is not None:
        with open(f"/run/netns/{surroundings.namespace}") as namespace:
            assert ctypes.CDLL(None).setns(namespace.fileno(), 0) == 0
    os.environ.clear()
    os.environ.update(surroundings.env)
    stdin.send_bytes(b"")
    os.dup2(stdin.fileno(), 0)
    stdin.close()
    sys.argv = arguments
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
