# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The ways of exchanging gradients, or how far ranks came, that the lab compares, in words.

========================== ==================================================================================
``fp32``                   native DDP
``fp16``, ``bf16``         torch's hooks of that name; on gloo, where torch has no bf16 hook, our dense exchange
``torch-powersgd(4)``      torch's ``powerSGD_hook`` at rank 4, in one bucket: with more it aborts on gloo
``topk@10``                one of our compressors at one compression factor
``quantize(4)``            with settings, as in Python; without ``@`` it is the only CF it can do
``gravac:topk@10-1000``    a controller over a compressor, from CF 10 to 1000 (the default range); with settings:
                           ``gravac(epsilon=0.9):topk``
``outer:ladder@2-1000``    outer steps, without DDP: goodput decides how often, how and how much (the default range)
``outer(every=10):topk@9`` one compressor, or ``dense``, after every ten steps; with a range of CFs goodput decides
                           between them. Further settings are ``Between``'s
``torchft-diloco``         torchft's ``DiLoCo``, dense; with settings: ``torchft-diloco(every=10, rate=1, momentum=0)``
``torchft-localsgd``       torchft's ``LocalSGD``, dense; with ``every``
``matched:`` an adaptive   the choices that it made in the same cell, each for as many steps, shuffled in time
========================== ==================================================================================

``exchange.py`` attaches one to a model that is trained.
"""

from __future__ import annotations

import importlib.util
import math
import re
from dataclasses import dataclass, replace
from typing import Any

from pydantic import Field

from gravac import AdaptiveCompressor, Static
from gravac.candidate import DENSE, Span
from gravac.compressors import Compressor, dense
from gravac.lab.training.expression import compressor, controller, settings
from gravac.policy import RoundSettings
from gravac.settings import Settings

RANGE = (10.0, 1000.0)
"""Lowest and highest compression factor of an adaptive method that names none."""

OUTER_RANGE = (2.0, 1000.0)
"""The same of outer steps."""

NATIVE = {"fp32": (1.0, "float32"), "fp16": (2.0, "float16"), "bf16": (2.0, "bfloat16")}
"""CF and number format of torch's own exchanges."""

MATCHED = "matched:"
"""Beginning of the words of matched random choices."""

_POWERSGD = re.compile(r"torch-powersgd\((\d+)\)")
_ADAPTIVE = re.compile(r"(?P<controller>\w+(?:\([^:]*\))?):(?P<base>[^@]+)(?:@(?P<low>[\d.]+)-(?P<high>[\d.]+))?")
_STATIC = re.compile(r"(?P<base>[^@:]+)(?:@(?P<cf>[\d.]+))?")
_OUTER = re.compile(r"outer(?P<settings>\([^:]*\))?:(?P<base>[^@]+)(?:@(?P<low>[\d.]+)(?:-(?P<high>[\d.]+))?)?")
_TORCHFT = re.compile(r"torchft-(?P<name>diloco|localsgd)(?P<settings>\(.*\))?")


class Between(RoundSettings):
    """Settings of outer steps, as they stand in a method's parentheses: when ranks exchange, and what they do with it.

    Attributes:
        every: number of steps from one exchange to the next, or the lowest and the highest to choose from.
        fragments: number of parts that the model is exchanged in.
        delay: number of steps behind which an exchange travels.
        mixing: share of its own weights that a rank keeps.
        rate: learning rate of the outer SGD; ``OuterSGD``'s unless given.
        momentum: its momentum, Nesterov's where it is not 0.
    """

    rate: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    momentum: float = Field(default=0.0, ge=0, lt=1)

    @property
    def chooses(self) -> bool:
        """Tell whether ``every`` is a choice."""
        return self.every[0] < self.every[1]


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
        outer: settings of our outer steps, which take DDP's place; ``None`` otherwise.
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
    outer: Between | None = None
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
        """Tell whether ranks train apart between two exchanges, and not in DDP."""
        return self.outer is not None or self.torchft is not None

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
            if found := _OUTER.fullmatch(text):
                return cls._outer(text, compressor(found["base"]), found)
            if found := _ADAPTIVE.fullmatch(text):
                cf_range = (float(found["low"]), float(found["high"])) if found["low"] else RANGE
                chosen = controller(found["controller"])
                method = cls(text, base=compressor(found["base"]), controller=chosen, cf_range=cf_range)
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
            "as topk@10 or quantize(4), a controller over one such as gravac:topk@10-1000, outer steps such as "
            "outer:ladder or outer(every=10):quantize(2), torchft-diloco, torchft-localsgd, or matched:outer:ladder"
        )

    @classmethod
    def _outer(cls, text: str, base: Compressor, found: re.Match[str]) -> Method:
        between = Between(**settings(found["settings"] or "()"))
        ranged = found["high"] is not None or (between.chooses and found["low"] is None)
        if between.chooses and not ranged:
            raise ValueError("every is a choice, so the CF is one too; give a range such as @2-1000, or one every")
        if ranged:
            cf_range = (float(found["low"]), float(found["high"])) if found["low"] else OUTER_RANGE
            method = cls(text, base=base, controller="goodput", cf_range=cf_range, outer=between)
        else:
            method = cls(text, base=base, cf=float(found["low"]) if found["low"] else _only_cf(base), outer=between)
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
        """Return the compressor, the CFs and the controller that it is, as arguments of ours.

        Raises:
            ValueError: it is torch's, and no dense exchange.
        """
        if self.native:
            cf, dtype = NATIVE[self.native]
            return {"base": dense(dtype=dtype), "cf_range": (1, 2), "controller": Static(cf=cf)}
        if self.base is None:
            raise ValueError(f"{self.text} is torch's own and cannot be paced; leave it out, or use real links")
        if self.controller:
            return {"base": self.base, "cf_range": self.cf_range, "controller": self.controller}
        assert self.cf is not None
        cf_range = (min(self.cf, 2.0), max(self.cf, 2.0))
        return {"base": self.base, "cf_range": cf_range, "controller": Static(cf=self.cf)}

    def make(self, **run: Any) -> AdaptiveCompressor:
        """Make our compressor for it, not attached; ``run`` is what belongs to a run (``log_dir``, ``pace``, ...)."""
        return AdaptiveCompressor(**{**self.sends, **run})


def running(method: str, name: str, cf: float) -> str:
    """Return what a method runs at a CF, in words: the compressor's method with its own setting.

    Args:
        method: words of a method, see the module.
        name: compressor that runs, as decisions name it.
        cf: its compression factor.

    Example:
        >>> running("goodput:ladder@2-1000", "ladder", 32.0), running("goodput:ladder@2-1000", "dense", 2.0)
        ('low rank 16', 'dense in 16 bit')
    """
    if name == DENSE:
        return "dense in 16 bit" if cf == 2 else "dense float32"
    try:
        base = Method.parse(method).base
    except ValueError:  # of another version of the lab
        base = None
    return base.method_at(cf) if base is not None and base.name == name else f"{name} {cf:.4g}x"


def running_at(method: str, cf: float) -> str:
    """Return what a method runs at a CF, in words, if the compressor's name is not told: at 1 and 2 it is dense.

    Example:
        >>> running_at("goodput:ladder@2-1000", 32.0), running_at("fp32", 1.0)
        ('low rank 16', 'dense float32')
    """
    base = Method.parse(method).base
    return running(method, DENSE if cf in (1.0, 2.0) or base is None else base.name, cf)


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
