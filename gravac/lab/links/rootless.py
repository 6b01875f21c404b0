# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Lets a command of gravac make network namespaces without root, where the kernel allows it: in a user namespace."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

IN_USER_NAMESPACE = ("unshare", "--user", "--map-root-user", "--mount", "--net")
"""Command that runs another as the root of its own user, mount and network namespace."""

WITH_OWN_RUN = ("sh", "-c", 'mount -t tmpfs tmpfs /run && ip link set lo up && exec "$@"', "sh")
"""Command that runs another with loopback and its own folder ``/run``, where ``ip`` names network namespaces."""


def restart_in_user_namespace() -> None:
    """Restart this command in a user namespace of its own, if it may not make network namespaces otherwise.

    Does nothing for root, outside of Linux, in the restarted command, and where the kernel allows no user namespace.
    Files that the restarted command writes belong to the same user as before.
    """
    if not sys.platform.startswith("linux") or os.geteuid() == 0 or not shutil.which("unshare"):
        return
    prefix = [*IN_USER_NAMESPACE, *WITH_OWN_RUN]
    trial = [*prefix, "sh", "-c", "ip netns add gravac-trial && ip netns delete gravac-trial"]
    if subprocess.run(trial, capture_output=True, check=False).returncode == 0:
        sys.stdout.flush()
        os.execvp(prefix[0], [*prefix, sys.executable, "-m", "gravac", *sys.argv[1:]])  # noqa: S606
