# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""A communication hook and its state, for frameworks that register hook and state on a DDP module themselves.

The state holds settings, so that a framework can pickle and send the state to the processes that train. Each process
then creates an ``AdaptiveCompressor`` with these settings.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch._C._distributed_c10d import GradBucket
from torch._compile import _disable_dynamo

from gravac.sources.ddp_bucket import failed_future

if TYPE_CHECKING:
    from gravac.adaptive import AdaptiveCompressor


class HookState:
    """The state of ``gravac.hook``: settings, and the ``AdaptiveCompressor`` that each training process creates.

    Args:
        settings: keyword arguments of ``AdaptiveCompressor``, or of its ``from_policy`` if ``policy`` is among them;
            checked at once.

    Raises:
        SettingsError: a setting is wrong; the message has its name, its value and what is allowed.
        TypeError: a setting of that name does not exist.

    Example:
        >>> import gravac
        >>> state = gravac.HookState(base="topk", cf_range=(10, 1000))
        >>> state.compressor.cf
        1.0
    """

    def __init__(self, **settings: Any) -> None:
        self._settings = settings
        self._compressor: AdaptiveCompressor | None = None
        _build_compressor(settings)

    @property
    def compressor(self) -> "AdaptiveCompressor":
        """The ``AdaptiveCompressor``; created when it is first used, by this attribute or by the first bucket."""
        if self._compressor is None:
            self._compressor = _build_compressor(self._settings)
        return self._compressor

    def bind(self, module: torch.nn.Module) -> None:
        """Give the compressor the module's parameter names; see ``AdaptiveCompressor.bind``.

        Called on every rank, before the first backward.
        """
        self.compressor.bind(module)

    def __getstate__(self) -> dict[str, Any]:
        if self._compressor is not None:
            raise TypeError(
                "HookState: cannot be copied or pickled, since its compressor exists already; copy or pickle the state "
                "before the first backward, and save a run by gravac.checkpoint.save(directory, state.compressor)"
            )
        return dict(self.__dict__)


@_disable_dynamo
def hook(state: HookState, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket; register as ``ddp.register_comm_hook(gravac.HookState(...), gravac.hook)``.

    Args:
        state: settings, and the ``AdaptiveCompressor`` with these settings.
        bucket: gradients that are ready, concatenated in a flat buffer.

    Returns:
        Future of the bucket's flat buffer, which then holds the mean over the ranks. If the exchange fails,
        ``backward()`` raises the exception.
    """
    try:
        if not isinstance(state, HookState):
            raise TypeError(
                f"state: gravac.hook needs a gravac.HookState, got {type(state).__name__}: "
                "register_comm_hook(gravac.HookState(...), gravac.hook)"
            )
        compressor = state.compressor
    except Exception as failure:
        return failed_future(failure, bucket)
    return compressor.hook(None, bucket)


def _build_compressor(settings: dict[str, Any]) -> "AdaptiveCompressor":
    from gravac.adaptive import AdaptiveCompressor

    make = AdaptiveCompressor.from_policy if "policy" in settings else AdaptiveCompressor
    return make(**settings)
