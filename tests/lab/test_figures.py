# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""README and docs say what their records say; a figure that no record holds, or that is not its record's, is found."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jinja2 import UndefinedError

from gravac.lab.provenance import Stamp
from gravac.lab.tta import record
from gravac.settings import SettingsError
from tests.lab.made_up_runs import made_up
from tests.measure import check, claims, published, rendering, results, tables, tables_of_demo

STAMP = Stamp(
    commit="0123456789abcdef", clean=True, utc="2026-01-01T00:00:00+00:00", copy_bytes_per_s=1e10, matmul_s=1e-4,
    torch="2.13.0", python="3.11.7", cores=2,
)  # fmt: skip

AWAITED: tuple[str, ...] = ()
"""Records that documents need and that are not there yet."""


@pytest.mark.parametrize("document", list(tables.DOCUMENTS), ids=str)
def test_every_figure_is_that_of_its_record(document: Path) -> None:
    awaited = {fault for name in AWAITED if (fault := tables.missing(name))}
    assert [fault for fault in check.faults(document) if fault not in awaited] == []


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """A document of its own, with one table of a record of one row, and one claim."""
    monkeypatch.setattr(published, "FOLDER", tmp_path)
    monkeypatch.setattr(published, "MIXED", [False])

    def made(text: str, *rows: object) -> Path:
        document = tmp_path / "small.md"
        document.write_text(text, encoding="utf-8")
        if rows:
            results.keep([{"x": 1.25, "stamp": row} for row in rows], str(tmp_path / "rows.json"))
        monkeypatch.setitem(tables.DOCUMENTS, document, {"rows": ("rows", lambda: table())})
        monkeypatch.setitem(claims.CLAIMS, document, lambda: ["It takes 1.5 s."])
        monkeypatch.setattr(check, "SCANNED", (document,))
        return document

    def table() -> str:
        return "\n".join(["| x |", "| --- |", *(f"| {row['x']} |" for row in published.rows("rows"))])

    published._rows.cache_clear()
    yield made
    published._rows.cache_clear()


TABLE = "<!-- table rows: begin -->\n\n| x |\n| --- |\n| 1.25 |\n\n<!-- table rows: end -->\n"


def test_a_document_that_says_what_its_records_say_has_no_fault(small: Callable[..., Path]) -> None:
    document = small(f"{TABLE}It takes\n1.5 s. Two cells, `f(0.5)`, at 20 Mbit/s.\n", STAMP)
    assert check.faults(document) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{TABLE.replace('1.25', '1.26')}It takes 1.5 s.", "table rows is not what rows.json gives"),
        (f"{TABLE}It takes 1.4 s.", "a sentence that the records give is missing: It takes 1.5 s."),
        (f"{TABLE}It takes 1.4 s. It takes 1.5 s.", "no record holds '1.4 s'"),
        (f"{TABLE}It takes 1.5 s. That is 7 % more.", "no record holds '7 %'"),
        (f"{TABLE}It takes 1.5 s. That is 3x.", "no record holds '3x'"),
        (f"{TABLE}It takes 1.5 s.\n| y |\n| --- |\n| 0.9 |\n", "a table outside marks has figures: | 0.9 |"),
    ],
)
def test_what_is_not_its_record_s_is_found(small: Callable[..., Path], text: str, said: str) -> None:
    (fault,) = [fault for fault in check.faults(small(text, STAMP)) if said in fault]
    assert "small.md" in fault


def test_a_missing_record_is_told_with_its_command(small: Callable[..., Path]) -> None:
    (fault,) = check.faults(small(f"{TABLE}It takes 1.5 s."))
    assert fault.endswith("rows.json: the record is missing; run make measure-rows")


def test_rows_of_several_commits_make_no_table_and_with_mixed_it_says_so(
    small: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    document = small(f"{TABLE}It takes 1.5 s.", STAMP, None)
    with pytest.raises(SettingsError, match=r"rows\.json: the measurements are of 2 commits .*: 0123456789 .*--mixed"):
        tables.update(document)
    monkeypatch.setattr(published, "MIXED", [True])
    assert tables.update(document) == []
    assert (
        "Runs of 2 versions of gravac, each as commit (number of runs): 0123456789 (1), commit not recorded (1)."
        in document.read_text(encoding="utf-8")
    )
    assert check.faults(document) == []


def test_runs_of_several_commits_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "FOLDER", tmp_path)
    record.save(tmp_path / "made_up.json", [made_up(stamp=STAMP), made_up("fp32")])
    with pytest.raises(SettingsError, match=r"made_up\.json: the measurements are of 2 commits"):
        published.runs("made_up")


def test_a_document_without_marks_is_refused(small: Callable[..., Path]) -> None:
    with pytest.raises(SettingsError, match="table rows: the document needs '<!-- table rows: begin -->'"):
        tables.update(small("nothing", STAMP))


def test_a_template_that_asks_for_a_missing_number_is_an_error() -> None:
    with pytest.raises(UndefinedError, match="'rows' is undefined"):
        rendering.render("tables/soak")


def test_each_template_of_sentences_belongs_to_a_document() -> None:
    templates = rendering.ENVIRONMENT.list_templates(filter_func=lambda name: name.startswith("sentences/"))
    assert sorted(templates) == sorted(f"sentences/{document.name}" for document in claims.NUMBERS)


def test_the_command_tells_what_is_wrong_and_what_it_does_not_look_at(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = tables.main(["--check"])
    said = capsys.readouterr().out
    assert wrong == any(map(tables.missing, AWAITED))
    assert "not covered: prose of measurements.md" in said


def change(mode: str, cf: float, every: int) -> dict[str, object]:
    """A change of what runs in the demo, before its first step."""
    return {"step": 0, "mode": mode, "compressor": "ladder", "cf": cf, "every": every, "delay": 0, "reason": "start"}


def run(method: str, steps: int, *metrics: float) -> dict[str, object]:
    """A run of the demo with these losses, 10 s apart."""
    each = steps / (len(metrics) - 1)
    curve = [{"step": round(at * each), "seconds": 10.0 * at, "metric": metric} for at, metric in enumerate(metrics)]
    return {
        "method": method, "steps": steps, "seconds": curve[-1]["seconds"], "samples_per_s": 20.0,
        "wire_bytes": 8_000_000 * steps, "wire_ratio": 13.1, "val_loss": metrics[-1], "curve": curve,
        "cf_path": [change("hook", 15.06, 1)],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ((4.0, 2.0, 1.0), "gravac reaches float16's final loss in 10 s instead of 20 s."),
        ((4.0, 3.5, 3.0), "gravac does not reach float16's final loss."),
    ],
)
def test_the_demo_is_told_from_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, losses: tuple[float, ...], said: str
) -> None:
    apart = run("adaptive-100", 90, 4.0, 3.0, 2.75)
    apart["cf_path"] = [change("outer", 3.938, 5)]
    dense = [run("dense-fp32", 40, 4.0, 3.5, 3.0), run("dense-fp16", 80, 4.0, 3.0, 2.0)]
    runs = [*dense, run("adaptive", 160, *losses), apart]
    (tmp_path / "demo.json").write_text(json.dumps({"rate": 1e8, "workers": 2, "runs": runs}))
    monkeypatch.setattr(tables_of_demo, "FOLDER", tmp_path)
    short, table = tables_of_demo.demo_in_short(), tables_of_demo.demo()
    assert short.startswith("In the demo, 2 workers train for 20 s with each method, over a link of 100 Mbit/s. ")
    assert said in short and "1/13 of float32's" in short and "2.75\nwith gravac and [outer steps]" in short
    assert "| at step 40 | seconds to 2.000 |" in table
    assert "| dense float32, native DDP | 40 | 20.0 | 8.00 | 13.10 | 3.000 | 3.000 | not reached |" in table
    assert "What `AdaptiveCompressor()` ran, from step 0: 2 bits, 15x fewer bytes." in table
    assert table.endswith("ran, from step 0: 8 bits, 20x fewer bytes, every 5 steps.")
