# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""All settings of a run: the fields of a policy, an object that can be read from a TOML file."""

from __future__ import annotations

import importlib
import math
import os
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
from gravac.compressors.dtypes import SIXTEEN_BIT_FORMATS
from gravac.compressors.ladder import Ladder
from gravac.controllers import CONTROLLERS, Goodput, GraVAC
from gravac.controllers.base import has_flag
from gravac.settings import Settings, SettingsError, is_number, short_repr
from gravac.texts import texts_of

COMPARED_IN_ATTACH = ("outer.local_buffers",)
"""Names of settings that ``Policy.shared`` omits: ranks may set them differently, within limits.

``attach`` checks the limits: ``local_buffers`` must have the same names, in any order."""

DEFAULT_MIXING = 0.5
"""Default of ``OuterSettings.mixing``: fraction of its own weights that a rank keeps when it applies an exchange.

From Streaming DiLoCo (arXiv:2501.18512)."""


UNSET_BY_NONE = ("controller", "outer")
"""Fields of ``Policy`` for which ``None`` means that the field is not given."""


class OuterSettings(Settings):
    """Settings of outer steps: ranks train on their own for some steps, then exchange how far their weights moved.

    Attributes:
        delay: number of steps during which an exchange is in flight before its mean is applied; more steps if the
            exchange takes longer. 0: training waits for the exchange. ``"auto"``, the default: the controller chooses
            between 0 and the number of steps that an exchange should take on the measured link.
        mixing: fraction of its own weights that a rank keeps when it applies the anchor (the weights that all ranks
            share) after a delay, in [0, 1) (α of Streaming DiLoCo, arXiv:2501.18512); default: 0.5. ``None``: the rank
            adds to the anchor how far its weights moved since it sent its pseudo-gradient.
        local_buffers: names of floating-point buffers, or of modules with buffers, that stay each rank's own; default:
            none. Other floating-point buffers are averaged.
        optimizer: function that takes the anchor's weights, as parameters, and returns the outer optimizer; ``None``:
            ``gravac.OuterSGD``, which moves the anchor to the mean of the ranks' weights. Not allowed in a policy's
            file.

    Raises:
        SettingsError: a setting is unknown, of the wrong type, or out of its range.
    """

    delay: Annotated[int, Field(ge=0)] | Literal["auto"] = "auto"
    mixing: float | None = Field(default=DEFAULT_MIXING, ge=0, lt=1)
    local_buffers: tuple[str, ...] = ()
    optimizer: Any = None

    @field_validator("optimizer")
    @classmethod
    def _check_optimizer_factory(cls, factory: Any) -> Any:
        """Return ``factory``, the function that creates the outer optimizer, or ``None``; refuse anything else.

        Raises:
            ValueError: ``factory`` is neither ``None`` nor callable.
        """
        if factory is not None and not callable(factory):
            raise ValueError("give a function that makes an optimizer, such as functools.partial(OuterSGD, rate=1)")
        return factory


class Policy(Settings):
    """All settings of a run: compressor, controller, and how they are used.

    The fields are also the keys of a policy's TOML file, in which a compressor or a controller is a table of its
    ``name`` and its settings. ``gravac.AdaptiveCompressor`` explains the fields that are its arguments; all others
    are below. ``every`` always has two bounds: ``every=10`` means ``(10, 10)``. The ranks compare the fields, and the
    log has them, except for ``log_dir``, which may differ between ranks.

    Attributes:
        sixteen_bit: whether the controller may send all tensors in 16 bit; default: True.
        overflow_safety: whether a step with a gradient that is not finite leaves residuals unchanged; ``None``, the
            default: only for float16 gradients and with a GradScaler.
        dense_below: number of elements below which tensors are sent dense, 0 or more; default: 1024.

    Raises:
        SettingsError: a setting is unknown, of the wrong type, or out of its range, or two settings contradict each
            other.
    """

    base: SerializeAsAny[Compressor] = ladder
    cf_range: tuple[float, float] = (2.0, 1000.0)
    every: tuple[int, int] = (1, 1)
    controller: Any = Field(default=None, validate_default=True)
    error_feedback: float | None = Field(default=None, ge=0, le=1)
    dense: Dense = dense
    sixteen_bit: bool = True
    overflow_safety: bool | None = None
    dense_below: int = Field(default=1024, ge=0)
    seed: int = 0
    native: bool = True
    least_efficiency: float | None = Field(default=None, gt=0, le=1)
    outer: OuterSettings = Field(default_factory=lambda: OuterSettings())
    samples_per_step: float | None = Field(default=None, gt=0)
    total_steps: int | None = Field(default=None, gt=0)
    log_dir: Path | None = None

    @model_validator(mode="before")
    @classmethod
    def _leave_defaults_unset(cls, fields: Any) -> Any:
        """Leave out ``None`` where it stands for a default, so that the default follows later changes."""
        if not isinstance(fields, Mapping):
            return fields
        return {name: setting for name, setting in fields.items() if setting is not None or name not in UNSET_BY_NONE}

    @field_validator("base", mode="before")
    @classmethod
    def _parse_compressor(cls, setting: Any) -> Any:
        return _resolve(setting, COMPRESSORS, lambda base: isinstance(base, Compressor), "compressor")

    @field_validator("controller", mode="before")
    @classmethod
    def _parse_controller(cls, setting: Any, info: ValidationInfo) -> Any:
        if setting is None:
            base, every = info.data.get("base", ladder), info.data.get("every", (1, 1))
            return Goodput() if reason_for_goodput(base, every) else GraVAC()
        return _resolve(setting, CONTROLLERS, lambda controller: hasattr(controller, "observe"), "controller")

    @field_validator("dense", mode="before")
    @classmethod
    def _parse_dense(cls, setting: Any) -> Any:
        if isinstance(setting, torch.dtype):
            setting = str(setting).removeprefix("torch.")
        return dense(dtype=setting) if isinstance(setting, str) else setting

    @field_validator("log_dir", mode="before")
    @classmethod
    def _check_folder_name(cls, folder: Any) -> Any:
        is_path = folder is None or isinstance(folder, (str, os.PathLike))
        if not is_path or folder == "" or "\0" in str(folder):
            raise ValueError(
                "give a folder, such as 'runs/first', '.' for the current folder, or None to write nothing"
            )
        return folder

    @field_validator("cf_range", mode="before")
    @classmethod
    def _parse_cf_range(cls, setting: Any) -> tuple[float, float]:
        is_unordered = isinstance(setting, (set, frozenset, Mapping))
        bounds = tuple(setting) if isinstance(setting, Iterable) and not is_unordered else ()
        if len(bounds) != 2 or not all(map(is_number, bounds)):
            raise ValueError("give two numbers, lowest and highest compression factor, such as (10, 1000)")
        try:
            lowest_cf, highest_cf = map(float, bounds)
        except OverflowError:
            lowest_cf, highest_cf = 1.0, math.inf
        if not (math.isfinite(lowest_cf) and math.isfinite(highest_cf)):
            raise ValueError("bounds must be finite numbers; give, for example, (10, 1000)")
        if lowest_cf < 1:
            raise ValueError(f"lower bound {lowest_cf:g} is below 1 (1 means dense); use (1, {max(highest_cf, 1):g})")
        if lowest_cf > highest_cf:
            raise ValueError(
                f"lower bound {lowest_cf:g} is above the upper bound {highest_cf:g}; use "
                f"({highest_cf:g}, {lowest_cf:g})"
            )
        return lowest_cf, highest_cf

    @field_validator("every", mode="before")
    @classmethod
    def _parse_every(cls, setting: Any) -> tuple[int, int]:
        bounds = (setting, setting) if isinstance(setting, int) else setting
        try:
            lowest_every, highest_every = bounds
            is_valid = (
                not isinstance(bounds, (set, frozenset))  # which have no order
                and all(type(bound) is int and bound >= 1 for bound in (lowest_every, highest_every))
                and lowest_every <= highest_every
            )
        except (TypeError, ValueError):
            is_valid = False
        if not is_valid:
            raise ValueError(
                "give a number of steps, such as 10, or the lowest and the highest number, such as (1, 100)"
            )
        return lowest_every, highest_every

    @field_validator("error_feedback")
    @classmethod
    def _check_feedback(cls, error_feedback: float | None, info: ValidationInfo) -> float | None:
        base = info.data.get("base")
        if error_feedback and isinstance(base, Compressor) and not base.contractive:
            raise ValueError(f"{base.name} is not contractive, so residuals would only grow; use error_feedback=0")
        return error_feedback

    @model_validator(mode="after")
    def _check_controller_chooses_every(self) -> Policy:
        low, high = self.every
        if low < high and not has_flag(self.controller, "chooses_every"):
            raise SettingsError(
                f"every: ({low}, {high}) needs a controller that chooses the number of steps, but controller "
                f"{self.controller.name!r} chooses the compression factor only; give one number, such as every=10, or "
                "controller='goodput'"
            )
        return self

    @model_validator(mode="after")
    def _check_every_leaves_choice(self) -> Policy:
        if self.least_efficiency is None:
            return self
        if self.controller.keeps_all:
            raise ValueError(
                f"least_efficiency: {self.controller.name} runs its candidates at any efficiency; leave "
                "least_efficiency out, or use a controller that chooses, such as 'goodput'"
            )
        if self.every[0] > 1:
            raise ValueError(
                f"least_efficiency: every={self.every[0]} leaves no candidate if the efficiency of all "
                f"outer steps is below least_efficiency; use every=(1, {self.every[1]})"
            )
        return self

    @model_validator(mode="after")
    def _check_candidates_exist(self) -> Policy:
        supported_cfs = self.base.candidates(self.cf_range)
        if self.base.compresses and not self.controller.propose(self.cf_range, supported_cfs):
            raise ValueError(
                f"cf_range: {self.controller.name} finds no candidate of {self.base.name} in "
                f"({self.cf_range[0]:g}, {self.cf_range[1]:g}); {self.base.name} reaches "
                f"{_describe_supported_cfs(self.base)}"
            )
        if not (self.base.compresses or supported_cfs):
            dense_format = self.dense_format
            raise ValueError(
                f"cf_range: dense in {dense_format.dtype} reaches only CF {dense_format.cf:g}, which is not in "
                f"({self.cf_range[0]:g}, {self.cf_range[1]:g}); use cf_range=(1, 2) or another compressor"
            )
        return self

    @property
    def controller_note(self) -> str:
        """Text that names the controller, says why it was chosen, and how to get another, for the run's log."""
        name, reason = self.controller.name, reason_for_goodput(self.base, self.every)
        if name == "gravac":
            return (
                f"controller 'gravac' compares CFs of {self.base.name} by compression throughput (samples per second "
                "times gain); controller='goodput' compares progress per second, as expected from other programs"
            )
        if name == "goodput":
            return (
                "controller 'goodput' compares progress per second, as expected from other programs"
                + (f", since {reason}" if reason else "")
                + "; for GraVAC, name one compressor, such as topk, and give one number for every"
            )
        return f"controller {name!r} runs, as set; without the argument controller, one that fits the compressor runs"

    @property
    def dense_format(self) -> Dense:
        """Format of tensors that are sent dense: ``base`` if that compressor is dense, otherwise ``dense``."""
        return self.dense if self.base.compresses else cast(Dense, self.base)

    @property
    def dense_formats(self) -> tuple[Dense, ...]:
        """Formats in which a controller may choose to send all tensors: ``dense_format``, and a 16-bit format.

        There is no second format if the first is 16 bit already, or if settings or controller exclude 16 bit. If the
        base is a ladder with a 16-bit member, the second format is that member's.
        """
        default_dense = self.dense_format
        if default_dense.cf == 2 or not (self.sixteen_bit and self.controller.chooses_sixteen_bit):
            return (default_dense,)
        supported_cfs = self.base.candidates(self.cf_range)
        families = () if isinstance(supported_cfs, Span) else (self.base.profile(cf).family for cf in supported_cfs)
        sixteen_bit_family = next((family for family in families if family in SIXTEEN_BIT_FORMATS), None)
        return default_dense, default_dense.for_cf(2) if sixteen_bit_family is None else default_dense(
            dtype=sixteen_bit_family
        )

    def as_dict(self) -> dict[str, str | int | float | bool]:
        """Return the settings by dotted name, such as ``"base.values"``, for logs; ``"auto"`` stands for ``None``.

        Settings of outer steps are left out if ``every`` is 1, and so is ``log_dir``.
        """
        settings: dict[str, str | int | float | bool] = {}
        for field, setting in self:
            if field == "log_dir":
                continue
            if isinstance(setting, OuterSettings):
                if self.every != (1, 1):
                    settings.update(
                        {
                            f"{field}.{key}": _as_scalar(nested_setting)
                            for key, nested_setting in setting
                            if key != "optimizer"
                        }
                    )
            elif isinstance(setting, BaseModel):
                settings[field] = str(getattr(setting, "name", field))
                settings.update({f"{field}.{key}": _as_scalar(nested_setting) for key, nested_setting in setting})
            else:
                settings[field] = _as_scalar(setting)
        return settings

    def shared(self) -> dict[str, str]:
        """Return versions and settings that must be the same on all ranks, as texts by name.

        ``log_dir`` and the settings in ``COMPARED_IN_ATTACH`` are left out: they may differ between ranks.
        """
        versions = {"gravac's version": version.__version__, "torch's version": torch.__version__.split("+")[0]}
        versions["beliefs"] = beliefs.beliefs_in_force().digest
        left_out = ("log_dir", *COMPARED_IN_ATTACH)
        return {**versions, **{name: text for name, text in texts_of(self).items() if name not in left_out}}


def explain_unknown(arguments: Mapping[str, Any]) -> str:
    """Return names of arguments that ``AdaptiveCompressor`` does not have, and where settings of these names belong.

    Args:
        arguments: their values by name.

    Example:
        >>> explain_unknown({"dense_below": 4096})
        'dense_below; use AdaptiveCompressor.from_policy(Policy(dense_below=4096))'
    """
    owners: dict[str, dict[str, Any]] = {
        "AdaptiveCompressor.from_policy({})": {"Policy": Policy},
        "outer={}": {"OuterSettings": OuterSettings},
        "controller={}": {controller.__name__: controller for controller in CONTROLLERS.values()},
        "base={}": {name: type(compressor) for name, compressor in COMPRESSORS.items()},
    }
    texts = []
    for name, setting in arguments.items():
        text = name
        for argument, classes in owners.items():
            if calls := "|".join(call for call, owner in classes.items() if name in owner.model_fields):
                text += "; use " + argument.format(f"{calls}({name}={short_repr(setting)})")
        texts.append(text)
    return ", ".join(texts)


def reason_for_goodput(base: Compressor, every: tuple[int, int]) -> str:
    """Return why a run has the controller ``Goodput`` if the user names no controller; empty: it has ``GraVAC``.

    Args:
        base: compressor of the run.
        every: lowest and highest number of steps from one exchange to the next.
    """
    if isinstance(base, Ladder) or not base.compresses:
        return "no single compressor was named"
    if every[0] < every[1]:
        return f"GraVAC does not choose how often ranks exchange, and every is {every}"
    if not (base.contractive or base.owns_momentum):
        return f"the gain of {base.name} is no share of the gradient's energy, by which GraVAC would never leave dense"
    return ""


def load_policy(source: str | Path) -> Policy:
    """Read a policy by name (``"gravac"``) or from a TOML file.

    Args:
        source: name of a shipped policy, or path of a file.

    Raises:
        SettingsError: no policy has that name or path, or the file has a key or a value that is not allowed; the
            message names file, key and value.
    """
    path = find_policy(source)
    try:
        tomllib = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    except ImportError:
        raise SettingsError(
            f"{path}: tomli, with which Python 3.10 reads TOML, is not installed; pip install tomli"
        ) from None
    try:
        return Policy(**tomllib.loads(path.read_text(encoding="utf-8")))
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from None
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read ({error.strerror}); give a TOML file that you may read") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{path}: is not valid TOML: its bytes are not UTF-8 text; give a TOML file") from None
    except RecursionError:
        raise SettingsError(
            f"{path}: its tables are nested too deeply; give a policy, whose tables have one level"
        ) from None
    except ValueError as error:  # TOMLDecodeError, and integers of too many digits
        raise SettingsError(f"{path}: is not valid TOML ({error}); correct the file") from None


def policy_names() -> tuple[str, ...]:
    """Return the names of the policies that come with gravac, ascending."""
    return tuple(sorted(path.stem for path in _shipped_folder().glob("*.toml")))


def _shipped_folder() -> Path:
    """Return the folder of the shipped policies: inside an installed wheel, or beside the package in a checkout."""
    package = Path(str(resources.files("gravac")))
    possible_folders = package / "_policies", package.parent / "policies"
    return next((folder for folder in possible_folders if folder.is_dir()), package)


def find_policy(source: str | Path) -> Path:
    """Return the path of a policy's TOML file.

    Args:
        source: name of a shipped policy, or path of a file.

    Raises:
        SettingsError: the policy, or the file, does not exist.
    """
    if not isinstance(source, (str, Path)):
        raise SettingsError(
            f"policy: give the name of a policy, such as 'gravac', the path of a TOML file, or a Policy (got "
            f"{short_repr(source)})"
        )
    path = Path(source)
    try:
        is_file = path.is_file()
    except OSError as error:  # for example, if the name is too long
        raise SettingsError(
            f"policy: no file can have the path {str(path)[:80]!r} ({error.strerror}); use one of "
            f"{', '.join(policy_names())}, or the path of a TOML file"
        ) from None
    if is_file:
        return path
    if path.suffix == ".toml":
        raise SettingsError(f"policy: there is no file {path}; give the path of a TOML file")
    shipped_file = _shipped_folder() / f"{source}.toml"
    if not shipped_file.is_file():
        raise SettingsError(
            f"policy: {str(source)!r} is unknown; use one of {', '.join(policy_names())}, or the path of a TOML file"
        )
    return shipped_file


def _resolve(setting: Any, registry: Mapping[str, Any], is_valid: Callable[[Any], bool], kind_word: str) -> Any:
    """Return the compressor or controller that a setting stands for.

    Args:
        setting: the object itself, its name, or a dict of its name and settings.
        registry: compressors or controllers by name.
        is_valid: function that returns True if an object is a compressor, or a controller, as ``kind_word`` says.
        kind_word: ``"compressor"`` or ``"controller"``, also for messages.

    Raises:
        ValueError: the name is not in the registry, its settings are wrong, or the object is of another kind.
    """
    settings = dict(setting) if isinstance(setting, dict) else {}
    setting = settings.pop("name", None) if isinstance(setting, dict) else setting
    if isinstance(setting, str):
        if setting not in registry:
            raise ValueError(f"there is no {kind_word} {setting!r}; use one of {', '.join(sorted(registry))}")
        try:
            return registry[setting](**settings)
        except TypeError as error:  # a controller need not be a subclass of Settings
            raise ValueError(f"{kind_word} {setting!r}: {error}") from None
    if isinstance(setting, type) or not is_valid(setting):
        class_text = f"; of a class, give an object: {setting.__name__}()" if isinstance(setting, type) else ""
        raise ValueError(f"give a {kind_word}, or the name of one: {', '.join(sorted(registry))}{class_text}")
    return setting


def _describe_supported_cfs(base: Compressor) -> str:
    """Return the CFs that a compressor supports as text for messages: ``"2 to 32"``, ``"any from 1 up"``, ``"2, 4"``.

    ``"none"`` if the compressor supports no CF.
    """
    supported_cfs = base.candidates((1.0, math.inf))
    if isinstance(supported_cfs, Span):
        lowest_cf, highest_cf = supported_cfs.low, supported_cfs.high
        return f"any from {lowest_cf:g} up" if math.isinf(highest_cf) else f"{lowest_cf:g} to {highest_cf:g}"
    return ", ".join(f"{cf:g}" for cf in supported_cfs) or "none"


def _as_scalar(setting: Any) -> str | int | float | bool:
    """Return a setting as a text, a number or a bool; ``None`` as ``"auto"``."""
    if isinstance(setting, (str, int, float, bool)):
        return setting
    return "auto" if setting is None else str(setting)
