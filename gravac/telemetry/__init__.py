# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Records of a run, and sinks, which write the records to files or pass them to experiment trackers."""

from gravac.telemetry.background import BackgroundSink
from gravac.telemetry.jsonl import JSONLSink, read_jsonl
from gravac.telemetry.records import (
    DecisionRecord,
    EndRecord,
    ForecastsRecord,
    ModeRecord,
    ProgressRecord,
    Record,
    RunRecord,
    Sink,
    StepRecord,
)
from gravac.telemetry.tensorboard import TensorBoardSink
from gravac.telemetry.trackers import CSVSink, TrackerSink, mlflow_sink, wandb_sink

__all__ = [
    "BackgroundSink",
    "CSVSink",
    "DecisionRecord",
    "EndRecord",
    "ForecastsRecord",
    "JSONLSink",
    "ModeRecord",
    "ProgressRecord",
    "Record",
    "RunRecord",
    "Sink",
    "StepRecord",
    "TensorBoardSink",
    "TrackerSink",
    "mlflow_sink",
    "read_jsonl",
    "wandb_sink",
]
