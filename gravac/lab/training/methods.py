# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The methods that the lab compares: ways of exchanging gradients or pseudo-gradients, each named by a text.

=============================== ================================================================================
``fp32``                        DDP in float32, without a communication hook
``fp16``, ``bf16``              DDP with torch's hook ``fp16_compress_hook`` or ``bf16_compress_hook``. The latter does
                                not run on gloo, where gravac sends all tensors in bfloat16 instead
``torch-powersgd(4)``           torch's ``powerSGD_hook`` at rank 4, in one bucket, as more buckets abort on gloo
``topk@10``                     one of gravac's compressors at one compression factor (CF), in every step
``quantize(4)``                 a compressor with settings, as in Python; without ``@``, at its only CF
``adaptive``                    ``AdaptiveCompressor`` with default settings: its controller decides whether a step is
                                native (DDP without gravac) or compressed
``adaptive(native=False)``      ``adaptive`` with gravac's communication hook in every step
``adaptive(every=(1, 100))``    ``adaptive`` whose controller may also choose outer steps: up to 100 local steps
                                between two exchanges. Further settings: ``controller="gravac"``, those of
                                ``OuterSettings``, and ``rate`` and ``momentum`` of the outer SGD
``adaptive:topk@10-1000``       ``adaptive`` with a compressor instead of the ladder. Default of the CFs: 2 to 1000 for
                                the ladder, 10 to 1000 for other compressors
``gravac:topk@10-1000``         a controller that chooses the CF of a compressor. With settings:
                                ``gravac(epsilon=0.9):topk``. ``goodput:ladder@2-1000`` is ``adaptive``
``outer:ladder@2-1000``         another name of ``adaptive(every=(1, 100))``
``outer(every=10):topk@9``      outer steps: one compressor, or ``dense``, compresses an exchange after every ten
                                steps. With a range of CFs, the controller ``goodput`` chooses a CF. Settings are
                                those of ``adaptive``
``matched:`` an adaptive method the candidates (ways to run steps) that the controller chose in that method's run, each
                                for as many steps as in that run, in random order
=============================== ================================================================================

``attach.py`` attaches a method to a model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pydantic import Field

from gravac import AdaptiveCompressor, Static
from gravac.candidate import Span
from gravac.compressors import Compressor, dense, ladder
from gravac.lab.training.expression import compressor, controller, settings
from gravac.modes.outer.sgd import OuterSGD
from gravac.policy import OuterSettings, Policy
from gravac.settings import Settings, SettingsError, short_repr

LADDER_CF_RANGE = (2.0, 1000.0)
"""Lowest and highest compression factor of the ladder for methods with a controller, if the text has no range."""

DEFAULT_CF_RANGE = (10.0, 1000.0)
"""Lowest and highest compression factor of other compressors, such as in ``gravac:topk``, if the text has no range."""

DEFAULT_OUTER_EVERY = (1, 100)
"""Lowest and highest number of steps from one exchange to the next, for ``outer`` methods without ``every=``."""

TORCH_DENSE_METHODS = {"fp32": (1.0, "float32"), "fp16": (2.0, "float16"), "bf16": (2.0, "bfloat16")}
"""``(compression factor, number format)`` of each dense method of torch, by the method's text."""

MATCHED_PREFIX = "matched:"
"""Prefix of methods that run the candidates of an adaptive method's run again, in random order."""

POWERSGD_PREFIX = "torch-powersgd("
"""Beginning of the method that is torch's PowerSGD; a rank and a closing parenthesis follow."""

UNREADABLE = (
    f"cannot be read; use {', '.join(TORCH_DENSE_METHODS)}, torch-powersgd(4), a compressor at a CF such as topk@10 or "
    "quantize(4), adaptive, adaptive(every=(1, 100)), a controller over a compressor such as gravac:topk@10-1000, "
    "outer steps such as outer(every=10):quantize(2), or matched:outer:ladder"
)
"""End of the error message for a text that names no method."""


class OuterSgdSettings(Settings):
    """Settings of the outer optimizer, an SGD that applies the averaged pseudo-gradients of outer steps.

    Attributes:
        rate: learning rate; the default is that of ``OuterSGD``.
        momentum: momentum, Nesterov's if not 0.
    """

    rate: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    momentum: float = Field(default=0.0, ge=0, lt=1)


@dataclass(frozen=True)
class ModeSettings:
    """Settings of ``AdaptiveCompressor`` that say in which modes its steps may run: native, hook or outer.

    Attributes:
        every: lowest and highest number of steps from one exchange to the next. 1: gradients are averaged in each
            step; above 1: outer steps.
        native: whether steps may be native: DDP averages the gradients, without gravac's communication hook.
        outer: settings of outer steps.
    """

    every: tuple[int, int] = (1, 1)
    native: bool = True
    outer: OuterSettings = field(default_factory=OuterSettings)

    @property
    def chooses_every(self) -> bool:
        """True if the controller chooses the number of steps from one exchange to the next."""
        return self.every[0] < self.every[1]

    @classmethod
    def from_settings(cls, setting_by_name: dict[str, Any], every: tuple[int, int]) -> ModeSettings:
        """Return the ``ModeSettings`` for the settings in the parentheses of a method's text.

        Args:
            setting_by_name: settings in the parentheses, by name.
            every: default of ``every``: lowest and highest number of steps from one exchange to the next.

        Raises:
            SettingsError: a setting is unknown or not allowed.
        """
        native = setting_by_name.get("native", True)
        if not isinstance(native, bool):
            raise SettingsError(f"native: give True or False (got {short_repr(native)})")
        lowest_every, highest_every = Policy(every=setting_by_name.get("every", every)).every
        sgd_settings = OuterSgdSettings(
            **{name: setting_by_name[name] for name in OuterSgdSettings.model_fields if name in setting_by_name}
        )
        mode_and_sgd_names = ("every", "native", *OuterSgdSettings.model_fields)
        outer_settings = {name: setting for name, setting in setting_by_name.items() if name not in mode_and_sgd_names}
        if sgd_settings != OuterSgdSettings():
            outer_settings["optimizer"] = partial(OuterSGD, rate=sgd_settings.rate, momentum=sgd_settings.momentum)
        # if all steps are outer steps, no step is native, so that a single rank trains in the same way as several ranks
        return cls((lowest_every, highest_every), native and lowest_every == 1, OuterSettings(**outer_settings))

    @property
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments ``every``, ``native`` and ``outer`` of ``AdaptiveCompressor``."""
        return {"every": self.every, "native": self.native, "outer": self.outer}


HOOK_ONLY = ModeSettings(native=False)
"""Modes of methods with one compressor at one CF: gravac's communication hook averages gradients in every step."""


@dataclass(frozen=True)
class Method:
    """A method of exchanging gradients, such as ``fp32`` or ``topk@10``; ``Method.parse`` makes one from its text.

    Attributes:
        text: text of the method, as in the table at the start of ``gravac.lab.training.methods``.
        torch_format: ``"fp32"``, ``"fp16"`` or ``"bf16"`` for dense methods of torch; ``None`` for other methods.
        powersgd_rank: rank of torch's PowerSGD; ``None`` for other methods.
        base: compressor of gravac; ``None`` for methods of torch.
        cf: fixed compression factor of ``base``; ``None`` if a controller chooses the factor, and for methods of torch.
        controller: name of the controller, or a controller object if the text gives settings; ``None`` for methods
            without a controller.
        cf_range: lowest and highest compression factor that the controller may choose; ignored without a controller.
        modes: settings of the modes (native, hook, outer) in which gravac may run steps.
        matched_to: text of the adaptive method whose candidates this method runs again in random order; ``None`` for
            other methods.

    Example:
        >>> method = Method.parse("gravac:topk@10-100")
        >>> method.adaptive, method.cf_range
        (True, (10.0, 100.0))
        >>> Method.parse("quantize(2)").cf
        16.0
    """

    text: str
    torch_format: str | None = None
    powersgd_rank: int | None = None
    base: Compressor | None = None
    cf: float | None = None
    controller: Any = None
    cf_range: tuple[float, float] = DEFAULT_CF_RANGE
    modes: ModeSettings = HOOK_ONLY
    matched_to: str | None = None

    @property
    def adaptive(self) -> bool:
        """True if a controller chooses the candidate (the way to run steps) during training."""
        return self.controller is not None

    @property
    def uses_gravac(self) -> bool:
        """True if one of gravac's compressors exchanges the gradients, False for methods of torch."""
        return self.base is not None

    @property
    def has_local_steps(self) -> bool:
        """True if ranks may train several steps between two exchanges, in outer steps (local SGD, DiLoCo)."""
        return self.modes.every != (1, 1)

    @property
    def mesh_error_message(self) -> str | None:
        """Error message if the method cannot train a model in shards on a mesh; ``None`` if the method can."""
        if self.powersgd_rank is not None:
            return (
                f"method: {self.text!r} cannot train a model in shards; on a mesh use {', '.join(TORCH_DENSE_METHODS)} "
                "(torch's own HSDP), a compressor at a CF such as quantize(4), or adaptive"
            )
        return None

    @classmethod
    def parse(cls, text: str) -> Method:
        """Return the method that a text such as ``topk@10`` names; the module's docstring has a table of all texts.

        Raises:
            ValueError: the text names no method, or has a wrong setting or CF.
        """
        text = text.strip()
        if text in TORCH_DENSE_METHODS:
            return cls(text, torch_format=text)
        if text.startswith(MATCHED_PREFIX):
            return cls._parse_matched(text, cls.parse(text.removeprefix(MATCHED_PREFIX)))
        try:
            if text.startswith(POWERSGD_PREFIX) and text.endswith(")"):
                rank_text = text[len(POWERSGD_PREFIX) : -1]
                if not rank_text.isdecimal() or int(rank_text) < 1:
                    raise ValueError("the rank must be at least 1; use torch-powersgd(4)")
                return cls(text, powersgd_rank=int(rank_text))
            method = cls._parse_gravac(text)
            method.make()  # raises an error for CFs that the compressor does not support
            return method
        except (ValueError, TypeError, SyntaxError) as error:
            raise ValueError(f"method: {text!r}: {error}") from None

    @classmethod
    def _parse_gravac(cls, text: str) -> Method:
        """Return the method of gravac for a text ``[WAY:]COMPRESSOR[@CF or @LOWEST-HIGHEST]``, or ``adaptive``.

        ``WAY`` is ``adaptive``, ``outer`` or the name of a controller, with or without settings in parentheses.
        """
        way_and_compressor, at, cfs_text = text.partition("@")
        way, colon, compressor_text = way_and_compressor.partition(":")
        name = way.partition("(")[0]
        cfs = _cfs_of(cfs_text) if at else ()
        if not colon and (at or name != "adaptive"):
            if len(cfs) > 1:
                raise ValueError(UNREADABLE)
            base = compressor(way)
            return cls(text, base=base, cf=cfs[0] if cfs else _only_cf(base))
        base = compressor(compressor_text) if colon else ladder
        selected_controller: Any
        if name == "adaptive":
            setting_by_name = settings(way)
            selected_controller = controller(str(setting_by_name.pop("controller", "goodput")))
            modes = ModeSettings.from_settings(setting_by_name, (1, 1))
        elif name == "outer":
            selected_controller, modes = "goodput", ModeSettings.from_settings(settings(way), DEFAULT_OUTER_EVERY)
        else:
            selected_controller, modes = controller(way), ModeSettings()
        if len(cfs) == 1 and modes.chooses_every:
            raise ValueError(
                "every: a range of steps needs a range of CFs, too; write @2-1000, or a single number such as every=10"
            )
        if name == "outer" and len(cfs) < 2 and not modes.chooses_every:
            cf = cfs[0] if cfs else _only_cf(base)
            return cls(text, base=base, cf=cf, modes=replace(modes, native=False))
        if len(cfs) == 1:
            raise ValueError(UNREADABLE)
        cf_range = (cfs[0], cfs[1]) if cfs else LADDER_CF_RANGE if base.name == ladder.name else DEFAULT_CF_RANGE
        return cls(text, base=base, controller=selected_controller, cf_range=cf_range, modes=modes)

    @classmethod
    def _parse_matched(cls, text: str, adaptive_method: Method) -> Method:
        """Return the method that runs the candidates of ``adaptive_method``'s run again, in random order.

        Args:
            text: text of the method, which begins with ``matched:``.
            adaptive_method: method after ``matched:``.

        Raises:
            ValueError: ``adaptive_method`` has no controller, or is itself a ``matched:`` method.
        """
        if not adaptive_method.adaptive or adaptive_method.matched_to is not None:
            raise ValueError(
                f"method: {text!r}: no controller chooses candidates in a run of {adaptive_method.text!r}, so that run "
                f"has nothing to repeat; give an adaptive method after {MATCHED_PREFIX!r}, such as outer:ladder"
            )
        return replace(adaptive_method, text=text, matched_to=adaptive_method.text)

    @property
    def arguments(self) -> dict[str, Any]:
        """Keyword arguments with which ``AdaptiveCompressor`` runs the method: compressor, CFs, controller and modes.

        Raises:
            ValueError: the method is torch's PowerSGD, which gravac cannot run.
        """
        modes = self.modes.arguments
        if self.torch_format:
            cf, dtype = TORCH_DENSE_METHODS[self.torch_format]
            return {"base": dense(dtype=dtype), "cf_range": (1, 2), "controller": Static(cf=cf), **modes}
        if self.base is None:
            raise ValueError(
                f"method: {self.text!r} cannot be paced, since gravac can slow down only its own exchange; use another "
                "method, or emulated links"
            )
        if self.controller:
            return {"base": self.base, "cf_range": self.cf_range, "controller": self.controller, **modes}
        assert self.cf is not None
        cf_range = (min(self.cf, 2.0), max(self.cf, 2.0))
        return {"base": self.base, "cf_range": cf_range, "controller": Static(cf=self.cf), **modes}

    def make(self, paced: bool = False, **run_settings: Any) -> AdaptiveCompressor:
        """Return a new ``AdaptiveCompressor`` that runs the method and is not yet attached to a model.

        Args:
            paced: whether pauses in gravac's exchanges imitate the link. Then no step is native, since DDP's own
                exchange would have none.
            run_settings: further arguments of ``AdaptiveCompressor``, such as ``log_dir``.

        Raises:
            ValueError: a setting is wrong, or gravac cannot run the method (torch's PowerSGD).
        """
        paced_settings = {"native": False} if paced else {}
        return AdaptiveCompressor(**{**self.arguments, **run_settings, **paced_settings})


def _cfs_of(text: str) -> tuple[float, ...]:
    """Return one compression factor, or the lowest and the highest, from a text such as ``10`` or ``10-1000``.

    Raises:
        ValueError: the text is no number, and no two numbers.
    """
    try:
        cfs = tuple(float(cf) for cf in text.split("-"))
    except ValueError:
        cfs = ()
    if not 1 <= len(cfs) <= 2:
        raise ValueError(UNREADABLE)
    return cfs


def _only_cf(base: Compressor) -> float:
    """Return the compression factor (CF) of a compressor that supports only one.

    Raises:
        ValueError: the compressor supports several CFs.
    """
    supported_cfs = base.candidates((1.0, math.inf))
    if isinstance(supported_cfs, Span):
        raise ValueError(f"{base.name} supports any compression factor; add the one to use, such as {base.name}@10")
    if len(supported_cfs) != 1:
        cf_texts = ", ".join(f"@{cf:g}" for cf in supported_cfs)
        raise ValueError(f"{base.name} supports several compression factors; add the one to use: {cf_texts}")
    return supported_cfs[0]


def bucket_mb(method: Method, parameters: int) -> float:
    """Return DDP's ``bucket_cap_mb`` in MiB: an eighth of the model, so that the exchange overlaps with backward.

    The result is never above 25 MiB, DDP's default. Torch's PowerSGD is an exception: its bucket holds four times the
    model, so that there is only one bucket.

    Args:
        method: method of exchanging gradients.
        parameters: number of parameters of the model, in float32.

    Example:
        >>> bucket_mb(Method.parse("fp32"), parameters=2_097_152)  # a model of 8 MiB
        1.0
    """
    model_mb = parameters * 4 / 2**20
    return 4 * model_mb if method.powersgd_rank is not None else min(25.0, max(model_mb / 8, 0.02))
