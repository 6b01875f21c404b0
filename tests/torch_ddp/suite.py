# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What a set of torch's tests has for itself; one harness runs the tests of DDP and those of FSDP2."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from gravac import AdaptiveCompressor


@dataclass
class Seen:
    """What a rank saw of a test.

    Attributes:
        outcome: passed, skipped, failed or died.
        text: why it did not pass.
        made: models that gravac can be attached to.
        attached: those of them that gravac was attached to.
        steps: backwards that gravac exchanged.
        own_hooks: communication hooks that the test registered.
        attach_failures: tracebacks of ``attach``.
    """

    outcome: str = "died"
    text: str = ""
    made: int = 0
    attached: int = 0
    steps: int = 0
    own_hooks: int = 0
    attach_failures: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Reasons:
    """Why tests of a set are left out.

    Attributes:
        not_run: reasons of the tests that are not run at all, by name.
        nothing_made: reason of the tests that make no model that gravac can be attached to.
        native: returns why a test does not pass without gravac, by its name and its last error; empty if unknown.
        with_gravac: returns why a test need not pass with gravac, by its name and its last error (empty while it
            was not run, or passed); empty if it has to pass.
    """

    not_run: Mapping[str, str]
    nothing_made: str
    native: Callable[[str, str], str]
    with_gravac: Callable[[str, str], str]


class Suite(Protocol):
    """A set of torch's tests.

    Attributes:
        made_key: name of the number of models in a record's rows.
        timeout: seconds that a test may take.
        reasons: why tests are left out.
    """

    made_key: str
    timeout: float
    reasons: Reasons

    def world(self, name: str) -> int:
        """Return the number of ranks of a test."""

    def details(self, name: str) -> dict[str, Any]:
        """Return what a record's row has of a test besides its outcome."""

    def skip_messages(self) -> dict[int, str]:
        """Return why a test is skipped, by the exit status with which it says so."""

    def prepare(self, name: str, rank: int, world: int, folder: Path) -> None:
        """Set up a rank's process before a test, and move to the CPU what was written for GPUs."""

    def watch(self, seen: Seen, compressors: list[AdaptiveCompressor] | None) -> None:
        """Count the models that the test makes, and attach gravac to each.

        Args:
            seen: takes the counts.
            compressors: takes those attached; ``None`` attaches none.
        """

    def execute(self, name: str, rank: int, world: int, folder: Path) -> None:
        """Run a test on a rank, as torch's own runner does; raises if the test fails."""
