# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Hooks of a Lightning callback, for ``lightning`` and for ``pytorch_lightning``; neither package is imported here."""

import warnings
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch.nn.parallel import DistributedDataParallel

from gravac.adaptive import AdaptiveCompressor
from gravac.checkpoint import OnResize, gather, load_gathered
from gravac.integrations.frameworks import (
    FOLDER,
    Every,
    averaged_module,
    metrics,
    recipe,
    warn_of_missing_state,
    warn_of_one_process,
)
from gravac.settings import SettingsError

SHARDS_REMEDY = (
    "use ModelParallelStrategy, and in configure_model call fully_shard(..., mesh=mesh) with "
    'mesh = init_device_mesh(device, (2, N), mesh_dim_names=("replicate", "shard")), where N is half the number of '
    "processes"
)
"""Remedy for error messages: how a user of Lightning trains several replicas in shards."""


class LightningHooks:
    """Base class of Lightning callbacks that train with gravac: attach, log, and save gravac's states in checkpoints.

    During outer steps, Lightning evaluates and saves the weights that all ranks share; each rank's own weights and
    optimizer state are among gravac's states in the checkpoint.

    Args:
        every: number of steps from one exchange to the next. 1: gradients are averaged in each step; 10: ranks train on
            their own for ten steps; ``(1, 100)``: the controller decides between these bounds. ``None``: the policy's
            number; 1 without a policy.
        on_resize: what happens to loaded residuals if the number of ranks has changed: ``"mean"``, ``"keep"`` or
            ``"drop"``; see ``gravac.checkpoint.load``.
        settings: arguments of ``AdaptiveCompressor``, or of its ``from_policy`` if ``policy`` is among them.

    Attributes:
        compressor: compressor of the newest ``fit``; ``None`` before the first ``fit``, and in a single process.

    Raises:
        SettingsError: a setting is wrong.
    """

    simultaneous: ClassVar[tuple[type[BaseException], ...]] = ()
    """Exceptions that end training on all ranks after the same step, so that all ranks' states can still be saved."""

    def __init__(self, *, every: Every = None, on_resize: OnResize = "mean", **settings: Any) -> None:
        self.compressor: AdaptiveCompressor | None = None
        self._make_compressor = recipe(settings, on_resize, every)
        self._on_resize = on_resize
        self._states_to_load: dict[str, Any] | None = None
        self._sharded_module: Any = None  # the model, if it is in shards
        self._steps_may_differ = False  # whether ranks may be at different steps

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Attach a new compressor to the strategy's model, and load the checkpoint's states, if there are any.

        Raises:
            TypeError: the strategy uses neither DDP nor FSDP2.
            SettingsError: the model is in shards without replicas, or in shards that do not form one module.
            ValueError: there are several optimizers.
        """
        states, self._states_to_load = self._states_to_load, None
        self.compressor, self._sharded_module, self._steps_may_differ = None, None, False
        if trainer.world_size == 1:
            warn_of_one_process("the Trainer")
            return
        strategy_setting = f"strategy: {type(trainer.strategy).__name__}"
        module = averaged_module(trainer.strategy.model, strategy_setting, SHARDS_REMEDY)
        if not isinstance(module, DistributedDataParallel):
            module = self._sharded_module = outermost_sharded_module(module)
        if len(trainer.optimizers) != 1:
            raise ValueError(
                f"optimizers: the module has {len(trainer.optimizers)}, but gravac supports one: each backward would "
                "also exchange gradients of the other optimizers' parameters; use one optimizer for all parameters"
            )
        compressor = self._make_compressor()
        compressor.attach(module, trainer.optimizers[0], getattr(trainer.precision_plugin, "scaler", None))
        if states is not None:
            load_gathered(states, compressor, self._on_resize)
        self.compressor = compressor

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Average a model in shards over its replicas only in the last backward of a step.

        With gradient accumulation, a step has several backwards. In all but the last, nothing should be exchanged, but
        Lightning turns off the exchange only for DDP.
        """
        if self._sharded_module is not None and pl_module.automatic_optimization:
            self._sharded_module.set_requires_all_reduce(not trainer.fit_loop._should_accumulate())

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Report the loss to gravac, and log gravac's numbers when the Trainer logs.

        After the last step, ranks exchange what they trained in outer steps since the last exchange.
        """
        if self.compressor is None:
            return
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, torch.Tensor):  # Lightning has divided the loss by the number of batches of a step
            self.compressor.loss(loss * trainer.accumulate_grad_batches)
        log_interval = trainer.log_every_n_steps
        if log_interval and trainer.global_step % log_interval == 0:
            pl_module.log_dict(metrics(self.compressor), batch_size=1)
        if is_last_step(trainer):  # before the last validation, which evaluates the weights that are saved
            self.compressor.synchronize()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Exchange what outer steps have not exchanged yet, before ``ModelCheckpoint`` saves its last file."""
        if self.compressor is not None:
            self.compressor.synchronize()

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Add gravac's states of all ranks to the checkpoint that rank 0 writes; called on every rank."""
        if self.compressor is None:
            return
        if self._steps_may_differ:
            warnings.warn(
                "gravac: this checkpoint has no states of gravac, since training ended by an exception and ranks may "
                "have been at different steps; a run that resumes from this checkpoint starts without residuals",
                stacklevel=2,
            )
        elif (states := gather(self.compressor)) is not None:
            checkpoint[FOLDER] = states

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Keep gravac's states of the checkpoint until training starts; do nothing outside ``fit``."""
        if trainer.state.fn == "fit":
            self._states_to_load = checkpoint.get(FOLDER)
            if self._states_to_load is None:
                warn_of_missing_state("the checkpoint")

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Close the compressor after an exception or Ctrl-C; Lightning then saves the weights that all ranks share."""
        self._steps_may_differ = not isinstance(exception, self.simultaneous)
        if self.compressor is not None and not self._steps_may_differ:
            self.compressor.state_dict()  # waits for the exchange in flight, which a closed compressor cannot do
        self._close()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Close the compressor, when training has ended and its last checkpoint was written."""
        self._close()

    def _close(self) -> None:
        if self.compressor is not None:
            self.compressor.close()
        if self._sharded_module is not None:
            self._sharded_module.set_requires_all_reduce(True)


def outermost_sharded_module(module: torch.nn.Module) -> torch.nn.Module:
    """Return the module within a ``LightningModule`` that holds all layers in shards.

    gravac recognizes a step by the forward of this module, since Lightning calls ``training_step``, not the forward of
    the ``LightningModule``.

    Args:
        module: a ``LightningModule`` with layers in shards.

    Raises:
        SettingsError: several modules are in shards, and none of these holds all the others.
    """
    from torch.distributed.fsdp import FSDPModule  # this import takes a second, which DDP need not wait for

    trained_modules = [
        (path, submodule)
        for path, submodule in module.named_modules()
        if any(parameter.requires_grad for parameter in submodule.parameters())
    ]
    paths = [path for path, submodule in trained_modules if isinstance(submodule, FSDPModule)]
    outermost_paths = [path for path in paths if not any(is_within(path, other) for other in paths)]
    if len(outermost_paths) > 1:
        raise SettingsError(
            f"configure_model: {outermost_paths[0]} and {outermost_paths[1]} are in shards, but no module in shards "
            "holds both; put all layers that are trained into one module, and call fully_shard(module, mesh=mesh) "
            "last"
        )
    return module.get_submodule(outermost_paths[0])


def is_within(path: str, ancestor: str) -> bool:
    """True if the module at ``path`` is a descendant of the module at ``ancestor``; paths as in ``named_modules``."""
    return path != ancestor and (not ancestor or path.startswith(f"{ancestor}."))


def is_last_step(trainer: Any) -> bool:
    """True if the Trainer's ``max_steps`` or ``max_epochs`` ends training after this batch; the same on all ranks."""
    max_steps, max_epochs = trainer.max_steps, trainer.max_epochs
    if max_steps is not None and 0 <= max_steps <= trainer.global_step:
        return True
    return trainer.is_last_batch and max_epochs is not None and 0 <= max_epochs <= trainer.current_epoch + 1
