# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""``gravac policies`` lists, shows and validates."""

import argparse
from pathlib import Path

import pytest

from gravac import AdaptiveCompressor, SettingsError, load_policy, policy_names
from gravac.commands import policies

pytestmark = pytest.mark.timeout(60)


def run(*arguments: str) -> int:
    """The command, as ``gravac`` would call it."""
    parser = argparse.ArgumentParser()
    policies.add(parser.add_subparsers())
    options = parser.parse_args(["policies", *arguments])
    return int(options.run(options))


def test_every_shipped_policy_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["name", "base", "cf_range", "controller", "description"]
    assert [line.split()[0] for line in lines] == list(policy_names())
    (line,) = (line for line in lines if line.startswith("dgc-warmup "))
    assert line.split()[1:6] == ["dgc", "4", "to", "1000", "warmup"]
    assert "Deep gradient compression with its published warm-up" in line


def test_every_shipped_policy_says_what_it_is() -> None:
    folder = Path(__file__).parents[1] / "policies"
    for path in sorted(folder.glob("*.toml")):
        text = path.read_text(encoding="utf-8")
        assert policies.policy_description(text), path
        has_source = any(source in text for source in ("Source:", "docs/measurements", "docs/evidence"))
        assert has_source, f"{path}: says not where its numbers come from"


@pytest.mark.parametrize("name", policy_names())
def test_a_shipped_policy_is_shown_with_every_setting(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(name) == 0
    out = capsys.readouterr().out
    text, table = out.split("All settings, also those that the file leaves out:")
    assert (Path(__file__).parents[1] / "policies" / f"{name}.toml").read_text(encoding="utf-8").rstrip() in text
    assert {line.split()[0] for line in table.split("\n") if line} == {"log_dir", *load_policy(name).as_dict()}


def test_a_file_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('cf_range = [20, 100]\nlog_dir = "runs"\n', encoding="utf-8")
    assert run(str(path)) == 0
    _, table = capsys.readouterr().out.split("All settings")
    assert "(20.0, 100.0)" in table and "runs" in table


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cf_range = [100, 10]", ("cf_range", "lower bound 100 is above the upper bound 10", "use (10, 100)")),
        ("dense_below = -1", ("dense_below", "greater than or equal to 0", "-1")),
        ("error_feedback = 2", ("error_feedback", "less than or equal to 1", "2")),
        ("colour = 1", ("colour", "unknown setting", "known settings")),
        ('controller = { name = "warmup", every = 0 }', ("controller", "every", "greater than or equal to 1", "got 0")),
        ('controller = "none"', ("there is no controller 'none'", "gravac, ", "warmup")),
        ("cf_range = [", ("not valid TOML",)),
    ],
)
def test_what_is_wrong_is_said_with_status_2(
    text: str, said: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text + "\n", encoding="utf-8")
    assert run(str(path)) == 2
    err = capsys.readouterr().err
    for words in (str(path), *said):
        assert words in err


def test_no_policy_of_that_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("none") == 2
    assert run(str(tmp_path / "none.toml")) == 2
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    assert run(str(tmp_path / "bytes.toml")) == 2
    err = capsys.readouterr().err
    assert "'none' is unknown" in err and "there is no file" in err and "not text in UTF-8" in err


@pytest.mark.parametrize(("name", "low", "high"), [("lan", 2, 8), ("wan", 4, 500), ("slow-link", 7, 1000)])
def test_the_policies_for_links_stand_on_the_rule_of_the_default(name: str, low: float, high: float) -> None:
    with AdaptiveCompressor.from_policy(name) as compressor:
        policy = compressor.policy
    reach = policy.base.candidates(policy.cf_range)
    assert (policy.base.name, policy.dense_format.dtype, policy.cf_range) == ("ladder", "bfloat16", (low, high))
    assert policy.controller.name == load_policy("goodput").controller.name == "goodput"
    assert len(policy.controller.propose(policy.cf_range, reach)) >= 3


def test_the_policy_of_dgc_rises_as_published() -> None:
    policy = load_policy("dgc-warmup")
    assert policy.controller.stages == (4, 16, 64, 256, 1000)
    assert policy.controller.propose(policy.cf_range, policy.base.candidates(policy.cf_range)) == (
        4,
        16,
        64,
        256,
        1000,
    )


@pytest.mark.parametrize(
    "text",
    [
        "every = [1, 10]\n[controller]\nname = 'static'\ncf = 8\n",
        "every = [1, 10]\ncontroller = 'accordion'\n",
        "least_efficiency = 0.5\nevery = [2, 4]\n",
        "[base]\nname = 'ladder'\nmembers = [{name = 'signsgd'}]\n",
    ],
)
def test_the_command_refuses_what_from_policy_refuses(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError) as refused:
        AdaptiveCompressor.from_policy(path)
    assert run(str(path)) == 2
    assert str(refused.value) in capsys.readouterr().err
