# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Ranks that train apart: their anchors, their rounds, and which weights the module holds.

From the step in which they part to the one in which they are one again. The module holds the rank's own weights while
it trains, and the anchors, which all ranks share, while it is evaluated or saved (``hold``).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch

from gravac.candidate import Candidate
from gravac.engine.engine import Engine
from gravac.modes.outer.anchors import Keeping
from gravac.modes.outer.buffers import Buffers
from gravac.modes.outer.fitting import check_outer, loaded_or_as_before
from gravac.modes.outer.fragments import in_fragments
from gravac.modes.outer.refusing import Refusals
from gravac.modes.outer.round_state import RoundState
from gravac.modes.outer.rounds import Rounds
from gravac.modes.outer.shares import Shares
from gravac.modes.outer.starting import Watch, made_optimizer, trained
from gravac.policy import OuterSettings
from gravac.sources.ddp import learning_rate

Tensors = Mapping[str, torch.Tensor]
"""Tensors by name."""


class OuterSteps:
    """A rank's steps between two exchanges of how far it came, and these exchanges.

    How far a rank came, the weights that all shared (the anchor) less its own, is its pseudo-gradient; the mean over
    the ranks is the outer optimizer's gradient of the anchor (DiLoCo, arXiv:2311.08105, algorithm 1).

    Args:
        engine: exchanges pseudo-gradients.
        module: trained on this rank, not wrapped; its weights are the same on all ranks now.
        optimizers: train it; their states stay this rank's own.
        settings: settings of outer steps.
        every: lowest and highest number of steps of a round.
        seed: the run's seed, for anchors that are rounded.

    Raises:
        SettingsError: anchors cannot be in the number format asked for.
        ValueError: ``module`` has nothing to train, fewer parameters than fragments, no such buffer, or a tensor that
            cannot be exchanged as it lies in memory; or an optimizer trains what ``module`` does not have.
    """

    def __init__(
        self,
        engine: Engine,
        module: torch.nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        settings: OuterSettings,
        every: tuple[int, int],
        seed: int = 0,
    ) -> None:
        parameters = trained(module, settings.fragments)
        watch = Watch(module, optimizers, parameters)
        watch.check()
        keeping = Keeping(settings.anchor_dtype == "bfloat16", settings.offload, seed)
        fragments = in_fragments(parameters, settings.fragments, keeping)
        buffers = Buffers(module, settings.local_buffers)
        self._anchors = {name: anchor for fragment in fragments for name, anchor in fragment.anchors.items()}
        with keeping.in_full(self._anchors, 0):
            self.outer = made_optimizer(settings, self._anchors.values())
        self.state = RoundState(
            fragments,
            buffers,
            Shares(engine, settings.by_speed, settings.samples),
            Refusals(fragments, buffers, optimizers),
            self.outer,
            tuple(optimizers),
        )
        delay = 0 if every == (1, 1) and settings.delay == "auto" else settings.delay
        self._engine = engine
        self._rounds = Rounds(engine, self.state, every, delay, settings.mixing, watch.check)
        self._held_weights: dict[str, torch.Tensor] = {}
        self._held_buffers: dict[str, torch.Tensor] = {}
        self.held = False

    @property
    def travelling(self) -> dict[str, torch.Tensor]:
        """Tensors of the shapes and number formats of what ranks exchange, by name; of any values."""
        pieces = {name: like for fragment in self.state.fragments for name, like in fragment.like_pieces.items()}
        return pieces | self.state.buffers.parameters

    def follow(self, candidate: Candidate) -> None:
        """Begin the first round as a candidate says, which was decided before the ranks parted."""
        self.state.decide(candidate.every, candidate.delay)

    # a step

    def step(self) -> None:
        """Take note that this rank made a step; exchange, where a round is over. Called on every rank.

        Raises:
            ExchangeError: a rank did not answer.
            NotFiniteError: the mean over the ranks was not finite in any of three rounds on end. A ``RuntimeError``, on
                all ranks; the anchor is good (``gravac.modes.outer.refusing``).
            ValueError: a parameter that is trained now is not exchanged, or one that is, or a buffer, has changed its
                shape, number format or device, so that it does not fit; before anything leaves.
        """
        self.leave()
        self.arrive()

    def leave(self) -> None:
        """Do the first half of ``step``: hand over what leaves. Ranks in memory all do so before the other half."""
        self.release()
        self._rounds.leave(self.learning_rate)

    def arrive(self) -> None:
        """Do the second half of ``step``: take up what has come."""
        self._rounds.arrive()

    @property
    def learning_rate(self) -> float:
        """The highest learning rate of the optimizers; nan if not known."""
        rates = [rate for optimizer in self.state.inner if not math.isnan(rate := learning_rate(optimizer))]
        return max(rates, default=math.nan)

    # ends

    @property
    def closing(self) -> bool:
        """Whether another mode was decided, so that the ranks are to be one again before the next step."""
        return self.state.phase == "closing"

    def synchronize(self) -> None:
        """End the round here: exchange what it has, and take it up. Called on every rank, after the last step."""
        self.release()
        self._rounds.leave_now(self.learning_rate, end_round=True)
        self._rounds.finish()

    def close_rounds(self) -> None:
        """Finish what travels, end the round dense, and have the module hold the anchors from here on.

        Called on every rank. All ranks then have the same weights, and the same buffers of those that are averaged, bit
        for bit.
        """
        self.release()
        self._rounds.leave_now(self.learning_rate)
        self._rounds.finish()
        self._rounds.leave_now(self.learning_rate, end_round=True, dense=True)
        self._rounds.finish()
        self._take_anchors()

    def _take_anchors(self) -> None:
        for fragment in self.state.fragments:
            fragment.start_again()
        self.state.buffers.hold()

    # which weights the module holds

    @property
    def shared(self) -> dict[str, torch.Tensor]:
        """What all ranks share, by name: the anchors of parameters and of buffers, of their shapes."""
        return {name: anchor.detach() for name, anchor in self._anchors.items()} | self.state.buffers.anchors

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The module's parameters and buffers, of their shapes, that the ranks have the same of when they are one."""
        return [*(p.detach() for p in self._parameters.values()), *self.state.buffers.live]

    def shared_of(self, module: torch.nn.Module) -> dict[str, torch.Tensor]:
        """Return what all ranks share, by the names that a state dict of the module has, in its shapes and formats."""
        anchors = {id(self._parameters[name]): anchor.detach() for name, anchor in self._anchors.items()}
        named = dict(module.named_parameters(remove_duplicate=False)).items()
        shared = {name: anchors[id(p)].to(p) for name, p in named if id(p) in anchors}
        return {**shared, **self.state.buffers.anchors}

    def evaluate(self) -> None:
        """Have the module hold the anchors, with what was under way, until ``release``. A rank may do it alone."""
        if not self.held:
            self._rounds.pause()
            self.settle()
            self.hold()

    @torch.inference_mode(False)  # what is made here is trained on
    def hold(self) -> None:
        """Have the module hold the anchors. No collective is started: a rank may do it alone."""
        if self.held:
            return
        self._rounds.pause()
        self._held_weights = {name: p.detach().clone() for name, p in self._parameters.items()}
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(self._anchors[name])
        self._held_buffers = self.state.buffers.hold()
        self.held = True

    def release(self) -> None:
        """Have the module hold this rank's own weights again."""
        if not self.held:
            return
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(self._held_weights[name])
        self.state.buffers.put_back(self._held_buffers)
        self._held_weights, self._held_buffers, self.held = {}, {}, False
        self._rounds.resume()

    def start_from_module(self) -> None:
        """Begin a new round at the weights that were loaded into the module, on every rank the same.

        Weights that are the anchors leave everything as it is: a checkpoint's own weights come beside it.
        """
        loaded = {name: p.detach() for name, p in self._parameters.items()}
        if all(torch.equal(self._anchors[name].detach().to(weights), weights) for name, weights in loaded.items()):
            return
        self.settle()
        self._held_weights, self._held_buffers, self.held = {}, {}, False
        self._rounds.resume()
        for fragment in self.state.fragments:
            fragment.start_at(loaded)
        self.state.buffers.start_here()
        self.state.in_round = 0

    @property
    def _parameters(self) -> dict[str, torch.nn.Parameter]:
        return {name: p for fragment in self.state.fragments for name, p in fragment.parameters.items()}

    @contextmanager
    def synced(self, wait: bool = True) -> Iterator[None]:
        """Have the module hold the anchors, to evaluate or save: bit for bit the same on every rank.

        What a rank learned since the last exchange is not in it, and there again afterwards. No collective is started:
        one rank may do it alone. The time that it takes counts as no step's.

        Args:
            wait: whether to wait for what is under way; if not, the anchors are without it.
        """
        was_held = self.held
        self._rounds.pause()
        if wait:
            self.settle()
        self.hold()
        try:
            yield
        finally:
            if not was_held:
                self.release()

    @torch.inference_mode(False)
    def settle(self) -> None:
        """Wait until nothing is in flight; what has come is applied when it is due."""
        self._rounds.settle()

    def settle_to_save(self) -> None:
        """Wait as ``settle`` does: a rank that evaluated waited already, and all are to save the same.

        A failed exchange leaves the anchors whole, without what it was to bring; the next step raises the failure.
        """
        self._rounds.pause()
        with suppress(Exception):
            self.settle()
        self._rounds.resume()

    # checkpoints

    def prepare_to_save(self) -> None:
        """Wait for what is under way, and end a round that only some fragments have left in. Called on every rank."""
        held = self.held
        self.release()
        self._rounds.leave_now(self.learning_rate)
        self._rounds.settle()
        self._rounds.prepare_to_save()
        if held:
            self.hold()

    def with_own_weights(self, plain: dict[str, Any]) -> dict[str, Any]:
        """Return a dump of the state in which this rank's own weights stand, also if the module holds the anchors."""
        if not self.held:
            return plain
        fragments = [
            {**fragment, "own": {name: self._held_weights[name] for name in fragment["own"]}}
            for fragment in plain["fragments"]
        ]
        buffers = {**plain["buffers"], "own": {**plain["buffers"]["own"], **self._held_buffers}}
        return {**plain, "fragments": fragments, "buffers": buffers}

    def check(self, plain: Mapping[str, Any], world: int | None) -> None:
        """Check that a dumped state fits; see ``check_outer``.

        Raises:
            SettingsError: it does not.
        """
        check_outer(plain, self.state, world)

    @contextmanager
    def restoring(self, plain: Mapping[str, Any], of_other_ranks: bool) -> Iterator[None]:
        """Go on from a dumped state that fits, when all else is restored; the module then holds the anchors.

        Raises:
            SettingsError: an optimizer refuses its state. Then, and if anything raises within, nothing is changed.
        """
        with loaded_or_as_before(self.outer, *self.state.inner) as load:
            load("outer/optimizer", self.outer, plain["optimizer"])  # brings what it keeps to the anchors' format
            for at, (optimizer, state) in enumerate(zip(self.state.inner, plain["inner"], strict=True)):
                load(f"outer/inner/{at}", optimizer, state)
            yield
        self.state.restore(plain, of_other_ranks)
        self.hold()

    @property
    def begun(self) -> bool:
        """Whether a step was made since this was made."""
        return self._rounds.begun


def memory_bytes(module: torch.nn.Module, settings: OuterSettings) -> int:
    """Return the bytes that a rank needs for anchors, beside its own weights, while ranks train apart."""
    width = 2 if settings.anchor_dtype == "bfloat16" else 4
    return sum(width * parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
