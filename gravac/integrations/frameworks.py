# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""What the integrations of training frameworks share. None of them knows more of gravac than a user does."""

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
"""Name of the folder in a framework's checkpoint, or of the key in its one file, that holds all ranks' states."""

STEP = "gravac_step/"
"""Beginning of the names of what a framework logs."""

Every = int | tuple[int, int] | None
"""Number of steps from one exchange to the next, or the bounds that the controller decides between. ``None``: what the
policy says, and without a policy 1."""

Recipe = Callable[..., AdaptiveCompressor]
"""Makes a compressor with a user's settings; may be given the run's number of training steps, see ``_make``."""


def recipe(settings: Mapping[str, Any], on_resize: OnResize, every: Every = None) -> Recipe:
    """Return what makes compressors of these settings, as often as training starts; it can be pickled if they can.

    Args:
        settings: arguments of ``AdaptiveCompressor``, or of its ``from_policy`` if ``policy`` is among them.
        on_resize: what becomes of residuals at another number of ranks; see ``gravac.checkpoint.load``.
        every: number of steps from one exchange to the next; see ``Every``.

    Raises:
        SettingsError: a setting, or ``on_resize``, is wrong. It is refused now, and not when training starts.
    """
    check_on_resize(on_resize)
    if "policy" not in settings:
        setup = functools.partial(AdaptiveCompressor, every=1 if every is None else every, **settings)
    elif every is None:
        setup = functools.partial(AdaptiveCompressor.from_policy, **settings)
    else:
        raise SettingsError(f"every: {every!r} beside a policy, which says how often; set every in the policy")
    setup()
    return functools.partial(_make, setup)


def _make(setup: functools.partial[AdaptiveCompressor], training_steps: float = math.inf) -> AdaptiveCompressor:
    """Make a compressor for a run of a number of training steps.

    The number becomes the setting ``total_steps`` if the user gave a probe and did not set that. Other runs do not use
    it, and must not be refused because ranks counted their batches differently.

    Args:
        setup: the class with the user's settings.
        training_steps: as the framework counts them; infinite or not positive if it does not know.
    """
    given = setup.keywords
    needed = given.get("probe") is not None and given.get("total_steps") is None
    if needed and 0 < training_steps < math.inf:
        return setup(total_steps=int(training_steps))
    return setup()


def data_parallel(model: object, setting: str) -> DistributedDataParallel:
    """Return the DistributedDataParallel module that a framework trains, also where it is compiled.

    Args:
        model: what the framework trains.
        setting: what the framework was told to do, for the message.

    Raises:
        TypeError: the framework trains in another way.
    """
    inner = getattr(model, "_orig_mod", model)
    if isinstance(inner, DistributedDataParallel):
        return inner
    raise TypeError(
        f"{setting}: gravac compresses what DistributedDataParallel exchanges, and the model that is trained is a "
        f"{type(inner).__name__}; train with DDP, or without gravac"
    )


def tell_of_one_process(framework: str) -> None:
    """Warn that nothing is exchanged, so that nothing is compressed; training goes on without gravac."""
    warnings.warn(
        f"gravac: {framework} trains in one process, which exchanges nothing: training goes on without gravac",
        stacklevel=3,
    )


def tell_of_no_state(where: str) -> None:
    """Warn that training goes on from a checkpoint of a run without gravac: no rank has a residual yet."""
    warnings.warn(f"gravac: {where} holds no state of gravac's: residuals and the search begin anew", stacklevel=3)


def metrics(compressor: AdaptiveCompressor) -> dict[str, float]:
    """Return what a framework's loggers show of the last step, without what is not known yet.

    ``gravac_step/cf`` is the compression factor in force, ``gravac_step/gain`` the share of the gradient's energy that
    was sent, ``gravac_step/wire_ratio`` dense float32 bytes over bytes sent. They are the same on all ranks. No tag of
    gravac's own log begins so: its charts would look for the band of a gain that has none.
    """
    known = {"cf": compressor.cf, "gain": compressor.gain, "wire_ratio": compressor.wire_ratio}
    return {STEP + name: value for name, value in known.items() if value is not None}
