# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A row of the table: a test's outcomes without and with gravac, and what follows from them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.torch_ddp.runs import Outcome
from tests.torch_ddp.suite import Suite

HOOK = "registers a communication hook itself; torch allows one"


@dataclass
class Row:
    """A test, natively and with gravac; ``None`` was not run."""

    name: str
    suite: Suite
    native: Outcome | None = None
    gravac: Outcome | None = None

    @property
    def native_passed(self) -> bool:
        """Whether it passes without gravac, and makes a model that gravac can be attached to."""
        return self.native is not None and self.native.passed and self.native.made > 0

    @property
    def due(self) -> bool:
        """Whether gravac can be attached, so that it is run with it."""
        return self.native_passed and self.native is not None and not self.native.own_hooks

    @property
    def reason(self) -> str:
        """Why gravac need not pass it; empty when it has to."""
        reasons = self.suite.reasons
        if self.native is None:
            return reasons.not_run.get(self.name, "")
        if self.native.skipped:
            return f"torch skips it: {self.native.text}"
        if not self.native.passed:
            error = last_error(self.native.text)
            return reasons.native(self.name, error) or error
        if not self.native.made:
            return reasons.nothing_made
        failed = self.gravac is not None and not self.gravac.passed
        error = last_error(self.gravac.text) if self.gravac is not None and failed else ""
        return HOOK if self.native.own_hooks else reasons.with_gravac(self.name, error)

    @property
    def unexplained(self) -> bool:
        """Whether it fails natively, and ``reasons.py`` does not say why."""
        if self.native is None or self.native.passed or self.native.skipped:
            return False
        return not self.suite.reasons.native(self.name, last_error(self.native.text))

    @property
    def wrong(self) -> bool:
        """Whether it passes natively, fails with gravac, and nothing says why."""
        return self.gravac is not None and not self.gravac.passed and not self.reason

    def plain(self) -> dict[str, Any]:
        """As a row of the JSON file."""
        told: dict[str, Any] = {
            "test": self.name,
            **self.suite.details(self.name),
            "native": word(self.native),
            "gravac": word(self.gravac),
        }
        told["reason"] = self.reason or (last_error(self.gravac.text) if self.wrong and self.gravac else "")
        if self.native:
            told |= {self.suite.made_key: self.native.made, "own_hooks": self.native.own_hooks}
        if self.gravac:
            told |= {"attached": self.gravac.attached, "steps": self.gravac.steps}
        return told


def word(outcome: Outcome | None) -> str:
    """How it went."""
    if outcome is None:
        return "not run"
    return "passed" if outcome.passed else "skipped" if outcome.skipped else "failed"


def last_error(text: str) -> str:
    """The line of a traceback that says what it was."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith((" ", "\t"))]
    return next((line for line in reversed(lines) if "Error" in line), lines[-1] if lines else "")


def table(rows: Sequence[Row]) -> str:
    """For the terminal."""
    width = max((len(row.name) for row in rows), default=4)
    lines = [f"{'test':{width}}  {'native':8}{'gravac':8}  reason"]
    for row in rows:
        plain = row.plain()
        lines.append(f"{row.name:{width}}  {plain['native']:8}{plain['gravac']:8}  {plain['reason'][:150]}".rstrip())
    return "\n".join(lines)
