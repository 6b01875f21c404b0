# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""The door for frameworks: these parameters, by name; a backward begins; these gradients are ready; it ended.

DDP's communication hook, a loop over ``named_parameters()`` and whatever else hands gradients over are adapters of it.
All ranks make the same calls in the same order, with the same names and shapes.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import torch

from gravac.averaging.plan import Form, Piece
from gravac.candidate import Candidate
from gravac.exchange.alike import described
from gravac.exchange.executor import Fail, Mark, Number, Verdict
from gravac.guarded import Guarded
from gravac.stepping.clock import Timestamps
from gravac.stepping.coalescing import ReadyGroup
from gravac.stepping.state import StepState
from gravac.stepping.steps import Steps
from gravac.stepping.sums import Sums

Then = Callable[[BaseException | None], None]
"""Takes ``None`` when the tensors hold the mean, or what went wrong."""


class Handle:
    """Tensors on their way: they hold their mean over the ranks when it is done.

    Args:
        steps: runs the exchange.
        guarded: calls the functions that are told.
    """

    def __init__(self, steps: Steps, guarded: Guarded) -> None:
        self._steps, self._guarded = steps, guarded
        self._done = False
        self._failure: BaseException | None = None
        self._then: deque[Then] = deque()

    def wait(self) -> None:
        """Return when the tensors hold the mean: for the present stream, where streams run the exchange.

        Called alike on all ranks, if at all.

        Raises:
            ExchangeError: a rank did not answer.
            RuntimeError: of ranks in memory, not all have handed the tensors over.
        """
        if not self._done or self._steps.ready:  # a closed one has told what became of it
            self._steps.executor.order()
        if not self._done:
            self._steps.flush()
            self._steps.executor.order()
        if self._failure is not None:
            raise self._failure
        if not self._done:
            raise RuntimeError("not every rank in memory has handed these tensors over")

    def then(self, function: Then) -> None:
        """Have a function called when it is done: by the executor, so that it must not wait; at once, if it is.

        If the function raises, that is reported once, as a ``RuntimeWarning``, and training goes on.

        Where streams run the exchange it is, and then the present stream waits; see ``Door.pieces`` for another way.
        """
        self._then.append(function)
        if self._done:
            if self._steps.ready:
                self._steps.executor.join()
            self._tell()

    def _ends(self, failure: BaseException | None = None) -> None:
        if not self._done:
            self._failure, self._done = failure, True
            self._tell()

    def _tell(self) -> None:
        while self._then:
            try:
                function = self._then.popleft()
            except IndexError:  # the other of two threads was first
                return
            self._guarded(function, self._failure)


class Door:
    """Takes a model's gradients in, step by step.

    Args:
        steps: runs them.
        open_steps: called at the first step where ``steps`` has no executor yet.

    Attributes:
        shapes: shapes of the parameters, by name, in memory order.
        forms: shapes and dtypes of their gradients, in the model's order; empty where none were told.
        described: the parameters in words, in the model's order, to be compared over the ranks.
        device: where their gradients lie.

    Example:
        >>> import torch
        >>> from gravac import AdaptiveCompressor, Static, topk
        >>> from gravac.exchange.lockstep import Lockstep
        >>> ranks = Lockstep(2)
        >>> doors, gradients = [], [torch.full((64, 64), 1.0), torch.full((64, 64), 3.0)]
        >>> for executor, gradient in zip(ranks.executors, gradients):
        ...     door = AdaptiveCompressor(topk, controller=Static(cf=1)).door({"w": gradient}, executor=executor)
        ...     door.begin()
        ...     handle = door.ready([("w", gradient)])
        ...     door.end()
        >>> handle.wait()
        >>> gradients[0].mean()
        tensor(2.)
    """

    def __init__(self, steps: Steps, open_steps: Callable[[], None] = lambda: None) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.device = torch.device("cpu")
        self.forms: list[Form] = []
        self.described: dict[str, str] = {}
        self._steps = steps
        self._open = open_steps
        self._guarded = Guarded()

    def know(self, parameters: Mapping[str, torch.Tensor]) -> None:
        """Learn the parameters whose gradients will come, by name, in the model's order.

        Raises:
            TypeError: a parameter is complex.
        """
        refuse_complex(parameters)
        self.described = described(parameters)
        self.shapes = {name: memory_shape(parameter) for name, parameter in parameters.items()}
        self.forms = [(self.shapes[name], parameter.dtype) for name, parameter in parameters.items()]
        self.device = next((parameter.device for parameter in parameters.values()), self.device)

    @property
    def form_by_name(self) -> dict[str, Form]:
        """Shapes and dtypes of the gradients, by name; empty where none were told."""
        return dict(zip(self.shapes, self.forms, strict=True))

    def open(self) -> None:
        """Make what runs the steps, if there is nothing yet. Called on every rank; ``begin`` does it by itself.

        Raises:
            SettingsError: a setting differs between ranks; the message names it, its values, and whose they are.
        """
        if not self._steps.ready:
            self._open()

    def begin(
        self,
        *,
        loss_scale: Number | None = None,
        learning_rate: float = math.nan,
        takes_part: bool | None = None,
        forms: Sequence[Form] = (),
        every: int = 1,
        begun: Callable[[Candidate], None] = lambda candidate: None,
        fail: Fail = lambda failure: None,
    ) -> None:
        """A step begins: its first gradients are about to be ready.

        Args:
            loss_scale: that these gradients were multiplied with, as a scalar (0-d tensor) where only their device
                knows it; ``None`` when there is no scaler.
            learning_rate: that they will be applied with; nan when not known.
            takes_part: divide by the number of ranks for which this is true; ``None``, on every rank, divides by all.
            forms: shapes and dtypes of the gradients, where ``know`` was told of none.
            every: number of the model's own steps that these stand for, where it does not exchange in each.
            begun: told, by the executor, what runs in this step.
            fail: told of an exception of an earlier step, or of this beginning.
        """
        self.open()
        self._steps.device = self.device
        self._steps.begin(self.forms or forms, loss_scale, fail, learning_rate, takes_part, every, begun)

    def ready(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> Handle:
        """Have tensors averaged over the ranks, in place, together.

        Args:
            tensors: names and tensors, of any shape, dense in memory; the same names in the same order on all ranks.

        Raises:
            ValueError: a tensor has gaps in memory, so that it has no flat view.
            TypeError: a tensor is complex.
        """
        refuse_complex(dict(tensors))
        pieces = [Piece(name, flat(name, tensor), self._shape(name, tensor)) for name, tensor in tensors]
        return self.pieces(pieces, pieces[0].flat if len(pieces) == 1 else None)

    def pieces(
        self,
        pieces: Sequence[Piece],
        whole: torch.Tensor | None = None,
        last: bool = False,
        then: Then = lambda failure: None,
        known: Verdict = True,
    ) -> Handle:
        """Have flat pieces averaged, see ``ready``.

        Args:
            pieces: flat gradients, each with the shape of its parameter.
            whole: the flat tensor that they cover without gaps, in order, where there is one; it spares a copy.
            last: whether these are the last ones of this step.
            then: called when they hold their mean, on the stream that made it, which no other has to wait for.
            known: whether all of them, on this rank, are finite, as far as the caller knows; where not, all of them
                are NaN afterwards on every rank, if they were compressed, and nothing is kept of any.
        """
        handle = Handle(self._steps, self._guarded)
        handle.then(then)
        self._steps.exchange(ReadyGroup(tuple(pieces), whole, handle._ends, handle._ends, known), last)
        return handle

    def prepare(self, seconds: float, chosen: Callable[[Candidate], None], fail: Fail) -> None:
        """Have the first decision made, by what a step takes without exchange. Called on every rank, before ``begin``.

        Args:
            seconds: that time on this rank; the ranks go by the mean.
            chosen: told, by the executor, what was decided.
            fail: told of an exception instead.
        """
        self._steps.device = self.device
        self._steps.prepare(self.forms, seconds, chosen, fail)

    def sums(self, what: str, numbers: Sequence[float]) -> Sums:
        """Start to sum this rank's numbers over the ranks. Called on every rank, between ``end`` and ``begin``.

        Args:
            what: what they are, for errors.
            numbers: this rank's, as many on every rank.
        """
        return Sums(self._steps.executor, what, numbers)

    @property
    def rank(self) -> int:
        """Number of this rank, once a step began."""
        return self._steps.averager.rank

    @property
    def world(self) -> int:
        """Number of ranks, once a step began."""
        return self._steps.averager.world

    def decided(self, wait: bool = True) -> Candidate | None:
        """Return what was decided last; ``None`` before the first step.

        Args:
            wait: whether for all that was handed over; if not, other ranks may know of a later decision.
        """
        if wait:
            self._steps.drain()
        decision = self._steps.decision
        return None if decision is None else decision.candidate

    def state(self, wait: bool = True) -> StepState:
        """Return what the steps so far leave behind, to be read; ``wait`` as for ``decided``."""
        return self._steps.settled if wait else self._steps.state

    @property
    def compute_s(self) -> float | None:
        """Seconds that a step takes without exchange, mean over ranks, see ``prepare``; ``None``: not known.

        May be set before the first step, alike on all ranks, to what an earlier run measured.
        """
        return self._steps.compute_s

    @compute_s.setter
    def compute_s(self, seconds: float | None) -> None:
        self._steps.compute_s = seconds

    def mark(self) -> Mark | None:
        """Return the present moment, for ``Timestamps``; ``None`` where nothing runs the steps yet."""
        return self._steps.executor.mark() if self._steps.ready else None

    def join(self) -> None:
        """Have what a handle calls come after all tensors that hold their mean by then, on whatever stream."""
        self._steps.executor.join()

    @property
    def masked(self) -> bool:
        """Whether the host must not look at tensors within a step, see ``Executor``; once a step began."""
        return self._steps.executor.masked

    def judge(self, finite: torch.Tensor) -> Verdict:
        """Return what a bool scalar (0-d tensor) holds, or the tensor itself where the host must not look."""
        return self._steps.executor.judge(finite)

    def to_host(self, verdicts: torch.Tensor) -> torch.Tensor:
        """Send a bool tensor on its way to the host, see ``Executor``."""
        return self._steps.executor.to_host(verdicts)

    def end(
        self,
        timestamps: Timestamps | None = None,
        spread: Callable[[], Number] = lambda: math.nan,
        applied: Callable[[], Verdict] = lambda: True,
    ) -> None:
        """The step's gradients were all handed over.

        Args:
            timestamps: when its stages happened, as far as known.
            spread: gives, once the tensors hold their means, the norm of what this rank handed over in this step over
                the norm of the means; nan where nobody asks.
            applied: tells, then, whether all means are applied; of a step of which some are not, no controller learns
                gain, time or efficiency.
        """
        self._steps.end(timestamps or Timestamps(), lambda _: None, spread, applied)

    def _shape(self, name: str, tensor: torch.Tensor) -> tuple[int, ...]:
        return self.shapes.get(name) or memory_shape(tensor)


def refuse_complex(tensors: Mapping[str, torch.Tensor]) -> None:
    """Refuse complex tensors, which all that is below would take for their real parts.

    Raises:
        TypeError: a tensor is complex; the message has its name.
    """
    for name, tensor in tensors.items():
        if tensor.is_complex():
            raise TypeError(
                f"{name}: {str(tensor.dtype).removeprefix('torch.')} gradients cannot be averaged, only real ones can; "
                "train torch.view_as_real of it, or leave it out "
                "(DistributedDataParallel._set_params_and_buffers_to_ignore_for_model)"
            )


def flat(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's elements in memory order, ``[elements]``, as a view.

    Raises:
        ValueError: it has gaps.
    """
    if not torch.ops.aten.is_non_overlapping_and_dense(tensor):
        raise ValueError(f"{name}: a tensor of strides {tensor.stride()} has gaps in memory; hand over .contiguous()")
    return tensor.detach().as_strided((tensor.numel(),), (1,), tensor.storage_offset())


def memory_shape(parameter: torch.Tensor) -> tuple[int, ...]:
    """Return the shape with dimensions in the order they lie in memory (channels-last: O, H, W, I)."""
    strides = parameter.stride()
    order = sorted(range(parameter.dim()), key=lambda d: (-strides[d], d))
    return tuple(parameter.shape[d] for d in order)
