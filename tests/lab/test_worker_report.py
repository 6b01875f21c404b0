# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What TensorBoard shows of legs of a session, side by side."""

import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gravac.lab.training.worker_report import WorkerReport
from gravac.telemetry import TensorBoardSink
from gravac.telemetry.records import EndRecord, RunRecord

accumulator = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
plugin_data_pb2 = importlib.import_module("tensorboard.plugins.hparams.plugin_data_pb2")


def test_a_leg_is_one_row_of_hyperparameters_also_where_its_method_tells_of_its_own(tmp_path: Path) -> None:
    leg = SimpleNamespace(label="gravac")
    spec: Any = SimpleNamespace(session_folder=str(tmp_path), log_dir=str(tmp_path / "runs"), legs=[leg])
    report = WorkerReport(spec, 0, rank=0)
    sink = TensorBoardSink(tmp_path / "runs" / "gravac")
    sink(RunRecord({"base": "topk"}, 2))
    report.write_hparams({"task": "lstm"}, {"run/metric": 0.5})
    sink(EndRecord(5, {"wire_ratio": 9.0}))
    sink.close()
    report.close()
    assert [path.name for path in (tmp_path / "runs").rglob("*") if path.is_dir()] == ["gravac"], "no sub-run"
    events = accumulator.EventAccumulator(str(tmp_path / "runs" / "gravac"))
    events.Reload()
    for part, found in (("session_start_info", "hparams"), ("experiment", "hparam_infos")):
        content = events.SummaryMetadata(f"_hparams_/{part}").plugin_data.content
        said = getattr(getattr(plugin_data_pb2.HParamsPluginData.FromString(content), part), found)
        assert "lstm" in str(said) or "task" in str(said)
        assert "base" not in str(said)
    assert {"run/metric", "gravac_end/wire_ratio"} <= set(events.Tags()["scalars"])
