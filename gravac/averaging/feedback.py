# SPDX-FileCopyrightText: 2026 The gravac developers
# SPDX-License-Identifier: Apache-2.0
"""Error feedback: the unsent rest of each gradient is kept, as a residual, and added to the next gradient.

Source: Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014; Karimireddy et al., "Error Feedback Fixes
SignSGD", ICML 2019. Residuals are flat, keyed by parameter name, float32 or bfloat16 (float64 for float64 gradients).
A commit policy says when residuals change (``gravac.averaging.commit``).

If the CF falls, everything that a residual has accumulated would be sent at once. The residual is therefore moved to
``releasing``. Each step then adds only a part of that residual to the gradient. The norm of the part is at most
``release`` times the gradient's norm.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch

from gravac.averaging.commit import AtStepEnd, CommitPolicy, InPlace, Masked, Residuals
from gravac.averaging.residuals import replace_entries, round_to_bfloat16
from gravac.compressors.base import energy
from gravac.compressors.draws import Draws
from gravac.compressors.dtypes import dtype_of, working
from gravac.compressors.squares import norm
from gravac.exchange.executor import Number, Verdict


class Feedback:
    """The residuals of one rank, and how steps add them to gradients and replace them.

    Args:
        release: limit on how fast an old residual is added to gradients after a tensor's CF fell: largest norm of the
            part that one step adds / norm of the gradient; inf: the whole residual is added at once.
        overflow_safety: whether all residuals stay unchanged in a step in which any gradient was not finite; takes a
            second copy of the residuals. False: only the residuals of tensors that are exchanged together with this
            gradient stay unchanged. ``None``: False until ``turn_on_overflow_safety`` is called.
        dtype: number format of residuals; those of float64 gradients stay float64. Rounding to bfloat16 is random, so
            that on average nothing is lost: with rounding to the nearest number, a residual that is 256 times as large
            as a gradient would never change.

    Attributes:
        release: largest norm of the part of a residual in ``releasing`` that one step adds / norm of the gradient.
        dtype: number format of residuals.
        residual: residuals, flat, by parameter name; always the same dict, but its tensors may be replaced.
        releasing: residuals of parameters whose CF fell, flat, by parameter name. Each step adds only a part of them to
            the gradient. Always the same dict.
        commit_policy: commit policy, which says when residuals change.
    """

    def __init__(self, release: float = 1.0, overflow_safety: bool | None = None, dtype: str = "float32") -> None:
        self.release = release
        self.dtype = dtype_of(dtype, torch.float32)
        self.residual: Residuals = {}
        self.releasing: Residuals = {}
        self._next_releasing: dict[str, torch.Tensor | None] = {}
        self._overflow_safety = overflow_safety
        self._checks_group_means = False
        self.adapt_to_executor(bool, host_looks=True)

    # commit policy

    def adapt_to_executor(self, judge: Callable[[torch.Tensor], Verdict], host_looks: bool) -> None:
        """Set whether the host may read tensors, and choose the commit policy accordingly; called between steps.

        Args:
            judge: function that converts a 0-d bool tensor to a bool, or returns the tensor itself if the host must not
                read it.
            host_looks: whether the host may read tensors.
        """
        self._judge, self._host_looks = judge, host_looks
        self._choose_policy()

    def turn_on_overflow_safety(self) -> None:
        """Turn on overflow safety, unless the user has turned it on or off; called between steps.

        The caller does so if gradients may overflow. Residuals then stay as they are in a step with a gradient that is
        not finite.
        """
        if self._overflow_safety is None:
            self._overflow_safety = True
            self._choose_policy()

    def check_each_group(self, checks_group_means: bool = True) -> None:
        """Set whether a mean that is not finite keeps the residuals of its group unchanged, bit for bit.

        A group is a set of tensors that are exchanged together. The check of each group replaces overflow safety, which
        looks at all groups of a step together. Called between steps.

        Args:
            checks_group_means: whether the means of each group are checked.
        """
        self._checks_group_means = checks_group_means
        self._choose_policy()

    def _choose_policy(self) -> None:
        """Choose the commit policy by overflow safety, the check of groups, and whether the host may read tensors."""
        policy_class = (
            AtStepEnd
            if self._overflow_safety and not self._checks_group_means
            else InPlace
            if self._host_looks
            else Masked
        )
        self.commit_policy: CommitPolicy = policy_class(
            self.residual, self.releasing, self._next_releasing, self._checks_group_means
        )

    # a step

    def has_residual(self, name: str) -> bool:
        """True if a parameter has a residual, in ``residual`` or ``releasing``."""
        return name in self.residual or name in self.releasing

    @property
    def empty(self) -> bool:
        """True if no parameter has a residual."""
        return not self.residual and not self.releasing

    @property
    def storing_bytes(self) -> int:
        """Temporary memory that ``store_unsent`` takes to round residuals to bfloat16, in bytes per element.

        0 if residuals are not stored in bfloat16.
        """
        return 9 if self.dtype == torch.bfloat16 else 0

    def buffer(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        """Return a flat tensor that the caller overwrites with a gradient plus its residual.

        A residual in bfloat16 does not get overwritten: the tensor is then a new one.

        Args:
            name: the parameter's name.
            gradient: the parameter's gradient, flat.

        Returns:
            A tensor of the gradient's length, float32 (float64 for float64 gradients).
        """
        if self._stored(gradient.dtype) == torch.bfloat16:
            return torch.empty_like(gradient, dtype=working(gradient.dtype))
        return self.commit_policy.buffer(name, gradient)

    def fold(self, name: str, gradient: torch.Tensor, keeps_unsent: bool) -> torch.Tensor:
        """Return a gradient plus its residual, plus the part that this step adds of a residual in ``releasing``.

        ``releasing`` has the residuals of parameters whose CF fell.

        Args:
            name: the parameter's name.
            gradient: the parameter's gradient, flat, finite; not changed.
            keeps_unsent: whether the caller will store a new residual, that is, whether error feedback is above 0.

        Returns:
            The sum, flat, float32 (float64 for float64 gradients); the gradient itself if nothing is added or
            converted.
        """
        dtype = working(gradient.dtype)
        if not keeps_unsent and not self.has_residual(name):
            return gradient.to(dtype)
        residual, x = self.residual.get(name), self.buffer(name, gradient)
        if residual is None:
            x.copy_(gradient)
        elif residual.dtype == gradient.dtype != dtype:
            x.copy_(residual).add_(gradient)  # ``torch.add`` would round the sum to 16 bits
        else:
            torch.add(residual, gradient, out=x)  # in place, if x is the residual itself
        if name in self.releasing:
            self._release(name, gradient, x)
        return x

    def _release(self, name: str, gradient: torch.Tensor, x: torch.Tensor) -> None:
        """Add a part of a parameter's residual in ``releasing`` to x; store the rest in ``_next_releasing``.

        ``releasing`` has the residuals of parameters whose CF fell. The norm of the part is at most ``release`` times
        the norm of the gradient. The part is computed on the tensors' device. If the rest is zero, ``None`` is stored;
        a host that must not read tensors stores the zeros.

        Args:
            name: the parameter's name.
            gradient: the parameter's gradient, flat.
            x: gradient plus the parameter's other residual, flat; changed in place.
        """
        releasing = self.releasing[name]
        norm_limit, releasing_norm = self.release * norm(gradient), norm(releasing)
        if self._judge(releasing_norm <= norm_limit) is True:
            x.add_(releasing)
            self._next_releasing[name] = None
        elif self._judge(norm_limit > 0) is not False:
            released_fraction = torch.where(
                releasing_norm <= norm_limit, torch.ones_like(releasing_norm), norm_limit / releasing_norm
            )
            released_part = releasing * released_fraction.to(releasing.dtype)
            x.add_(released_part)
            self._next_releasing[name] = releasing - released_part

    def store_unsent(
        self, names: Sequence[str], unsent: torch.Tensor | None, finite: Verdict = True, key: str = ""
    ) -> None:
        """Set the residual of a parameter, if ``finite``; otherwise the residual stays as it was.

        Args:
            names: the parameter's name; several names only if ``unsent`` is ``None``.
            unsent: the new residual, flat; ``None``: the parameters have no residual.
            finite: whether every gradient of the group was finite on every rank: True, or a 0-d bool tensor that only
                the device reads.
            key: key of the random numbers (``Draws``) that round the residual to bfloat16; not used for other dtypes.
        """
        if unsent is not None and self._stored(unsent.dtype) == torch.bfloat16:
            unsent = round_to_bfloat16(unsent, Draws(key))
        for name in names:
            self.commit_policy.store_residual(name, unsent, finite)

    # between steps

    def set_aside(self, cf_fell: Callable[[str], bool] = lambda name: True) -> None:
        """Move the residuals of parameters whose CF fell from ``residual`` to ``releasing``.

        Each step then adds only a part of them to the gradient. If ``release`` is inf, do nothing: the next step adds
        the whole residuals.

        Args:
            cf_fell: function that gets a parameter's name, and returns whether the CF of this parameter fell; by
                default, it returns True for all parameters.
        """
        if self.release == float("inf"):
            return
        for name in [name for name in self.residual if cf_fell(name)]:
            residual, releasing = self.residual.pop(name), self.releasing.get(name)
            self.releasing[name] = (
                residual.to(working(residual.dtype)) if releasing is None else releasing.add_(residual)
            )
            self.commit_policy.forget(name)

    def rescale(self, factor: Number) -> None:
        """Multiply all residuals by ``factor``, by which the loss scale was multiplied."""
        for tensor in (*self.residual.values(), *self.releasing.values()):
            tensor.mul_(factor)

    def load(self, residual: Mapping[str, torch.Tensor], releasing: Mapping[str, torch.Tensor]) -> None:
        """Replace all residuals by copies of saved ones: flat tensors, by parameter name."""
        residual_copies = {name: tensor.to(self._stored(tensor.dtype), copy=True) for name, tensor in residual.items()}
        replace_entries(self.residual, residual_copies)
        replace_entries(self.releasing, {name: tensor.clone() for name, tensor in releasing.items()})
        self._next_releasing.clear()
        self._choose_policy()

    def to_device(self, device: torch.device) -> None:
        """Move all residuals to a device, for example after a checkpoint was loaded to another device."""
        for residuals in (self.residual, self.releasing):
            replace_entries(residuals, {name: tensor.to(device) for name, tensor in residuals.items()})

    def leftover(self, sends_all: Callable[[str], bool]) -> dict[str, torch.Tensor]:
        """Return the squared norms, 0-d, by parameter name, of residuals that steps send until they are zero.

        Steps send these residuals, or parts of them, and add no unsent rest to them. They are all residuals in
        ``releasing``, and the residuals of parameters that are sent dense.

        Args:
            sends_all: function that gets a parameter's name, and returns whether the parameter is sent dense.
        """
        energy_by_name = {name: energy(releasing) for name, releasing in self.releasing.items()}
        for name, residual in self.residual.items():
            if sends_all(name):
                energy_by_name[name] = (
                    energy_by_name[name] + energy(residual) if name in energy_by_name else energy(residual)
                )
        return energy_by_name

    def drop(self, names: Iterable[str], sends_all: Callable[[str], bool]) -> None:
        """Drop the residuals whose norms ``leftover`` returned; called when they are zero on all ranks.

        Args:
            names: names of the parameters whose residuals are zero.
            sends_all: function that gets a parameter's name, and returns whether the parameter is sent dense.
        """
        for name in names:
            self.releasing.pop(name, None)
            if sends_all(name):
                self.residual.pop(name, None)
                self.commit_policy.forget(name)

    def _stored(self, dtype: torch.dtype) -> torch.dtype:
        """Return the number format in which residuals that were computed in ``dtype`` are stored."""
        return dtype if dtype == torch.float64 else self.dtype
