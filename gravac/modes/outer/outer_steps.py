# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Outer steps of one rank, from the step at which ranks begin to train on their own until they are equal again.

While the module trains, it has the rank's own weights. While the module is evaluated or saved, it has the anchors: the
weights that all ranks shared last, and the buffers that they had then (``hold_anchors``).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch

from gravac.candidate import Candidate
from gravac.engine.engine import Engine
from gravac.engine.inputs import learning_rate
from gravac.modes.outer.anchor import Anchor
from gravac.modes.outer.buffers import Buffers
from gravac.modes.outer.fitting import check_outer, loading_all_or_none
from gravac.modes.outer.not_finite import Refusals
from gravac.modes.outer.round_state import RoundState
from gravac.modes.outer.rounds import Rounds
from gravac.modes.outer.sample import WeightSample
from gravac.modes.outer.starting import ParameterCheck, make_outer_optimizer, parameters_to_train
from gravac.policy import OuterSettings
from gravac.sources.local_model import LocalModel

Tensors = Mapping[str, torch.Tensor]
"""Tensors by name."""

BUFFER_PREFIX = "buffer:"
"""Prefix of the names of buffers among those of parameters."""


class OuterSteps:
    """A rank's steps, and the exchanges of pseudo-gradients between them.

    A rank's pseudo-gradient is the anchor (the weights that all ranks shared last) minus the rank's weights. The outer
    optimizer trains the anchor; the anchor's gradient is the mean of the pseudo-gradients over the ranks (DiLoCo,
    arXiv:2311.08105, algorithm 1).

    Args:
        engine: exchanges pseudo-gradients.
        model: model trained on this rank, whose current weights are the same on all ranks, and its optimizers, whose
            states stay local to this rank.
        settings: settings of outer steps.
        every_range: lowest and highest number of steps of a round.

    Attributes:
        outer_optimizer: optimizer of the anchor.
        state: rounds, anchor and buffers of this rank.
        holds_anchors: whether the module got the anchors in place of the rank's own weights. The program may have
            written other weights into the module since.

    Raises:
        ValueError: the model has no parameter to train, or no buffer that ``local_buffers`` names. Or the memory layout
            of a tensor does not allow an exchange. Or an optimizer trains a tensor that is no parameter of the model.
    """

    def __init__(
        self,
        engine: Engine,
        model: LocalModel,
        settings: OuterSettings,
        every_range: tuple[int, int],
    ) -> None:
        model.prepare()
        parameters = parameters_to_train(model)
        self._model, self._parameter_check = model, ParameterCheck(model.module, model.optimizers, parameters)
        self._parameter_check.check()
        self._anchor = Anchor(parameters, model.exchange_shapes)
        self.outer_optimizer = make_outer_optimizer(settings, self._anchor.weights.values())
        self.state = RoundState(
            self._anchor,
            Buffers(model.module, settings.local_buffers),
            Refusals(self._anchor, model.optimizers),
            self.outer_optimizer,
            model.optimizers,
        )
        delay = 0 if every_range == (1, 1) and settings.delay == "auto" else settings.delay
        self._engine = engine
        self._rounds = Rounds(engine, self.state, every_range, delay, settings.mixing, self._check_parameters)
        self._local_weights: dict[str, torch.Tensor] = {}  # saved while the module has the anchors
        self._local_buffers: dict[str, torch.Tensor] = {}
        self.holds_anchors = False
        self._was_loaded = False  # whether the program loaded a state dict into the module since it has the anchors
        self._sample = WeightSample(list(self._anchor.parameters.values()))
        self._program_edits_weights = False

    @property
    def piece_templates(self) -> dict[str, torch.Tensor]:
        """Tensors of the shapes and number formats that ranks exchange, by name, with any content."""
        return self._anchor.piece_templates

    def set_first_round(self, candidate: Candidate) -> None:
        """Set the number of steps and the delay of the first round to those of a candidate."""
        self.state.set_round(candidate.every, candidate.delay)

    def _check_parameters(self) -> None:
        """Raise if the parameters to train are not those that ranks exchange; see ``ParameterCheck``."""
        self._model.prepare()
        self._parameter_check.check()

    # a step

    def step(self) -> None:
        """End a step of this rank: send its pseudo-gradient if it is due, and apply the mean if its delay is over.

        Called on every rank, after each step of the inner optimizers.

        Raises:
            ExchangeError: a rank did not answer.
            NotFiniteError: the mean over the ranks was not finite in any of three consecutive rounds. A
                ``RuntimeError``, on all ranks; the anchor is finite (``gravac.modes.outer.not_finite``).
            ValueError: a parameter to train is not exchanged, or an exchanged parameter or buffer has changed its
                shape, number format or device. Raised before anything is sent.
        """
        self.send()
        self.apply()
        self._sample.take()

    def send(self) -> None:
        """Count a step, and send the pseudo-gradient if it is due after it: the first half of ``step``.

        Ranks that are simulated in one process all do the first half before any of them does the second half.
        """
        self.restore_local()
        self._rounds.send_due(self.learning_rate)

    def apply(self) -> None:
        """Apply the mean if its delay is over: the second half of ``step``."""
        self._rounds.apply_due()

    def forward_ended(self, seconds: float) -> None:
        """Tell the present round how long a forward took, in seconds, as a sign of the machine's speed."""
        self._rounds.forward_ended(seconds)

    @property
    def learning_rate(self) -> float:
        """The highest learning rate of the optimizers; nan if not known."""
        return learning_rate(*self.state.inner)

    # weights that the program writes between steps

    def forward_starts(self, between_steps: bool) -> None:
        """Remember the weights with which a forward with gradients begins.

        Args:
            between_steps: whether no step is under way, so that a program that has changed the weights since the last
                step changes them after each step, as one that clips weights does.
        """
        if between_steps and not self._engine.executor.lag:
            self._program_edits_weights = self._sample.differs()
        self._sample.take()

    def optimizer_stepped(self) -> None:
        """Remember the weights that an optimizer has just updated."""
        self._sample.take()

    @property
    def program_moved_weights(self) -> bool:
        """True if most weights have changed since the last forward with gradients or optimizer's step."""
        return not self.holds_anchors and self._sample.differs()

    @property
    def program_replaced_weights(self) -> bool:
        """True if the program has put other weights into the module since the last step, as to evaluate their mean.

        False for a program that changes the weights after each step.
        """
        return not self._program_edits_weights and self.program_moved_weights

    # ends

    @property
    def is_closing(self) -> bool:
        """True if the controller chose another mode, so that ranks must be made equal before the next step."""
        return self.state.phase == "closing"

    def synchronize(self) -> None:
        """End the round early: exchange and apply its pseudo-gradient. Called on every rank, after the last step."""
        self.restore_local()
        self._rounds.end_early(self.learning_rate)
        self._rounds.finish_exchange()

    def close_rounds(self) -> None:
        """Finish the exchange in flight, end the round by a dense exchange, and leave the anchors in the module.

        Called on every rank. Afterwards weights and averaged buffers are the same on all ranks, bit for bit.
        """
        self._model.prepare()
        self.restore_local()
        self._rounds.finish_exchange()
        self._rounds.end_early(self.learning_rate, dense=True)
        self._rounds.finish_exchange()
        self._anchor.reset_parameters()
        self.state.buffers.put_anchors()

    # anchors or local weights in the module

    @property
    def shared_tensors(self) -> dict[str, torch.Tensor]:
        """Anchors of parameters and averaged buffers, by name, in the tensors' shapes; the same on all ranks."""
        return self._shared_weights | self.state.buffers.anchors

    @property
    def _shared_weights(self) -> dict[str, torch.Tensor]:
        """Weights of the anchor, by name; the same on all ranks."""
        return {name: weight.detach() for name, weight in self._anchor.weights.items()}

    @property
    def equal_tensors(self) -> list[torch.Tensor]:
        """The module's parameters and averaged buffers, of any shapes; equal on all ranks after ``close_rounds``."""
        weights = [parameter.detach() for parameter in self._anchor.parameters.values()]
        return [*weights, *self.state.buffers.averaged_tensors]

    def shared_tensors_of(self, module: torch.nn.Module) -> dict[str, torch.Tensor]:
        """Return the anchors with the names, shapes and dtypes of a module's state dict.

        Args:
            module: the trained module, or a module that contains its parameters.
        """
        return {**self._model.state_dict_entries(module, self._shared_weights), **self.state.buffers.anchors}

    def prepare_to_evaluate(self) -> None:
        """Wait until no exchange is in flight, and put the anchors into the module until ``restore_local``.

        If the program has put weights of its own into the module, these stay, and are evaluated. One rank may call this
        method alone, since it starts no collective.
        """
        if not self.holds_anchors and not self.program_replaced_weights:
            self._rounds.pause()
            self.wait_for_exchange()
            self.hold_anchors()

    @torch.inference_mode(False)  # the clones are trained later
    def hold_anchors(self) -> None:
        """Put the anchors into the module, until ``restore_local``. One rank may call this method alone."""
        if self.holds_anchors:
            return
        self._rounds.pause()
        self._model.prepare()
        self._local_weights = {name: parameter.detach().clone() for name, parameter in self._anchor.parameters.items()}
        with torch.no_grad():
            for name, parameter in self._anchor.parameters.items():
                parameter.copy_(self._anchor.weights[name])
        self._local_buffers = self.state.buffers.put_anchors()
        self.holds_anchors = True

    def restore_local(self, keep_written: bool = True) -> None:
        """Put this rank's own weights and buffers back into the module, if it has the anchors.

        Args:
            keep_written: whether a weight or buffer stays in the module if the program has written it meanwhile, so
                that it is no longer the anchor. Weights that the program loaded, by ``load_state_dict``, become the
                anchors of a new round; all ranks must then have loaded the same.
        """
        if not self.holds_anchors:
            return
        self._model.prepare()
        written_names = self._written_names() if keep_written else frozenset()
        if self._was_loaded and written_names:
            self._start_from_module()
            return
        with torch.no_grad():
            for name, parameter in self._anchor.parameters.items():
                if name not in written_names:
                    parameter.copy_(self._local_weights[name])
        present_tensors = self._present_tensors
        self.state.buffers.overwrite(
            {
                name: present_tensors[BUFFER_PREFIX + name] if BUFFER_PREFIX + name in written_names else buffer
                for name, buffer in self._local_buffers.items()
            }
        )
        self._forget_local()
        self._rounds.resume()

    def _written_names(self) -> frozenset[str]:
        """Return names of parameters, and ``BUFFER_PREFIX`` + names of buffers, that are no longer their anchors.

        A buffer of a new shape, on which ranks have not agreed yet, never was its anchor.
        """
        buffer_anchors = {BUFFER_PREFIX + name: anchor for name, anchor in self.state.buffers.anchors.items()}
        anchors = self._anchor.weights | buffer_anchors
        present_tensors = self._present_tensors
        pairs = {name: (present_tensors[name], anchor) for name, anchor in anchors.items()}
        return frozenset(
            name
            for name, (present, anchor) in pairs.items()
            if present.shape == anchor.shape and not _same_bits(present, anchor)
        )

    @property
    def _present_tensors(self) -> dict[str, torch.Tensor]:
        """Parameters that are in the module now, by name, and buffers, by ``BUFFER_PREFIX`` + name."""
        parameters = {name: parameter.detach() for name, parameter in self._anchor.parameters.items()}
        buffers = self.state.buffers.all_buffers
        return parameters | {BUFFER_PREFIX + name: buffer for name, buffer in buffers.items()}

    def _forget_local(self) -> None:
        """Forget the weights and buffers that were saved while the module had the anchors."""
        self._local_weights, self._local_buffers = {}, {}
        self.holds_anchors = self._was_loaded = False

    def loading_starts(self) -> None:
        """Prepare for a state dict that the program loads into the module. Called on one rank, or on all.

        A program may load weights to evaluate them, and then load those that it saved before; ``restore_local`` finds
        out which it was. Entries that the state dict lacks are those of the anchors.
        """
        if not self.holds_anchors:
            self._rounds.pause()
            self.wait_for_exchange()
            self.hold_anchors()
        self._was_loaded = True

    def _start_from_module(self) -> None:
        """Begin a new round from the weights and buffers in the module, which are the same on every rank."""
        self.wait_for_exchange()
        self._forget_local()
        self._rounds.resume()
        self._anchor.start_from_parameters()
        self.state.buffers.set_anchors()
        self.state.in_round = 0

    @contextmanager
    def shared_weights(self, wait: bool = True) -> Iterator[None]:
        """Return a context in which the module has the anchors, bit for bit the same on every rank.

        The context is for evaluation, or to save the module. The anchors do not contain what the rank learned since the
        last exchange; on exit the rank's own weights are restored. One rank may enter the context alone, since no
        collective is started. Step times exclude the context.

        Args:
            wait: whether to wait for exchanges in flight, so that the anchors contain their means.
        """
        held_anchors = self.holds_anchors
        self._rounds.pause()
        if wait:
            self.wait_for_exchange()
        self.hold_anchors()
        try:
            yield
        finally:
            if not held_anchors:
                self.restore_local(keep_written=False)

    @torch.inference_mode(False)
    def wait_for_exchange(self) -> None:
        """Wait until no exchange is in flight, and apply means to anchors.

        The rank's weights do not change: ``step`` applies the anchors to the weights when the delay is over.
        """
        self._rounds.wait_for_exchange()

    def wait_before_saving(self) -> None:
        """Wait until no exchange is in flight, so that all ranks save the same anchors.

        A rank that evaluated the model has waited for its exchanges already; other ranks may not have waited.
        If an exchange failed, the anchors stay without its mean, and the next step raises the failure.
        """
        self._rounds.pause()
        with suppress(Exception):
            self.wait_for_exchange()
        self._rounds.resume()

    # checkpoints

    def prepare_to_save(self) -> None:
        """Wait until no exchange is in flight, and complete the state for a checkpoint. Called on every rank."""
        held_anchors = self.holds_anchors
        written_names = self._written_names() if held_anchors and not self._was_loaded else frozenset()
        written = {name: tensor.clone() for name, tensor in self._present_tensors.items() if name in written_names}
        self.restore_local(keep_written=self._was_loaded)
        self._rounds.wait_for_exchange()
        self._rounds.prepare_to_save()
        if held_anchors:
            self.hold_anchors()
        for name, tensor in written.items():
            self._present_tensors[name].copy_(tensor)

    def with_local_weights(self, dumped: dict[str, Any]) -> dict[str, Any]:
        """Return this rank's dumped state with its own weights and buffers, even while the module has the anchors.

        Args:
            dumped: the state, as ``RoundState.dump`` returned it.
        """
        if not self.holds_anchors:
            return dumped
        anchor = {**dumped["anchor"], "own": self._local_weights}
        buffers = {**dumped["buffers"], "own": {**dumped["buffers"]["own"], **self._local_buffers}}
        return {**dumped, "anchor": anchor, "buffers": buffers}

    def check_saved_state(self, dumped: Mapping[str, Any]) -> None:
        """Check that a saved state fits this model and these optimizers; see ``check_outer``.

        Args:
            dumped: the state, as ``RoundState.dump`` returned it.

        Raises:
            SettingsError: the state does not fit.
        """
        check_outer(dumped, self.state)

    @contextmanager
    def restoring(self, dumped: Mapping[str, Any], merged: bool) -> Iterator[None]:
        """Return a context that restores a saved state: optimizers on entry, all else on exit.

        Afterwards the module has the anchors. If the context's body raises, nothing changes.

        Args:
            dumped: the state, as ``RoundState.dump`` returned it.
            merged: whether the state was merged from the states of another number of ranks.

        Raises:
            SettingsError: an optimizer refuses its state; nothing was changed.
        """
        with loading_all_or_none(self.outer_optimizer, *self.state.inner) as load:
            load("outer/optimizer", self.outer_optimizer, dumped["optimizer"])
            for index, (optimizer, state) in enumerate(zip(self.state.inner, dumped["inner"], strict=True)):
                load(f"outer/inner/{index}", optimizer, state)
            yield
        self.state.restore(dumped, merged)
        self.hold_anchors()

    @property
    def has_stepped(self) -> bool:
        """True if a step has been made since this object was created."""
        return self._rounds.has_stepped


def _same_bits(tensor: torch.Tensor, anchor: torch.Tensor) -> bool:
    """True if a tensor has the bits of an anchor that was copied to it. The host waits for a device."""
    pair = (torch.view_as_real(each) if each.is_complex() else each for each in (tensor, anchor.detach().to(tensor)))
    first, second = (each.contiguous().reshape(-1).view(torch.uint8) for each in pair)
    return torch.equal(first, second)
