# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Functions that the integrations of training frameworks share; all other integrations use gravac's public API."""

import functools
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from gravac.adaptive import AdaptiveCompressor
from gravac.attach import is_sharded
from gravac.checkpoint.directory import load
from gravac.checkpoint.ranks import Ranks
from gravac.checkpoint.resize import OnResize, check_on_resize
from gravac.settings import SettingsError

FOLDER = "gravac"
"""Name of the folder with gravac's states in a framework's checkpoint, or of the key in a checkpoint of one file."""

METRIC_PREFIX = "gravac_step/"
"""Prefix of gravac's numbers in a framework's log: ``gravac_step/cf``."""

Every = int | tuple[int, int] | None
"""Number of steps from one exchange to the next, or lowest and highest number, between which the controller decides.

``None``: the policy's number; 1 without a policy."""

Recipe = Callable[[], AdaptiveCompressor]
"""Function that returns a new ``AdaptiveCompressor``."""


def recipe(settings: Mapping[str, Any], on_resize: OnResize, every: Every = None) -> Recipe:
    """Return a function that creates an ``AdaptiveCompressor`` with the given settings.

    Integrations call the returned function each time training starts. The function can be pickled if the settings can.

    Args:
        settings: arguments of ``AdaptiveCompressor``, or of its ``from_policy`` if ``policy`` is among them.
        on_resize: what happens to loaded residuals if the number of ranks has changed; only checked here.
        every: number of steps from one exchange to the next; see ``Every``.

    Raises:
        SettingsError: a setting, or ``on_resize``, is wrong; raised at once, before training starts.
    """
    check_on_resize(on_resize)
    if "policy" not in settings:
        make_compressor = functools.partial(AdaptiveCompressor, every=1 if every is None else every, **settings)
    else:
        changes: dict[str, Any] = {} if every is None else {"every": every}
        make_compressor = functools.partial(AdaptiveCompressor.from_policy, **settings, **changes)
    make_compressor()
    return make_compressor


def data_parallel(
    model: object, setting: str, remedy: str = "train with DDP, or without gravac"
) -> DistributedDataParallel:
    """Return the DistributedDataParallel module that a framework trains, without the wrapper of ``torch.compile``.

    Args:
        model: the model that the framework trains.
        setting: name and value of the framework's setting that chose the kind of training, for the message.
        remedy: what the user can do if the framework does not train by DDP, for the message.

    Raises:
        TypeError: the framework does not train by DistributedDataParallel.
    """
    unwrapped_model = getattr(model, "_orig_mod", model)
    if isinstance(unwrapped_model, DistributedDataParallel):
        return unwrapped_model
    raise TypeError(
        f"{setting}: gravac compresses what DistributedDataParallel exchanges, but the framework trains a "
        f"{type(unwrapped_model).__name__}; {remedy}"
    )


def averaged_module(model: object, setting: str, shards_remedy: str) -> torch.nn.Module:
    """Return the module whose gradients gravac averages: a DistributedDataParallel module, or a model in shards.

    Args:
        model: the model that the framework trains. If it is a compiled DistributedDataParallel, the result has no
            wrapper of ``torch.compile``.
        setting: name and value of the framework's setting that chose the kind of training, for the message.
        shards_remedy: text for the message: which settings of the framework give a model in shards several replicas.

    Raises:
        TypeError: the framework uses neither DistributedDataParallel nor FSDP2.
        SettingsError: the model is in shards (FSDP2) without replicas, or this version of torch lacks a private
            attribute of FSDP2 that gravac needs.
    """
    unwrapped_model = getattr(model, "_orig_mod", model)
    if not isinstance(unwrapped_model, torch.nn.Module) or not is_sharded(unwrapped_model):
        remedy = f"train with DDP, or without gravac, or in shards by FSDP2 with replicas: {shards_remedy}"
        return data_parallel(model, setting, remedy)
    from gravac.sources.fsdp2 import has_replicas  # this import takes a second, which DDP need not wait for

    assert isinstance(model, torch.nn.Module)
    if not has_replicas(model):
        raise SettingsError(
            f"{setting}: the model is in shards without replicas, but gravac averages over replicas; {shards_remedy}"
        )
    return model


def warn_of_one_process(framework: str) -> None:
    """Warn that gravac does nothing, since a framework trains in a single process, which exchanges nothing.

    Args:
        framework: name of the framework, for the message.
    """
    warnings.warn(
        f"gravac: {framework} trains in one process, which exchanges nothing: training continues without gravac",
        stacklevel=3,
    )


def warn_of_missing_state(checkpoint: str) -> None:
    """Warn that a checkpoint lacks gravac's states, so that residuals and the controller's search begin anew.

    Args:
        checkpoint: name or path of the checkpoint, for the message.
    """
    warnings.warn(
        f"gravac: {checkpoint} holds no state of gravac: training continues without earlier residuals, and the "
        "controller searches from the start",
        stacklevel=3,
    )


def load_if_present(folder: Path, compressor: AdaptiveCompressor, on_resize: OnResize) -> None:
    """Load each rank's state from a folder of a checkpoint; warn if the folder exists for no rank.

    Called on every rank.

    Args:
        folder: folder of gravac's states in the checkpoint.
        compressor: compressor to restore, attached to the model.
        on_resize: what happens to residuals if the number of ranks has changed; see ``gravac.checkpoint.load``.
    """
    if any(Ranks(compressor.process_group).all_gather(folder.is_dir())):
        load(folder, compressor, on_resize)
    else:
        warn_of_missing_state(str(folder.parent))


def metrics(compressor: AdaptiveCompressor) -> dict[str, float]:
    """Return numbers of the newest step, by name, for a framework's loggers; numbers not known yet are left out.

    ``gravac_step/cf`` is the compression factor of the next step, ``gravac_step/gain`` the share of the gradient's
    energy that was sent, ``gravac_step/wire_ratio`` bytes of a dense float32 all-reduce / bytes sent. The function
    waits for the newest step's exchange; a single rank may call it.
    """
    numbers = {"cf": compressor.cf, "gain": compressor.gain, "wire_ratio": compressor.wire_ratio}
    return {METRIC_PREFIX + name: number for name, number in numbers.items() if number is not None}
