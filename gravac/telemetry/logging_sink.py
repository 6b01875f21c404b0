# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Writes a run's decisions, changes of mode and totals to Python's logger ``gravac``, one line each."""

import logging

from gravac.telemetry.descriptions import describe_end, describe_mode_change
from gravac.telemetry.records import DecisionRecord, EndRecord, ModeRecord, Record, RunRecord

LOGGER = logging.getLogger("gravac")
"""Logger of the package. gravac installs no handler and sets no level: the user's program decides what is shown."""


class LoggingSink:
    """Sink that writes to the logger ``gravac``, one line for a record.

    Level ``INFO``: the controller and why it runs, decisions that change the candidate, changes of mode, and a summary
    at the end of the run. Level ``DEBUG``: all other decisions. Records of other kinds are not logged.
    """

    def __call__(self, record: Record) -> None:
        """Log a record. An exception of a handler that does not handle its own errors is raised."""
        if isinstance(record, DecisionRecord):
            level = logging.INFO if record.changed else logging.DEBUG
            if LOGGER.isEnabledFor(level):
                LOGGER.log(level, "%s", _one_line(str(record)))
        elif isinstance(record, RunRecord):
            LOGGER.info("%s", record.controller_note)
        elif isinstance(record, ModeRecord):
            LOGGER.info("%s", describe_mode_change(record))
        elif isinstance(record, EndRecord):
            LOGGER.info("%s", describe_end(record))

    def __repr__(self) -> str:
        return "LoggingSink()"


def _one_line(text: str) -> str:
    """Return a text without line breaks, which a reason of the user's own controller may have."""
    return " ".join(text.splitlines())
