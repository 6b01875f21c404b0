# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""All settings of a run. A policy, its larger part, is one validated object or one TOML file."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import torch
from pydantic import BaseModel, Field, SerializeAsAny, ValidationInfo, field_validator, model_validator

from gravac import beliefs, version
from gravac.candidate import Span
from gravac.compressors import COMPRESSORS, Compressor, Dense, dense, ladder
from gravac.compressors.dtypes import SIXTEEN_BIT
from gravac.controllers import CONTROLLERS, Goodput
from gravac.settings import Settings, SettingsError, is_number
from gravac.texts import text_of, texts_of

SHARED_BESIDE_POLICY = ("samples_per_step", "steps_per_epoch", "total_steps", "probe", "executor", "history")
"""Settings of a run, beside its policy, that all its ranks must have the same."""

COMPARED_APART = ("outer.samples", "outer.local_buffers")
"""Settings of a policy that ranks compare in another form, if they train apart."""

MIXING = 0.5
"""Share of its own weights that a rank keeps where it takes up what travelled behind steps: Streaming DiLoCo's."""


class OuterSettings(Settings):
    """Settings of outer steps, in which ranks train apart and exchange every so many steps how far they came.

    Attributes:
        fragments: number of parts that the model is exchanged in, one after the other in a round (Streaming DiLoCo,
            arXiv:2501.18512).
        delay: number of steps behind which an exchange travels before it is taken up, or more, where it takes longer; 0
            waits for it; ``"auto"`` has the controller choose between that and as many as the link's probe promises to
            be enough.
        mixing: share of its own weights that a rank keeps where it takes up an anchor that travelled behind steps, in
            [0, 1) (α of Streaming DiLoCo); ``None``: what it learned since its pseudo-gradient left, all of it.
        by_speed: whether ranks make steps in proportion to their speed, ``every`` on average; then all train for a
            number of rounds, and not of steps.
        samples: number of samples of a step on this rank, by which pseudo-gradients count; ``None``, on every rank:
            all alike.
        anchor_dtype: ``"bfloat16"`` keeps the anchors so, rounded at random, and what the outer optimizer keeps of
            them; ``"float32"`` in the format of pseudo-gradients, which have at least 32 bit.
        offload: whether to keep anchors, and make the outer step, in CPU memory.
        local_buffers: names of floating-point buffers, or of modules, that stay each rank's own; others are averaged.
        optimizer: makes the optimizer of the anchors, given their parameters; ``None``: ``gravac.OuterSGD``, which
            moves them to the mean of the ranks' weights. Not a setting of a policy's file.
    """

    fragments: int = Field(default=1, ge=1)
    delay: Annotated[int, Field(ge=0)] | Literal["auto"] = "auto"
    mixing: float | None = Field(default=MIXING, ge=0, lt=1)
    by_speed: bool = False
    samples: int | None = Field(default=None, ge=1)
    anchor_dtype: Literal["float32", "bfloat16"] = "float32"
    offload: bool = False
    local_buffers: tuple[str, ...] = ()
    optimizer: Any = None

    @field_validator("optimizer")
    @classmethod
    def _makes_one(cls, value: Any) -> Any:
        if value is not None and not callable(value):
            raise ValueError("give what makes an optimizer of parameters, such as functools.partial(OuterSGD, rate=1)")
        return value


class Policy(Settings):
    """What decides, what compresses, and how errors are fed back.

    Its fields, the keys of a TOML file, are settings of :class:`gravac.AdaptiveCompressor`, and explained there. Those
    of a compressor or a controller stand in a table of its own, beside its ``name``.
    """

    base: SerializeAsAny[Compressor] = ladder
    cf_range: tuple[float, float] = (2.0, 1000.0)
    controller: Any = Goodput()
    error_feedback: float | None = Field(default=None, ge=0, le=1)
    dense: Dense = dense
    sixteen_bit: bool = True
    release: float = Field(default=1.0, gt=0, allow_inf_nan=True)
    residual_dtype: Literal["float32", "bfloat16"] = "float32"
    overflow_safety: bool | None = None
    dense_below: int = Field(default=1024, ge=0)
    seed: int = 0
    every: tuple[int, int] = (1, 1)
    native: bool = True
    least_efficiency: float | None = Field(default=None, gt=0, le=1)
    outer: OuterSettings = Field(default_factory=lambda: OuterSettings())

    @field_validator("base", mode="before")
    @classmethod
    def _compressor(cls, value: Any) -> Any:
        return _named(value, COMPRESSORS, lambda made: isinstance(made, Compressor), "compressor")

    @field_validator("controller", mode="before")
    @classmethod
    def _controller(cls, value: Any) -> Any:
        return _named(value, CONTROLLERS, lambda made: hasattr(made, "observe"), "controller")

    @field_validator("dense", mode="before")
    @classmethod
    def _dense(cls, value: Any) -> Any:
        return dense(dtype=value) if isinstance(value, str) else value

    @field_validator("cf_range", mode="before")
    @classmethod
    def _range(cls, value: Any) -> tuple[float, float]:
        unordered = isinstance(value, (set, frozenset, Mapping))
        bounds = tuple(value) if isinstance(value, Iterable) and not unordered else ()
        if len(bounds) != 2 or not all(map(is_number, bounds)):
            raise ValueError("give two numbers, lowest and highest compression factor, such as (10, 1000)")
        try:
            low, high = map(float, bounds)
        except OverflowError:
            low, high = 1.0, math.inf
        if not (math.isfinite(low) and math.isfinite(high)):
            raise ValueError("bounds must be finite numbers, such as (10, 1000)")
        if low < 1:
            raise ValueError(f"lower bound {low:g} is below 1 (1 means dense); use (1, {max(high, 1):g})")
        if low > high:
            raise ValueError(f"lower bound {low:g} is above the upper bound {high:g}; use ({high:g}, {low:g})")
        return low, high

    @field_validator("every", mode="before")
    @classmethod
    def _every(cls, value: Any) -> tuple[int, int]:
        both = (value, value) if isinstance(value, int) else value
        try:
            low, high = both
            right = all(type(bound) is int and bound >= 1 for bound in (low, high)) and low <= high
        except (TypeError, ValueError):
            right = False
        if not right:
            raise ValueError("give a number of steps, such as 10, or the lowest and the highest, such as (1, 100)")
        return low, high

    @field_validator("error_feedback")
    @classmethod
    def _feedback(cls, value: float | None, info: ValidationInfo) -> float | None:
        base = info.data.get("base")
        if value and isinstance(base, Compressor) and not base.contractive:
            raise ValueError(f"{base.name} is not contractive, so what it leaves would pile up; use error_feedback=0")
        return value

    @model_validator(mode="after")
    def _has_a_choice(self) -> Policy:
        if self.least_efficiency is None:
            return self
        if self.controller.keeps_all:
            raise ValueError(
                f"least_efficiency: {self.controller.name} runs what it is given, whatever that is worth; leave "
                "least_efficiency out, or use a controller that chooses, such as 'goodput'"
            )
        if self.every[0] > 1:
            raise ValueError(
                f"least_efficiency: every={self.every[0]} leaves no steps that average dense gradients, if all others "
                f"are worth less; use every=(1, {self.every[1]})"
            )
        return self

    @model_validator(mode="after")
    def _reachable(self) -> Policy:
        reach = self.base.candidates(self.cf_range)
        if self.base.compresses and not self.controller.propose(self.cf_range, reach):
            raise ValueError(
                f"cf_range: {self.controller.name} finds no candidate of {self.base.name} in "
                f"({self.cf_range[0]:g}, {self.cf_range[1]:g}); {self.base.name} reaches {_words(self.base)}"
            )
        if not (self.base.compresses or reach):
            only = self.dense_format
            raise ValueError(
                f"cf_range: dense in {only.dtype} reaches CF {only.cf:g} alone, which is not in "
                f"({self.cf_range[0]:g}, {self.cf_range[1]:g}); use cf_range=(1, 2) or another compressor"
            )
        return self

    @property
    def dense_format(self) -> Dense:
        """The format in which everything is sent that is not compressed: a dense base's own, or ``dense``."""
        return self.dense if self.base.compresses else cast(Dense, self.base)

    @property
    def dense_formats(self) -> tuple[Dense, ...]:
        """The formats a controller may choose to send everything in: ``dense_format``, and 16 bit beside it.

        Where the base has a 16 bit of its own (a ladder), it is that one: sent whole, it costs less than by the base.
        """
        first = self.dense_format
        if first.cf == 2 or not (self.sixteen_bit and self.controller.sixteen_bit):
            return (first,)
        reach = self.base.candidates(self.cf_range)
        families = () if isinstance(reach, Span) else (self.base.profile(cf).family for cf in reach)
        own = next((family for family in families if family in SIXTEEN_BIT), None)
        return first, first.at(2) if own is None else first(dtype=own)

    def plain(self) -> dict[str, str | int | float | bool]:
        """Every setting by dotted name, for hparams and logs; unset ones as ``"auto"``."""
        settings: dict[str, str | int | float | bool] = {}
        for field, value in self:
            if isinstance(value, OuterSettings):
                if self.every != (1, 1):
                    settings.update({f"{field}.{key}": _plain(set_) for key, set_ in value if key != "optimizer"})
            elif isinstance(value, BaseModel):
                settings[field] = str(getattr(value, "name", field))
                settings.update({f"{field}.{key}": _plain(item) for key, item in value})
            else:
                settings[field] = _plain(value)
        return settings


class RunSettings(Settings):
    """All settings of a run; explained at :class:`gravac.AdaptiveCompressor`.

    Attributes:
        policy: what decides, what compresses, and how errors are fed back. Its controller learns the number of steps in
            an epoch, if it has ``for_run``, and that there is a probe, if it has ``with_probe``.
        probe: whether this process was given a probe.
    """

    samples_per_step: float | None = Field(default=None, gt=0)
    steps_per_epoch: int | None = Field(default=None, gt=0)
    total_steps: int | None = Field(default=None, gt=0)
    probe: bool = False
    history: int = Field(default=1000, ge=1)
    log_dir: Path | None = None
    pace: float | None = Field(default=None, gt=0)
    executor: Literal["auto", "thread", "stream"] = "auto"
    policy: Policy = Field(default_factory=lambda: Policy())

    @field_validator("log_dir", mode="before")
    @classmethod
    def _folder_with_a_name(cls, value: Any) -> Any:
        if value == "" or "\0" in str(value):
            raise ValueError("give a folder, such as 'runs/first', '.' for the present one, or None to write nothing")
        return value

    @field_validator("policy")
    @classmethod
    def _with_epochs(cls, policy: Policy, info: ValidationInfo) -> Policy:
        steps, for_run = info.data.get("steps_per_epoch"), getattr(policy.controller, "for_run", None)
        return policy if steps is None or for_run is None else policy(controller=for_run(steps))

    @field_validator("policy")
    @classmethod
    def _with_probe(cls, policy: Policy, info: ValidationInfo) -> Policy:
        if not info.data.get("probe"):
            return policy
        with_probe = getattr(policy.controller, "with_probe", None)
        if with_probe is None:
            raise ValueError(
                f"probe: {policy.controller.name} does not decide by progress; leave probe out, or use a controller "
                "that does, such as 'goodput'"
            )
        return policy(controller=with_probe(info.data.get("total_steps")))

    def plain(self) -> dict[str, str | int | float | bool]:
        """Return the settings that the run's record tells, by dotted name, as plain values."""
        samples = self.samples_per_step or "steps/s x ranks"
        run = {"samples_per_step": samples, "steps_per_epoch": self.steps_per_epoch or "auto"}
        run |= {"total_steps": self.total_steps or "auto", "probe": self.probe}
        return {**self.policy.plain(), **run}

    def shared(self) -> dict[str, str]:
        """Return versions and settings that must be the same on all ranks, as text, by name.

        Not in it is what each rank may have its own of: ``log_dir`` and ``pace``.
        """
        versions = {"gravac's version": version.__version__, "torch's version": torch.__version__.split("+")[0]}
        versions["beliefs"] = beliefs.beliefs_in_force().digest
        policy = {name: text for name, text in texts_of(self.policy).items() if name not in COMPARED_APART}
        beside = {name: text_of(getattr(self, name)) for name in SHARED_BESIDE_POLICY}
        return {**versions, **policy, **beside}


def load_policy(source: str | Path) -> Policy:
    """Read a policy by name (``"gravac"``) or from a TOML file.

    Raises:
        SettingsError: there is no policy of that name or path, or the file holds what a policy does not allow; the
            message names file, key and value.
    """
    path = find_policy(source)
    try:
        tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    except ImportError:
        raise SettingsError(f"{path}: Python 3.10 reads TOML with the package tomli: pip install tomli") from None
    try:
        return Policy(**tomllib.loads(path.read_text(encoding="utf-8")))
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from None
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror}); give a TOML file that you may read") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{path}: not valid TOML: its bytes are not UTF-8 text; give a TOML file") from None
    except RecursionError:
        raise SettingsError(f"{path}: nested too deeply for a policy, which has tables of one level") from None
    except ValueError as error:  # TOMLDecodeError, and integers of too many digits
        raise SettingsError(f"{path}: not valid TOML: {error}") from None


def policy_names() -> tuple[str, ...]:
    """Names of the policies that come with gravac, ascending."""
    return tuple(sorted(path.stem for path in _folder().glob("*.toml")))


def _folder() -> Path:
    """Where the shipped policies are: inside an installed wheel, or beside the package in a checkout."""
    package = Path(str(resources.files("gravac")))
    return next((f for f in (package / "_policies", package.parent / "policies") if f.is_dir()), package)


def find_policy(source: str | Path) -> Path:
    """The file of a shipped policy by name, or of one by path.

    Raises:
        SettingsError: there is no such policy, or no such file.
    """
    path = Path(source)
    try:
        there = path.is_file()
    except OSError as error:  # of a name that is too long, for one
        raise SettingsError(f"policy: no file can have this path ({error.strerror}): {str(path)[:80]}") from None
    if there:
        return path
    if path.suffix == ".toml":
        raise SettingsError(f"policy: there is no file {path}")
    shipped = _folder() / f"{source}.toml"
    if not shipped.is_file():
        raise SettingsError(
            f"policy: there is none called {str(source)!r}; there are {', '.join(policy_names())}, or give a path to a "
            "TOML file"
        )
    return shipped


def _named(value: Any, known: Mapping[str, Any], right: Callable[[Any], bool], what: str) -> Any:
    """An instance from itself, its name, or a table with its name and settings."""
    settings = dict(value) if isinstance(value, dict) else {}
    value = settings.pop("name", None) if isinstance(value, dict) else value
    if isinstance(value, str):
        if value not in known:
            raise ValueError(f"there is no {what} {value!r}; there are {', '.join(sorted(known))}")
        try:
            return known[value](**settings)
        except TypeError as error:  # of a controller that is no Settings
            raise ValueError(f"{what} {value!r}: {error}") from None
    if isinstance(value, type) or not right(value):
        raise ValueError(f"give a {what}, or the name of one: {', '.join(sorted(known))}")
    return value


def _words(base: Compressor) -> str:
    reach = base.candidates((1.0, math.inf))
    if isinstance(reach, Span):
        return f"any from {reach.low:g} up" if math.isinf(reach.high) else f"{reach.low:g} to {reach.high:g}"
    return ", ".join(f"{cf:g}" for cf in reach) or "none"


def _plain(value: Any) -> str | int | float | bool:
    if isinstance(value, (str, int, float, bool)):
        return value
    return "auto" if value is None else str(value)


def beside(controller: Any, settings: dict[str, Any]) -> Any:
    """The controller asked for, with the settings given beside it, those that are not ``None``.

    Raises:
        SettingsError: the settings are not for that controller.
    """
    settings = {name: value for name, value in settings.items() if value is not None}
    if not settings:
        return "goodput" if controller is None else controller
    if controller not in (None, "gravac"):
        raise SettingsError(
            f"{next(iter(settings))}: set it on the controller itself: controller=GraVAC({next(iter(settings))}=...); "
            "beside controller= it is read for controller='gravac' only"
        )
    return CONTROLLERS["gravac"](**settings)
