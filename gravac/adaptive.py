# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The class ``AdaptiveCompressor``, which compresses a model's gradients and averages them over the ranks."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch._compile import _disable_dynamo

from gravac.attach import NO_FURTHER_TEXTS, Attachment
from gravac.candidate import Mode
from gravac.checkpoint.ranks import RankShards
from gravac.checkpoint.state import pack
from gravac.closeable import Closeable
from gravac.collectives import Ledger
from gravac.compressors import Compressor, ladder
from gravac.controllers.base import Controller
from gravac.engine.engine import Engine
from gravac.engine.records import end_record
from gravac.exchange.executor import Executor
from gravac.exchange.failures import ExchangeError
from gravac.modes.outer.round_state import RoundState
from gravac.policy import OuterSettings, Policy, explain_unknown, load_policy
from gravac.settings import SettingsError, short_repr
from gravac.sources.ddp_bucket import failed_future
from gravac.sources.exchange_layout import ExchangeLayout
from gravac.telemetry.records import DecisionRecord, ModeRecord, Sink
from gravac.telemetry.sinks import Sinks

if TYPE_CHECKING:
    from gravac.modes.outer.outer_steps import OuterSteps
    from gravac.modes.switch import Switch

CLOSING_SECONDS = 20.0
"""Longest time, in seconds, that ``close`` waits for the exchange in flight, in case another rank never answers."""


class AdaptiveCompressor(Closeable):
    """Decides during training how much ranks exchange, how often, and whether they compress at all.

    A step runs in one of three modes. Native: DDP exchanges by itself. Hook: gravac exchanges the gradients, compressed
    or dense. Outer: ranks train on their own for ``every`` steps, then exchange how far their weights moved. Create an
    ``AdaptiveCompressor`` on every rank, with the same settings, before or after the process group and the model.

    Args:
        base: a compressor (``gravac.topk``, ``topk(values="float16")``), or its name. Default: ``ladder``, a list of
            compressors from which the controller chooses the fastest for the measured link.
        cf_range: lowest and highest compression factor (CF) to choose from, each 1 or more; default: (2, 1000). A
            ladder's CFs are wire ratios: bytes of a dense float32 all-reduce / bytes sent. Dense is always allowed.
        controller: ``"goodput"``, ``"gravac"``, another controller's name, or a controller object such as
            ``GraVAC(window=20, epsilon=0.7)``. ``None``, the default, means ``"gravac"`` if ``base`` names a compressor
            whose gain is a share of the gradient's energy (top-k, quantizers with error feedback, low rank, DGC ...).
            It means ``"goodput"`` for the ladder, for unbiased compressors such as QSGD, and if ``every`` is a range.
            The log of ``logging.getLogger("gravac")`` names it.
        every: number of steps from one exchange to the next, 1 or more. 1, the default: gradients are averaged in each
            step. 10: ranks train on their own for ten steps. ``(1, 100)``: the controller chooses from 1 to 100.
        native: whether the controller may choose native steps, in which DDP averages without gravac's hook; default:
            True. ``False``: the hook stays installed in every step.
        least_efficiency: lowest statistical efficiency (progress of a step / progress of a step with dense gradient
            averaging), in (0, 1], of a compressed or outer step. The controller may choose such steps only if their
            efficiency exceeds this bound with a probability of 80 %; dense gradient averaging, in float32 or 16 bit, is
            always allowed. ``None``, the default: 0.45 for the default ladder's methods in hook steps under
            ``Goodput``, otherwise any efficiency. Meant for runs with a fixed number of steps.
        error_feedback: fraction of the unsent part of each gradient that is added to the next gradient, in [0, 1];
            ``None``, the default: the compressor's own fraction.
        dense: number format of tensors that are sent dense: float32 (the default), float16 or bfloat16, as a
            ``torch.dtype`` or its name.
        outer: settings of outer steps: an ``OuterSettings``, or a dict of its fields; ``None``: its defaults.
        samples_per_step: number of samples of a step over all ranks, above 0, to log samples per second; ``None``, the
            default: each rank's step counts as one sample.
        total_steps: number of training steps of the run, 1 or more, for the log; ``None``, the default: not known.
        log_dir: folder for TensorBoard and JSONL logs, which rank 0 writes; ``attach`` checks that rank 0 can write
            there. ``None``, the default: nothing is written.
        sinks: functions, each of which is called with every record (of a step, a decision, ...) on rank 0; what they
            return is not used. A sink with a method ``close()`` is closed with the run. Default: none.
        process_group: group of the ranks that average; ``None``: DDP's own at ``attach``, or the default group.
        seed: seed of compressors that draw random numbers; default: 0.

    A ``Policy`` has some further fields, such as ``dense_below``; see ``from_policy``.

    Raises:
        SettingsError: a setting is wrong; the message has its name, its value and the allowed range.
        TypeError: there is no such argument; the message says where a setting of that name belongs.

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
        every: int | tuple[int, int] = 1,
        native: bool = True,
        least_efficiency: float | None = None,
        error_feedback: float | None = None,
        dense: torch.dtype | str = "float32",
        outer: OuterSettings | Mapping[str, Any] | None = None,
        samples_per_step: float | None = None,
        total_steps: int | None = None,
        log_dir: str | Path | None = None,
        sinks: Sequence[Sink] = (),
        process_group: dist.ProcessGroup | None = None,
        seed: int = 0,
        **unknown: NoReturn,  # a type without values, so that type checkers refuse any
    ) -> None:
        if unknown:
            raise TypeError(f"AdaptiveCompressor has no argument {explain_unknown(unknown)}")
        policy = Policy(
            base=base,
            cf_range=cf_range,
            controller=controller,
            every=every,
            native=native,
            least_efficiency=least_efficiency,
            error_feedback=error_feedback,
            dense=dense,
            outer=outer,
            samples_per_step=samples_per_step,
            total_steps=total_steps,
            log_dir=log_dir,
            seed=seed,
        )
        self._build(policy, sinks, process_group)

    @classmethod
    def from_policy(
        cls,
        policy: str | Path | Policy,
        *,
        sinks: Sequence[Sink] = (),
        process_group: dist.ProcessGroup | None = None,
        **changes: Any,
    ) -> "AdaptiveCompressor":
        """Create a compressor from a policy: the name of a shipped policy (``"gravac"``), a TOML file, or a ``Policy``.

        Args:
            policy: the policy; a ``Policy`` has all settings of a run.
            sinks: functions, each of which is called with every record of the run, on rank 0; see ``Sink``.
            process_group: group of the ranks that average; ``None``: DDP's own at ``attach``, or the default group.
            changes: fields of the policy to replace, such as ``log_dir="runs"``. A dict as ``outer`` replaces single
                fields of ``OuterSettings``.

        Raises:
            SettingsError: there is no such policy, the policy has an unknown key or a wrong value, or an argument is
                wrong.

        Example:
            >>> from gravac import AdaptiveCompressor
            >>> AdaptiveCompressor.from_policy("gravac", dense_below=4096).policy.dense_below
            4096
        """
        loaded_policy = policy if isinstance(policy, Policy) else load_policy(policy)
        if isinstance(changes.get("outer"), Mapping):
            changes["outer"] = loaded_policy.outer(**changes["outer"])
        compressor = cls.__new__(cls)
        compressor._build(loaded_policy(**changes), sinks, process_group)
        return compressor

    def _build(self, policy: Policy, sinks: Sequence[Sink], group: dist.ProcessGroup | None) -> None:
        """Check sinks, and create the engine; called once, by the constructor or ``from_policy``."""
        if not isinstance(sinks, Sequence) or not all(map(callable, sinks)):
            raise SettingsError(f"sinks: give a sequence of functions of a record (got {short_repr(sinks)})")
        if group is not None and not isinstance(group, dist.ProcessGroup):
            raise SettingsError(
                "process_group: give a group of torch.distributed.new_group that has this rank, or None for the "
                f"default group (got {short_repr(group)})"
            )
        self.policy = policy
        self._sinks = Sinks(sinks, policy.log_dir)
        self._attachment = Attachment(policy, self._sinks, group, self.hook)
        self._engine = self._attachment.engine
        self._is_closed = False

    def attach(
        self,
        module: torch.nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
        grad_scaler: torch.amp.GradScaler | None = None,
        agree_group: dist.ProcessGroup | None = None,
    ) -> None:
        """Make gravac average a model's gradients from now on. Called on every rank, before the first backward.

        gravac only warns, and training runs as without gravac, if the environment has ``GRAVAC=off``, or if there is a
        single process and ``native`` is True. With ``GRAVAC=off``, the method raises if there are several ranks and
        torch does not average the gradients.

        Args:
            module: the model: wrapped in DistributedDataParallel; or in shards by ``fully_shard`` on a mesh with a
                replicate dimension, or by FSDP2's ``replicate``. If one DistributedDataParallel with all trained
                parameters is inside the module, as with Lightning Fabric, gravac attaches to it.
            optimizer: the model's optimizer, or a sequence of all its optimizers. With an optimizer, gravac measures
                the wait for input separately, ``Accordion`` gets the learning rate, and the ranks average the
                optimizer's state after outer steps. Required if ``every`` is not 1; ``()`` means that your code changes
                weights without an optimizer.
            grad_scaler: scaler of the loss. gravac then rescales residuals whenever the loss scale changes, and turns
                ``overflow_safety`` on, unless that setting was given.
            agree_group: group of the ranks that must make the same decisions: all ranks that hold a part of the model;
                in a pipeline, all ranks that hold a part of the same stage. Needed if only some of these ranks average
                with each other, as with tensor parallelism. ``None``, the default: the ranks that average; for a model
                in shards, all ranks of its mesh.

        Raises:
            SettingsError: a setting differs between ranks (the message has its name, its values and their ranks); the
                loaded state is of another model; outer steps are impossible with the model, an optimizer or this
                torch; or ``GRAVAC=off`` would leave gradients without an average.
            TypeError: ``module`` is no module, or neither in DistributedDataParallel nor in shards; or a parameter is
                complex.
            RuntimeError: this compressor is attached already or closed, or ``module`` has a communication hook.
            ValueError: compressor and optimizer both apply momentum; or the optimizer trains a parameter that is not in
                the module, or no parameter of the module; or the module has several DistributedDataParallel modules, or
                one that lacks a trained parameter; or DistributedDataParallel has ``delay_all_reduce_named_params``.
        """
        self._check_unattached()
        self._attachment.attach(module, optimizer, grad_scaler, agree_group)

    def detach(self) -> None:
        """Undo ``attach``: the module then trains without gravac, as before ``attach``.

        Called on every rank between the same two steps. The run's state is kept for ``state_dict`` and another
        ``attach``. If outer steps ran, ranks first make their weights and optimizer states equal.

        Raises:
            RuntimeError: nothing is attached, a backward is running or pending, or this torch cannot detach; nothing
                was changed.
        """
        self._attachment.detach(ends_outer_steps=not self._is_closed)

    @contextmanager
    def shared_weights(self) -> Iterator[None]:
        """Return a context in which the module has the weights that all ranks share, to evaluate or save the module.

        The shared weights are bit for bit the same on every rank; on exit the rank's own weights are restored. Shared
        and own weights differ in outer steps only. Use the context for ``torch.save(model)``, ``copy.deepcopy`` and
        averages over ``parameters()``. Forwards without gradients and ``state_dict`` get the shared weights without
        the context. No collective runs: a single rank may use the context.
        """
        if self._switch is None:
            yield
            return
        with self._switch.shared_weights():
            yield

    def synchronize(self) -> None:
        """End the current round of outer steps early: exchange now. Call this on every rank, after the last step.

        In outer steps, ranks exchange once in ``every`` steps, so the last steps of a run may not be exchanged yet. In
        native and hook mode, the method does nothing.
        """
        if self._outer_steps is not None:
            self._outer_steps.synchronize()

    def loss(self, loss: torch.Tensor | float) -> None:
        """Report the training loss of this rank's batch; TensorBoard shows its mean over ranks as ``gravac/loss``.

        Called on every rank, for every batch or only for some, before or after the backward. The loss is all-reduced
        with the ranks' other measurements, without an exchange of its own, and the host never waits for a GPU. Does
        nothing before ``attach``, after ``close``, and in a single process.

        Args:
            loss: mean over the batch: a number, or a tensor with one element, of any real dtype. The tensor is
                detached.

        Raises:
            TypeError: the loss is no real number.
            ValueError: the tensor does not have one element.
        """
        if self._attachment.is_attached and not (self._attachment.is_idle or self._is_closed):
            self._engine.losses.add(loss)

    def no_sync(self) -> AbstractContextManager[None]:
        """Return a context in which backwards accumulate gradients on this rank and exchange nothing.

        Raises:
            RuntimeError: nothing is attached.
        """
        return self._attachment.no_sync()

    def bind(self, module: torch.nn.Module) -> None:
        """Give this object the module's parameter names, if a framework registers ``hook`` without ``attach``.

        Called before the first backward. Without names, gravac numbers the parameters in the order of their gradients.
        A checkpoint then fits only a run with the same model and the same order.

        Args:
            module: the model, or its DistributedDataParallel.

        Raises:
            SettingsError: ``every`` is not 1, or a loaded state does not fit the model.
            RuntimeError: this compressor is attached already, or closed.
        """
        self._check_unattached()
        self._refuse_outer_steps("a communication hook that you register yourself")
        self._attachment.bind(module)

    def attach_parameters(
        self,
        parameters: Mapping[str, torch.Tensor],
        *,
        group: dist.ProcessGroup | None = None,
        agree_group: dist.ProcessGroup | None = None,
        executor: Executor | None = None,
        same: Mapping[str, str] = NO_FURTHER_TEXTS,
    ) -> Engine:
        """Return the engine, which averages gradients that your own code passes to it; see ``gravac.engine.engine``.

        Called on every rank, once, in place of ``attach``. The environment variable ``GRAVAC`` is not read. Unlike
        DistributedDataParallel, the method does not make the ranks' weights equal: they must begin with the same.

        Args:
            parameters: parameters by name, whose gradients your code will pass to the engine.
            group: group of the ranks that average; ``None``: the default group.
            agree_group: group of the ranks that make the same decisions, if it is larger than the group of the ranks
                that average, as in HSDP; ``None``: the ranks that average.
            executor: object that runs the collectives; ``None``: a new executor over ``group``. ``exchange.lockstep``
                has an executor for ranks that are simulated in one process.
            same: further texts, by name, that must be equal on all ranks; settings and parameters are always compared.

        Raises:
            SettingsError: ``every`` is not 1; or a setting differs between ranks: the message has its name, its values,
                and their ranks.
            TypeError: ``parameters`` is no dict, or a parameter is complex.
            RuntimeError: this compressor is attached already, or closed.
        """
        self._check_unattached()
        self._refuse_outer_steps("a loop of your own")
        if not isinstance(parameters, Mapping):
            raise TypeError(
                f"parameters: give a dict, such as dict(model.named_parameters()) (got {type(parameters).__name__})"
            )
        return self._attachment.attach_parameters(parameters, group, agree_group, executor, same)

    @_disable_dynamo
    def hook(self, state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Average a bucket's gradients; register as ``ddp.register_comm_hook(None, compressor.hook)``.

        Args:
            state: not used.
            bucket: gradients that are ready, in a flat buffer.

        Returns:
            Future of the bucket's flat buffer, which then has the mean over the ranks.
        """
        if self._is_closed:
            return failed_future(
                RuntimeError(
                    "gravac: the compressor is closed; call compressor.detach() to continue training without gravac"
                ),
                bucket,
            )
        return self._attachment.source.hook(bucket)

    def _refuse_outer_steps(self, source: str) -> None:
        """Raise ``SettingsError`` unless ``every`` is 1, since ``source`` averages gradients in each step."""
        if self.policy.every != (1, 1):
            raise SettingsError(
                f"every: {self.policy.every}, but {source} averages gradients in each step; use attach(), or every=1"
            )

    def _check_unattached(self) -> None:
        """Raise ``RuntimeError`` if the compressor is closed, or attached to a model."""
        if self._is_closed:
            raise RuntimeError("this compressor is closed; make a new AdaptiveCompressor")
        if self._attachment.is_attached:
            raise RuntimeError(
                "this compressor is attached to a model already; call its detach() first, or make another "
                "AdaptiveCompressor"
            )

    @property
    def _switch(self) -> "Switch | None":
        """Object that runs each step in the mode that the controller decided; ``None``: every step is a hook step."""
        return self._attachment.switch

    @property
    def _outer_steps(self) -> "OuterSteps | None":
        """Object that runs this rank's outer steps; ``None`` in the other modes."""
        return None if self._switch is None else self._switch.outer

    @property
    def cf(self) -> float:
        """The compression factor that the next step will use: 1 is dense float32, 2 is 16 bit.

        Reading ``cf``, ``gain``, ``wire_ratio``, ``history`` or ``ledger`` waits for the newest step's exchange. All
        ranks then read the same numbers, except for ``wire_ratio`` and ``ledger``: ranks may send different bytes.
        """
        self._engine.drain()
        return self._decided_cf

    @property
    def _decided_cf(self) -> float:
        """The compression factor of the newest decision on this rank; read without waiting for an exchange.

        Before the first decision, the CF of the dense format.
        """
        return self._engine.decision.candidate.cf if self._engine.decision else self.policy.dense_format.cf

    @property
    def mode(self) -> Mode:
        """Mode of the present step: ``"native"`` (DDP exchanges by itself), ``"hook"`` or ``"outer"`` (gravac does)."""
        if self._attachment.is_idle:
            return "native"
        return "hook" if self._switch is None or self._switch.mode is None else self._switch.mode

    @property
    def every(self) -> int:
        """Number of steps from one exchange to the next, by the newest decision; read without waiting."""
        candidate = self._engine.candidate
        return self.policy.every[0] if candidate is None else candidate.every

    @property
    def changes(self) -> list[ModeRecord]:
        """Changes of mode so far: for each the step, the modes before and after, and this rank's seconds and bytes."""
        return [] if self._switch is None else list(self._switch.changes)

    @property
    def outer(self) -> RoundState | None:
        """State of outer steps on this rank, such as the steps made in the present round; ``None`` in other modes."""
        return None if self._outer_steps is None else self._outer_steps.state

    @property
    def gain(self) -> float | None:
        """Share of the gradients' energy (squared norm) sent in the newest step that all ranks measured.

        ``None`` if no step was measured yet, or if the gradients of that step were not finite.
        """
        return self._engine.settled.gain

    @property
    def wire_ratio(self) -> float | None:
        """Bytes of a dense float32 all-reduce / bytes sent, in the newest step that all ranks measured.

        ``None`` if no step was measured yet.
        """
        return self._engine.settled.wire_ratio

    @property
    def history(self) -> list[DecisionRecord]:
        """The newest decisions, oldest first, also those that changed nothing; the same on every rank.

        The first decision is of step 0: with what the run begins. Then the controller decides at the end of each window
        (a number of steps), and earlier if a measurement calls for it. ``print(record)`` shows step, candidate and
        reason of a decision. The newest 1000 decisions are kept; logs in ``log_dir`` have all.
        """
        return list(self._engine.settled.history)

    @property
    def ledger(self) -> Ledger:
        """Numbers of collectives and bytes of this rank so far, without those that measured the link in ``attach``."""
        self._engine.drain()
        return self._engine.ledger

    # checkpoints, and the end

    @property
    def process_group(self) -> dist.ProcessGroup | None:
        """Group of the ranks that make the same decisions and whose states form a checkpoint; ``None``: the default."""
        return self._attachment.process_group

    @property
    def shards(self) -> RankShards | None:
        """Positions of this rank's shards in the whole parameters, and its replica's index; ``None`` without shards."""
        state = self._engine.state
        places = self._engine.shard_places
        return RankShards(places, state.rank, state.world) if places else None

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state as tensors and plain values.

        The state has the residuals, the controller's state, the state of outer steps, the number of steps, and the
        names of the parameters that are sent together (exchange groups).

        ``gravac.checkpoint`` saves the states of all ranks. ``torch.load(weights_only=True)`` can load the state.
        """
        if self._switch is not None:
            self._switch.prepare_to_save()
        outer_steps = self._outer_steps
        self._engine.drain()
        packed_state = pack(self.policy, self._engine, self._attachment.group)
        return (
            packed_state
            if outer_steps is None
            else {**packed_state, "outer": outer_steps.with_local_weights(packed_state["outer"])}
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of ``state_dict``; training then continues bit for bit. Called before the first backward.

        ``gravac.checkpoint.load`` loads the states of all ranks or of none, also at another number of ranks. This
        method knows only its own rank: if it raises on one rank, your code must let no rank train on. Tensors are
        copied. Before ``attach`` the model is not known; ``attach`` then checks that the residuals fit the model. If
        the method raises, nothing was changed on this rank.

        Raises:
            SettingsError: the state is of another version, rank, world size, compressor or model, or a field of it is
                missing or wrong; the message has its path.
            RuntimeError: this compressor has made steps already.
        """
        with self.restoring(state):
            pass

    @contextmanager
    def restoring(self, state: Mapping[str, Any]) -> Iterator[None]:
        """Return a context that checks a state on entry, as ``load_state_dict`` does, and restores it on exit.

        If entry or the context's body raises, nothing was changed. In the body, ranks can agree that all states fit.
        No collective runs.
        """
        self._engine.drain()
        with self._attachment.restoring.restoring(state, self._switch):
            yield
        self._attachment.source.layout = ExchangeLayout(self._engine.state.layout)

    def close(self) -> None:
        """Wait for the exchange in flight, close logs and sinks, and stop the executor. May be called again.

        If another rank does not answer, the method abandons the exchange after ``CLOSING_SECONDS`` (20 s), and tells
        the other ranks. ``gain`` and other attributes stay readable. The executor, which runs the collectives, may need
        some seconds more to stop.

        To continue training with the module, call ``detach``, too: until then a backward that calls gravac's hook
        raises. If the last step was native, DDP continues to average the gradients by itself. If the model is in
        shards, torch averages over its replicas after ``close``.
        """
        if self._is_closed:
            return
        self._is_closed = True
        outer_steps = self._outer_steps
        if self._switch is not None:
            self._switch.remove_hooks()  # from now on the user may train the module: no hook may replace its weights
        self._attachment.stop_exchange()
        failure: Exception | None = None
        try:
            try:
                if not self._engine.drain(CLOSING_SECONDS):
                    failure = ExchangeError(
                        f"gravac: close() waited {CLOSING_SECONDS:g} s for the exchange in flight, but a rank did "
                        "not answer; see the other ranks' logs"
                    )
                elif outer_steps is not None:
                    outer_steps.wait_for_exchange()  # an evaluation waits, too: so all ranks end with the same anchors
            except Exception as error:
                failure = error
            finally:
                if outer_steps is not None:
                    outer_steps.hold_anchors()
            self._sinks(end_record(self._engine.state, self._engine.deciding.forecasts, self._decided_cf))
            self._sinks.close()
        finally:
            self._engine.close(failure)
