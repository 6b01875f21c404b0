# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The ways of exchanging gradients, or how far ranks came, that the lab compares, in words.

=============================== ================================================================================
``fp32``                        native DDP
``fp16``, ``bf16``              torch's hooks of that name; on gloo, where torch has no bf16 hook, our dense exchange
``torch-powersgd(4)``           torch's ``powerSGD_hook`` at rank 4, in one bucket: with more it aborts on gloo
``topk@10``                     one of our compressors at one compression factor, by the hook in each step
``quantize(4)``                 with settings, as in Python; without ``@`` it is the only CF it can do
``adaptive``                    ``AdaptiveCompressor`` as it comes: natively, or compressed in each step, as it decides
``adaptive(native=False)``      the same with the hook kept in every step
``adaptive(every=(1, 100))``    the same that may also have ranks train apart, for up to 100 steps. Further settings:
                                ``controller="gravac"``, those of ``OuterSettings``, and ``rate`` and ``momentum`` of
                                the outer SGD
``adaptive:topk@10-1000``       over another compressor than the ladder, in a range of CFs (the default range)
``gravac:topk@10-1000``         a controller over a compressor, from CF 10 to 1000 (the default range); with settings:
                                ``gravac(epsilon=0.9):topk``. ``goodput:ladder@2-1000`` is ``adaptive``
``outer:ladder@2-1000``         ``adaptive(every=(1, 100))``, by the name that older records have (the default range)
``outer(every=10):topk@9``      one compressor, or ``dense``, after every ten steps; with a range of CFs goodput decides
                                between them. Settings are those of ``adaptive``
``torchft-diloco``              torchft's ``DiLoCo``, dense; with settings:
                                ``torchft-diloco(every=10, rate=1, momentum=0)``
``torchft-localsgd``            torchft's ``LocalSGD``, dense; with ``every``
``matched:`` an adaptive        the choices that it made in the same cell, each for as many steps, shuffled in time
=============================== ================================================================================

``exchange.py`` attaches one to a model that is trained.
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
from gravac.settings import Settings, SettingsError, shown

RANGE = (10.0, 1000.0)
"""Lowest and highest compression factor of an adaptive method that names none."""

LADDER_RANGE = (2.0, 1000.0)
"""The same of ``adaptive`` and of outer steps."""

OUTER_EVERY = (1, 100)
"""Lowest and highest number of steps from one exchange to the next of outer steps that name none."""

NATIVE = {"fp32": (1.0, "float32"), "fp16": (2.0, "float16"), "bf16": (2.0, "bfloat16")}
"""CF and number format of torch's own exchanges."""

MATCHED = "matched:"
"""Beginning of the words of matched random choices."""

_POWERSGD = re.compile(r"torch-powersgd\((\d+)\)")
_ADAPTIVE = re.compile(r"(?P<controller>\w+(?:\([^:]*\))?):(?P<base>[^@]+)(?:@(?P<low>[\d.]+)-(?P<high>[\d.]+))?")
_STATIC = re.compile(r"(?P<base>[^@:]+)(?:@(?P<cf>[\d.]+))?")
_OBJECT = re.compile(r"adaptive(?P<settings>\([^:]*\))?(?::(?P<base>[^@]+)(?:@(?P<low>[\d.]+)-(?P<high>[\d.]+))?)?")
_OUTER = re.compile(r"outer(?P<settings>\([^:]*\))?:(?P<base>[^@]+)(?:@(?P<low>[\d.]+)(?:-(?P<high>[\d.]+))?)?")
_TORCHFT = re.compile(r"torchft-(?P<name>diloco|localsgd)(?P<settings>\(.*\))?")


class AnchorSgd(Settings):
    """Settings of the SGD that makes the outer step.

    Attributes:
        rate: learning rate; ``OuterSGD``'s unless given.
        momentum: momentum, Nesterov's if it is not 0.
    """

    rate: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    momentum: float = Field(default=0.0, ge=0, lt=1)


@dataclass(frozen=True)
class Modes:
    """The ways in which ``AdaptiveCompressor`` may run steps, as they stand in a method's parentheses.

    Attributes:
        every: lowest and highest number of steps from one exchange to the next.
        native: whether steps may be left to DDP itself.
        outer: settings of outer steps.
    """

    every: tuple[int, int] = (1, 1)
    native: bool = True
    outer: OuterSettings = field(default_factory=OuterSettings)

    @property
    def chooses(self) -> bool:
        """True if how often ranks exchange is a choice."""
        return self.every[0] < self.every[1]

    @classmethod
    def of(cls, given: dict[str, Any], every: tuple[int, int]) -> Modes:
        """Return the modes that settings by name give.

        Args:
            given: settings by name.
            every: number of steps from one exchange to the next, lowest and highest, unless it is among them.

        Raises:
            SettingsError: a setting is unknown, or its value not allowed.
        """
        native = given.get("native", True)
        if not isinstance(native, bool):
            raise SettingsError(f"native: give True or False (got {shown(native)})")
        low, high = Policy(every=given.get("every", every)).every
        sgd = AnchorSgd(**{name: given[name] for name in AnchorSgd.model_fields if name in given})
        own = {name: value for name, value in given.items() if name not in ("every", "native", *AnchorSgd.model_fields)}
        if sgd != AnchorSgd():
            own["optimizer"] = partial(OuterSGD, rate=sgd.rate, momentum=sgd.momentum)
        # where ranks always train apart there is no native step, and a single rank trains as several do
        return cls((low, high), native and low == 1, OuterSettings(**own))

    @property
    def arguments(self) -> dict[str, Any]:
        """The modes as arguments of ``AdaptiveCompressor``."""
        return {"every": self.every, "native": self.native, "outer": self.outer}


IN_HOOK = Modes(native=False)
"""The hook in every step, so that a method is what its words say."""


class LocalSgd(Settings):
    """Settings of torchft's ``LocalSGD``.

    Attributes:
        every: number of steps from one exchange to the next.
    """

    every: int = Field(default=10, ge=1)


class Diloco(LocalSgd):
    """Settings of torchft's ``DiLoCo``; the outer optimizer is the paper's unless given.

    Attributes:
        every: number of steps from one exchange to the next.
        rate: learning rate of the outer SGD.
        momentum: its momentum, Nesterov's where it is not 0.
    """

    rate: float = Field(default=0.7, gt=0, allow_inf_nan=False)
    momentum: float = Field(default=0.9, ge=0, lt=1)


@dataclass(frozen=True)
class Method:
    """A way of exchanging gradients; ``Method.parse`` makes one from words.

    Attributes:
        text: the words it was parsed from.
        native: ``"fp32"``, ``"fp16"`` or ``"bf16"`` for torch's own exchange; ``None`` otherwise.
        rank: rank of torch's PowerSGD; ``None`` otherwise.
        base: our compressor; ``None`` for torch's own methods.
        cf: the one compression factor of ``base``; ``None`` when a controller chooses.
        controller: name of the controller, or the controller itself where it has settings; ``None`` without one.
        cf_range: lowest and highest compression factor that the controller chooses from.
        modes: ways in which ours may run steps.
        torchft: settings of torchft's outer steps; ``None`` otherwise.
        of: words of the adaptive method whose choices are played, shuffled; ``None`` otherwise.

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
    of: str | None = None

    @property
    def adaptive(self) -> bool:
        """Tell whether a controller decides."""
        return self.controller is not None

    @property
    def ours(self) -> bool:
        """Tell whether gravac, and not torch, exchanges."""
        return self.base is not None

    @property
    def factored(self) -> bool:
        """Tell whether its steps to a target do not depend on the link, and all take about as long."""
        return not self.adaptive and not self.apart

    @property
    def apart(self) -> bool:
        """Tell whether ranks may train apart between two exchanges."""
        return self.modes.every != (1, 1) or self.torchft is not None

    @property
    def missing(self) -> str | None:
        """Say which package it needs that is not installed, and the remedy; ``None`` where it runs."""
        if self.torchft is None or importlib.util.find_spec("torchft") is not None:
            return None
        return f"method: {self.text!r} needs torchft; pip install 'gravac[torchft]'"

    @classmethod
    def parse(cls, text: str) -> Method:
        """Return the method that words name; see the module.

        Raises:
            ValueError: names the text, what is wrong with it, and what there is.
        """
        text = text.strip()
        if text in NATIVE:
            return cls(text, native=text)
        if found := _POWERSGD.fullmatch(text):
            if int(found[1]) < 1:
                raise ValueError(f"method: {text!r}: the rank must be at least 1, such as torch-powersgd(4)")
            return cls(text, rank=int(found[1]))
        if text.startswith(MATCHED):
            return cls._matched(text, cls.parse(text.removeprefix(MATCHED)))
        try:
            if found := _TORCHFT.fullmatch(text):
                kind = Diloco if found["name"] == "diloco" else LocalSgd
                return cls(text, torchft=kind(**settings(found["settings"] or "()")))
            if found := _OBJECT.fullmatch(text):
                return cls._object(text, found)
            if found := _OUTER.fullmatch(text):
                return cls._outer(text, compressor(found["base"]), found)
            if found := _ADAPTIVE.fullmatch(text):
                cf_range = (float(found["low"]), float(found["high"])) if found["low"] else RANGE
                chosen = controller(found["controller"])
                base = compressor(found["base"])
                method = cls(text, base=base, controller=chosen, cf_range=cf_range, modes=Modes())
                method.make()  # refuses a range that the compressor cannot do
                return method
            if found := _STATIC.fullmatch(text):
                base = compressor(found["base"])
                cf = float(found["cf"]) if found["cf"] else _only_cf(base)
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
    def _object(cls, text: str, found: re.Match[str]) -> Method:
        given = settings(found["settings"] or "()")
        chosen = controller(str(given.pop("controller", "goodput")))
        base = ladder if found["base"] is None else compressor(found["base"])
        default = LADDER_RANGE if base.name == ladder.name else RANGE
        cf_range = (float(found["low"]), float(found["high"])) if found["low"] else default
        method = cls(text, base=base, controller=chosen, cf_range=cf_range, modes=Modes.of(given, (1, 1)))
        method.make()
        return method

    @classmethod
    def _outer(cls, text: str, base: Compressor, found: re.Match[str]) -> Method:
        modes = Modes.of(settings(found["settings"] or "()"), OUTER_EVERY)
        ranged = found["high"] is not None or (modes.chooses and found["low"] is None)
        if modes.chooses and not ranged:
            raise ValueError("every is a choice, so the CF is one too; give a range such as @2-1000, or one every")
        if ranged:
            cf_range = (float(found["low"]), float(found["high"])) if found["low"] else LADDER_RANGE
            method = cls(text, base=base, controller="goodput", cf_range=cf_range, modes=modes)
        else:
            modes = replace(modes, native=False)
            method = cls(text, base=base, cf=float(found["low"]) if found["low"] else _only_cf(base), modes=modes)
        method.make()
        return method

    @classmethod
    def _matched(cls, text: str, inner: Method) -> Method:
        if not inner.adaptive or inner.of is not None:
            raise ValueError(
                f"method: {text!r}: {inner.text!r} makes no choices; name an adaptive one, such as outer:ladder"
            )
        return replace(inner, text=text, of=inner.text)

    @property
    def sends(self) -> dict[str, Any]:
        """Return what it is as arguments of ours: the compressor, CFs, the controller, and the modes.

        Raises:
            ValueError: it is torch's, and no dense exchange.
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

    def make(self, **run: Any) -> AdaptiveCompressor:
        """Make our compressor for it, not attached; ``run`` is what belongs to a run (``log_dir``, ``pace``, ...).

        If it paces itself, the hook is kept: DDP itself would exchange as fast as the machine can.
        """
        paced = {"native": False} if run.get("pace") is not None else {}
        return AdaptiveCompressor(**{**self.sends, **run, **paced})


def running(method: str, name: str, cf: float, mode: Mode = "hook") -> str:
    """Return what a method runs at a CF, in words: the compressor's method with its own setting.

    Args:
        method: words of a method, see the module.
        name: compressor that runs, as decisions name it.
        cf: its compression factor.
        mode: who exchanges.

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
    except ValueError:  # of another version of the lab
        base = None
    return base.method_at(cf) if base is not None and base.name == name else f"{name} {cf:.4g}x"


def running_at(method: str, cf: float, mode: Mode = "hook") -> str:
    """Return what a method runs at a CF, in words, if the compressor's name is not told: at 1 and 2 it is dense.

    Example:
        >>> running_at("goodput:ladder@2-1000", 32.0), running_at("fp32", 1.0)
        ('low rank 16', 'dense float32')
    """
    base = Method.parse(method).base
    return running(method, DENSE if cf in (1.0, 2.0) or base is None else base.name, cf, mode)


def _only_cf(base: Compressor) -> float:
    reach = base.candidates((1.0, math.inf))
    if isinstance(reach, Span):
        raise ValueError(f"{base.name} can do any compression factor; say which, such as {base.name}@10")
    if len(reach) != 1:
        able = ", ".join(f"@{cf:g}" for cf in reach)
        raise ValueError(f"{base.name} can do several compression factors; say which: {able}")
    return reach[0]


def bucket_mb(method: Method, parameters: int) -> float:
    """Return DDP's bucket size in MiB: about eight buckets, so that every exchange overlaps with backward.

    It is at most DDP's default. Torch's PowerSGD gets all of the model in one bucket.

    Example:
        >>> bucket_mb(Method.parse("fp32"), parameters=2_097_152)  # a model of 8 MiB
        1.0
    """
    whole = parameters * 4 / 2**20
    return 4 * whole if method.rank is not None else min(25.0, max(whole / 8, 0.02))
