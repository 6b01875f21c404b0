# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Functions that the integrations of training frameworks share. Integrations use gravac's public API alone."""

import functools
import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from gravac.adaptive import AdaptiveCompressor
from gravac.checkpoint.resize import OnResize, check_on_resize
from gravac.settings import SettingsError

FOLDER = "gravac"
"""Name of the folder in a framework's checkpoint, or of the key in its single file, that holds all ranks' states."""

STEP = "gravac_step/"
"""Prefix of the names of numbers that a framework logs."""

Every = int | tuple[int, int] | None
"""Number of steps from one exchange to the next, or the bounds that the controller decides between. ``None``: the
policy's, without a policy 1."""

Recipe = Callable[..., AdaptiveCompressor]
"""Function that returns a new compressor; takes the run's number of training steps, if known: see ``_build``."""


def recipe(settings: Mapping[str, Any], on_resize: OnResize, every: Every = None) -> Recipe:
    """Return a function that builds a compressor with these settings, for each start of training.

    The function can be pickled if the settings can.

    Args:
        settings: arguments of ``AdaptiveCompressor``, or of its ``from_policy`` if ``policy`` is among them.
        on_resize: what becomes of residuals at another number of ranks; see ``gravac.checkpoint.load``.
        every: number of steps from one exchange to the next; see ``Every``.

    Raises:
        SettingsError: a setting, or ``on_resize``, is wrong. Raised here, not only when training starts.
    """
    check_on_resize(on_resize)
    if "policy" not in settings:
        setup = functools.partial(AdaptiveCompressor, every=1 if every is None else every, **settings)
    elif every is None:
        setup = functools.partial(AdaptiveCompressor.from_policy, **settings)
    else:
        raise SettingsError(f"every: {every!r} beside a policy, which says how often; set every in the policy")
    setup()
    return functools.partial(_build, setup)


def _build(setup: functools.partial[AdaptiveCompressor], training_steps: float = math.inf) -> AdaptiveCompressor:
    """Build a compressor for a run of a number of training steps.

    The number becomes the setting ``total_steps`` if the user set ``probe`` without ``total_steps``. Other runs do not
    use the number, and must not be refused because ranks counted their batches differently.

    Args:
        setup: the class with the user's settings.
        training_steps: number of training steps, as the framework counts them; infinite or not positive if the
            framework does not know the number.
    """
    settings = setup.keywords
    needed = settings.get("probe") is not None and settings.get("total_steps") is None
    if needed and 0 < training_steps < math.inf:
        return setup(total_steps=int(training_steps))
    return setup()


def data_parallel(model: object, setting: str) -> DistributedDataParallel:
    """Return the DistributedDataParallel module that a framework trains, also if the module is compiled.

    Args:
        model: the model that the framework trains.
        setting: the framework's setting that chose how to train, for the message.

    Raises:
        TypeError: the framework does not train by DistributedDataParallel.
    """
    inner = getattr(model, "_orig_mod", model)
    if isinstance(inner, DistributedDataParallel):
        return inner
    raise TypeError(
        f"{setting}: gravac compresses what DistributedDataParallel exchanges, and the model that is trained is a "
        f"{type(inner).__name__}; train with DDP, or without gravac"
    )


def warn_of_one_process(framework: str) -> None:
    """Warn that a single process exchanges nothing, so that training continues without gravac."""
    warnings.warn(
        f"gravac: {framework} trains in one process, which exchanges nothing: training goes on without gravac",
        stacklevel=3,
    )


def warn_of_missing_state(checkpoint: str) -> None:
    """Warn that training continues from a checkpoint of a run without gravac: no rank has a residual yet."""
    warnings.warn(f"gravac: {checkpoint} holds no state of gravac's: residuals and the search begin anew", stacklevel=3)


def metrics(compressor: AdaptiveCompressor) -> dict[str, float]:
    """Return the numbers of the newest step that a framework's loggers show, except those that are not known yet.

    ``gravac_step/cf`` is the compression factor in force, ``gravac_step/gain`` the share of the gradient's energy that
    was sent, ``gravac_step/wire_ratio`` dense float32 bytes over bytes sent. They are the same on all ranks. No tag of
    gravac's own log has this prefix: its charts would look for the band of a gain that has none.
    """
    numbers = {"cf": compressor.cf, "gain": compressor.gain, "wire_ratio": compressor.wire_ratio}
    return {STEP + name: number for name, number in numbers.items() if number is not None}
