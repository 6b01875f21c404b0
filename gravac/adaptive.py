# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""AdaptiveCompressor: compressor, controller and error feedback as one object that attaches to training."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from gravac import version
from gravac.building import build
from gravac.checkpoint.state import check_kept, check_place, pack, unpack
from gravac.collectives import Ledger
from gravac.compressors import Compressor, ladder
from gravac.controllers.base import Controller
from gravac.engine.codec_timing import time_codecs
from gravac.engine.engine import Engine
from gravac.engine.records import totals
from gravac.exchange.alike import check_alike
from gravac.exchange.executor import Executor
from gravac.exchange.failures import ExchangeError
from gravac.exchange.opening import Opened, open_executor
from gravac.live import Live
from gravac.policy import Policy, RunSettings, beside, load_policy
from gravac.settings import SettingsError, shown
from gravac.sources.ddp import DDPAdapter, failed, refuse_unfit
from gravac.sources.ddp_private import register, scale_of
from gravac.sources.exchange_layout import ExchangeLayout
from gravac.telemetry.records import DecisionRecord, EndRecord, Sink
from gravac.telemetry.sinks import Sinks
from gravac.texts import text_of, texts_of

SHARED_RUN_SETTINGS = ("samples_per_step", "steps_per_epoch", "executor", "history")
"""Settings of a run that its ranks must have alike: by them they decide, and their histories are the same."""

NONE_MORE: Mapping[str, str] = MappingProxyType({})
"""No settings to compare besides a compressor's own."""

CLOSING_SECONDS = 20.0
"""Longest time that ``close`` waits for what is under way: another rank may never answer."""


class AdaptiveCompressor(Live):
    """Compresses a DDP model's gradient exchange, and decides while training how much, and whether at all.

    Neither the process group nor the model need exist yet. Every rank makes one, with the same settings.

    Args:
        base: a compressor (``gravac.topk``, ``topk(values="float16")``), or its name. ``ladder`` holds several, and
            takes whichever trains fastest on the link.
        cf_range: lowest and highest compression factor to choose from; of a ladder, wire ratios. Dense is always
            allowed.
        controller: decides: ``"goodput"``, ``"gravac"``, or a controller object such as ``Static(cf=10)``. ``None`` is
            ``"goodput"``, but ``"gravac"`` when one of the next four is given: they are its settings.
        window: steps between decisions.
        epsilon: gain below which a CF is refused, in (0, 1]; relative to the lowest CF's gain unless the controller's
            ``epsilon_mode`` says otherwise.
        omega: relative difference under which two gains or throughputs count as the same.
        step: how candidates are spaced: ``"exponential"`` or ``"geometric"``.
        error_feedback: share of what was not sent that is kept, in [0, 1]; ``None`` is the compressor's own.
        dense: number format of what is sent dense: ``"float32"``, ``"float16"``, ``"bfloat16"``.
        sixteen_bit: whether the controller may send all in 16 bit (bfloat16, or a ladder's), with ``dense`` in float32.
        release: when the CF falls, most that leaves a piled-up residual in a step, as a multiple of the gradient's
            norm; ``inf`` lets all go at once.
        residual_dtype: number format that residuals are kept in, ``"float32"`` or, rounded at random, ``"bfloat16"``.
        overflow_safety: a step with a non-finite gradient anywhere leaves residuals unchanged; ``None`` is on for
            float16 gradients and with a GradScaler.
        dense_below: tensors with fewer elements, and all with one dimension, are sent dense.
        seed: seed of compressors that draw random numbers.
        samples_per_step: samples processed in a step over all ranks; without it throughput is in steps/s times ranks.
        steps_per_epoch: steps of an epoch; decisions then name the epoch too, and ``Accordion`` counts in them.
        log_dir: folder for TensorBoard and JSONL logs, which rank 0 writes, and checks when ranks first meet (at
            ``attach``); ``None`` writes nothing.
        sinks: callables that are given every record, on rank 0.
        process_group: whose ranks average; ``None`` is DDP's own at ``attach``, or the default group.
        pace: emulate a link of that many bits per second by sleeping; for experiments without one.
        executor: runs the exchange: ``"stream"`` on a GPU's streams (NCCL), ``"thread"`` on a thread (gloo), ``"auto"``
            by the backend of the gradients' device.
        history: number of records, the newest, that ``history`` and checkpoints hold; a log in ``log_dir`` has all.

    Raises:
        SettingsError: a setting is wrong; the message names it, its value and what is allowed.

    Example:
        >>> from gravac import AdaptiveCompressor, topk
        >>> compressor = AdaptiveCompressor(topk, cf_range=(10, 1000))
        >>> compressor.cf
        1.0
    """

    def __init__(
        self,
        base: Compressor | str = ladder,
        cf_range: tuple[float, float] = (2, 1000),
        *,
        controller: Controller[Any] | str | None = None,
        window: int | None = None,
        epsilon: float | None = None,
        omega: float | None = None,
        step: str | None = None,
        error_feedback: float | None = None,
        dense: str = "float32",
        sixteen_bit: bool = True,
        release: float = 1.0,
        residual_dtype: str = "float32",
        overflow_safety: bool | None = None,
        dense_below: int = 1024,
        seed: int = 0,
        samples_per_step: float | None = None,
        steps_per_epoch: int | None = None,
        log_dir: str | Path | None = None,
        sinks: Sequence[Sink] = (),
        process_group: dist.ProcessGroup | None = None,
        pace: float | None = None,
        executor: str = "auto",
        history: int = 1000,
    ) -> None:
        policy = Policy(
            base=base,
            cf_range=cf_range,
            controller=beside(controller, {"window": window, "epsilon": epsilon, "omega": omega, "step": step}),
            error_feedback=error_feedback,
            dense=dense,
            sixteen_bit=sixteen_bit,
            release=release,
            residual_dtype=residual_dtype,
            overflow_safety=overflow_safety,
            dense_below=dense_below,
            seed=seed,
        )
        settings = RunSettings(
            policy=policy,
            samples_per_step=samples_per_step,
            steps_per_epoch=steps_per_epoch,
            history=history,
            log_dir=log_dir,
            pace=pace,
            executor=executor,
        )
        self._build(settings, sinks, process_group)

    @classmethod
    def from_policy(
        cls,
        policy: str | Path | Policy,
        *,
        samples_per_step: float | None = None,
        steps_per_epoch: int | None = None,
        log_dir: str | Path | None = None,
        sinks: Sequence[Sink] = (),
        process_group: dist.ProcessGroup | None = None,
        pace: float | None = None,
        executor: str = "auto",
        history: int = 1000,
    ) -> "AdaptiveCompressor":
        """Make one from a policy: the name of a shipped one (``"gravac"``), a path to a TOML file, or the object.

        The other arguments are those of the class.

        Raises:
            SettingsError: there is no such policy, or the policy or an argument holds what is not allowed.
        """
        settings = RunSettings(
            policy=policy if isinstance(policy, Policy) else load_policy(policy),
            samples_per_step=samples_per_step,
            steps_per_epoch=steps_per_epoch,
            history=history,
            log_dir=log_dir,
            pace=pace,
            executor=executor,
        )
        return cls.from_settings(settings, sinks, process_group)

    @classmethod
    def from_settings(
        cls, settings: RunSettings, sinks: Sequence[Sink] = (), process_group: dist.ProcessGroup | None = None
    ) -> "AdaptiveCompressor":
        """Make one from all settings of a run.

        Raises:
            SettingsError: ``sinks`` are not callables.
        """
        made = cls.__new__(cls)
        made._build(settings, sinks, process_group)
        return made

    def _build(self, settings: RunSettings, sinks: Sequence[Sink], group: dist.ProcessGroup | None) -> None:
        if not isinstance(sinks, Sequence) or not all(map(callable, sinks)):
            raise SettingsError(f"sinks: give a sequence of callables (got {shown(sinks)})")
        self.settings, self.policy = settings, settings.policy
        self._group = self._given_group = group
        self._agree_group: dist.ProcessGroup | None = None
        self._executor: Executor | None = None
        self._sinks = Sinks(sinks, settings.log_dir)
        built = build(settings, self._sinks, self._open)
        self._engine, self._admission = built.engine, built.admission
        self._adapter = DDPAdapter(self._engine)
        self._attached = self._closed = False
        self._restored: dict[str, Any] | None = None

    def attach(
        self,
        ddp: DistributedDataParallel,
        optimizer: torch.optim.Optimizer | None = None,
        grad_scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        """Register the communication hook on a DDP module. Called on every rank, before the first backward.

        Args:
            ddp: the wrapped model.
            optimizer: lets the time it takes be told from waiting for input; gives ``Accordion`` the learning rate; a
                base that does momentum itself checks that it has none.
            grad_scaler: residuals follow its scale, and overflow safety is on.

        Raises:
            SettingsError: a setting differs between ranks, with its name, values and whose they are in the message; or
                what was loaded is of another model.
            TypeError: ``ddp`` is not a DistributedDataParallel module, or a parameter is complex.
            RuntimeError: this compressor is attached already, or ``ddp`` has a hook.
            ValueError: base and optimizer both do momentum.
        """
        self._check_free()
        refuse_unfit(ddp, self.policy.base, optimizer)
        group = self._given_group or ddp.process_group
        if self._engine.ready_to_run and group is not self._group:
            raise RuntimeError("process_group: this compressor averaged over another one before; make a new compressor")
        self._group = group
        self._adapter.bind(ddp)
        scaled = grad_scaler is not None and grad_scaler.is_enabled()
        self._open({"grad_scaler": "enabled" if scaled else "none"})
        self._attached = True
        self._adapter.watch(ddp, optimizer)
        if grad_scaler is not None and scaled:
            self._adapter.loss_scale = scale_of(grad_scaler, device=not self._engine.schedule.looks)
            self._engine.averager.feedback.guard()
        register(ddp, self.hook)

    def detach(self) -> None:
        """Undo ``attach``: the module trains as a fresh DistributedDataParallel does, in torch's own code.

        Called on every rank between the same two steps. What is known stays, for ``state_dict`` and another ``attach``.

        Raises:
            RuntimeError: not attached, a backward is running or pending, or this torch cannot; nothing was changed.
        """
        self._engine.drain()
        self._adapter.detach()
        self._attached = False

    def bind(self, module: torch.nn.Module) -> None:
        """Learn parameter names, where a framework takes only ``hook``; ``attach`` does it by itself.

        Without names, parameters are numbered as they come, and a checkpoint fits only the same model and layout.
        """
        self._check_free()
        self._adapter.bind(module)
        self._check_kept()
        self._attached = True

    def door(
        self,
        parameters: Mapping[str, torch.Tensor],
        *,
        group: dist.ProcessGroup | None = None,
        agree_group: dist.ProcessGroup | None = None,
        executor: Executor | None = None,
        same: Mapping[str, str] = NONE_MORE,
    ) -> Engine:
        """Return the engine, for gradients of anything but DDP: see ``gravac.engine.engine``. Called on every rank.

        Args:
            parameters: parameters whose gradients will be handed over, by name.
            group: ranks that average; ``None``: the default group.
            agree_group: ranks that agree on decisions, if these are more (HSDP); ``None``: the same.
            executor: runs the steps, instead of what ``group`` asks for: of ranks in memory, ``exchange.lockstep``.
            same: what must be the same on all ranks besides this compressor's settings and the parameters, by name.

        Raises:
            SettingsError: a setting differs between ranks; the message names it, its values, and whose they are.
            TypeError: a parameter is complex.
        """
        self._check_free()
        self._engine.know(parameters)
        self._check_kept()
        self._group, self._agree_group, self._executor = group or self._group, agree_group, executor
        self._open(same)
        self._attached = True
        return self._engine

    def hook(self, state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """The DDP communication hook: ``ddp.register_comm_hook(None, compressor.hook)``. ``state`` is not used."""
        if self._closed:
            return failed(RuntimeError("gravac: the compressor is closed; detach() it to train on without"))
        return self._adapter.hook(bucket)

    def _check_kept(self) -> None:
        """Forget the model again if what was loaded does not fit it."""
        if self._restored is not None and self._engine.decision is None:
            try:
                check_kept(self._engine, self.policy)
            except Exception:
                self._adapter.names.clear()
                self._engine.know({})
                raise

    def _check_free(self) -> None:
        if self._closed:
            raise RuntimeError("this compressor is closed; make a new AdaptiveCompressor")
        if self._attached:
            raise RuntimeError("this compressor is attached to a model already; detach() it, or make another one")

    @property
    def cf(self) -> float:
        """The compression factor in force: 1 is dense float32, 2 is 16 bit.

        This and the next few wait for the last step's exchange work, so that all ranks see the same.
        """
        self._engine.drain()
        return self._known_cf

    @property
    def _known_cf(self) -> float:
        """The same, as known without waiting."""
        return self._engine.decision.candidate.cf if self._engine.decision else self.policy.dense_format.cf

    @property
    def gain(self) -> float | None:
        """Gain of the last step all ranks agreed on; ``None`` before, or when it was not finite."""
        return self._engine.settled.gain

    @property
    def wire_ratio(self) -> float | None:
        """Wire bytes of a dense float32 all-reduce / bytes really sent, in the last agreed step; ``None`` before."""
        return self._engine.settled.wire_ratio

    @property
    def history(self) -> list[DecisionRecord]:
        """One record per window end or trigger, also when nothing changed; the same on every rank.

        The newest, as many as the setting ``history`` says.
        """
        return list(self._engine.settled.history)

    @property
    def ledger(self) -> Ledger:
        """What this rank handed to collectives so far; without the link probe at ``attach``."""
        self._engine.drain()
        return self._engine.ledger

    # checkpoints, and the end

    @property
    def process_group(self) -> dist.ProcessGroup | None:
        """The ranks that decide together, whose states make one checkpoint; ``None``: the default group."""
        return self._agree_group or self._group

    def state_dict(self) -> dict[str, Any]:
        """This rank's state: residuals, controller, exchange groups, step. Tensors and plain values only.

        ``gravac.checkpoint`` saves those of all ranks. Loads with ``torch.load(weights_only=True)``.
        """
        self._engine.drain()
        return pack(self.policy, self._engine, self._group)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where ``state_dict`` was taken, bit for bit; called before the first backward.

        ``gravac.checkpoint.load`` loads the states of all ranks, at another number of ranks too. Tensors are copied.
        Where the model is not known yet, ``attach`` checks that residuals fit it. If it raises, nothing was changed.

        Raises:
            SettingsError: the state is of another version, rank, world size, compressor or model, or a part of it is
                missing or wrong; the message has its path.
            RuntimeError: this compressor has made steps already.
        """
        self._engine.drain()
        if self._engine.decision is not None:
            raise RuntimeError(
                f"load_state_dict: this compressor has made {self._engine.state.step} steps, and goes on from them; "
                "load into a new AdaptiveCompressor, before its first backward"
            )
        unpack(state, self.policy, self._engine)
        self._adapter.layout = ExchangeLayout(self._engine.state.layout)
        self._restored = {key: state[key] for key in ("rank", "world")}

    def close(self) -> None:
        """Finish what is under way, tell the sinks, end the executor. May be called again.

        It returns whatever other ranks do: what is under way after ``CLOSING_SECONDS`` is given up, the other ranks are
        told, and what was last known stays readable. The executor's end takes some seconds more at most.
        """
        if self._closed:
            return
        self._closed = True
        failure: Exception | None = None
        try:
            try:
                if not self._engine.drain(CLOSING_SECONDS):
                    failure = ExchangeError(
                        f"gravac: the compressor was closed, and a rank did not answer for {CLOSING_SECONDS:g} s"
                    )
            except Exception as error:
                failure = error
            state = self._engine.state
            self._sinks(
                EndRecord(state.step, {**totals(state, self._engine.deciding.candidates), "cf": self._known_cf})
            )
            self._sinks.close()
        finally:
            self._engine.close(failure)

    def shared_settings(self) -> dict[str, str]:
        """Return versions and settings that must be the same on all ranks, as text, by name.

        Not in it is what each rank may have its own of: ``log_dir``, ``sinks`` and ``pace``.
        """
        run = {name: text_of(getattr(self.settings, name)) for name in SHARED_RUN_SETTINGS}
        versions = {"gravac's version": version.__version__, "torch's version": torch.__version__.split("+")[0]}
        return {**versions, **texts_of(self.policy), **run}

    # behind the scenes

    def _open(self, same: Mapping[str, str] = NONE_MORE) -> None:
        """Compare what must be the same on all ranks, and make what runs the steps, unless an executor was given."""
        if self._engine.ready_to_run:
            return
        if self._executor is None:
            self._compare({**self.shared_settings(), **same})
        device, settings = self._engine.device, self.settings
        opened = (
            open_executor(device, self._group, self._agree_group, settings.executor, settings.pace)
            if self._executor is None
            else Opened(self._executor)
        )
        executor = opened.executor
        self._admission.link = opened.link
        try:
            if self._restored is not None:
                check_place(self._restored, executor.rank, executor.world)
            if executor.rank == 0:
                self._sinks.open()
            self._admission.coding = time_codecs(self.policy, self._engine.forms, opened)
        except BaseException as failure:
            executor.abandon(failure)  # which tells the ranks that did not fail
            executor.close()
            self._sinks.close()
            raise
        self._engine.use(executor, self._admission.coding)

    def _compare(self, texts: Mapping[str, str]) -> None:
        """Compare settings over the ranks that decide together, and parameters over those that average."""
        if self._agree_group is not None:
            check_alike(texts, self._engine.device, self._agree_group)
        check_alike({**texts, **self._engine.described}, self._engine.device, self._group)
