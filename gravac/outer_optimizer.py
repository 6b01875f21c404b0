# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""OuterOptimizer: ranks train on their own, and exchange every so many steps how far they came."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist

from gravac.adaptive import AdaptiveCompressor
from gravac.candidate import Candidate
from gravac.collectives import Ledger
from gravac.compressors import Compressor, ladder
from gravac.controllers.base import Controller
from gravac.engine.run_state import RunState
from gravac.exchange.alike import check_alike
from gravac.exchange.executor import Executor
from gravac.live import Live
from gravac.modes.outer.anchors import Keeping
from gravac.modes.outer.buffers import Buffers
from gravac.modes.outer.candidates import check_chosen
from gravac.modes.outer.fitting import check_outer, loaded_or_as_before
from gravac.modes.outer.fragments import in_fragments
from gravac.modes.outer.refusing import Refusals
from gravac.modes.outer.round_state import RoundState
from gravac.modes.outer.rounds import Rounds
from gravac.modes.outer.sgd import OuterSGD
from gravac.modes.outer.shares import Shares
from gravac.modes.outer.starting import (
    Watch,
    check_memory,
    described_optimizer,
    device_of,
    refuse_wrapped,
    same_on_all_ranks,
    share,
    trained,
)
from gravac.policy import MIXING, OuterSettings, Policy, RunSettings, beside
from gravac.settings import SettingsError
from gravac.sources.ddp import learning_rate
from gravac.telemetry.records import DecisionRecord, Sink

Outer = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]
"""Makes the outer optimizer of its parameters, the anchors."""


class OuterOptimizer(Live):
    """Trains ranks apart for some steps, exchanges how far they came, and decides how often, how much and how.

    It takes the place of DistributedDataParallel. Every rank makes one, with the same settings, and all start from rank
    0's weights. How far a rank came, the weights that all shared (the anchor) less its own, is its pseudo-gradient; the
    mean over the ranks is the outer optimizer's gradient of the anchor (DiLoCo, arXiv:2311.08105, algorithm 1).

    Args:
        module: trained on this rank, not wrapped; its trainable parameters are exchanged.
        inner: optimizer that trains it; its state stays this rank's own.
        base: compressor of pseudo-gradients, see ``AdaptiveCompressor``.
        cf_range: lowest and highest compression factor to choose from.
        every: number of steps from one exchange to the next, or the lowest and the highest to choose from.
        controller: decides: ``"goodput"``, or a controller object such as ``Static(cf=16)``.
        outer: makes the optimizer of the anchors, given their parameters. ``OuterSGD`` moves them to the mean of
            the ranks' weights.
        fragments: number of parts that the model is exchanged in, one after the other in a round (Streaming DiLoCo,
            arXiv:2501.18512).
        delay: number of steps behind which an exchange travels before it is taken up, or more, where it takes longer; 0
            waits for it; ``"auto"`` has the controller choose between that and as many as the link's probe promises to
            be enough.
        mixing: share of its own weights that a rank keeps where it takes up an anchor that travelled behind steps, in
            [0, 1) (α of Streaming DiLoCo); ``None``: what it learned since its pseudo-gradient left, all of it.
        by_speed: whether ranks make steps in proportion to their speed, ``every`` on average; then all train for a
            number of ``rounds``, and not of steps.
        samples: number of samples of a step on this rank, by which pseudo-gradients count; ``None``, on every rank:
            all alike.
        anchor_dtype: ``"bfloat16"`` keeps the anchors so, rounded at random, and what the outer optimizer keeps of
            them; ``"float32"`` in the format of pseudo-gradients, which have at least 32 bit.
        offload: whether to keep anchors, and make the outer step, in CPU memory.
        local_buffers: names of floating-point buffers, or of modules, that stay each rank's own; others are averaged.
        process_group: ranks that exchange; ``None``: the default group.
        log_dir: folder for TensorBoard and JSONL logs; ``None`` writes nothing.
        executor: runs the exchange, in place of what the group asks for: of ranks in memory, ``exchange.lockstep``.
        window: this and all further arguments are those of ``AdaptiveCompressor``.

    Raises:
        SettingsError: a setting is wrong; the message names it, its value and what is allowed.
        TypeError: ``module`` is wrapped in DistributedDataParallel.
        ValueError: ``module`` has nothing to train, fewer parameters than ``fragments``, no such buffer, or a tensor
            that cannot be exchanged as it lies in memory; or ``inner`` trains what ``module`` does not have.

    Example:
        >>> import torch
        >>> from gravac import OuterOptimizer, Static, quantize
        >>> from gravac.exchange.lockstep import Lockstep
        >>> model, one_rank = torch.nn.Linear(64, 64), Lockstep(1).executors[0]
        >>> inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
        >>> outer = OuterOptimizer(
        ...     model, inner, base=quantize(bits=4), controller=Static(cf=8), every=10, executor=one_rank
        ... )
        >>> for _ in range(20):
        ...     inner.zero_grad()
        ...     model(torch.randn(8, 64)).square().mean().backward()
        ...     inner.step()
        ...     outer.step()
        >>> outer.rounds, outer.every, outer.cf
        (2, 10, 8.0)
    """

    def __init__(
        self,
        module: torch.nn.Module,
        inner: torch.optim.Optimizer,
        *,
        base: Compressor | str = ladder,
        cf_range: tuple[float, float] = (2, 1000),
        every: int | tuple[int, int] = (1, 100),
        controller: Controller[Any] | str = "goodput",
        outer: Outer = OuterSGD,
        fragments: int = 1,
        delay: int | Literal["auto"] = "auto",
        mixing: float | None = MIXING,
        by_speed: bool = False,
        samples: int | None = None,
        anchor_dtype: str = "float32",
        offload: bool = False,
        local_buffers: Iterable[str] = (),
        process_group: dist.ProcessGroup | None = None,
        log_dir: str | Path | None = None,
        executor: Executor | None = None,
        window: int | None = None,
        epsilon: float | None = None,
        omega: float | None = None,
        step: str | None = None,
        error_feedback: float | None = None,
        dense: str = "float32",
        sixteen_bit: bool = True,
        release: float = 1.0,
        residual_dtype: str = "float32",
        dense_below: int = 1024,
        seed: int = 0,
        samples_per_step: float | None = None,
        steps_per_epoch: int | None = None,
        sinks: Sequence[Sink] = (),
        pace: float | None = None,
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
            dense_below=dense_below,
            seed=seed,
        )
        self.settings = OuterSettings(
            every=every,
            fragments=fragments,
            delay=delay,
            mixing=mixing,
            by_speed=by_speed,
            samples=samples,
            anchor_dtype=anchor_dtype,
            offload=offload,
            local_buffers=local_buffers,
        )
        settings = RunSettings(
            policy=policy,
            outer=self.settings,
            samples_per_step=samples_per_step,
            steps_per_epoch=steps_per_epoch,
            history=history,
            log_dir=log_dir,
            pace=pace,
        )
        self._compressor = AdaptiveCompressor.from_settings(settings, sinks, process_group)
        refuse_wrapped(module)
        if executor is None:
            # before the ranks share weights, which hangs where shapes differ, and before what one alone may refuse
            texts = {**self._compressor.shared_settings(), **same_on_all_ranks(module, self.settings)}
            check_alike(texts, device_of(module), process_group)
        check_chosen(self._compressor.policy.controller, *self.settings.every)
        parameters = trained(module, fragments)
        check_memory(module)
        watch = Watch(module, inner, parameters)
        watch.check()
        if executor is None:
            share(module, process_group)
        self.inner = inner
        keeping = Keeping(anchor_dtype == "bfloat16", offload, seed)
        self._fragments = in_fragments(parameters, fragments, keeping)
        self._buffers = Buffers(module, self.settings.local_buffers)
        self._anchors = {name: anchor for fragment in self._fragments for name, anchor in fragment.anchors.items()}
        with keeping.in_full(self._anchors, 0):
            self.outer = outer(self._anchors.values())
        travelling = {name: like for fragment in self._fragments for name, like in fragment.like_pieces.items()}
        travelling |= self._buffers.parameters
        same = {"outer": described_optimizer(self.outer)}
        self._engine = self._compressor.door(travelling, executor=executor, same=same)
        self._state = self._engine.state.outer = RoundState(
            self._fragments,
            self._buffers,
            Shares(self._engine, by_speed, samples),
            Refusals(self._fragments, self._buffers, inner),
            self.outer,
            inner,
        )
        self._rounds = Rounds(self._engine, self._state, self.settings.every, self.settings.behind, mixing, watch.check)
        self._closed = False

    def step(self) -> None:
        """Tell that the inner optimizer made a step; exchange, where a round is over. Called on every rank.

        Raises:
            ExchangeError: a rank did not answer.
            NotFiniteError: the mean over the ranks was not finite in any of three rounds on end. A ``RuntimeError``, on
                all ranks; the anchor is good (``gravac.modes.outer.refusing``).
            RuntimeError: this is closed.
            ValueError: a parameter that is trained now is not exchanged, or one that is, or a buffer, has changed its
                shape, number format or device, so that it does not fit; before anything leaves.
        """
        self.leave()
        self.arrive()

    def leave(self) -> None:
        """Do the first half of ``step``: hand over what leaves. Ranks in memory all do so before the other half."""
        if self._closed:
            raise RuntimeError("this OuterOptimizer is closed; make a new one")
        self._rounds.leave(learning_rate(self.inner))

    def arrive(self) -> None:
        """Do the second half of ``step``: take up what has come."""
        self._rounds.arrive()

    def synchronize(self) -> None:
        """End the round here: exchange what it has, and take it up. Called on every rank, after the last step."""
        self._rounds.leave_now(learning_rate(self.inner), end_round=True)
        self._rounds.finish()

    @contextmanager
    def synced(self, wait: bool = True) -> Iterator[None]:
        """Have the module hold the anchor, to evaluate or save: bit for bit the same on every rank.

        What a rank learned since the last exchange is not in it, and there again afterwards. No collective is started:
        one rank may do it alone. The time that it takes counts as no step's.

        Args:
            wait: whether to wait for what is under way; if not, the anchor is without it.
        """
        with self._rounds.pause(), self._held(wait):
            yield

    @contextmanager
    def _held(self, wait: bool) -> Iterator[None]:
        if wait:
            self._rounds.settle()
        live = {name: p for fragment in self._fragments for name, p in fragment.parameters.items()}
        held = [(p, p.detach().to(self._anchors[name].device, copy=True)) for name, p in live.items()]
        with torch.no_grad():
            for name, parameter in live.items():
                parameter.copy_(self._anchors[name])
        buffers = self._buffers.hold()
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, own in held:
                    parameter.copy_(own)
            self._buffers.put_back(buffers)

    # what runs, and what came of it

    @property
    def every(self) -> int:
        """Number of steps from one exchange to the next, as decided last.

        This and the next few wait for nothing: while something is under way, other ranks may know of a later decision.
        """
        candidate = self._decided()
        return self.settings.every[0] if candidate is None else candidate.every

    def _known_state(self) -> RunState:
        """Return the state of the steps so far, without waiting if something is under way."""
        return self._engine.state if self.under_way else self._engine.settled

    def _decided(self) -> Candidate | None:
        """Return the candidate decided last, without waiting; ``None`` before the first decision."""
        if not self.under_way:
            self._engine.drain()
        return self._engine.candidate

    @property
    def steps_of_ranks(self) -> tuple[int, ...]:
        """Number of steps that each rank makes in the present round; none before the first."""
        return self._state.shares.steps

    @property
    def cf(self) -> float:
        """The compression factor in force: 1 is dense float32, 2 is 16 bit."""
        candidate = self._decided()
        return self._compressor.policy.dense_format.cf if candidate is None else candidate.cf

    @property
    def gain(self) -> float | None:
        """Gain of the last pseudo-gradient that all ranks agreed on; ``None`` before."""
        return self._known_state().gain

    @property
    def wire_ratio(self) -> float | None:
        """Wire bytes of dense float32 all-reduces in every step / bytes really sent, in the last agreed round."""
        return self._known_state().wire_ratio

    @property
    def history(self) -> list[DecisionRecord]:
        """One record per window end or trigger, the same on every rank; its steps are rounds.

        The newest, as many as the setting ``history`` says.
        """
        return list(self._known_state().history)

    @property
    def ledger(self) -> Ledger:
        """What this rank handed to collectives so far."""
        return self._compressor.ledger

    @property
    def rounds(self) -> int:
        """Number of rounds so far."""
        return self._state.ended

    @property
    def under_way(self) -> bool:
        """Whether something is under way, or not taken up yet."""
        return self._state.under_way

    @property
    def late(self) -> int:
        """Number of fragments, on this rank, that had not come when they were due and were taken up later."""
        return self._state.late

    @property
    def skipped(self) -> int:
        """Number of exchanges so far, each of one fragment, whose mean was not finite and was not applied.

        The same on all ranks if nothing is under way. On GPU streams the host knows of an exchange two rounds later.
        """
        return self._state.refusals.skipped

    # checkpoints, and the end

    @property
    def process_group(self) -> dist.ProcessGroup | None:
        """The ranks that exchange, whose states make one checkpoint; ``None``: the default group."""
        return self._compressor.process_group

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state: anchors, both optimizers', its own weights, residuals, controller.

        Called on every rank. What is under way is waited for, and saved as not taken up yet; a round that only some
        fragments have left in is ended. Tensors and plain values only; ``gravac.checkpoint`` saves those of all ranks.
        """
        self._rounds.leave_now(learning_rate(self.inner))
        self._rounds.settle()
        self._rounds.prepare_to_save()
        return self._compressor.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where ``state_dict`` was taken, bit for bit; called before the first step.

        The module's weights and the inner optimizer's state are this rank's own, and part of it. At another number of
        ranks (``gravac.checkpoint.load``) all begin a round at the anchor, with the first rank's inner optimizer state.
        Tensors are copied. If it raises, nothing was changed.

        Raises:
            SettingsError: the state is of another model, rank, world size, compressor or number of fragments, or a part
                of it is missing or wrong; the message has its path.
            RuntimeError: a step was made already.
        """
        if self._rounds.begun:
            raise RuntimeError(
                "load_state_dict: this OuterOptimizer has made steps already, and goes on from them; load into a new "
                "one, before its first step"
            )
        plain = state.get("outer") if isinstance(state, Mapping) else None
        if plain is None:
            raise SettingsError("outer: the state is an AdaptiveCompressor's, not an OuterOptimizer's")
        check_outer(plain, self._state, state.get("world"))
        # the optimizers may refuse what they are given, and the compressor; all else was checked
        with loaded_or_as_before(self.outer, self.inner) as load:
            load("outer/optimizer", self.outer, plain["optimizer"])  # brings what it keeps to the anchors' format
            load("outer/inner", self.inner, plain["inner"])
            self._compressor.load_state_dict(state)
        self._state.restore(plain, of_other_ranks=state["world"] is None)

    def close(self) -> None:
        """Finish what is under way, tell the sinks, end the executor. May be called again."""
        self._closed = True
        self._compressor.close()
