# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Bad input gets an error that names the field, the value and what is allowed."""

import errno
import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gravac
from gravac import (
    COMPRESSORS,
    Accordion,
    AdaptiveCompressor,
    Goodput,
    GraVAC,
    Policy,
    SettingsError,
    Static,
    Warmup,
    dense,
    load_policy,
    policy_names,
    topk,
)
from gravac.exchange.lockstep import Lockstep
from gravac.policy import OuterSettings
from gravac.settings import Settings, is_number
from tests.policies import adaptive


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"cf_range": (1000, 10)}, r"cf_range: lower bound 1000 is above the upper bound 10; use \(10, 1000\)"),
        ({"cf_range": (0.5, 1000)}, r"cf_range: lower bound 0.5 is below 1 \(1 means dense\); use \(1, 1000\)"),
        ({"cf_range": ("ten", 1000)}, r"cf_range: give two numbers.*got \('ten', 1000\)"),
        ({"cf_range": 10}, r"cf_range: give two numbers.*got 10"),
        ({"cf_range": (1, 2, 3)}, "cf_range: give two numbers"),
        ({"cf_range": "25"}, "cf_range: give two numbers.*got '25'"),
        ({"cf_range": ("2", "5")}, "cf_range: give two numbers.*got .'2', '5'."),
        ({"cf_range": (True, 5)}, "cf_range: give two numbers.*got .True, 5."),
        ({"cf_range": {5, 2}}, "cf_range: give two numbers"),
        ({"cf_range": (2, 10**400)}, "cf_range: bounds must be finite"),
        ({"cf_range": (10, float("inf"))}, "cf_range: bounds must be finite"),
        ({"cf_range": (float("nan"), 10)}, "cf_range: bounds must be finite"),
        ({"base": "topq"}, "base: there is no compressor 'topq'; use one of artopk, dense, dgc, intsgd, "),
        ({"base": 3}, "base: give a compressor"),
        ({"base": gravac.TopK}, r"base: give a compressor, .*give an object: TopK\(\)"),
        ({"controller": "pid"}, "controller: there is no controller 'pid'"),
        ({"controller": 7}, "controller: give a controller"),
        ({"controller": gravac.Static}, r"controller: give a controller, .*give an object: Static\(\)"),
        ({"controller": {"name": "gravac", "window": 0}}, "controller: window: .*greater than or equal to 1.*got 0"),
        ({"controller": {"name": "gravac", "epsilon": 1.5}}, "controller: epsilon: .*got 1.5"),
        ({"controller": {"name": "gravac", "omega": -1}}, "controller: omega: .*got -1"),
        ({"controller": {"name": "gravac", "step": "linear"}}, "controller: step: .*'exponential'.*got 'linear'"),
        ({"error_feedback": 1.2}, "error_feedback: .*less than or equal to 1.*got 1.2"),
        ({"dense": "float8"}, "dense: .*'float32', 'float16' or 'bfloat16'.*got 'float8'"),
        ({"sixteen_bit": "maybe"}, "sixteen_bit: .*valid boolean.*got 'maybe'"),
        ({"dense_below": -1}, "dense_below: .*got -1"),
        ({"seed": "x"}, "seed: .*got 'x'"),
        ({"seed": "3"}, "seed: give a number, not text .got '3'"),
        ({"seed": True}, "seed: give a number, not True or False .got True"),
        (
            {"controller": {"name": "gravac", "window": True}},
            "controller: window: give a number, not True or False .got True",
        ),
        ({"sixteen_bit": 1}, "sixteen_bit: give True or False .got 1"),
        ({"overflow_safety": "yes"}, "overflow_safety: give True or False .got 'yes'"),
        ({"samples_per_step": 0}, "samples_per_step: .*greater than 0"),
        ({"samples_per_step": float("inf")}, "samples_per_step: .*finite number.*got inf"),
        ({"log_dir": ""}, "log_dir: give a folder, such as .*got ''"),
        ({"log_dir": "runs\0"}, "log_dir: give a folder, such as"),
        ({"sinks": print}, "sinks: give a sequence of functions of a record .got <built-in function print>"),
        ({"sinks": [3]}, r"sinks: give a sequence of functions of a record .got \[3\]"),
        ({"process_group": "x"}, "process_group: give a group of torch.distributed.new_group .* .got 'x'"),
        ({"total_steps": 1.5}, "total_steps: .*got 1.5"),
        ({"base": dense}, "cf_range: dense in float32 reaches only CF 1"),
    ],
    ids=str,
)
def test_a_wrong_setting_is_named(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        adaptive(**{"base": topk, **settings})


NUMERIC = [
    (kind, name)
    for kind in (*COMPRESSORS.values(), Static(cf=2), GraVAC(), Goodput(), Accordion(), Warmup(), Policy())
    for name, value in kind
    if is_number(value)
] + [(kind, name) for kind in (OuterSettings(), Policy()) for name in ("mixing", "samples_per_step", "total_steps")]
"""Settings objects, and names of their fields that hold numbers."""


@pytest.mark.parametrize(("kind", "name"), [pair for pair in NUMERIC if pair[1] in type(pair[0]).model_fields], ids=str)
@pytest.mark.parametrize("value", [True, "8", b"8", float("nan"), [8]], ids=repr)
def test_no_numeric_setting_is_guessed_from_a_bool_or_text_or_is_nan(kind: Settings, name: str, value: object) -> None:
    with pytest.raises(SettingsError, match=rf"^{name}: "):
        kind(**{name: value})


@pytest.mark.parametrize(("kind", "name"), [pair for pair in NUMERIC if pair[1] in type(pair[0]).model_fields], ids=str)
def test_no_numeric_setting_is_infinite(kind: Settings, name: str) -> None:
    with pytest.raises(SettingsError, match=rf"^{name}: "):
        kind(**{name: float("inf")})


def test_whole_numbers_are_taken_for_floats_and_lists_and_arrays_for_tuples() -> None:
    policy = Policy(base=topk, cf_range=[2, 50], error_feedback=1, seed=np.int64(3))
    assert (policy.cf_range, policy.error_feedback, policy.seed) == ((2.0, 50.0), 1.0, 3)
    assert Policy(base=topk, cf_range=np.array([2, 50])).cf_range == (2.0, 50.0)
    assert Policy(total_steps=100.0, log_dir="runs").total_steps == 100


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(TypeError, match="cf_rnage"):
        AdaptiveCompressor(topk, cf_rnage=(1, 2))  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match=r"vlaues: unknown setting .*known settings: values"):
        topk(vlaues="float16")
    with pytest.raises(SettingsError, match="windwo: unknown setting"):
        GraVAC(windwo=3)


@pytest.mark.parametrize(
    ("argument", "remedy"),
    [
        ({"window": 20}, "window; use controller=Accordion|Goodput|GraVAC|Static|Warmup(window=20)"),
        ({"dense_below": 4096}, "dense_below; use AdaptiveCompressor.from_policy(Policy(dense_below=4096))"),
        ({"delay": 2}, "delay; use outer=OuterSettings(delay=2)"),
        ({"rank": 4}, "rank; use base=powersgd(rank=4)"),
    ],
    ids=str,
)
def test_an_argument_that_is_a_setting_elsewhere_is_told_where(argument: dict[str, Any], remedy: str) -> None:
    with pytest.raises(TypeError, match=re.escape(f"AdaptiveCompressor has no argument {remedy}")):
        AdaptiveCompressor(**argument)


def test_a_compressor_without_a_candidate_in_range_names_what_it_reaches() -> None:
    class Bits(gravac.TopK):
        """Reaches two CFs."""

        def candidates(self, cf_range: tuple[float, float]) -> tuple[float, ...]:
            return tuple(cf for cf in (4.0, 8.0) if cf_range[0] <= cf <= cf_range[1])

    with pytest.raises(SettingsError, match=r"no candidate of topk in \(10, 1000\); topk reaches 4, 8"):
        AdaptiveCompressor(Bits(), cf_range=(10, 1000))
    AdaptiveCompressor(Bits())


def test_error_feedback_on_what_is_not_contractive_is_refused_by_name() -> None:
    class Loud(gravac.TopK):
        """Not contractive."""

        contractive = False
        name = "loud"

    with pytest.raises(SettingsError, match="error_feedback: loud is not contractive"):
        AdaptiveCompressor(Loud(), error_feedback=1.0)


def test_a_log_dir_that_cannot_be_written_is_refused_before_training(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    compressor = AdaptiveCompressor(topk, log_dir=file / "runs")
    with pytest.raises(SettingsError, match=r"log_dir: cannot write to .*file.*give a folder you may write to"):
        compressor.attach_parameters({"w": torch.ones(4)}, executor=Lockstep(1).executors[0])


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        topk.values = "float16"  # type: ignore[misc]


def test_construction_needs_neither_group_nor_model(tmp_path: Path) -> None:
    with AdaptiveCompressor(topk, cf_range=(10, 1000)) as compressor:
        assert compressor.cf == 1
        assert compressor.gain is None
        assert compressor.history == []
        assert compressor.state_dict()["residual"] == {}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", policy_names())
def test_shipped_policies_load_by_name(name: str) -> None:
    assert AdaptiveCompressor.from_policy(name).policy == load_policy(name)


def test_the_papers_policy_has_the_papers_numbers() -> None:
    policy = load_policy("gravac-paper")
    assert isinstance(policy.controller, GraVAC)
    assert policy.controller.window == 500
    assert policy.controller.omega == 0.01
    assert policy.cf_range == (10, 1000)


def test_the_default_policy_is_what_the_constructor_does() -> None:
    assert AdaptiveCompressor().policy == load_policy("goodput")
    assert AdaptiveCompressor(topk, (10, 1000), controller="gravac").policy == load_policy("gravac")


def test_a_changed_policy_chooses_its_defaults_anew() -> None:
    policy = Policy()
    assert policy.controller.name == "goodput"
    assert policy(base=topk).controller.name == "gravac"
    assert policy(controller=Static(cf=8))(base=topk).controller == Static(cf=8)


def test_a_field_that_was_not_given_follows_later_changes() -> None:
    for policy in (Policy(controller=None, outer=None), AdaptiveCompressor().policy):
        assert policy(base=topk).controller.name == "gravac"
        assert policy(base=topk, every=(1, 100)).controller.name == "goodput"
    with pytest.raises(SettingsError, match=r"every: .* needs a controller"):
        AdaptiveCompressor.from_policy(Policy(base=topk, controller="gravac"), every=(1, 100))


def test_a_table_of_outer_settings_replaces_single_keys() -> None:
    policy = Policy(every=5, outer=OuterSettings(delay=3, mixing=0.2))
    compressor = AdaptiveCompressor.from_policy(policy, outer={"delay": 0})
    assert compressor.policy.outer == OuterSettings(delay=0, mixing=0.2)


def test_the_constructor_hands_all_its_arguments_to_the_policy() -> None:
    given: dict[str, Any] = {
        "base": topk,
        "cf_range": (3, 30),
        "controller": Goodput(near=0.5),
        "every": (1, 7),
        "native": False,
        "least_efficiency": 0.9,
        "error_feedback": 0.25,
        "dense": "float16",
        "outer": OuterSettings(delay=1),
        "samples_per_step": 64.0,
        "total_steps": 100,
        "log_dir": Path("runs"),
        "seed": 3,
    }
    arguments = {*inspect.signature(AdaptiveCompressor).parameters} - {"sinks", "process_group", "unknown"}
    assert arguments == {*given}
    policy = AdaptiveCompressor(**given).policy
    assert policy == Policy(**given)
    assert all(getattr(policy, name) != getattr(Policy(), name) for name in given)


def test_fields_of_a_policy_are_replaced_and_unknown_ones_refused() -> None:
    compressor = AdaptiveCompressor.from_policy("gravac", dense_below=0, total_steps=10)
    assert compressor.policy == load_policy("gravac")(dense_below=0, total_steps=10)
    with pytest.raises(SettingsError, match=r"dense_under: unknown setting .*known settings: .*dense_below"):
        AdaptiveCompressor.from_policy("gravac", dense_under=0)


def test_a_dense_format_is_a_dtype_or_its_name() -> None:
    assert AdaptiveCompressor(dense=torch.bfloat16).policy == AdaptiveCompressor(dense="bfloat16").policy
    with pytest.raises(SettingsError, match="dense: "):
        AdaptiveCompressor(dense=torch.int8)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cf_range = [10", "not valid TOML"),
        ("cf_rnage = [10, 1000]", "mine.toml: cf_rnage: unknown setting .*known settings: base, cf_range"),
        ('[controller]\nname = "gravac"\nwindwo = 3', "mine.toml: controller: .*windwo: unknown setting"),
        ('[base]\nname = "topq"', "mine.toml: base: there is no compressor 'topq'"),
        ("cf_range = [1000, 10]", "mine.toml: cf_range: lower bound 1000 is above"),
        ("[controller]\nwindow = 3", "mine.toml: controller: give a controller, or the name of one"),
        ("self = 3", "mine.toml: self: unknown setting"),
        (b"\xff\xfe\x00", "mine.toml: is not valid TOML: its bytes are not UTF-8 text"),
        (b"\x00", "mine.toml: is not valid TOML"),
        ("cf_range = " + "[" * 20_000, "mine.toml: (its tables are nested too deeply|is not valid TOML)"),
        (
            "a" + ".a" * 5000 + " = 1",
            "mine.toml: (its tables are nested too deeply|is not valid TOML|a: unknown setting)",
        ),
        ("seed = " + "9" * 10_000, "mine.toml: "),
    ],
    ids=lambda given: str(given)[:40],
)
def test_errors_in_a_policy_name_file_key_and_value(tmp_path: Path, text: str | bytes, said: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SettingsError, match=said):
        AdaptiveCompressor.from_policy(path)


def test_a_policy_that_is_not_there_is_named() -> None:
    with pytest.raises(SettingsError, match=r"policy: 'gravca' is unknown; use one of .*gravac, gravac-paper"):
        load_policy("gravca")
    with pytest.raises(SettingsError, match=r"there is no file .*nowhere.toml"):
        load_policy("nowhere.toml")
    with pytest.raises(SettingsError, match="no file can have the path"):
        load_policy("a" * 5000)


def test_a_policy_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.toml"
    path.touch()
    monkeypatch.setattr(Path, "read_text", refused)
    with pytest.raises(SettingsError, match=r"mine.toml: cannot be read .Permission denied"):
        load_policy(path)


def refused(*_: Any, **__: Any) -> str:
    raise PermissionError(errno.EACCES, "Permission denied")


@pytest.mark.parametrize("wrong", [None, 5, b"gravac", []], ids=repr)
@pytest.mark.parametrize("make", [AdaptiveCompressor.from_policy, load_policy])
def test_what_is_no_policy_is_refused_by_name(make: Any, wrong: object) -> None:
    with pytest.raises(SettingsError, match=r"policy: give .*\(got "):
        make(wrong)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"least_efficiency": 0.9, "controller": Static(cf=8)}, "least_efficiency: static runs its candidates at any"),
        ({"least_efficiency": 0.9, "every": (5, 10)}, "least_efficiency: every=5 leaves no candidate"),
        ({"base": "quantize", "cf_range": (50, 100)}, "cf_range: gravac finds no candidate of quantize"),
        ({"base": "dense", "cf_range": (10, 100)}, "cf_range: dense in float32 reaches only CF 1"),
        ({"controller": Static(cf=8), "every": (1, 10)}, "every: (1, 10) needs a controller that chooses"),
        ({"controller": {"name": "static"}}, "controller: cf: is missing; give Static(cf=...)"),
        ({"base": {"name": "topk", "values": "x"}}, "base: values: Input should be"),
        ({"base": {"name": "ladder", "members": ["topk"]}}, "base: members: give compressors as objects"),
        ({"outer": {"delay": -1}}, "outer: delay: Input should be"),
        ({"every": {1, 2}}, "every: give a number of steps"),
        ({"log_dir": 5}, "log_dir: give a folder"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_settings_that_contradict_each_other_or_are_nested_are_told_in_a_short_sentence(
    settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        AdaptiveCompressor(**settings)
    message = str(refused.value)
    assert message.startswith(said)
    assert message.count("(got") <= 1 and "members=(" not in message and len(message) < 250, message


def test_a_long_value_is_cut() -> None:
    with pytest.raises(SettingsError) as refused:
        AdaptiveCompressor(seed="x" * 10_000)  # type: ignore[arg-type]
    assert len(str(refused.value)) < 250
