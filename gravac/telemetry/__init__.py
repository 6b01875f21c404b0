# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Records of a run, and sinks, which write the records to files, or are functions of a user."""

from gravac.telemetry.jsonl import JSONLSink, read_jsonl
from gravac.telemetry.records import (
    DecisionRecord,
    EndRecord,
    ForecastsRecord,
    ModeRecord,
    Record,
    RunRecord,
    Sink,
    StepRecord,
)
from gravac.telemetry.tensorboard import TensorBoardSink

__all__ = [
    "DecisionRecord",
    "EndRecord",
    "ForecastsRecord",
    "JSONLSink",
    "ModeRecord",
    "Record",
    "RunRecord",
    "Sink",
    "StepRecord",
    "TensorBoardSink",
    "read_jsonl",
]
