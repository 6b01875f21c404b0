# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The methods that the lab compares: ways of exchanging gradients or pseudo-gradients, each written as text.

=============================== ================================================================================
``fp32``                        native DDP
``fp16``, ``bf16``              torch's hooks of that name; on gloo, where torch has no bf16 hook, our dense exchange
``torch-powersgd(4)``           torch's ``powerSGD_hook`` at rank 4, in one bucket: with more it aborts on gloo
``topk@10``                     one of gravac's compressors at one compression factor, by the hook in each step
``quantize(4)``                 a compressor with settings, as in Python; without ``@``, at the only CF that it supports
``adaptive``                    ``AdaptiveCompressor`` by default: native or compressed in each step, as it decides
``adaptive(native=False)``      ``adaptive`` with the hook in every step
``adaptive(every=(1, 100))``    ``adaptive`` that may also decide for up to 100 local steps. Further settings:
                                ``controller="gravac"``, those of ``OuterSettings``, and ``rate`` and ``momentum`` of
                                the outer SGD
``adaptive:topk@10-1000``       ``adaptive`` with a compressor instead of the ladder, in a range of CFs (the default)
``gravac:topk@10-1000``         a controller over a compressor, from CF 10 to 1000 (the default range); with settings:
                                ``gravac(epsilon=0.9):topk``. ``goodput:ladder@2-1000`` is ``adaptive``
``outer:ladder@2-1000``         ``adaptive(every=(1, 100))``, by the name in older records (the default range)
``outer(every=10):topk@9``      one compressor, or ``dense``, after every ten steps; with a range of CFs, goodput
                                chooses a CF. Settings are those of ``adaptive``
``torchft-diloco``              torchft's ``DiLoCo``, dense; with settings:
                                ``torchft-diloco(every=10, rate=1, momentum=0)``
``torchft-localsgd``            torchft's ``LocalSGD``, dense; with ``every``
``matched:`` an adaptive method the method's choices in the same cell, each for as many steps, in random order
=============================== ================================================================================

``attach.py`` attaches a method to a model.
"""

from __future__ import annotations

import importlib.util
import math
import re
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pydantic import Field

from gravac import AdaptiveCompressor, Static
from gravac.candidate import DENSE, Candidate, Mode, Span
from gravac.compressors import Compressor, dense, ladder
from gravac.lab.training.expression import compressor, controller, settings
from gravac.modes.outer.sgd import OuterSGD
from gravac.policy import OuterSettings, Policy
from gravac.settings import Settings, SettingsError, short_repr

RANGE = (10.0, 1000.0)
"""Lowest and highest compression factor of an adaptive method whose text has no range."""

LADDER_RANGE = (2.0, 1000.0)
"""Lowest and highest compression factor of ``adaptive`` and of outer steps whose text has no range."""

OUTER_EVERY = (1, 100)
"""Lowest and highest number of steps from one exchange to the next, of outer steps whose text has no ``every``."""

NATIVE = {"fp32": (1.0, "float32"), "fp16": (2.0, "float16"), "bf16": (2.0, "bfloat16")}
"""CF and number format of torch's own exchanges."""

MATCHED = "matched:"
"""Beginning of the text of matched random methods."""

_POWERSGD = re.compile(r"torch-powersgd\((\d+)\)")
_CONTROLLER = re.compile(r"(?P<controller>\w+(?:\([^:]*\))?):(?P<base>[^@]+)(?:@(?P<low>[\d.]+)-(?P<high>[\d.]+))?")
_STATIC = re.compile(r"(?P<base>[^@:]+)(?:@(?P<cf>[\d.]+))?")
_ADAPTIVE = re.compile(r"adaptive(?P<settings>\([^:]*\))?(?::(?P<base>[^@]+)(?:@(?P<low>[\d.]+)-(?P<high>[\d.]+))?)?")
_OUTER = re.compile(r"outer(?P<settings>\([^:]*\))?:(?P<base>[^@]+)(?:@(?P<low>[\d.]+)(?:-(?P<high>[\d.]+))?)?")
_TORCHFT = re.compile(r"torchft-(?P<name>diloco|localsgd)(?P<settings>\(.*\))?")


class AnchorSgd(Settings):
    """Settings of the SGD that makes the outer step.

    Attributes:
        rate: learning rate; the default is that of ``OuterSGD``.
        momentum: momentum, Nesterov's if it is not 0.
    """

    rate: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    momentum: float = Field(default=0.0, ge=0, lt=1)


@dataclass(frozen=True)
class Modes:
    """The modes in which ``AdaptiveCompressor`` may run steps, from the settings in a method's parentheses.

    Attributes:
        every: lowest and highest number of steps from one exchange to the next.
        native: whether DDP itself may exchange in a step.
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
    def from_settings(cls, by_name: dict[str, Any], every: tuple[int, int]) -> Modes:
        """Return the modes for the settings in a method's parentheses.

        Args:
            by_name: settings by name.
            every: lowest and highest number of steps from one exchange to the next, unless the settings have ``every``.

        Raises:
            SettingsError: a setting is unknown or not allowed.
        """
        native = by_name.get("native", True)
        if not isinstance(native, bool):
            raise SettingsError(f"native: give True or False (got {short_repr(native)})")
        low, high = Policy(every=by_name.get("every", every)).every
        sgd = AnchorSgd(**{name: by_name[name] for name in AnchorSgd.model_fields if name in by_name})
        not_outer = ("every", "native", *AnchorSgd.model_fields)
        outer = {name: setting for name, setting in by_name.items() if name not in not_outer}
        if sgd != AnchorSgd():
            outer["optimizer"] = partial(OuterSGD, rate=sgd.rate, momentum=sgd.momentum)
        # if ranks always make local steps no step is native, and a single rank trains like several
        return cls((low, high), native and low == 1, OuterSettings(**outer))

    @property
    def arguments(self) -> dict[str, Any]:
        """The modes as arguments of ``AdaptiveCompressor``."""
        return {"every": self.every, "native": self.native, "outer": self.outer}


IN_HOOK = Modes(native=False)
"""The hook in every step, as the text of a static method says."""


class LocalSgd(Settings):
    """Settings of torchft's ``LocalSGD``.

    Attributes:
        every: number of steps from one exchange to the next.
    """

    every: int = Field(default=10, ge=1)


class Diloco(LocalSgd):
    """Settings of torchft's ``DiLoCo``; the defaults of the outer optimizer are those of the paper.

    Attributes:
        every: number of steps from one exchange to the next.
        rate: learning rate of the outer SGD.
        momentum: momentum of the outer SGD, Nesterov's if it is not 0.
    """

    rate: float = Field(default=0.7, gt=0, allow_inf_nan=False)
    momentum: float = Field(default=0.9, ge=0, lt=1)


@dataclass(frozen=True)
class Method:
    """A method of exchanging gradients; ``Method.parse`` reads its text.

    Attributes:
        text: text of the method.
        native: ``"fp32"``, ``"fp16"`` or ``"bf16"`` for torch's own exchange; ``None`` otherwise.
        rank: rank of torch's PowerSGD; ``None`` otherwise.
        base: gravac's compressor; ``None`` for methods of torch and torchft.
        cf: compression factor of ``base``; ``None`` if a controller chooses.
        controller: name of the controller, or the controller if it has settings; ``None`` for static methods.
        cf_range: lowest and highest compression factor that the controller may choose.
        modes: modes in which gravac may run steps.
        torchft: settings of torchft's outer steps; ``None`` otherwise.
        matched_to: text of the adaptive method whose choices the method plays in random order; ``None`` otherwise.

    Example:
        >>> method = Method.parse("gravac:topk@10-100")
        >>> method.adaptive, method.cf_range
        (True, (10.0, 100.0))
        >>> Method.parse("quantize(2)").cf
        16.0
    """

    text: str
    native: str | None = None
    rank: int | None = None
    base: Compressor | None = None
    cf: float | None = None
    controller: Any = None
    cf_range: tuple[float, float] = RANGE
    modes: Modes = IN_HOOK
    torchft: LocalSgd | None = None
    matched_to: str | None = None

    @property
    def adaptive(self) -> bool:
        """True if a controller decides."""
        return self.controller is not None

    @property
    def ours(self) -> bool:
        """True if gravac exchanges."""
        return self.base is not None

    @property
    def factored(self) -> bool:
        """True if the steps to a target do not depend on the link, and all steps take about as long."""
        return not self.adaptive and not self.local_steps

    @property
    def local_steps(self) -> bool:
        """True if ranks may make local steps between two exchanges."""
        return self.modes.every != (1, 1) or self.torchft is not None

    @property
    def missing(self) -> str | None:
        """Message about a package that the method needs and that is not installed; ``None`` if nothing is missing."""
        if self.torchft is None or importlib.util.find_spec("torchft") is not None:
            return None
        return f"method: {self.text!r} needs torchft; pip install 'gravac[torchft]'"

    @classmethod
    def parse(cls, text: str) -> Method:
        """Return the method for a text; the module's table has the texts.

        Raises:
            ValueError: the text is no method; names the text, the fault, and the methods there are.
        """
        text = text.strip()
        if text in NATIVE:
            return cls(text, native=text)
        if match := _POWERSGD.fullmatch(text):
            if int(match[1]) < 1:
                raise ValueError(f"method: {text!r}: the rank must be at least 1, such as torch-powersgd(4)")
            return cls(text, rank=int(match[1]))
        if text.startswith(MATCHED):
            return cls._parse_matched(text, cls.parse(text.removeprefix(MATCHED)))
        try:
            if match := _TORCHFT.fullmatch(text):
                kind = Diloco if match["name"] == "diloco" else LocalSgd
                return cls(text, torchft=kind(**settings(match["settings"] or "()")))
            if match := _ADAPTIVE.fullmatch(text):
                return cls._parse_adaptive(text, match)
            if match := _OUTER.fullmatch(text):
                return cls._parse_outer(text, compressor(match["base"]), match)
            if match := _CONTROLLER.fullmatch(text):
                cf_range = (float(match["low"]), float(match["high"])) if match["low"] else RANGE
                selected = controller(match["controller"])
                base = compressor(match["base"])
                method = cls(text, base=base, controller=selected, cf_range=cf_range, modes=Modes())
                method.make()  # raises for a range that the compressor does not support
                return method
            if match := _STATIC.fullmatch(text):
                base = compressor(match["base"])
                cf = float(match["cf"]) if match["cf"] else _only_cf(base)
                method = cls(text, base=base, cf=cf)
                method.make()
                return method
        except (ValueError, TypeError, SyntaxError) as error:
            raise ValueError(f"method: {text!r}: {error}") from None
        raise ValueError(
            f"method: {text!r} cannot be read; use {', '.join(NATIVE)}, torch-powersgd(4), a compressor at a CF such "
            "as topk@10 or quantize(4), adaptive, adaptive(every=(1, 100)), a controller over a compressor such as "
            "gravac:topk@10-1000, outer steps such as outer(every=10):quantize(2), torchft-diloco, torchft-localsgd, "
            "or matched:outer:ladder"
        )

    @classmethod
    def _parse_adaptive(cls, text: str, match: re.Match[str]) -> Method:
        by_name = settings(match["settings"] or "()")
        selected = controller(str(by_name.pop("controller", "goodput")))
        base = ladder if match["base"] is None else compressor(match["base"])
        default = LADDER_RANGE if base.name == ladder.name else RANGE
        cf_range = (float(match["low"]), float(match["high"])) if match["low"] else default
        modes = Modes.from_settings(by_name, (1, 1))
        method = cls(text, base=base, controller=selected, cf_range=cf_range, modes=modes)
        method.make()
        return method

    @classmethod
    def _parse_outer(cls, text: str, base: Compressor, match: re.Match[str]) -> Method:
        modes = Modes.from_settings(settings(match["settings"] or "()"), OUTER_EVERY)
        has_range = match["high"] is not None or (modes.chooses_every and match["low"] is None)
        if modes.chooses_every and not has_range:
            raise ValueError("every is a choice of several, so the CF must be a range (@2-1000); or give one every")
        if has_range:
            cf_range = (float(match["low"]), float(match["high"])) if match["low"] else LADDER_RANGE
            method = cls(text, base=base, controller="goodput", cf_range=cf_range, modes=modes)
        else:
            modes = replace(modes, native=False)
            method = cls(text, base=base, cf=float(match["low"]) if match["low"] else _only_cf(base), modes=modes)
        method.make()
        return method

    @classmethod
    def _parse_matched(cls, text: str, inner: Method) -> Method:
        if not inner.adaptive or inner.matched_to is not None:
            raise ValueError(
                f"method: {text!r}: {inner.text!r} makes no choices; name an adaptive one, such as outer:ladder"
            )
        return replace(inner, text=text, matched_to=inner.text)

    @property
    def arguments(self) -> dict[str, Any]:
        """The method as arguments of ``AdaptiveCompressor``: the compressor, CFs, the controller, and the modes.

        Raises:
            ValueError: the method is torch's and no dense exchange, or torchft's.
        """
        modes = self.modes.arguments
        if self.native:
            cf, dtype = NATIVE[self.native]
            return {"base": dense(dtype=dtype), "cf_range": (1, 2), "controller": Static(cf=cf), **modes}
        if self.base is None:
            raise ValueError(f"{self.text} is torch's own and cannot be paced; leave it out, or use real links")
        if self.controller:
            return {"base": self.base, "cf_range": self.cf_range, "controller": self.controller, **modes}
        assert self.cf is not None
        cf_range = (min(self.cf, 2.0), max(self.cf, 2.0))
        return {"base": self.base, "cf_range": cf_range, "controller": Static(cf=self.cf), **modes}

    def make(self, **run_settings: Any) -> AdaptiveCompressor:
        """Make the compressor of the method, not attached.

        A paced compressor uses the hook in every step: DDP itself would exchange as fast as the machine can.

        Args:
            run_settings: settings of the run, such as ``log_dir`` and ``pace``.
        """
        paced = {"native": False} if run_settings.get("pace") is not None else {}
        return AdaptiveCompressor(**{**self.arguments, **run_settings, **paced})


def running(method: str, name: str, cf: float, mode: Mode = "hook") -> str:
    """Return the name of the compression that a method runs at a CF, such as ``low rank 16``.

    Args:
        method: text of a method, see the module.
        name: name of the compressor that runs, as in decisions.
        cf: compression factor of the compressor.
        mode: mode of the step.

    Example:
        >>> running("adaptive", "dense", 2.0, "native")
        'native float16'
        >>> running("goodput:ladder@2-1000", "ladder", 32.0), running("goodput:ladder@2-1000", "dense", 2.0)
        ('low rank 16', 'dense in 16 bit')
    """
    if mode == "native":
        return str(Candidate(mode, name, cf))
    if name == DENSE:
        return "dense in 16 bit" if cf == 2 else "dense float32"
    try:
        base = Method.parse(method).base
    except ValueError:  # a method of another version of the lab
        base = None
    return base.method_at(cf) if base is not None and base.name == name else f"{name} {cf:.4g}x"


def running_at(method: str, cf: float, mode: Mode = "hook") -> str:
    """Return ``running`` for a compressor whose name is not known: dense at CF 1 and 2, else that of the method.

    Example:
        >>> running_at("goodput:ladder@2-1000", 32.0), running_at("fp32", 1.0)
        ('low rank 16', 'dense float32')
    """
    base = Method.parse(method).base
    return running(method, DENSE if cf in (1.0, 2.0) or base is None else base.name, cf, mode)


def _only_cf(base: Compressor) -> float:
    """Return the only CF that a compressor supports, or raise ``ValueError``."""
    supported_cfs = base.candidates((1.0, math.inf))
    if isinstance(supported_cfs, Span):
        raise ValueError(f"{base.name} can do any compression factor; say which, such as {base.name}@10")
    if len(supported_cfs) != 1:
        listed = ", ".join(f"@{cf:g}" for cf in supported_cfs)
        raise ValueError(f"{base.name} can do several compression factors; say which: {listed}")
    return supported_cfs[0]


def bucket_mb(method: Method, parameters: int) -> float:
    """Return DDP's bucket size in MiB, for about eight buckets, so that every exchange overlaps with backward.

    At most DDP's default. With torch's PowerSGD, a bucket has room for the entire model.

    Args:
        method: method of exchanging gradients.
        parameters: number of parameters of the model.

    Example:
        >>> bucket_mb(Method.parse("fp32"), parameters=2_097_152)  # a model of 8 MiB
        1.0
    """
    model_mb = parameters * 4 / 2**20
    return 4 * model_mb if method.rank is not None else min(25.0, max(model_mb / 8, 0.02))
