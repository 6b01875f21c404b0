# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The report: its numbers, its verdicts, and a page that stands alone. Runs are made up."""

from __future__ import annotations

import base64
import io
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from gravac.lab.report.numbers import DENSE_METHODS, ReportRow, amount_over_seeds, bytes_per_step, speedup_interval
from gravac.lab.report.sentences import ratio_text
from gravac.lab.report.summary import Section, link_order, sections
from gravac.lab.tta.record import DecisionPoint, Split, TrainingRecord
from gravac.settings import SettingsError
from tests.lab.made_up_runs import DENSE_BYTES, METHODS, made_up, realistic

pytest.importorskip("matplotlib")

from PIL import Image, ImageColor

from gravac.lab.report import curves, plots, style
from gravac.lab.report.page import write_report


def seeds(method: str, *ttas: float | None, **given: object) -> list[TrainingRecord]:
    return [made_up(method, seed, tta_s=tta, **given) for seed, tta in enumerate(ttas)]


def only(runs: list[TrainingRecord]) -> Section:
    (section,) = sections(runs)
    return section


def row(section: Section, method: str) -> ReportRow:
    found = section.row(method)
    assert found is not None
    return found


def free(*ttas: float | None) -> list[TrainingRecord]:
    return seeds("fp32", *ttas, link="unthrottled")


def on(link: str, runs: list[TrainingRecord]) -> Section:
    return next(section for section in sections(runs) if section.setup.link == link)


def test_medians_and_range_over_seeds() -> None:
    tta = row(only(seeds("fp16", 12.0, 10.0, 30.0)), "fp16").tta
    assert (tta.median, tta.low, tta.high, tta.runs, tta.exact) == (12.0, 10.0, 30.0, 3, True)


def test_a_median_is_exact_while_most_seeds_reach_the_target_and_a_bound_otherwise() -> None:
    most = row(only(seeds("fp16", 10.0, 12.0, None)), "fp16")
    assert (most.tta.exact, most.tta.median, most.reached, most.tta.high_sign) == (True, 12.0, 2, ">")
    none = row(only(seeds("fp16", None, None)), "fp16")
    assert (none.tta.median_sign, none.tta.median, none.reached) == (">", 24.0, 0)
    assert (none.tta.low_sign, none.tta.high_sign) == (">", ">")
    half = row(only(seeds("fp16", 10.0, None)), "fp16")
    assert (half.tta.median_sign, half.tta.median) == (">", 17.0)


def test_speedups_are_paired_by_seed() -> None:
    section = only(seeds("fp16", 10.0, 100.0, 50.0) + seeds("topk@10", 5.0, 50.0))
    speedup = row(section, "topk@10").speedup
    assert speedup is not None
    assert (speedup.median, speedup.low, speedup.high, speedup.runs) == (2.0, 2.0, 2.0, 2)


def test_speedup_over_a_baseline_that_did_not_reach_the_target_is_a_lower_bound() -> None:
    section = only(seeds("fp16", None) + seeds("topk@10", 12.0))
    speedup = row(section, "topk@10").speedup
    assert speedup is not None
    assert (speedup.median_sign, speedup.median) == (">", 2.0)
    assert "more than 2.00x as fast as fp16" in section.verdict


def test_speedup_of_what_did_not_reach_the_target_is_an_upper_bound() -> None:
    speedup = row(only(seeds("fp16", 12.0) + seeds("topk@10", None)), "topk@10").speedup
    assert speedup is not None
    assert (speedup.median_sign, speedup.median) == ("<", 0.5)
    assert speedup_interval(made_up(tta_s=None), made_up(tta_s=None)) is None


def test_the_ends_of_a_range_are_bounds_where_they_are_not_known() -> None:
    found = amount_over_seeds([(2.0, 2.0), (0.0, 0.5)])
    assert found is not None
    assert (found.median_sign, found.median) == ("<", 1.25)
    assert (found.low_sign, found.low, found.high_sign, found.high) == ("<", 0.5, "", 2.0)


def test_fp32s_steps_come_from_the_free_network_where_it_did_not_get_there() -> None:
    runs = free(8.0) + seeds("fp32", None) + seeds("topk@10", 20.0)
    assert on("100mbit", runs).dense_steps == 100
    assert on("100mbit", runs[1:]).dense_steps is None


def test_nothing_is_said_of_a_median_that_could_be_anything() -> None:
    assert amount_over_seeds([]) is None
    assert amount_over_seeds([(0.0, 0.5), (2.0, math.inf), (0.0, math.inf)]) is None
    assert amount_over_seeds([(0.0, math.inf)]) is None


def test_the_limit_is_fp32_on_a_free_network() -> None:
    runs = free(8.0, 10.0, 12.0) + seeds("topk@10", 15.0) + seeds("fp32", 99.0, link="100mbit")
    section = on("100mbit", runs)
    relative = row(section, "topk@10").relative
    assert section.limit == 10.0
    assert relative is not None
    assert relative.median == 1.5
    assert on("unthrottled", runs).limit == 10.0


@pytest.mark.parametrize(
    "other",
    [{"workers": 4}, {"scale": 0.5}, {"task": "denoise"}],
    ids=["workers", "scale", "task"],
)
def test_the_limit_of_something_else_does_not_count(other: dict[str, object]) -> None:
    section = on("100mbit", seeds("fp32", 8.0, link="unthrottled", **other) + seeds("topk@10", 15.0))
    assert section.limit is None
    assert row(section, "topk@10").relative is None
    assert any("The limit is not known" in note and "was not run" in note for note in section.notes)


def test_a_limit_that_was_not_reached_is_none() -> None:
    section = on("100mbit", free(None) + seeds("topk@10", 15.0))
    assert section.limit is None
    assert any("did not reach the target" in note for note in section.notes)


def test_spread_beyond_ten_percent_is_told() -> None:
    section = only(seeds("fp16", 10.0, 9.0, 11.3) + seeds("topk@10", 10.0, 10.5, 10.1))
    assert row(section, "fp16").spread == "spread 23 %, 3 runs: add seeds"
    assert row(section, "topk@10").spread == ""
    assert any("fp16 (spread 23 %" in note for note in section.notes)


def test_one_seed_is_told() -> None:
    assert any(note.startswith("One seed only") for note in only(seeds("fp16", 10.0)).notes)
    assert not any(note.startswith("One seed only") for note in only(seeds("fp16", 10.0, 10.1)).notes)


def test_wire_ratio_bytes_and_compress_share() -> None:
    split = Split(compute=0.1, compress=0.05, exchange=0.02, exposed=0.0, input_wait=0.0)
    section = only([made_up("fp32"), made_up("topk@10", split=split), made_up("fp16", wire_bytes=None)])
    found = row(section, "topk@10")
    assert found.bytes_per_step == DENSE_BYTES / 10
    assert found.wire_ratio == pytest.approx(10)
    assert found.compress_fraction == pytest.approx(0.25)
    assert row(section, "fp16").wire_ratio is None
    assert bytes_per_step(made_up(steps=0)) is None


def test_verdict_of_a_clear_winner() -> None:
    runs = free(10.0, 10.0) + seeds("fp16", 30.0, 32.0) + seeds("gravac:topk", 15.0, 16.0)
    expected = "gravac:topk is fastest: 2.00x as fast as fp16 (2.00 to 2.00 over 2 seeds), at 1.55x the limit."
    assert on("100mbit", runs).verdict == expected


def test_verdict_within_the_spread_is_no_winner() -> None:
    section = only(seeds("fp16", 30.0, 32.0) + seeds("gravac:topk", 25.0, 33.0))
    assert section.verdict.startswith("No clear winner")
    assert any("Seeds disagree" in note for note in section.notes)


@pytest.mark.parametrize("dense", ["fp32", "fp16", "bf16"])
def test_verdict_when_a_dense_method_wins(dense: str) -> None:
    section = only(seeds(dense, 10.0, 10.1) + seeds("gravac:topk", 20.0, 20.4))
    assert section.verdict.startswith(f"{dense} is fastest: compressing further does not pay here")
    assert "gravac:topk, takes 2.01x as long" in section.verdict


def test_verdict_when_nothing_reached_the_target_or_the_baseline_did_not_run() -> None:
    assert only(seeds("fp16", None)).verdict == "No method reached the target in its time."
    assert "fp16 did not run here" in only(seeds("topk@10", 10.0)).verdict


def test_rows_are_sorted_with_those_that_did_not_reach_the_target_last() -> None:
    section = only(seeds("fp32", 30.0) + seeds("topk@1000", None) + seeds("gravac:topk", 20.0))
    assert [each.method for each in section.rows] == ["gravac:topk", "fp32", "topk@1000"]


def test_of_a_run_that_is_there_twice_the_later_counts() -> None:
    assert row(only([made_up(tta_s=10.0), made_up(tta_s=12.0)]), "fp16").tta.median == 12.0


def test_mixed_targets_are_told() -> None:
    section = only([made_up("fp16"), made_up("topk@10", target=1.6)])
    assert any("different targets" in note for note in section.notes)


def test_links_are_ordered_by_rate() -> None:
    links = ["unthrottled", "1gbit,30s:50mbit", "10mbit", "100mbit"]
    assert sorted(links, key=link_order) == ["10mbit", "100mbit", "1gbit,30s:50mbit", "unthrottled"]
    assert (ratio_text(1.5), ratio_text(12.0), ratio_text(100.0)) == ("1.50x", "12.0x", "100x")


def test_bytes_follow_the_decisions() -> None:
    turns = (
        DecisionPoint(step=0, compressor="dense", cf=1.0, changed=True, reason="start"),
        DecisionPoint(step=60, compressor="topk@9", cf=9.0, changed=True, reason="more"),
    )
    run = made_up("gravac:topk", turns=turns, wire_bytes=200_000_000)
    sent = curves.megabytes_sent(run)
    assert math.isnan(sent[0])
    assert sent[3] == pytest.approx(180.0)
    assert sent[-1] == pytest.approx(200.0)


def test_looks_differ_and_adaptive_ones_are_thick() -> None:
    names = ["fp32", "fp16", *(f"topk@{cf}" for cf in range(12)), "gravac:topk", "gravac:ladder"]
    drawn = style.assign_looks(names, ["gravac:topk", "gravac:ladder"])
    assert len({(look.colour, look.dash) for look in drawn.values()}) == len(names)
    assert drawn["gravac:topk"].width > drawn["fp16"].width


def test_pictures_keep_the_colours_of_methods() -> None:
    runs = [realistic("charlm", "100mbit", method, 0) for method in METHODS]
    section = only(runs)
    drawn = style.assign_looks(list(METHODS), [run.method for run in runs if run.adaptive])
    for figure in (curves.metric_against_time(section, drawn), plots.frontier(section, drawn)):
        assert figure is not None
        with Image.open(io.BytesIO(style.png_bytes(figure))) as opened:
            picture = opened.convert("RGB")
        colours = {colour for _, colour in picture.getcolors(picture.width * picture.height) or []}
        strong = [look.colour for method, look in drawn.items() if method not in DENSE_METHODS]
        assert {(255, 255, 255), *map(ImageColor.getrgb, strong)} <= colours


def test_what_ended_before_fp32s_steps_is_left_out_of_the_frontier() -> None:
    section = only(seeds("fp32", 8.0) + seeds("topk@10", None, steps=50) + seeds("topk@20", None, steps=150))
    figure = plots.frontier(section, style.assign_looks(["fp32", "topk@10", "topk@20"], []))
    assert figure is not None
    labels = {text.get_text() for legend in figure.legends for text in legend.get_texts()}
    assert labels == {"fp32", "topk@20: not reached", "frontier"}


class Page(HTMLParser):
    """What a page points at, and its tags, which must close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.targets += [value for name, value in attrs if name in ("src", "href") and value]
        self.anchors |= {value for name, value in attrs if name == "id" and value}
        if tag not in ("meta", "img", "br", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = [
        realistic("charlm", link, method, seed)
        for link in ("10mbit", "1gbit,30s:50mbit", "unthrottled")
        for method in ("fp32", "fp16", "topk@1000", "gravac:topk")
        for seed in range(2 if link == "10mbit" else 1)
    ]
    return write_report(found, tmp_path_factory.mktemp("page") / "new" / "folder")


def test_the_page_stands_alone(report: Path) -> None:
    text = report.read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    assert all(target.startswith(("#", "data:image/png;base64,")) for target in page.targets)
    assert {target[1:] for target in page.targets if target.startswith("#")} <= page.anchors
    assert "<title>gravac report: charlm</title>" in text
    assert "<script" not in text
    assert "url(" not in text


def test_every_figure_is_also_a_file(report: Path) -> None:
    embedded = re.findall(r"data:image/png;base64,([A-Za-z0-9+/=]+)", report.read_text(encoding="utf-8"))
    files = [path.read_bytes() for path in report.parent.glob("*.png")]
    assert sorted(base64.b64decode(each) for each in embedded) == sorted(files)
    assert all(each.startswith(b"\x89PNG") for each in files)
    names = {path.name for path in report.parent.glob("charlm-unthrottled-*.png")}
    kinds = ["tta", "time", "steps", "bytes", "frontier", "timeline", "decisions-gravac_topk-seed_0"]
    assert names == {f"charlm-unthrottled-{kind}.png" for kind in kinds}


def test_paced_and_factored_runs_are_marked(report: Path) -> None:
    text = re.sub(r"base64,[^\"]*", "", report.read_text(encoding="utf-8"))
    paced = text[text.index('<h2 id="charlm-1gbit_30s_50mbit"') : text.index('<h2 id="charlm-unthrottled"')]
    plain = text[text.index('<h2 id="charlm-unthrottled"') : text.index('<h2 id="how-to-read"')]
    marked = '<span class="paced">paced, no emulated link</span>'
    assert marked in paced[: paced.index("</h2>")]
    assert all(marked in part for part in re.findall(r"<figcaption>.*?</figcaption>|<caption>.*?</caption>", paced))
    assert marked not in plain
    assert ">†</a>" in text[text.index('<h2 id="charlm-10mbit"') : text.index('<h2 id="charlm-1gbit')]
    assert ">†</a>" not in plain


def test_reasons_are_listed_by_number(report: Path) -> None:
    text = report.read_text(encoding="utf-8")
    changed = plots.changed_decisions(realistic("charlm", "unthrottled", "gravac:topk", 0))
    section = text[text.index('<h2 id="charlm-unthrottled"') :]
    assert f'<th scope="row">{len(changed)}</th>' in section
    assert "&lt; ε" in section


def test_names_are_escaped_and_files_stay_in_the_folder(tmp_path: Path) -> None:
    bad = '<b onload="x">&../$x$'
    turn = DecisionPoint(step=0, compressor=bad, cf=2.0, changed=True, reason=bad)
    given: dict[str, Any] = {"task": bad, "link": bad, "metric": bad, "turns": (turn,)}
    page = write_report([made_up(bad, adaptive=True, **given)], tmp_path)
    text = page.read_text(encoding="utf-8")
    assert "<b onload" not in text
    assert "&lt;b onload=&#34;x&#34;&gt;&amp;" in text
    assert {path.parent for path in tmp_path.rglob("*.png")} == {tmp_path}
    assert Page(text).open == []


def test_native_methods_alone_without_bytes_or_split(tmp_path: Path) -> None:
    runs = [made_up(method, wire_bytes=None, split=None) for method in ("fp32", "fp16")]
    page = write_report(runs, tmp_path)
    assert {path.stem for path in tmp_path.glob("*.png")} == {f"charlm-100mbit-{x}" for x in ("tta", "time", "steps")}
    assert "The limit is not known" in page.read_text(encoding="utf-8")


def test_runs_that_made_no_step_and_never_evaluated(tmp_path: Path) -> None:
    empty: dict[str, Any] = {
        "steps": 0,
        "seconds": 0.0,
        "step_s": 0.0,
        "samples_per_s": 0.0,
        "wire_bytes": 0,
        "curve": (),
    }
    write_report([made_up("fp32", tta_s=None, **empty), made_up("gravac:topk", tta_s=None, **empty)], tmp_path)


def test_places_that_differ_in_workers_alone_have_files_of_their_own(tmp_path: Path) -> None:
    page = write_report([made_up(workers=2, split=None), made_up(workers=4, split=None)], tmp_path)
    assert (tmp_path / "charlm-100mbit-tta.png").exists()
    assert (tmp_path / "charlm-100mbit-scale_1-workers_4-tta.png").exists()
    assert "charlm, 4 workers" in page.read_text(encoding="utf-8")


def test_no_runs_and_a_file_in_the_way_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no runs to report; give files of"):
        write_report([], tmp_path)
    there = tmp_path / "there"
    there.write_text("")
    with pytest.raises(SettingsError, match=r"is a file; give a folder"):
        write_report([made_up()], there)
